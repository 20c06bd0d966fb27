"""`Namespace`: anything that takes a Lance namespace commits through Holdfast.

    tables = Namespace("s3://bucket/lake", storage_options, commit_store="postgresql://db/lake")
    lance.write_dataset(rows, namespace_client=tables, table_id=["events"], mode="append")

    lancedb.connect_namespace("holdfast.Namespace", {"root": "/lake"}).create_table("events", rows)

Lance writes a staged manifest and asks the namespace to make it version N. Here that is one
`decide`: the manifest, marked with a token, at the name of version N. When another writer
has N, Lance hears of a conflict, rebases and comes back with N + 1.

Tables are folders `NAME.lance` below the root, namespaces are folders between: the table
`["a", "b"]` is at `a/b.lance`. A namespace holds no state that matters: two of them, in one
process or two, are as good as one. It travels to other processes as its plain arguments;
give a commit store's URL as `env:NAME` to keep its password at home.

Every error is one of `holdfast.errors` and one of `lance_namespace.errors`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import lance_namespace as models
from lance_namespace import LanceNamespace

from holdfast.arbiter import (
    Arbiter,
    create_arbiter,
    open_arbiter,
    read_pin,
    redacted,
    remember_store,
)
from holdfast.commits._drop import Doomed, drop, plan_drop
from holdfast.commits._folders import Folders
from holdfast.commits._namespace_errors import for_lance, raising_for_lance
from holdfast.commits._operation import Stationary
from holdfast.commits._versions import Versions
from holdfast.core import TableCore
from holdfast.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
)
from holdfast.options import StorageOptions, resolve
from holdfast.storage import open_store

if TYPE_CHECKING:
    from pydantic import BaseModel

CONFIRM = "confirm"
"""The key in a request's context that lets it destroy something; its value is `true`."""

_TABLE_MISSING = "TableNotFoundError"
_NAMESPACE_MISSING = "NamespaceNotFoundError"
_STORAGE = "storage."
_NO_OPTION = {"holdfast": "decides"}  # no store knows it; so there is a value that stays here


class Model(Protocol):
    """A request as Lance's Python side makes it."""

    def model_dump(self) -> dict[str, Any]:  # Any: JSON
        """Return its fields."""
        ...


Request: TypeAlias = Mapping[str, Any] | Model
"""Lance's Rust side sends dicts and reads dicts; its Python side models."""

Answer: TypeAlias = Any
_M = TypeVar("_M", bound="BaseModel")


