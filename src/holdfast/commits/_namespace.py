"""`Namespace`: anything that takes a Lance namespace commits through Holdfast.

    tables = Namespace("s3://bucket/lake", storage_options, commit_store="postgresql://db/lake")
    lance.write_dataset(rows, namespace_client=tables, table_id=["events"], mode="append")

Lance writes a staged manifest and asks the namespace to make it version N. Here that is one
`decide`: the manifest, marked with a token, at the name of version N. When another writer
has N, Lance hears of a conflict, rebases and comes back with N + 1.

Tables are folders `NAME.lance` below the root. A namespace travels to other processes as
its plain arguments; give a commit store's URL as `env:NAME` to keep its password at home.
"""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import (
    ConditionalPut,
    Lost,
    RecordedDecisions,
    create_arbiter,
    open_arbiter,
    redacted,
)
from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
)
from holdfast.formats import (
    TOKEN_KEY,
    VERSIONS_SERIES,
    check_name,
    edit_config,
    version_name,
)
from holdfast.options import StorageOptions, resolve
from holdfast.storage import ObjectStore, open_store


class Model(Protocol):
    """A request as Lance's Python side makes it."""

    def model_dump(self) -> dict[str, Any]:  # Any: JSON
        """Return its fields."""
        ...


Request = Mapping[str, Any] | Model
"""Lance's Rust side sends dicts, its Python side models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAnswer:
    """What Lance wants to know of a table: where it is and that its versions are decided here."""

    location: str
    storage_options: Mapping[str, str] | None
    managed_versioning: bool = True
    version: int | None = None


class Namespace:
    """Tables below one root whose versions Holdfast decides.

    Args:
        root: the folder or bucket prefix of the tables.
        storage_options: pylance's storage options.
        commit_store: for tables created through this namespace; see `create_arbiter`.
    """

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        commit_store: str | None = None,
    ) -> None:
        self._root = str(root).rstrip("/")
        self._options = StorageOptions(storage_options)
        self._commit_store = commit_store
        self._lock = threading.Lock()  # guards _tables
        self._tables: dict[tuple[int, str], _Versions] = {}  # by process and location

    def __repr__(self) -> str:
        return f"Namespace({self._root}, {self._options})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._root, dict(self._options), self._commit_store))

    def namespace_id(self) -> str:
        """Return what tells this namespace from others."""
        store = redacted(self._commit_store) if self._commit_store else "conditional-put"
        return f"holdfast({self._root}, {store})"

    def declare_table(self, request: Request) -> TableAnswer:
        """Tie a new table to its arbiter.

        Raises:
            AlreadyExistsError: the table has versions already.
        """
        location = self._location(request)
        arbiter = create_arbiter(location, self._options, commit_store=self._commit_store)
        if arbiter.read(version_name(1)) is not None:
            raise AlreadyExistsError("the table exists: use mode='append'", location=location)
        self._keep(location, arbiter)
        return self._answer(location)

    def describe_table(self, request: Request) -> TableAnswer:
        """Say where a table is.

        Raises:
            NotFoundError: there is none of this name.
        """
        location = self._location(request)
        self._versions(location)
        return self._answer(location)

    def create_table_version(self, request: Request) -> dict[str, object]:
        """Decide one version; called by Lance for every commit.

        Raises:
            ConflictError: another writer has this version; Lance rebases and tries the next.
        """
        fields = _fields(request)
        return self._versions(self._location(fields)).create(fields)

    def list_table_versions(self, request: Request) -> dict[str, object]:
        """Return the newest decided version, finished; nothing makes Lance look for itself."""
        fields = _fields(request)
        return self._versions(self._location(fields)).newest()

    def describe_table_version(self, request: Request) -> dict[str, object]:
        """Return one version, finishing it if somebody left it unfinished.

        Raises:
            NotFoundError: nobody decided it.
        """
        fields = _fields(request)
        return self._versions(self._location(fields)).describe(int(fields["version"]))

    def batch_delete_table_versions(self, request: Request) -> dict[str, object]:
        """Do nothing: records are collected by `vacuum`, never behind the table's back."""
        del request
        return {"deleted_count": 0}

    def _location(self, request: Request) -> str:
        name = "$".join(_fields(request)["id"] or ())
        return f"{self._root}/{check_name(name.replace('$', '.'), 'a table name')}.lance"

    def _answer(self, location: str) -> TableAnswer:
        resolved = {key: resolve(key, value) for key, value in self._options.items()}
        return TableAnswer(location=location, storage_options=resolved or None)

    def _versions(self, location: str) -> _Versions:
        with self._lock:
            found = self._tables.get((os.getpid(), location))
        return found or self._keep(location, open_arbiter(location, self._options))

    def _keep(self, location: str, arbiter: ConditionalPut | RecordedDecisions) -> _Versions:
        versions = _Versions(open_store(location, self._options), arbiter, location)
        with self._lock:
            return self._tables.setdefault((os.getpid(), location), versions)


class _Versions:
    """The versions of one table, as Lance's commit path sees them."""

    def __init__(
        self,
        store: ObjectStore,
        arbiter: ConditionalPut | RecordedDecisions,
        location: str,
        ids: Ids | None = None,
    ) -> None:
        self._store = store
        self._arbiter = arbiter
        self._location = location
        self._ids = ids or RandomIds()

    def create(self, fields: Mapping[str, Any]) -> dict[str, object]:
        version, staged = int(fields["version"]), str(fields["manifest_path"])
        if fields.get("branch") or version < 0:
            raise InvalidInputError(
                "branches and detached versions are not decided by Holdfast yet",
                location=self._location,
            )
        if fields.get("naming_scheme") != "V2":
            raise InvalidInputError(
                "this table has the old manifest names: migrate it with "
                "`LanceDataset.migrate_manifest_paths_v2`",
                location=self._location,
            )
        folder, _, file = staged.rpartition("/")
        name, token = version_name(version), self._ids.token()
        ours = f"{posixpath.dirname(name.path)}/{file}"
        body = edit_config(self._store.get(ours), {TOKEN_KEY: token})
        decision = self._arbiter.decide(name, body, token)
        if isinstance(decision, Lost):
            raise ConflictError("another writer has this version", version=version)
        with suppress(HoldfastError):
            self._store.delete([ours])
        return _version(version, f"{folder}/{posixpath.basename(name.path)}", len(body))

    def newest(self) -> dict[str, object]:
        if not isinstance(self._arbiter, RecordedDecisions):
            return {"versions": []}
        number = self._arbiter.newest(VERSIONS_SERIES)
        return {"versions": [] if not number else [self.describe(number)["version"]]}

    def describe(self, version: int) -> dict[str, object]:
        name = version_name(version)
        body = self._arbiter.read(name)
        if body is None:
            raise NotFoundError("no such version", version=version, location=self._location)
        return _version(version, f"{_store_path(self._location)}/{name.path}", len(body))


def _version(version: int, path: str, size: int) -> dict[str, object]:
    return {"version": {"version": version, "manifest_path": path, "manifest_size": size}}


def _store_path(location: str) -> str:
    """Return a table's place as Lance's object store names it: without bucket or first slash."""
    if "://" in location and not location.startswith("file://"):
        return location.split("://", 1)[1].partition("/")[2]
    return location.removeprefix("file://").lstrip("/")


def _fields(request: Request) -> Mapping[str, Any]:
    return request if isinstance(request, Mapping) else request.model_dump()


def _rebuild(root: str, options: Mapping[str, str], commit_store: str | None) -> Namespace:
    return Namespace(root, options, commit_store=commit_store)
