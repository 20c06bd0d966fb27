"""The simulated stores: what an object store and a commit store hold, and the ports to them.

`State` is the shared truth of a simulated world. `SimulatedStore` and
`SimulatedCommitStore` are ports that turn every call into a `Request` and hand it to `ask`:
inside an explored actor that parks the actor until the explorer moves it; for an observer
it is applied immediately.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from holdfast.arbiter import Key, Replacement, StoredEntry, scope_of
from holdfast.errors import (
    AlreadyExistsError,
    CollectedError,
    NotFoundError,
    StaleHandleError,
)
from holdfast.formats import check_path
from holdfast.storage import ObjectInfo

OBJECTS = "objects"
"""The target of requests to the object store; any other target names a commit store."""
_READING = frozenset({"get", "get_retired", "head", "list", "scan", "boundary", "boundary_retired"})


class Request(NamedTuple):
    """One call to a store: to whom, which verb, with what."""

    target: str
    verb: str
    arguments: tuple[object, ...]

    @property
    def changes(self) -> bool:
        """Tell whether the call can change what is stored."""
        return self.verb not in _READING

    @property
    def conditional(self) -> bool:
        """Tell whether the call is a create that the object store may refuse."""
        return self.target == OBJECTS and self.verb in {"put_if_absent", "copy_if_absent"}

    def __str__(self) -> str:
        """Return verb and names; bytes are shown by their length."""
        shown = (f"{len(a)} bytes" if isinstance(a, bytes) else str(a) for a in self.arguments)
        target = "" if self.target == OBJECTS else f"{self.target}."
        return f"{target}{self.verb}({', '.join(shown)})"


Ask = Callable[[Request], object]


class State:
    """All bytes and records of a world, with a digest that is kept up to date."""

    def __init__(self, *, honest: bool = True, decisive: bool = True) -> None:
        self.honest = honest  # does the object store enforce put-if-absent?
        self.decisive = decisive  # does the commit store?
        self.objects: dict[str, bytes] = {}
        self.records: dict[tuple[str, Key], bytes] = {}
        self.boundaries: dict[tuple[str, str], int] = {}
        self.retired: set[tuple[str, str]] = set()  # commit stores and their retired scopes
        self.digest = 0
        self.tells_md5 = False  # do listings tell the MD5 of each object, as S3's do?

    def copy(self) -> State:
        """Return an independent copy."""
        twin = State(honest=self.honest, decisive=self.decisive)
        twin.objects = dict(self.objects)
        twin.records = dict(self.records)
        twin.boundaries = dict(self.boundaries)
        twin.retired = set(self.retired)
        twin.digest = self.digest
        twin.tells_md5 = self.tells_md5
        return twin

    def apply(self, request: Request) -> object:
        """Carry out one request as a well-behaved store would."""
        kind = "object" if request.target == OBJECTS else "record"
        method = getattr(self, f"_{kind}_{request.verb}")
        if kind == "object":
            return method(*request.arguments)
        return method(request.target, *request.arguments)

    def _set_object(self, path: str, body: bytes | None) -> None:
        before = self.objects.pop(path, None)
        if before is not None:
            self.digest ^= hash((path, before))
        if body is not None:
            self.objects[path] = body
            self.digest ^= hash((path, body))

    def _object_get(self, path: str) -> bytes:
        try:
            return self.objects[path]
        except KeyError:
            raise NotFoundError("nothing is there", path=path) from None

    def _object_head(self, path: str) -> ObjectInfo:
        body = self._object_get(path)
        md5 = hashlib.md5(body, usedforsecurity=False).hexdigest() if self.tells_md5 else None
        return ObjectInfo(path=path, size=len(body), modified=0.0, md5=md5)

    def _object_put(self, path: str, body: bytes) -> None:
        self._set_object(path, body)

    def _object_put_if_absent(self, path: str, body: bytes) -> None:
        if self.honest and path in self.objects:
            raise AlreadyExistsError("something has this name", path=path)
        self._set_object(path, body)

    def _object_copy(self, source: str, target: str) -> None:
        self._set_object(target, self._object_get(source))

    def _object_copy_if_absent(self, source: str, target: str) -> None:
        body = self._object_get(source)
        self._object_put_if_absent(target, body)

    def _object_delete(self, *paths: str) -> None:
        for path in paths:
            self._set_object(path, None)

    def _object_list(
        self, prefix: str, after: str, limit: int | None = None
    ) -> Sequence[ObjectInfo]:
        folder = f"{prefix}/" if prefix else ""
        paths = (path for path in sorted(self.objects) if path.startswith(folder) and path > after)
        return [self._object_head(path) for path in itertools.islice(paths, limit)]

    def _set_record(self, store: str, key: Key, value: bytes | None) -> None:
        before = self.records.pop((store, key), None)
        if before is not None:
            self.digest ^= hash((store, key, before))
        if value is not None:
            self.records[store, key] = value
            self.digest ^= hash((store, key, value))

    def _refuse_retired(self, store: str, series: str) -> None:
        if (store, scope_of(series)) in self.retired:
            raise StaleHandleError("this table was made anew: open it again", series=series)

    def _record_get(self, store: str, key: Key) -> bytes | None:
        self._refuse_retired(store, key.series)
        return self.records.get((store, key))

    def _record_get_retired(self, store: str, key: Key) -> bytes | None:
        return self.records.get((store, key))

    def _record_retire(self, store: str, scope: str) -> None:
        if (store, scope) not in self.retired:
            self.retired.add((store, scope))
            self.digest ^= hash((store, scope, "retired"))

    def _record_put_if_absent(self, store: str, key: Key, value: bytes) -> bytes | None:
        self._refuse_retired(store, key.series)
        if key.number <= self._record_boundary(store, key.series):
            raise CollectedError("decided long ago", number=key.number)
        there = self.records.get((store, key)) if self.decisive else None
        if there is None:
            self._set_record(store, key, value)
        return there

    def _record_compare_and_set(self, store: str, key: Key, expected: bytes, value: bytes) -> bool:
        self._refuse_retired(store, key.series)
        if self.records.get((store, key)) != expected:
            return False
        self._set_record(store, key, value)
        return True

    def _record_replace_many(self, store: str, series: str, changes: Sequence[Replacement]) -> int:
        self._refuse_retired(store, series)
        return sum(
            self._record_compare_and_set(store, Key(series, number), expected, value)
            for number, expected, value in changes
        )

    def _record_scan(
        self,
        store: str,
        series: str,
        after: int,
        limit: int,
        newest_first: bool,  # noqa: FBT001
    ) -> Sequence[StoredEntry]:
        self._refuse_retired(store, series)
        entries = sorted(
            (
                StoredEntry(key.number, value)
                for (owner, key), value in self.records.items()
                if owner == store and key.series == series and key.number > after
            ),
            key=lambda entry: entry.number,
            reverse=newest_first,
        )
        return entries[:limit]

    def _record_boundary(self, store: str, series: str) -> int:
        self._refuse_retired(store, series)
        return self.boundaries.get((store, series), -1)

    def _record_boundary_retired(self, store: str, series: str) -> int:
        return self.boundaries.get((store, series), -1)

    def _record_collect(self, store: str, series: str, through: int) -> int:
        before = self._record_boundary(store, series)
        if through > before:
            self.digest ^= hash((store, series, before)) ^ hash((store, series, through))
            self.boundaries[store, series] = through
        old = [
            key
            for owner, key in self.records
            if owner == store and key.series == series and key.number <= max(before, through)
        ]
        for key in old:
            self._set_record(store, key, None)
        return len(old)

    def _record_forget(self, store: str, series: str) -> None:
        """Lose the newest record, as a restored backup or a failover would."""
        numbers = [k.number for owner, k in self.records if owner == store and k.series == series]
        if numbers:
            self._set_record(store, Key(series, max(numbers)), None)


class SimulatedStore:
    """An `ObjectStore` whose every call is a request to the world.

    Args:
        ask: carries a request out.
        location: a made-up URL.
        page: how many names a request for a listing returns. A longer listing is several
            requests, so it is no snapshot: names come and go while it is read. None returns
            all in one.
    """

    def __init__(
        self, ask: Ask, location: str = "memory://simulated", *, page: int | None = None
    ) -> None:
        self.copies_if_absent = True  # False for a store like S3
        self._ask = ask
        self._location = location
        self._page = page

    @property
    def location(self) -> str:
        """Return a made-up URL."""
        return self._location

    @property
    def endpoint(self) -> str:
        """Return nothing: a world has one object store."""
        return ""

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes, or those in [start, end)."""
        body = self._ask(Request(OBJECTS, "get", (check_path(path),)))
        assert isinstance(body, bytes)
        return body[start:end]

    def head(self, path: str) -> ObjectInfo:
        """Return the size."""
        info = self._ask(Request(OBJECTS, "head", (check_path(path),)))
        assert isinstance(info, ObjectInfo)
        return info

    def put(self, path: str, body: bytes) -> None:
        """Store the bytes."""
        self._ask(Request(OBJECTS, "put", (check_path(path), body)))

    def put_if_absent(self, path: str, body: bytes) -> None:
        """Store the bytes unless the world's object store sees the name taken."""
        self._ask(Request(OBJECTS, "put_if_absent", (check_path(path), body)))

    def list(self, prefix: str = "", *, after: str = "") -> Sequence[ObjectInfo]:
        """Return what is below a folder, page by page."""
        infos: list[ObjectInfo] = []
        while True:
            page = self._ask(Request(OBJECTS, "list", (prefix, after, self._page)))
            assert isinstance(page, list)
            infos += page
            if self._page is None or len(page) < self._page:
                return infos
            after = page[-1].path

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> None:
        """Copy to a new name."""
        verb = "copy_if_absent" if if_absent else "copy"
        self._ask(Request(OBJECTS, verb, (check_path(source), check_path(target))))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects."""
        self._ask(Request(OBJECTS, "delete", tuple(check_path(path) for path in paths)))


class SimulatedCommitStore:
    """A `CommitStore` whose every call is a request to the world."""

    def __init__(self, ask: Ask, name: str = "store") -> None:
        self._ask = ask
        self._name = name

    @property
    def url(self) -> str:
        """Return a made-up URL."""
        return f"simulated://{self._name}"

    def identity(self) -> str:
        """Return the name; costs no request."""
        return self._name

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        """Keep the first value of a key."""
        there = self._ask(Request(self._name, "put_if_absent", (key, value)))
        assert there is None or isinstance(there, bytes)
        return there

    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        """Return the value, or None; with `retired`, of a retired scope as well."""
        value = self._ask(Request(self._name, "get_retired" if retired else "get", (key,)))
        assert value is None or isinstance(value, bytes)
        return value

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`."""
        return bool(self._ask(Request(self._name, "compare_and_set", (key, expected, value))))

    def replace_many(self, series: str, changes: Sequence[Replacement]) -> int:
        """Do for each change what `compare_and_set` does, in one step."""
        replaced = self._ask(Request(self._name, "replace_many", (series, tuple(changes))))
        assert isinstance(replaced, int)
        return replaced

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        """Return records in order."""
        entries = self._ask(Request(self._name, "scan", (series, after, limit, newest_first)))
        assert isinstance(entries, list)
        return entries

    def boundary(self, series: str, *, retired: bool = False) -> int:
        """Return the boundary of a series; with `retired`, of a retired scope as well."""
        verb = "boundary_retired" if retired else "boundary"
        number = self._ask(Request(self._name, verb, (series,)))
        assert isinstance(number, int)
        return number

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary and remove records."""
        removed = self._ask(Request(self._name, "collect", (series, through)))
        assert isinstance(removed, int)
        return removed

    def forget(self, series: str) -> None:
        """Lose the newest record: what no commit store may do."""
        self._ask(Request(self._name, "forget", (series,)))

    def retire(self, scope: str) -> None:
        """Refuse every verb on the series of a scope."""
        self._ask(Request(self._name, "retire", (scope,)))

    def close(self) -> None:
        """Do nothing."""