class Namespace(LanceNamespace):
    """Tables below one root whose versions Holdfast decides.

    Args:
        root: the folder or bucket prefix of the tables.
        storage_options: pylance's storage options.
        commit_store: for tables created through this namespace; see `create_arbiter`.
        allow_drop: `drop_table` and `drop_namespace` destroy what they name. By default they
            refuse and tell what would go, unless the request's context says `confirm: true`.
        properties: storage options as `storage.NAME`, for callers that pass strings only, as
            `lance_namespace.connect` does.

    Raises:
        InvalidInputError: an unknown property, or an option that is no string.
    """

    def __init__(
        self,
        root: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        commit_store: str | None = None,
        allow_drop: bool | str = False,
        **properties: str,
    ) -> None:
        self._root = str(root).rstrip("/")
        self._options = StorageOptions({**(storage_options or {}), **_options_in(properties)})
        self._commit_store = commit_store
        remember_store(commit_store)
        self._allow_drop = str(allow_drop).lower() == "true"
        self._folders = Folders(self._root, self._options)
        self._lock = threading.Lock()  # guards _tables
        self._tables: dict[tuple[int, str], Versions] = {}  # open handles, by process and location
        self._later: Callable[[Callable[[], None]], None] | None = None

    def __repr__(self) -> str:
        return f"Namespace({self._root}, {self._options})"

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self._root, dict(self._options), self._commit_store, str(self._allow_drop))
        return (_rebuild, arguments)

    def namespace_id(self) -> str:
        """Return what tells this namespace from others."""
        store = redacted(self._commit_store) if self._commit_store else "conditional-put"
        return f"holdfast({self._root}, {store})"

    def location(self, table_id: Sequence[str]) -> str:
        """Return where a table is, or would be.

        Raises:
            InvalidInputError: it has no name, or a part of it cannot be a folder's.
        """
        return f"{self._root}/{self._folders.table(table_id)}"

    def forget(self, table_id: Sequence[str]) -> None:
        """Let go of a table's handle, so that the next call opens the table that is there."""
        location = self.location(table_id)
        with self._lock:
            self._tables.pop((os.getpid(), location), None)

    def run_later(self, later: Callable[[Callable[[], None]], None]) -> None:
        """Let `later` run what no caller needs to wait for; else it is run before the answer."""
        self._later = later

    def declare_table(self, request: Request) -> Answer:
        """Tie a new table to its arbiter. Safe to repeat until the table has a version.

        Raises:
            AlreadyExistsError: the table has versions already.
        """
        with raising_for_lance(_TABLE_MISSING):
            location = self._location(request)
            arbiter = create_arbiter(location, self._options, commit_store=self._commit_store)
            versions = self._keep(location, arbiter)
            if versions.newest_manifest() is not None:
                raise AlreadyExistsError("the table exists: use mode='append'", location=location)
            return self._place(request, models.DeclareTableResponse, versions)

    def describe_table(self, request: Request) -> Answer:
        """Say where a table is.

        Raises:
            NotFoundError: there is none of this name.
        """
        with raising_for_lance(_TABLE_MISSING):
            versions = self._current(self._location(request))
            return self._place(request, models.DescribeTableResponse, versions)

    def table_exists(self, request: Request) -> Answer:
        """Return if there is such a table.

        Raises:
            NotFoundError: there is none of this name.
        """
        with raising_for_lance(_TABLE_MISSING):
            self._current(self._location(request))
            return _answer(request, models.TableExistsResponse, {})

    def drop_table(self, request: Request) -> Answer:
        """Destroy a table if this namespace, or the request's context, allows it.

        Safe to repeat: a drop that was killed is finished by the next one. Until its last
        version is gone the table reads as it was.

        Raises:
            PermissionDeniedError: not allowed; nothing was removed, and it says what would be.
            NotFoundError: there is none of this name.
        """
        with raising_for_lance(_TABLE_MISSING):
            location = self._location(request)
            store = open_store(location, self._options)
            doomed = plan_drop(store)
            self._check_drop(request, location, doomed)
            drop(store, doomed, location, self._options)
            with self._lock:
                self._tables.pop((os.getpid(), location), None)
            fields = {"id": _fields(request)["id"], "location": location}
            return _answer(request, models.DropTableResponse, fields)

    def list_tables(self, request: Request) -> Answer:
        """Return the names of the tables directly below a namespace, sorted.

        Raises:
            NotFoundError: there is no such namespace.
        """
        with raising_for_lance(_NAMESPACE_MISSING):
            fields = _fields(request)
            names, token = _page(self._folders.tables(fields["id"] or ()), fields)
            return _answer(
                request, models.ListTablesResponse, {"tables": names, "page_token": token}
            )

    def list_namespaces(self, request: Request) -> Answer:
        """Return the names of the namespaces directly below one, sorted.

        Raises:
            NotFoundError: there is no such namespace.
        """
        with raising_for_lance(_NAMESPACE_MISSING):
            fields = _fields(request)
            names, token = _page(self._folders.namespaces(fields["id"] or ()), fields)
            return _answer(
                request, models.ListNamespacesResponse, {"namespaces": names, "page_token": token}
            )

    def describe_namespace(self, request: Request) -> Answer:
        """Return if there is such a namespace.

        Raises:
            NotFoundError: there is none of this name.
        """
        with raising_for_lance(_NAMESPACE_MISSING):
            self._folders.check(_fields(request)["id"] or ())
            return _answer(request, models.DescribeNamespaceResponse, {"properties": None})

    def namespace_exists(self, request: Request) -> Answer:
        """Return if there is such a namespace.

        Raises:
            NotFoundError: there is none of this name.
        """
        with raising_for_lance(_NAMESPACE_MISSING):
            self._folders.check(_fields(request)["id"] or ())
            return _answer(request, models.NamespaceExistsResponse, {})

    def create_namespace(self, request: Request) -> Answer:
        """Make an empty namespace. A table makes those that it is in by itself.

        Raises:
            AlreadyExistsError: it exists, and the request's mode is `create`, the default.
        """
        fields = _fields(request)
        mode = str(fields.get("mode") or "create").lower()
        with raising_for_lance(_NAMESPACE_MISSING):
            try:
                self._folders.create(fields["id"] or ())
            except AlreadyExistsError as error:
                if mode == "create":
                    raise for_lance(error, "NamespaceAlreadyExistsError") from error
                if mode != "exist_ok":
                    raise InvalidInputError(
                        "a namespace is created or left alone, never overwritten", mode=mode
                    ) from error
            return _answer(request, models.CreateNamespaceResponse, {"properties": None})

    def drop_namespace(self, request: Request) -> Answer:
        """Remove an empty namespace. One that holds something stays, whatever the request says.

        Raises:
            NotFoundError: there is none of this name.
            InvalidInputError: tables or namespaces are in it.
        """
        with raising_for_lance(_NAMESPACE_MISSING):
            try:
                self._folders.drop(_fields(request)["id"] or ())
            except InvalidInputError as error:
                raise for_lance(error, "NamespaceNotEmptyError") from error
            return _answer(request, models.DropNamespaceResponse, {})

    def create_table_version(self, request: Request) -> Answer:
        """Decide one version; called by Lance for every commit.

        Raises:
            ConflictError: another writer has this version; Lance rebases and tries the next.
            AlreadyExistsError: it creates a table that another writer created meanwhile.
        """
        fields = _fields(request)
        with raising_for_lance(_TABLE_MISSING):
            versions = self._versions(self._location(fields))
            # A version that was made without reading one creates a table, or replaces one
            # unseen; whoever means to replace a table says which version he read.
            answer = versions.create(fields, creates=True)
            return _answer(request, models.CreateTableVersionResponse, answer)

    def list_table_versions(self, request: Request) -> Answer:
        """Return versions. To Lance: the newest decided one, or none, then it looks for itself."""
        fields = _fields(request)
        with raising_for_lance():
            versions = self._versions(self._location(fields))
            if isinstance(request, Mapping):
                return versions.newest()
            if _asks_for_newest(fields):
                return _answer(request, models.ListTableVersionsResponse, versions.newest_listed())
            numbers = sorted(versions.numbers(), reverse=bool(fields.get("descending")))
            page, token = _page([str(number) for number in numbers], fields)
            described = [versions.describe(int(number))["version"] for number in page]
            answer = {"versions": described, "page_token": token}
            return _answer(request, models.ListTableVersionsResponse, answer)

    def describe_table_version(self, request: Request) -> Answer:
        """Return one version, finishing it if somebody left it unfinished.

        Lance is told where a version would be that nobody decided; then it looks itself.

        Raises:
            NotFoundError: nobody decided it.
        """
        fields = _fields(request)
        with raising_for_lance():
            versions = self._versions(self._location(fields))
            try:
                answer = versions.describe(int(fields["version"]))
            except NotFoundError:
                if not isinstance(request, Mapping):
                    raise
                return versions.describe_place(int(fields["version"]))
            return _answer(request, models.DescribeTableVersionResponse, answer)

    def batch_delete_table_versions(self, request: Request) -> Answer:
        """Do nothing: records are collected by `vacuum`, never behind the table's back."""
        return _answer(request, models.BatchDeleteTableVersionsResponse, {"deleted_count": 0})

    def _location(self, request: Request) -> str:
        return self.location(_fields(request)["id"] or ())

    def _place(self, request: Request, model: type[_M], versions: Versions) -> Answer:
        """Return where a table is; what a dataset keeps of it does not let that be pickled."""
        resolved = {key: resolve(key, value) for key, value in self._options.items()}
        if isinstance(request, Mapping):
            return {
                "location": versions.core.location,
                "storage_options": resolved or None,
                "managed_versioning": True,
            }
        return model.model_construct(
            location=versions.core.location,
            storage_options=Stationary({**resolved, **_NO_OPTION}),
            managed_versioning=True,
        )

    def _current(self, location: str) -> Versions:
        """Return the versions of the table that is there now."""
        pin = read_pin(open_store(location, self._options))
        if pin is None:  # LanceDB knows a missing table by these words alone
            raise NotFoundError(
                "the table was not found: create it, or adopt a plain Lance table first",
                location=location,
            )
        with self._lock:
            known = self._tables.get((os.getpid(), location))
        if known is not None and known.core.arbiter.pin == pin:
            return known
        return self._keep(location, open_arbiter(location, self._options))

    def _versions(self, location: str) -> Versions:
        with self._lock:
            known = self._tables.get((os.getpid(), location))
        return known or self._keep(location, open_arbiter(location, self._options))

    def _keep(self, location: str, arbiter: Arbiter) -> Versions:
        store = open_store(location, self._options)
        versions = Versions(TableCore(store, arbiter, location, self._options))
        if self._later is not None:
            versions.later = self._later
        with self._lock:
            self._tables[os.getpid(), location] = versions
        return versions

    def _check_drop(self, request: Request, location: str, doomed: Doomed) -> None:
        context = _fields(request).get("context") or {}
        if self._allow_drop or str(context.get(CONFIRM)).lower() == "true":
            return
        raise PermissionDeniedError(
            "nothing was dropped: this would destroy the table for good. Say so with "
            "allow_drop=True where the namespace is made, or `confirm: true` in the request's "
            "context",
            location=location,
            objects=doomed.objects,
            bytes=doomed.bytes,
            newest_version=doomed.newest_version,
        )


