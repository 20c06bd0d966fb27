"""A Lance table manifest as far as Holdfast reads and edits it.

Known here are the table config, the writers' feature flags, and which files a version shows;
every other field passes through untouched.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message

from holdfast.errors import CorruptError
from holdfast.formats._lance_messages import View, lance_view
from holdfast.formats._mem_wal_details import MEM_WAL_INDEX
from holdfast.formats._protobuf import (
    BROKEN,
    LENGTH,
    main_section,
    read_section,
)

TOKEN_KEY = "holdfast.token"  # noqa: S105 - the config key under which a decision's mark is kept
"""The config entry that holds the token of the version's decision."""
AFTER_KEY = "holdfast.after"
"""The config entry that holds the token which the version below had in `TOKEN_KEY`."""
VERSION_KEY = "holdfast.version"
TABLE_KEY = "holdfast.table"
"""The config entry that holds which version Holdfast made; strangers carry it on as it is."""

SINCE_KEY = "holdfast:since"
"""The metadata of a column with the versions that added it or fields inside: `id:version,...`."""

_FLAG_TABLE_CONFIG = 8  # tells writers that do not know the config to keep away
_KEY_METADATA = "lance-schema:unenforced-primary-key"
_SYSTEM_INDEX = "__lance_"
_DELETION_SUFFIXES = ("arrow", "bin")

_VIEW: View = {
    "Manifest": "fragments index_section writer_feature_flags transaction_file config base_paths",
    "DataFragment": "id files deletion_file",
    "DataFile": "path base_id",
    "DeletionFile": "file_type read_version id base_id",
    "Head=Manifest": (
        "fields version index_section writer_feature_flags transaction_file config base_paths! "
        "transaction_section"
    ),
    "Field": "name id parent_id logical_type metadata primary_key key_position",
    "Brings=Transaction": "overwrite merge restore update_config",
    "IndexSection": "indices",
    "Index": "uuid name base_id files",
}


class Column(NamedTuple):
    """A column, or a part of one, as a version's schema has it."""

    name: str
    type: str


