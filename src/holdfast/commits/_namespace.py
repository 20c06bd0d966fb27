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
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast.arbiter import Arbiter, create_arbiter, open_arbiter, redacted
from holdfast.commits._operation import LONG_AGO, TableAnswer
from holdfast.commits._versions import Versions
from holdfast.errors import AlreadyExistsError
from holdfast.formats import check_name, version_name
from holdfast.options import StorageOptions, resolve
from holdfast.storage import open_store

if TYPE_CHECKING:  # what it is to a type checker; at run time its methods are enough
    from lance_namespace import LanceNamespace as _Base
else:
    _Base = object


class Model(Protocol):
    """A request as Lance's Python side makes it."""

    def model_dump(self) -> dict[str, Any]:  # Any: JSON
        """Return its fields."""
        ...


Request = Mapping[str, Any] | Model
"""Lance's Rust side sends dicts, its Python side models."""

Answer: TypeAlias = Any
"""Lance's Python side reads fields by name, its Rust side dicts; neither asks for a model."""


class Namespace(_Base):
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
        self._lock = threading.Lock()  # guards _tables and _creating
        self._tables: dict[tuple[int, str], Versions] = {}  # by process and location
        self._creating: Counter[str] = Counter()  # creations under way, by location

    def __repr__(self) -> str:
        return f"Namespace({self._root}, {self._options})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self._root, dict(self._options), self._commit_store))

    def namespace_id(self) -> str:
        """Return what tells this namespace from others."""
        store = redacted(self._commit_store) if self._commit_store else "conditional-put"
        return f"holdfast({self._root}, {store})"

    def declare_table(self, request: Request) -> Answer:
        """Tie a new table to its arbiter.

        Raises:
            AlreadyExistsError: the table has versions already.
        """
        location = self._location(request)
        arbiter = create_arbiter(location, self._options, commit_store=self._commit_store)
        if arbiter.read(version_name(1)) is not None:
            raise AlreadyExistsError("the table exists: use mode='append'", location=location)
        with self._lock:
            self._creating[location] += 1
        return self._answer(self._keep(location, arbiter))

    def describe_table(self, request: Request) -> Answer:
        """Say where a table is.

        Raises:
            NotFoundError: there is none of this name.
        """
        return self._answer(self._versions(self._location(request)))

    def create_table_version(self, request: Request) -> Answer:
        """Decide one version; called by Lance for every commit.

        Raises:
            ConflictError: another writer has this version; Lance rebases and tries the next.
            AlreadyExistsError: it creates a table that another writer created meanwhile.
        """
        fields = _fields(request)
        location = self._location(fields)
        with self._lock:
            creates = self._creating[location] > 0
        answer = self._versions(location).create(fields, creates=creates, begun=LONG_AGO)
        if int(fields["version"]) == 1:
            with self._lock:
                self._creating[location] -= 1
        return answer

    def list_table_versions(self, request: Request) -> Answer:
        """Return the newest decided version, finished; nothing makes Lance look for itself."""
        fields = _fields(request)
        return self._versions(self._location(fields)).newest()

    def describe_table_version(self, request: Request) -> Answer:
        """Return one version, finishing it if somebody left it unfinished.

        Raises:
            NotFoundError: nobody decided it.
        """
        fields = _fields(request)
        return self._versions(self._location(fields)).describe(int(fields["version"]))

    def batch_delete_table_versions(self, request: Request) -> Answer:
        """Do nothing: records are collected by `vacuum`, never behind the table's back."""
        del request
        return {"deleted_count": 0}

    def _location(self, request: Request) -> str:
        name = "$".join(_fields(request)["id"] or ())
        return f"{self._root}/{check_name(name.replace('$', '.'), 'a table name')}.lance"

    def _answer(self, versions: Versions) -> TableAnswer:
        resolved = {key: resolve(key, value) for key, value in self._options.items()}
        return TableAnswer(location=versions.location, storage_options=resolved or None)

    def _versions(self, location: str) -> Versions:
        with self._lock:
            found = self._tables.get((os.getpid(), location))
        return found or self._keep(location, open_arbiter(location, self._options))

    def _keep(self, location: str, arbiter: Arbiter) -> Versions:
        versions = Versions(open_store(location, self._options), arbiter, location)
        with self._lock:
            return self._tables.setdefault((os.getpid(), location), versions)


def _fields(request: Request) -> Mapping[str, Any]:
    return request if isinstance(request, Mapping) else request.model_dump()


def _rebuild(root: str, options: Mapping[str, str], commit_store: str | None) -> Namespace:
    return Namespace(root, options, commit_store=commit_store)