def _fields(request: Request) -> Mapping[str, Any]:
    return request if isinstance(request, Mapping) else request.model_dump()


def _answer(request: Request, model: type[_M], fields: Mapping[str, Any]) -> Answer:
    return fields if isinstance(request, Mapping) else model(**fields)


def _asks_for_newest(fields: Mapping[str, Any]) -> bool:
    """Tell whether a listing is asked for its first name only: nobody needs to see the others."""
    first = fields.get("limit") == 1 and not fields.get("page_token")
    return first and bool(fields.get("descending"))


def _page(names: list[str], fields: Mapping[str, Any]) -> tuple[list[str], str | None]:
    """Return one page of sorted names, and what to ask the next one with."""
    after, limit = fields.get("page_token"), fields.get("limit")
    start = names.index(after) + 1 if after in names else 0
    page = names[start : start + limit] if limit else names[start:]
    more = page and start + len(page) < len(names)
    return page, page[-1] if more else None


def _options_in(properties: Mapping[str, str]) -> dict[str, str]:
    for key in properties:
        if not key.startswith(_STORAGE):
            raise InvalidInputError(
                "a namespace knows root, commit_store, allow_drop and storage.NAME", given=key
            )
    return {key.removeprefix(_STORAGE): value for key, value in properties.items()}


def _rebuild(
    root: str, options: Mapping[str, str], commit_store: str | None, allow_drop: str
) -> Namespace:
    return Namespace(root, options, commit_store=commit_store, allow_drop=allow_drop)