class Head:
    """What a manifest says besides its fragments, read once; they are left as they are.

    Reading it costs little more for a table of many fragments than for one of few.
    """

    def __init__(self, manifest: bytes) -> None:
        """Read it.

        Raises:
            CorruptError: these bytes are no manifest.
        """
        self._manifest = manifest
        self._message, self._start, self._end = _parse(manifest, "Head")
        self.config: Mapping[str, str] = dict(self._message.config)

    @property
    def version(self) -> int:
        """Return the version."""
        return int(self._message.version)

    @property
    def transaction_file(self) -> str | None:
        """Return the name of the transaction's file, if the version has one."""
        return self._message.transaction_file or None

    @property
    def read_version(self) -> int | None:
        """Return the version that the transaction was built on; None where nothing tells."""
        number, dash, _ = self._message.transaction_file.partition("-")
        return int(number) if dash and number.isdecimal() else None

    @property
    def replaces_config(self) -> bool:
        """Tell whether the config may not be that of the version below: a restore, or a change."""
        return self._brings("restore", "update_config")

    @property
    def changes_config(self) -> bool:
        """Tell whether the version is a change of the config, which may drop any entry."""
        return self._brings("update_config")

    @property
    def adds_columns(self) -> bool:
        """Tell whether there may be columns that the version below has not."""
        return self._brings("merge")

    @property
    def replaces_rows(self) -> bool:
        """Tell whether the version holds nothing of the one below: an overwrite or a restore."""
        return self._brings("overwrite", "restore")

    @property
    def restores(self) -> bool:
        """Tell whether it is an older version again."""
        return self._brings("restore")

    @property
    def has_indexes(self) -> bool:
        """Tell whether it has an index section; one that has none has no log either."""
        return bool(self._message.HasField("index_section"))

    @property
    def has_key(self) -> bool:
        """Tell whether a column is marked as one of the primary key, in any way."""
        return any(
            field.primary_key
            or field.key_position
            or any(key.startswith(_KEY_METADATA) for key in field.metadata)
            for field in self._message.fields
        )

    def _brings(self, *operations: str) -> bool:
        if not self._message.HasField("transaction_section"):
            return False
        start = self._message.transaction_section
        inside: Any = read_section(self._manifest, start, _classes()["Brings"])[0]
        return any(inside.HasField(operation) for operation in operations)

    @property
    def has_bases(self) -> bool:
        """Tell whether some of the table's files may be in other places."""
        return bool(self._message.base_paths)

    @property
    def columns(self) -> dict[int, Column]:
        """Return every column and part of one, by its id."""
        return {int(f.id): Column(f.name, f.logical_type) for f in self._message.fields}

    @property
    def top_columns(self) -> dict[int, Column]:
        """Return the columns, without parts of them, by their ids."""
        top = (field for field in self._message.fields if field.parent_id < 0)
        return {int(field.id): Column(field.name, field.logical_type) for field in top}

    @property
    def identities(self) -> dict[int, tuple[str, str, int | None]]:
        """Return what makes each column, or part of one, itself: name, type, since when."""
        since: dict[int, int] = {}
        for field in self._message.fields:
            since.update(read_since(field.metadata.get(SINCE_KEY)))
        return {
            number: (column.name, column.type, since.get(number))
            for number, column in self.columns.items()
        }

    def with_new_columns(self, below: Head, *, replaced: bool = False) -> bytes:
        """Return the manifest with the version in the columns that the one below has not.

        With `replaced`, all columns are new ones, except those that the one below has just so.

        Lance gives the id of a column that is gone to the next one that is added. Rows that
        still wait with the id tell by this mark that they are not of the new column. That of a
        field inside a column is at the column: stock's writers compare what is inside.
        """
        known, ours = below.identities, self.identities
        above = {int(field.id): field for field in self._message.fields}
        new = [
            field
            for field in self._message.fields
            if int(field.id) not in known
            or (replaced and known[int(field.id)] != ours[int(field.id)])
        ]
        for field in new:
            top = field
            while top.parent_id >= 0:
                top = above[int(top.parent_id)]
            marks = {**read_since(top.metadata.get(SINCE_KEY)), int(field.id): self.version}
            top.metadata[SINCE_KEY] = ",".join(
                f"{number}:{version}" for number, version in sorted(marks.items())
            ).encode()
        return self.with_config({}) if new else self._manifest

    def with_config(self, entries: Mapping[str, str | None]) -> bytes:
        """Return the manifest with config entries set, or removed where the value is None."""
        changed: Any = type(self._message)()
        changed.CopyFrom(self._message)
        for key, value in entries.items():
            if value is None:
                changed.config.pop(key, None)
            else:
                changed.config[key] = value
        if changed.config:
            changed.writer_feature_flags |= _FLAG_TABLE_CONFIG
        body: bytes = changed.SerializeToString(deterministic=True)
        before, after = self._manifest[: self._start], self._manifest[self._end :]
        return before + LENGTH.pack(len(body)) + body + after


def read_since(mark: bytes | None) -> dict[int, int]:
    """Return the versions that added a column and the fields inside it, by their ids."""
    pairs = (part.split(b":") for part in (mark or b"").split(b",") if part)
    return {int(number): int(version) for number, version in pairs}


def decision_mark(
    below: Mapping[str, str], token: str, version: int, table_id: str | None = None
) -> dict[str, str | None]:
    """Return the config entries of a decision, upon a version with the config `below`."""
    mark = {TOKEN_KEY: token, AFTER_KEY: below.get(TOKEN_KEY), VERSION_KEY: str(version)}
    return mark if table_id is None else {**mark, TABLE_KEY: table_id}


def is_of_table(config: Mapping[str, str], table_id: str) -> bool:
    """Tell whether a version says that it is one of this table.

    One that does not may be, all the same: before Holdfast's first commit to an adopted table,
    and to a copy.
    """
    return config.get(TABLE_KEY) == table_id


def is_made_here(config: Mapping[str, str], version: int) -> bool:
    """Tell whether Holdfast made the version that has this config; a stock writer did if not."""
    return config.get(VERSION_KEY) == str(version)


def carries_mark(config: Mapping[str, str], token: str) -> bool:
    """Tell whether a version is the one that the token marks, or was built upon it.

    Holdfast's own child names the token as the one before; a stock writer's child, and
    every stock version above that, carries the token on.
    """
    return token in (config.get(TOKEN_KEY), config.get(AFTER_KEY))


