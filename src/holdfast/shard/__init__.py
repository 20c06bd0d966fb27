"""`ShardWriter`: a shard's log, rows in memory and SSTables in one handle."""

from holdfast.shard._config import ShardWriterConfig
from holdfast.shard._engine import PutResult
from holdfast.shard._shards import Router, Shard, Sharding
from holdfast.shard._stats import MemTableStats, WalStats, WriterStats
from holdfast.shard._writer import ShardWriter

__all__ = [
    "MemTableStats",
    "PutResult",
    "Router",
    "Shard",
    "ShardWriter",
    "ShardWriterConfig",
    "Sharding",
    "WalStats",
    "WriterStats",
]
