"""`ShardWriter`: a shard's log, rows in memory and SSTables in one handle."""

from typing import TYPE_CHECKING

from holdfast._lazy import load_names

if TYPE_CHECKING:
    from holdfast.shard._base import (
        Base,
        KeptIndex,
        base_of_rows,
        kept_index,
        read_base,
        read_entry,
        read_entry_at,
        read_log_base,
        read_merged,
    )
    from holdfast.shard._claims import check_log, claim_slots, claim_writer
    from holdfast.shard._config import ShardWriterConfig
    from holdfast.shard._engine import MEMTABLE_TAG, PutResult
    from holdfast.shard._prepare import prepare_writers, read_newest_base
    from holdfast.shard._rows import InputRows, fit_entry, rows_of, stored_batch, tombstones_of
    from holdfast.shard._shards import UNSHARDED, Router, Shard, Sharding, find_shard
    from holdfast.shard._sstables import SstableWriter, combine_column, sstables_of
    from holdfast.shard._stats import MemTableStats, WalStats, WriterStats
    from holdfast.shard._writer import ShardWriter

__all__ = [
    "MEMTABLE_TAG",
    "UNSHARDED",
    "Base",
    "InputRows",
    "KeptIndex",
    "MemTableStats",
    "PutResult",
    "Router",
    "Shard",
    "ShardWriter",
    "ShardWriterConfig",
    "Sharding",
    "SstableWriter",
    "WalStats",
    "WriterStats",
    "base_of_rows",
    "check_log",
    "claim_slots",
    "claim_writer",
    "combine_column",
    "find_shard",
    "fit_entry",
    "kept_index",
    "prepare_writers",
    "read_base",
    "read_entry",
    "read_entry_at",
    "read_log_base",
    "read_merged",
    "read_newest_base",
    "rows_of",
    "sstables_of",
    "stored_batch",
    "tombstones_of",
]

__getattr__ = load_names(
    __name__,
    {
        "_base": (
            "Base KeptIndex base_of_rows kept_index read_base read_entry read_entry_at "
            "read_log_base read_merged"
        ),
        "_claims": "check_log claim_slots claim_writer",
        "_config": "ShardWriterConfig",
        "_engine": "MEMTABLE_TAG PutResult",
        "_prepare": "prepare_writers read_newest_base",
        "_rows": "InputRows fit_entry rows_of stored_batch tombstones_of",
        "_shards": "UNSHARDED Router Shard Sharding find_shard",
        "_sstables": "SstableWriter sstables_of combine_column",
        "_stats": "MemTableStats WalStats WriterStats",
        "_writer": "ShardWriter",
    },
)
