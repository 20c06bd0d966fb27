"""Holdfast: an acknowledged write is in the table; retried, it is there once.

    table = holdfast.create_table("s3://bucket/events.lance", schema, commit_store="env:LAKE_DB")
    result = table.append(rows, txn=("job7", 42))

Errors are in `holdfast.errors`, commit stores in `holdfast.arbiter`, what happens can be
watched through `holdfast.events`, and the tools that prove all this are in
`holdfast.testing`. What needs Lance itself is loaded at its first use.
"""

import os
from typing import TYPE_CHECKING

from holdfast._lazy import load_names
from holdfast._version import __version__
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.arbiter import (
        Lost,
        Name,
        ProbeReport,
        Verdict,
        Won,
        create_arbiter,
        new_token,
        open_arbiter,
        probe,
    )
    from holdfast.changes import ChangeCursor, Changes
    from holdfast.commits import CommitResult, Namespace, TableStatus, VersionInfo
    from holdfast.edit import (
        ChangeResult,
        Clause,
        when_matched_delete,
        when_matched_update,
        when_not_matched_by_source_delete,
        when_not_matched_by_source_update,
        when_not_matched_insert,
    )
    from holdfast.index import BuildInfo, IndexInfo, IndexResult
    from holdfast.lifecycle import adopt_table, create_table, release_table, write_table
    from holdfast.memtable import IndexConfig
    from holdfast.options import StorageOptions
    from holdfast.read import TableSnapshot
    from holdfast.shard import PutResult, Router, Shard, Sharding, ShardWriter, ShardWriterConfig
    from holdfast.table import Table, open_table
    from holdfast.wal import Appended, WalAppender, WalTailer

__all__ = [
    "Appended",
    "BuildInfo",
    "ChangeCursor",
    "ChangeResult",
    "Changes",
    "Clause",
    "CommitResult",
    "HoldfastError",
    "IndexConfig",
    "IndexInfo",
    "IndexResult",
    "Lost",
    "Name",
    "Namespace",
    "ProbeReport",
    "PutResult",
    "Router",
    "Shard",
    "ShardWriter",
    "ShardWriterConfig",
    "Sharding",
    "StorageOptions",
    "Table",
    "TableSnapshot",
    "TableStatus",
    "Verdict",
    "VersionInfo",
    "WalAppender",
    "WalTailer",
    "Won",
    "__version__",
    "adopt_table",
    "create_arbiter",
    "create_table",
    "new_token",
    "open_arbiter",
    "open_table",
    "probe",
    "release_table",
    "when_matched_delete",
    "when_matched_update",
    "when_not_matched_by_source_delete",
    "when_not_matched_by_source_update",
    "when_not_matched_insert",
    "write_table",
]

# At each text search Lance calls the marker of a log, an index without columns, an error. It reads
# this once, when it is first imported; a user's own setting stays.
os.environ.setdefault("LANCE_LOG", "warn,lance::index=off")

__getattr__ = load_names(
    __name__,
    {
        "arbiter": (
            "Lost Name ProbeReport Verdict Won create_arbiter new_token open_arbiter probe"
        ),
        "changes": "ChangeCursor Changes",
        "commits": "CommitResult Namespace TableStatus VersionInfo",
        "edit": (
            "ChangeResult Clause when_matched_delete when_matched_update "
            "when_not_matched_by_source_delete when_not_matched_by_source_update "
            "when_not_matched_insert"
        ),
        "index": "BuildInfo IndexInfo IndexResult",
        "lifecycle": "adopt_table create_table release_table write_table",
        "memtable": "IndexConfig",
        "options": "StorageOptions",
        "read": "TableSnapshot",
        "shard": "PutResult Router Shard ShardWriter ShardWriterConfig Sharding",
        "table": "Table open_table",
        "wal": "Appended WalAppender WalTailer",
    },
    submodules="arbiter events options txn",
)
