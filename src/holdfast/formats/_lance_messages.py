"""Lance's protobuf messages, described once: every field that Holdfast reads or writes.

A message is a table of (name, number, type): `*` repeats (numbers packed, as Lance writes
them), `<M` is another message of the table, `{}` a map from strings to strings, `{bytes}` one
to bytes. A message without fields here is one that nobody looks into.

Each module asks `lance_view` for the few fields it needs. What a view leaves out passes through
the protobuf runtime untouched, so that fields of a newer Lance survive; and the fewer fields,
the faster a manifest of thousands of fragments is read. `Manifest: "fields! version"` takes two
fields, the first one as the bytes of its messages; `"Head=Manifest"` is a second view of the
same message.

Checked against `CHECKED_RELEASE` by tests/formats/test_lance_messages.py, which reads with this
description what pylance writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from google.protobuf.message import Message

from holdfast.formats._protobuf import Described, message_classes

CHECKED_RELEASE = "14.0.2"
"""The release of pylance whose files this description was compared with."""
SUPPORTED_PYLANCE = range(14, 15)
"""The major releases of pylance that Holdfast works with; `pyproject.toml` says the same."""

_OPERATIONS = (
    ("append", 100, "<Append"),
    ("delete", 101, "<Delete"),
    ("overwrite", 102, "<Overwrite"),
    ("create_index", 103, "<CreateIndex"),
    ("rewrite", 104, "<Rewrite"),
    ("merge", 105, "<Merge"),
    ("restore", 106, "<Restore"),
    ("reserve_fragments", 107, "<ReserveFragments"),
    ("update", 108, "<Update"),
    ("project", 109, "<Project"),
    ("update_config", 110, "<UpdateConfig"),
    ("data_replacement", 111, "<DataReplacement"),
    ("update_mem_wal_state", 112, "<UpdateMemWalState"),
    ("clone", 113, "<Clone"),
    ("update_bases", 114, "<UpdateBases"),
    ("data_overlay", 115, "<DataOverlay"),
)

LANCE_MESSAGES: Described = {
    # The manifest of a version: table.proto.
    "Manifest": (
        ("fields", 1, "*<Field"),
        ("fragments", 2, "*<DataFragment"),
        ("version", 3, "uint64"),
        ("schema_metadata", 5, "{bytes}"),
        ("index_section", 6, "uint64"),
        ("timestamp", 7, "<Timestamp"),
        ("reader_feature_flags", 9, "uint64"),
        ("writer_feature_flags", 10, "uint64"),
        ("max_fragment_id", 11, "uint32"),
        ("transaction_file", 12, "string"),
        ("writer_version", 13, "<WriterVersion"),
        ("data_format", 15, "<DataFormat"),
        ("config", 16, "{}"),
        ("base_paths", 18, "*<BasePath"),
        ("table_metadata", 19, "{}"),
        ("transaction_section", 23, "uint64"),
    ),
    "Timestamp": (("seconds", 1, "int64"), ("nanos", 2, "int32")),
    "WriterVersion": (("library", 1, "string"), ("version", 2, "string")),
    "DataFormat": (("file_format", 1, "string"), ("version", 2, "string")),
    "BasePath": (("id", 1, "uint32"), ("is_dataset_root", 3, "bool"), ("path", 4, "string")),
    "Field": (
        ("name", 2, "string"),
        ("id", 3, "int32"),
        ("parent_id", 4, "int32"),
        ("logical_type", 5, "string"),
        ("nullable", 6, "bool"),
        ("metadata", 10, "{bytes}"),
        ("primary_key", 12, "bool"),
        ("key_position", 13, "uint32"),
    ),
    "DataFragment": (
        ("id", 1, "uint64"),
        ("files", 2, "*<DataFile"),
        ("deletion_file", 3, "<DeletionFile"),
        ("physical_rows", 4, "uint64"),
    ),
    "DataFile": (
        ("path", 1, "string"),
        ("fields", 2, "*int32"),
        ("column_indices", 3, "*int32"),
        ("file_major_version", 4, "uint32"),
        ("file_minor_version", 5, "uint32"),
        ("file_size_bytes", 6, "uint64"),
        ("base_id", 7, "uint32"),
    ),
    "DeletionFile": (
        ("file_type", 1, "uint64"),
        ("read_version", 2, "uint64"),
        ("id", 3, "uint64"),
        ("num_deleted_rows", 4, "uint64"),
        ("base_id", 7, "uint32"),
    ),
    # The indexes of a version.
    "IndexSection": (("indices", 1, "*<Index"),),
    "Index": (
        ("uuid", 1, "<Uuid"),
        ("fields", 2, "*int32"),
        ("name", 3, "string"),
        ("details", 6, "<Any"),
        ("base_id", 9, "uint32"),
        ("files", 10, "*<IndexFile"),
    ),
    "IndexFile": (("path", 1, "string"), ("size_bytes", 2, "uint64")),
    "Uuid": (("uuid", 1, "bytes"),),
    "Any": (("type_url", 1, "string"), ("value", 2, "bytes")),
    # The log of a table: `MemWalIndexDetails`, in the details of its index.
    "Details": (
        ("snapshot_millis", 1, "int64"),
        ("num_shards", 2, "uint32"),
        ("snapshots", 3, "bytes"),
        ("specs", 7, "*<ShardingSpec"),
        ("maintained", 8, "*string"),
        ("compacted", 9, "*<CompactedSsTable"),
        ("catchup", 10, "*<IndexCatchup"),
        ("defaults", 11, "{}"),
        ("all", 12, "bool"),
    ),
    "ShardingSpec": (("spec_id", 1, "uint32"), ("fields", 2, "*<ShardingField")),
    "ShardingField": (
        ("field_id", 1, "string"),
        ("source_ids", 2, "*int32"),
        ("transform", 3, "string"),
        ("expression", 4, "string"),
        ("result_type", 5, "string"),
        ("parameters", 6, "{}"),
    ),
    "CompactedSsTable": (("shard_id", 1, "<Uuid"), ("generation", 2, "uint64")),
    "IndexCatchup": (("index", 1, "string"), ("generations", 2, "*<CompactedSsTable")),
    # The manifest of a shard. `token` is ours: two claims are equal in every other byte.
    "ShardManifest": (
        ("version", 1, "uint64"),
        ("writer_epoch", 2, "uint64"),
        ("replay_after", 3, "uint64"),
        ("last_seen", 4, "uint64"),
        ("current_generation", 6, "uint64"),
        ("sstables", 8, "*<SsTable"),
        ("shard_spec_id", 10, "uint32"),
        ("shard_id", 11, "<Uuid"),
        ("field_entries", 14, "*<FieldEntry"),
        ("status", 15, "uint32"),
        ("token", 1000, "string"),
    ),
    "SsTable": (
        ("generation", 1, "uint64"),
        ("path", 2, "string"),
        ("in_memory_bytes", 3, "uint64"),
        ("physical_rows", 4, "uint64"),
        ("primary_key_bytes", 5, "uint64"),
    ),
    "FieldEntry": (("field_id", 1, "string"), ("value", 2, "bytes")),
    # What a commit did: transaction.proto.
    "Transaction": (("read_version", 1, "uint64"), ("uuid", 2, "string"), *_OPERATIONS),
    "Append": (("fragments", 1, "*<DataFragment"),),
    "Delete": (
        ("updated_fragments", 1, "*<DataFragment"),
        ("deleted_fragment_ids", 2, "*uint64"),
    ),
    "Rewrite": (("old_fragments", 1, "*<DataFragment"), ("groups", 3, "*<RewriteGroup")),
    "RewriteGroup": (("old_fragments", 1, "*<DataFragment"),),
    "Update": (
        ("removed_fragment_ids", 1, "*uint64"),
        ("updated_fragments", 2, "*<DataFragment"),
    ),
    "Overwrite": (),
    "CreateIndex": (),
    "Merge": (),
    "Restore": (),
    "ReserveFragments": (),
    "Project": (),
    "UpdateConfig": (),
    "DataReplacement": (),
    "UpdateMemWalState": (),
    "Clone": (),
    "UpdateBases": (),
    "DataOverlay": (),
}

OPERATIONS: Mapping[str, str] = {name: kind[1:] for name, _, kind in _OPERATIONS}
"""The field of each operation in a transaction -> the operation's name."""


