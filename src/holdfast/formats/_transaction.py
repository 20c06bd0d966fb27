"""What a version's manifest and a transaction file tell about a commit; read, never written.

A writer puts its transaction under `_transactions/` before it tries to make a version of it,
so the file is there also when the version never was, or was overwritten. The manifest of a
version repeats the transaction that made it, or names its file. Only the fields that matter
here are described to the protobuf runtime.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError, Message

from holdfast.errors import CorruptError
from holdfast.formats._lance_messages import OPERATIONS, View, lance_view
from holdfast.formats._manifest import TOKEN_KEY, read_config
from holdfast.formats._protobuf import (
    BROKEN,
    main_section,
    read_section,
)

TRANSACTIONS_FOLDER = "_transactions"
DATA_FOLDER = "data"
DELETIONS_FOLDER = "_deletions"

Made: TypeAlias = Any
"""A message whose class is made at run time."""

_SUFFIX = ".txn"

_VIEW: View = {
    "Manifest": "fields fragments version timestamp transaction_file transaction_section",
    "Field": "name id parent_id nullable",
    "DataFragment": "id files deletion_file physical_rows",
    "DeletionFile": "num_deleted_rows",
    "Transaction": f"read_version uuid {' '.join(OPERATIONS)}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFileEntry:
    """One data file as a transaction lists it; `path` is below the folder `data`."""

    path: str
    fields: tuple[int, ...]
    column_indices: tuple[int, ...]
    major: int
    minor: int
    size: int | None
    base_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentEntry:
    """One fragment as a transaction lists it."""

    id: int
    rows: int
    files: tuple[DataFileEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One commit as its writer meant it.

    Attributes:
        uuid: what tells it from others.
        read_version: the version it was built on.
        operation: Lance's word for it; `Unknown` for one that is newer than this code.
        added: the fragments of an append.
        touched: ids of the fragments that it changes or removes, as far as it lists them.
        consumed: data files, below `data`, that a rewrite replaced by others.
    """

    uuid: str
    read_version: int
    operation: str
    added: tuple[FragmentEntry, ...]
    touched: frozenset[int]
    consumed: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentState:
    """What tells whether a fragment of one version is the same in another.

    Attributes:
        files: its data files, as bytes to compare.
        deletions: its deletion file, as bytes to compare; empty for none.
        rows: how many rows it shows.
        size: bytes of its data files.
    """

    files: bytes
    deletions: bytes
    rows: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldEntry:
    """One column of a version's schema, or a part of one."""

    id: int
    parent_id: int
    name: str
    nullable: bool


