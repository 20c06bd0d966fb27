"""Everything a table's files tell, read once: versions, transactions, objects.

Transactions are listed before versions: a commit that lands in between is found among the
versions, so that it does not look lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from holdfast.commits import (
    Records,
    in_parallel,
    list_versions,
    read_version,
    require_versions,
    transaction_of,
)
from holdfast.errors import CorruptError, InvalidInputError, NotFoundError
from holdfast.formats import (
    Transaction,
    VersionFacts,
    data_path,
    decode_transaction,
    is_transaction_path,
    read_log_entry,
    shown_files,
    version_name,
)
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.upkeep._manifests import Manifest, Manifests
from holdfast.upkeep._memory import ReadMemory

Progress = Callable[[int, int], None]
"""Called with how many objects were read, and how many there are."""

_LOOKS_AGAIN = 3
_FEW_FILES = 20  # so many are searched for in bytes quicker than all files are read


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTransaction:
    """A transaction file and what it says."""

    transaction: Transaction
    info: ObjectInfo

    @property
    def files(self) -> tuple[str, ...]:
        """Return the data files that an append brings, as paths in the table."""
        added = self.transaction.added
        return tuple(data_path(file.path) for part in added for file in part.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is kept of one version after its manifest was read.

    Attributes:
        transaction: the commit that made it; None when nothing tells any more.
        token: the mark of the decision that its config speaks of.
        as_decided: whether its bytes are those of its record; None without a record.
        shows: of the files that were asked for and that no newer version shows, those that it
            does, with their fragment's id.
        has_log: whether it says how far a log is merged.
    """

    transaction: Transaction | None
    token: str | None
    as_decided: bool | None
    shows: Mapping[str, int]
    has_log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A table as its files tell.

    Attributes:
        objects: all objects, by path.
        written: the transaction files.
        traces: the versions.
        unreadable: objects that are not what they should be.
        gap: the highest version that is gone: which commits made those up to it is not known.
        version: the newest version.
        newest: what its manifest tells.
        manifest: its bytes.
    """

    objects: Mapping[str, ObjectInfo]
    written: tuple[WrittenTransaction, ...]
    traces: Mapping[int, Trace]
    unreadable: tuple[str, ...]
    gap: int
    version: int
    newest: VersionFacts
    manifest: bytes

    @property
    def shown(self) -> set[str]:
        """Return the data files that the newest version shows."""
        return {path for path, _ in self.newest.data_files()}


def survey(
    store: ObjectStore,
    records: Records | None,
    progress: Progress | None = None,
    *,
    past_damage: bool = False,
    memory: ReadMemory | None = None,
) -> Survey:
    """Read a table's transactions and versions, but for what is remembered; changes nothing.

    With `past_damage` the newest version is the newest that can be read, for those who only
    look; others must not go on as if the ones above it were not there.

    Raises:
        NotFoundError: no Lance table is there.
        InvalidInputError: it has the old manifest names.
        CorruptError: its newest manifest cannot be read; with `past_damage`, none can.
    """
    objects = {info.path: info for info in store.list()}
    paths = [path for path in objects if is_transaction_path(path)]
    memory = memory or ReadMemory(None, 0.0)
    surveyor = _Surveyor(
        store, records, progress or _silent, memory=memory, past_damage=past_damage
    )
    seen = surveyor.read(objects, paths)
    memory.save(objects)
    return seen


class _Surveyor:
    def __init__(
        self,
        store: ObjectStore,
        records: Records | None,
        progress: Progress,
        *,
        memory: ReadMemory,
        past_damage: bool,
    ) -> None:
        self._memory = memory
        self._manifests = Manifests(store, memory)
        self._listed: Mapping[int, ObjectInfo] = {}
        self._past_damage = past_damage
        self._store = store
        self._records = records
        self._progress = progress
        self._unreadable: list[str] = []

    def read(self, objects: Mapping[str, ObjectInfo], paths: list[str]) -> Survey:
        numbers = self._versions()
        total = len(paths) + len(numbers)
        written = []
        for count, (info, body) in enumerate(self._transactions(objects, paths), 1):
            self._progress(count, total)
            transaction = None if body is None else self._decode(info, body)
            if transaction is not None:
                written.append(WrittenTransaction(transaction=transaction, info=info))
        asked = {file for one in written for file in one.files}
        _, manifest = self._newest(numbers)
        asked -= {path for path, _ in VersionFacts(manifest).data_files()}
        traces: dict[int, Trace] = {}
        for _ in range(_LOOKS_AGAIN):
            missing = sorted(set(numbers) - set(traces), reverse=True)
            for told in self._manifests.read(missing, self._listed, self._records):
                traces.update(self._trace(told, asked))
                self._progress(min(total, len(paths) + len(traces)), total)
            numbers = self._versions()
            if max(numbers) in traces or version_name(max(numbers)).path in self._unreadable:
                break
        version, manifest = self._newest(sorted(traces))
        return Survey(
            objects=objects,
            written=tuple(written),
            traces=traces,
            unreadable=tuple(dict.fromkeys(self._unreadable)),
            gap=max(set(range(version)) - set(traces), default=0),
            version=version,
            newest=VersionFacts(manifest),
            manifest=manifest,
        )

    def _versions(self) -> list[int]:
        """Return what is there or decided to be there."""
        decided = self._records.by_version if self._records else {}
        find = list_versions if decided else require_versions
        self._listed = find(self._store)
        return sorted({*self._listed, *decided})

    def _newest(self, numbers: Iterable[int]) -> tuple[int, bytes]:
        """Return the newest version that can be read."""
        damaged = False
        for number in sorted(numbers, reverse=True):
            body = self._body(number)
            if body is None:
                continue
            try:
                shown_files(body)
            except CorruptError:
                if not self._past_damage:
                    raise
                self._unreadable.append(version_name(number).path)
                damaged = True
                continue
            return number, body
        if damaged:
            raise CorruptError("no version can be read", location=self._store.location)
        raise NotFoundError("no version of the table is there", location=self._store.location)

    def _body(self, version: int) -> bytes | None:
        record = self._records.by_version.get(version) if self._records else None
        return read_version(self._store, version, record)

    def _transactions(
        self, objects: Mapping[str, ObjectInfo], paths: Iterable[str]
    ) -> Iterator[tuple[ObjectInfo, bytes | None]]:
        """Yield transaction files: remembered ones, and then the others; None if one is gone."""
        unread = []
        for path in paths:
            kept = self._memory.recall(objects[path])
            if kept is None:
                unread.append(objects[path])
            else:
                yield objects[path], kept.body
        if unread:
            yield from in_parallel(self._get, unread)

    def _get(self, info: ObjectInfo) -> tuple[ObjectInfo, bytes | None]:
        try:
            body = self._store.get(info.path)
        except NotFoundError:  # collected meanwhile
            return info, None
        self._memory.keep(info, body)
        return info, body

    def _decode(self, info: ObjectInfo, body: bytes) -> Transaction | None:
        try:
            return decode_transaction(body)
        except (CorruptError, InvalidInputError):
            self._unreadable.append(info.path)
            return None

    def _trace(self, told: Manifest, asked: set[str]) -> dict[int, Trace]:
        body = told.body
        if body is None:
            return {}
        try:
            facts = VersionFacts(body)
        except CorruptError:
            self._unreadable.append(version_name(told.version).path)
            return {}
        # A search in the bytes is quick, and most versions show none of these files.
        hit = len(asked) > _FEW_FILES or any(
            path.rpartition("/")[2].encode() in body for path in asked
        )
        shows = {path: part for path, part in facts.data_files() if path in asked} if hit else {}
        trace = Trace(
            transaction=transaction_of(self._store, facts),
            token=facts.token,
            as_decided=told.as_decided,
            shows=shows,
            has_log=read_log_entry(body) is not None,
        )
        return {told.version: trace}


def _silent(_done: int, _total: int) -> None:
    """Report nothing."""
