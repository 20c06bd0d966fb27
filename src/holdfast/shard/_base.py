"""What a writer must know of the base table: its columns with their ids, its key, its indexes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import lance
import pyarrow as pa
from lance.query import DocumentGranularity

from holdfast.commits import check_log_id, lost_log
from holdfast.core import TableCore
from holdfast.errors import InvalidInputError
from holdfast.formats import (
    MEM_WAL_INDEX,
    TOMBSTONE,
    Content,
    Field,
    Head,
    LogEntry,
    MemWalDetails,
    check_key_types,
    column_ids,
    key_columns,
    lance_fields,
    log_schema,
    read_details,
    read_log_entry,
)

_Described: TypeAlias = Any  # pylance's description of an index
_VECTOR = "VECTOR"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptIndex:
    """An index of the base table that SSTables carry under the same name.

    Attributes:
        name: its name.
        column: the column it is on.
        kind: `BTREE`, `INVERTED` or `VECTOR`.
        settings: of an inverted index, how text is split; of a vector index, the `metric`.
    """

    name: str
    column: str
    kind: str
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The base table at one version, as far as writers need it.

    Attributes:
        version: the version.
        schema: its columns.
        keys: the columns of the primary key; none for an append-only table.
        storage_schema: the columns of rows in memory and in SSTables, with the tombstone.
        log_schema: the columns of log entries: those of rows in memory, with their ids.
        fields: its columns with their ids, at every depth.
        ids: the id of each column and nested field, by its path of names.
        storage_version: of Lance's data files.
        details: of the table's log; None when it was never prepared for writers.
        indexes: those that SSTables carry too.
        content: checks rows before they are written.
    """

    version: int
    schema: pa.Schema
    keys: tuple[str, ...]
    storage_schema: pa.Schema
    log_schema: pa.Schema
    fields: tuple[Field, ...]
    ids: Mapping[tuple[str, ...], int]
    storage_version: str
    details: MemWalDetails | None
    indexes: tuple[KeptIndex, ...]
    content: Content = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make what every put needs once."""
        object.__setattr__(self, "content", Content(self.schema))

    @property
    def log_id(self) -> str | None:
        """Return the id of the log; another one means that the columns were replaced."""
        return None if self.details is None else self.details.log_id

    @property
    def numbered_afresh(self) -> bool:
        """Tell whether a new dataset of these columns gets the same ids by itself."""
        top = [path[0] for path in self.ids if len(path) == 1]
        return top == self.schema.names and list(self.ids.values()) == list(range(len(self.ids)))


def _storage_schema(schema: pa.Schema, keys: tuple[str, ...]) -> pa.Schema:
    """Return the columns of rows in memory and in SSTables.

    A deleted row has its key and nothing else, so every other column may be null.
    """
    fields = [one.with_nullable(one.nullable or one.name not in keys) for one in schema]
    return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_(), nullable=False)])


def read_base(dataset: lance.LanceDataset, manifest: bytes) -> Base:
    """Return what a dataset and the bytes of its manifest say.

    Raises:
        InvalidInputError: the table cannot have a log: a key of another type, a column named
            like the tombstone.
        CorruptError: the manifest cannot be read.
    """
    schema = dataset.schema
    keys = key_columns(schema)
    check_key_types(schema, keys)
    if TOMBSTONE in schema.names:
        raise InvalidInputError(
            f"a table with a column {TOMBSTONE!r} can have no log: rename the column"
        )
    details = read_details(manifest)
    ids = column_ids(manifest)
    return Base(
        version=int(dataset.version),
        schema=schema,
        keys=keys,
        storage_schema=_storage_schema(schema, keys),
        log_schema=log_schema(schema, dataset.lance_schema.fields(), keys),
        fields=tuple(lance_fields(schema, dataset.lance_schema.fields())),
        ids=ids,
        storage_version=str(dataset.data_storage_version),
        details=details,
        indexes=_kept_indexes(dataset, details) if details is not None else (),
    )


def base_of_rows(schema: pa.Schema, log_columns: pa.Schema, keys: tuple[str, ...]) -> Base:
    """Return a base that knows columns and key: enough to make log entries of rows.

    For tasks elsewhere, which get these as plain data and read no manifest.
    """
    return Base(
        version=0,
        schema=schema,
        keys=keys,
        storage_schema=_storage_schema(schema, keys),
        log_schema=log_columns,
        fields=(),
        ids={},
        storage_version="",
        details=None,
        indexes=(),
    )


def read_entry(manifest: bytes, shard_ids: Callable[[], Sequence[str]]) -> LogEntry | None:
    """Return the entry of the log in a manifest; None when the table has no log.

    Args:
        manifest: of the newest version.
        shard_ids: lists the table's shards; called when there is no entry.

    Raises:
        LogLostError: there is none, or a new one, although the table has a log.
        CorruptError: the manifest cannot be read.
    """
    head = Head(manifest)
    entry = read_log_entry(manifest)
    check_log_id(head.config, entry, version=head.version)
    if entry is None and (shards := shard_ids()):
        raise lost_log(version=head.version, shards=len(shards))
    return entry


def read_entry_at(core: TableCore, dataset: lance.LanceDataset) -> LogEntry | None:
    """Return the entry of the log that a version has; None when the table has no log.

    Raises:
        LogLostError: it has shards, but their entry is lost.
        NotFoundError: the version is gone.
    """
    return read_entry(core.manifest(int(dataset.version)), core.shard_ids)


def read_merged(core: TableCore, dataset: lance.LanceDataset) -> dict[str, int]:
    """Return, by shard id, the newest generation that a version has merged.

    Raises:
        LogLostError: it has shards, but their entry is lost.
        NotFoundError: the version is gone.
    """
    entry = read_entry_at(core, dataset)
    return {} if entry is None else entry.merged


def read_log_base(core: TableCore, dataset: lance.LanceDataset) -> Base:
    """Return what the manifest of a version says, of a table that has a log.

    Raises:
        InvalidInputError: the table has no log, or can have none.
        LogLostError: it has shards, but their entry is lost.
        NotFoundError: the version is gone.
    """
    if read_entry_at(core, dataset) is None:
        raise InvalidInputError(
            "this table has no log: there is nothing to flush or merge", table=core.location
        )
    return read_base(dataset, core.manifest(int(dataset.version)))


def _kept_indexes(dataset: lance.LanceDataset, details: MemWalDetails) -> tuple[KeptIndex, ...]:
    indexes = []
    for one in dataset.describe_indices():
        wanted = details.maintain_all_indexes or one.name in details.maintained_indexes
        if one.name == MEM_WAL_INDEX or not wanted or len(one.field_names) != 1:
            continue
        kept = kept_index(one)
        if kept is not None:
            indexes.append(kept)
    return tuple(indexes)


def kept_index(described: _Described) -> KeptIndex | None:
    kind = str(described.index_type).upper()
    settings: dict[str, object] = {}
    if kind == "INVERTED":
        settings = {key: value for key, value in described.details.items() if value is not None}
        if "document_granularity" in settings:
            settings["document_granularity"] = DocumentGranularity(settings["document_granularity"])
    elif kind.startswith("IVF"):
        kind = _VECTOR
        settings = {"metric": str(described.details.get("metric_type", "L2")).lower()}
    elif kind != "BTREE":
        return None  # Lance's own log keeps no other kind either
    return KeptIndex(
        name=described.name, column=described.field_names[0], kind=kind, settings=settings
    )