class VersionFacts:
    """What the manifest of one version tells; fragments are looked at only when asked for."""

    def __init__(self, manifest: bytes) -> None:
        """Read it.

        Raises:
            CorruptError: these bytes are no manifest.
        """
        self._message, section = _parse_manifest(manifest)
        self.config = read_config(manifest)
        self.transaction = None if section is None else _transaction(section)
        self.transaction_file: str | None = self._message.transaction_file or None

    @property
    def version(self) -> int:
        """Return the version."""
        return int(self._message.version)

    @property
    def time(self) -> datetime:
        """Return when its writer made it, by that machine's clock."""
        stamp = self._message.timestamp
        begun = datetime.fromtimestamp(0, UTC) + timedelta(seconds=stamp.seconds)
        return begun + timedelta(microseconds=stamp.nanos // 1000)

    @property
    def rows(self) -> int:
        """Count the rows that it shows."""
        return sum(
            part.physical_rows - part.deletion_file.num_deleted_rows
            for part in self._message.fragments
        )

    @property
    def fragments(self) -> int:
        """Count its fragments."""
        return len(self._message.fragments)

    @property
    def token(self) -> str | None:
        """Return the mark of the decision that the config speaks of; stock writers carry it on."""
        return self.config.get(TOKEN_KEY)

    @property
    def fields(self) -> tuple[FieldEntry, ...]:
        """Return the schema."""
        return tuple(
            FieldEntry(
                id=field.id,
                parent_id=field.parent_id,
                name=field.name,
                nullable=field.nullable,
            )
            for field in self._message.fields
        )

    def fragment_bytes(self) -> dict[int, int]:
        """Return the size of each fragment's files, by its id, in the order of the manifest."""
        return {
            part.id: sum(file.file_size_bytes for file in part.files)
            for part in self._message.fragments
        }

    def fragment_states(self) -> dict[int, FragmentState]:
        """Return what may differ of a fragment from version to version, by its id, in order."""
        return {
            part.id: FragmentState(
                # Fields that are not described here are kept, and so compared.
                files=b"".join(file.SerializeToString(deterministic=True) for file in part.files),
                deletions=part.deletion_file.SerializeToString(deterministic=True),
                rows=part.physical_rows - part.deletion_file.num_deleted_rows,
                size=sum(file.file_size_bytes for file in part.files),
            )
            for part in self._message.fragments
        }

    def fragment_rows(self) -> dict[int, int]:
        """Return how many rows each fragment shows, by its id."""
        return {
            part.id: part.physical_rows - part.deletion_file.num_deleted_rows
            for part in self._message.fragments
        }

    def data_files(self) -> Iterator[tuple[str, int]]:
        """Yield each data file, as a path in this table, with its fragment's id.

        Files of a table that this one was cloned from are left out.
        """
        for part in self._message.fragments:
            for file in part.files:
                if not file.HasField("base_id"):
                    yield data_path(file.path), part.id


def decode_transaction(body: bytes) -> Transaction:
    """Return the transaction behind the bytes of a transaction file.

    Raises:
        CorruptError: they are none.
    """
    try:
        message: Any = _classes()["Transaction"]()
        message.ParseFromString(body)
    except DecodeError as error:
        raise CorruptError("these bytes are no Lance transaction", size=len(body)) from error
    if not message.uuid:
        raise CorruptError("these bytes are no Lance transaction", size=len(body))
    return _transaction(message)


def is_transaction_path(path: str) -> bool:
    """Tell whether an object of a table is a transaction file."""
    return path.startswith(f"{TRANSACTIONS_FOLDER}/") and path.endswith(_SUFFIX)


def transaction_path(file: str) -> str:
    """Return where the transaction file is that a manifest names."""
    return f"{TRANSACTIONS_FOLDER}/{file}"


def data_path(file: str) -> str:
    """Return where a data file is that a manifest or transaction lists."""
    return f"{DATA_FOLDER}/{file}"


def _transaction(message: Made) -> Transaction:
    field = next((name for name in OPERATIONS if message.HasField(name)), "")
    operation = OPERATIONS.get(field, "Unknown")
    body = getattr(message, field, None)
    replaced = _replaced_fragments(operation, body)
    touched = {part.id for part in replaced}
    touched.update(getattr(body, "deleted_fragment_ids", ()))
    touched.update(getattr(body, "removed_fragment_ids", ()))
    touched.update(part.id for part in getattr(body, "updated_fragments", ()))
    added = body.fragments if operation == "Append" and body is not None else ()
    return Transaction(
        uuid=message.uuid,
        read_version=message.read_version,
        operation=operation,
        added=tuple(_fragment(part) for part in added),
        touched=frozenset(touched),
        consumed=frozenset(file.path for part in replaced for file in part.files),
    )


def _replaced_fragments(operation: str, body: Made) -> list[Made]:
    """Return the fragments that a rewrite put others in place of."""
    if operation != "Rewrite":
        return []
    return [*body.old_fragments, *(part for group in body.groups for part in group.old_fragments)]


def _fragment(part: Made) -> FragmentEntry:
    files = tuple(
        DataFileEntry(
            path=file.path,
            fields=tuple(file.fields),
            column_indices=tuple(file.column_indices),
            major=file.file_major_version,
            minor=file.file_minor_version,
            size=file.file_size_bytes or None,
            base_id=file.base_id if file.HasField("base_id") else None,
        )
        for file in part.files
    )
    return FragmentEntry(id=part.id, rows=part.physical_rows, files=files)


def _parse_manifest(manifest: bytes) -> tuple[Any, Any]:
    """Return the manifest's message, and its transaction's if it is inside."""
    start = main_section(manifest)
    try:
        message: Any = read_section(manifest, start, _classes()["Manifest"])[0]
        if not message.HasField("transaction_section"):
            return message, None
        inside = read_section(manifest, message.transaction_section, _classes()["Transaction"])
    except BROKEN as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    return message, inside[0]


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return lance_view("holdfast.transaction", _VIEW)