def read_config(manifest: bytes) -> dict[str, str]:
    """Return the table config of a manifest.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    return dict(Head(manifest).config)


def edit_config(manifest: bytes, entries: Mapping[str, str | None]) -> bytes:
    """Return the manifest with config entries set, or removed where the value is None.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    return Head(manifest).with_config(entries)


def shown_files(manifest: bytes, *, everywhere: bool = False) -> set[str]:
    """Return what a version needs of its table's own folder: files, and folders with a slash.

    Files on other bases (of a table that this one was cloned from, say) are left out; with
    `everywhere` they are in it, as if they were in the table's folder.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    return {path for path, base in _files_with_bases(manifest) if base is None or everywhere}


def index_files(manifest: bytes) -> dict[str, int | None]:
    """Return the files of a version's indexes in the table's own folder, with their sizes.

    An index whose files are not listed, as older writers leave it, is its folder with a slash.
    Lance's own indexes whose files are not listed have none: what they say is in the manifest.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    files: dict[str, int | None] = {}
    for index in _indexes(manifest):
        folder = f"_indices/{uuid.UUID(bytes=index.uuid.uuid)}"
        if _base_of(index) is not None:
            continue
        files.update((f"{folder}/{file.path}", file.size_bytes or None) for file in index.files)
        if not index.files and not index.name.startswith(_SYSTEM_INDEX):
            files[f"{folder}/"] = None
    return files


def shown_elsewhere(manifest: bytes) -> set[str]:
    """Return the data and deletion files that a version shows on other bases, with their roots.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    message, _, _ = _parse(manifest)
    roots = {base.id: base for base in message.base_paths}
    paths = set()
    for path, base in _files_with_bases(manifest) if roots else ():
        root = None if base is None else roots.get(base)
        if root is not None and not path.endswith("/"):
            file = path if root.is_dataset_root else path.removeprefix("data/")
            paths.add(f"{root.path.rstrip('/')}/{file}")
    return paths


def base_roots(manifest: bytes) -> list[str]:
    """Return the addresses of tables that this one was cloned from.

    Raises:
        CorruptError: these bytes are no manifest.
    """
    message, _, _ = _parse(manifest)
    return [base.path for base in message.base_paths if base.is_dataset_root]


def _files_with_bases(manifest: bytes) -> Iterator[tuple[str, int | None]]:
    """Yield what a version needs, with the base that it is on; None: the table's own folder."""
    message, _, _ = _parse(manifest)
    for part in message.fragments:
        for file in part.files:
            yield f"data/{file.path}", _base_of(file)
        if part.HasField("deletion_file"):
            gone = part.deletion_file
            suffix = _DELETION_SUFFIXES[gone.file_type % len(_DELETION_SUFFIXES)]
            name = f"_deletions/{part.id}-{gone.read_version}-{gone.id}.{suffix}"
            yield name, _base_of(gone)
    if message.transaction_file:
        yield f"_transactions/{message.transaction_file}", None
    for index in _indexes(manifest):
        if index.name == MEM_WAL_INDEX:
            continue  # all of it is in the manifest: it has no files
        yield f"_indices/{uuid.UUID(bytes=index.uuid.uuid)}/", _base_of(index)


# Any: the classes of messages are made at run time.
def _indexes(manifest: bytes) -> Any:  # noqa: ANN401
    message, _, _ = _parse(manifest)
    if not message.HasField("index_section"):
        return ()
    section: Any = read_section(manifest, message.index_section, _classes()["IndexSection"])[0]
    return section.indices


# Any: the classes of messages are made at run time.
def _base_of(message: Any) -> int | None:  # noqa: ANN401
    return int(message.base_id) if message.HasField("base_id") else None


def _parse(
    manifest: bytes, kind: str = "Manifest"
) -> tuple[Any, int, int]:  # Any: a class made at run time
    """Return the message, where its length prefix begins, and where it ends."""
    start = main_section(manifest)
    try:
        message, end = read_section(manifest, start, _classes()[kind])
    except BROKEN as error:
        raise CorruptError("these bytes are no Lance manifest", size=len(manifest)) from error
    return message, start, end


@functools.cache
def _classes() -> Mapping[str, type[Message]]:
    return lance_view("holdfast.manifest", _VIEW)