def is_supported(release: str) -> bool:
    """Tell whether a release of pylance is one whose files are described here."""
    major = release.partition(".")[0]
    return major.isdecimal() and int(major) in SUPPORTED_PYLANCE


View: TypeAlias = Mapping[str, str]
"""A message, or `Alias=Message` -> the names of its fields, separated by blanks.

A message that another one of the view holds and that is not listed is taken whole.
"""


def lance_view(package: str, view: View) -> Mapping[str, type[Message]]:
    """Make a class for every message of a view; undescribed fields pass through untouched."""
    described: dict[str, tuple[tuple[str, int, str], ...]] = {}
    for label, names in view.items():
        alias, _, message = label.partition("=")
        described[alias] = _select(message or alias, names.split())
    missing = _missing_messages(described)
    while missing:
        described.update((name, LANCE_MESSAGES[name]) for name in missing)
        missing = _missing_messages(described)
    return message_classes(package, described)


def _select(message: str, names: list[str]) -> tuple[tuple[str, int, str], ...]:
    """Return the description of some fields; `name!` reads messages as their bytes."""
    fields = {name: (name, number, kind) for name, number, kind in LANCE_MESSAGES[message]}
    chosen = []
    for name in names:
        label, number, kind = fields[name.rstrip("!")]
        repeats = "*" if kind.startswith(("*", "{")) else ""
        chosen.append((label, number, f"{repeats}bytes" if name.endswith("!") else kind))
    return tuple(chosen)


def _missing_messages(described: Described) -> set[str]:
    kinds = {kind.lstrip("*") for fields in described.values() for _, _, kind in fields}
    return {kind[1:] for kind in kinds if kind.startswith("<")} - described.keys()


__all__ = [
    "CHECKED_RELEASE",
    "LANCE_MESSAGES",
    "OPERATIONS",
    "SUPPORTED_PYLANCE",
    "View",
    "is_supported",
    "lance_view",
]
