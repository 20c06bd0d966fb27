"""What `vacuum` may rely on: the objects of a table, and which of them somebody needs.

The order of reading is what makes it safe. First the store tells its time, by the stamp of
an object that is written now; then the objects are listed, so no age is overstated. The
versions are read last: a commit that lands in between is seen, and its files are needed.

What earlier runs read is remembered, for plans: before anything goes that a version could show,
`read_all_again` reads every version from the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from holdfast._ids import Ids
from holdfast.commits import (
    Records,
    in_parallel,
    list_versions,
    records_of,
)
from holdfast.core import TableCore
from holdfast.errors import CorruptError, HoldfastError, NotFoundError
from holdfast.formats import (
    NO_MARK,
    VacuumMark,
    is_path,
    is_transaction_path,
    older_files,
    read_config,
    read_mark,
    shown_files,
    temporary_path,
)
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.upkeep._branches import branch_manifests
from holdfast.upkeep._manifests import Manifests
from holdfast.upkeep._memory import ReadMemory, open_memory

_LENGTH_BYTES = 3  # the length before a name may look like letters of it
# Names of files in bytes of any format: what Lance calls its data files, and more.
_FILE_NAME = re.compile(rb"[A-Za-z0-9_-]{8,}\.[a-z]{2,6}")


Progress: TypeAlias = Callable[[int, int], None]
"""Called with how many objects were read, and how many there are."""

Choose: TypeAlias = Callable[["Contents", Mapping[int, ObjectInfo]], set[int]]
"""Returns which of the versions that are there nobody keeps."""


@dataclass(slots=True, kw_only=True)
class Contents:
    """A table as `vacuum` sees it.

    Attributes:
        core: the table.
        records: what its commit store knows; None without one.
        now: the store's time, before the objects were listed.
        grace: how old an object must be to be taken.
        objects: all objects whose names Holdfast can speak of, by path.
        mark: how far vacuum has come, by the highest number in a version that was read.
        versions: the versions whose manifests were read.
        needed: paths, and folders with a slash, that a version shows.
        named: names of files that a version speaks of.
        named_by_commits: names of files that a commit under way speaks of.
        keep_versions_for: how long a version stays after a newer one came; None: for ever.
        choose: says which versions go.
        going: those; what only they show, nobody needs.
        under_way: the versions that commits under way were built on; the names of their
            deletion files begin with a fragment and that version.
        memory: what earlier runs read.
        progress: hears how many of how many versions were read.
    """

    core: TableCore
    records: Records | None
    now: float
    grace: timedelta
    objects: Mapping[str, ObjectInfo]
    memory: ReadMemory
    keep_versions_for: timedelta | None = None
    choose: Choose = field(default=lambda _contents, _listed: set())
    going: set[int] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    named: set[bytes] = field(default_factory=set)
    named_by_commits: set[bytes] = field(default_factory=set)
    mark: VacuumMark = NO_MARK
    under_way: set[int] = field(default_factory=set)
    progress: Progress = field(default=lambda _done, _total: None)
    _manifests: Manifests = field(init=False)

    def __post_init__(self) -> None:
        self._manifests = Manifests(self.core.store, self.memory)

    @property
    def newest(self) -> int:
        """Return the newest version."""
        return max(self.versions, default=0)

    def age(self, info: ObjectInfo) -> timedelta:
        """Return how old an object is, by the store's own clock."""
        return timedelta(seconds=max(0.0, self.now - info.modified))

    def is_old(self, info: ObjectInfo) -> bool:
        """Tell whether an object is older than the grace period."""
        return self.age(info) > self.grace

    def old_below(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield the objects of a folder that are older than the grace period."""
        for path, info in self.objects.items():
            if path.startswith(f"{folder}/") and self.is_old(info):
                yield info

    def is_needed(self, path: str) -> bool:
        """Tell whether a version, or a commit under way, needs an object."""
        return self.is_shown(path) or any(one in self.named_by_commits for one in _names_of(path))

    def is_shown(self, path: str) -> bool:
        """Tell whether a version needs an object."""
        parents = _parents(path)
        if path in self.needed or any(f"{part}/" in self.needed for part in parents):
            return True
        # Also what Lance may refer to in ways that are not known here: overlays, say.
        return any(one in self.named for one in _names_of(path))

    def look_again(self) -> None:
        """Read the versions that came since.

        Raises:
            CorruptError: the newest version cannot be read.
        """
        listed, numbers = self._list()
        self._read_manifests(listed, numbers - self.versions)

    def read_all_again(self) -> None:
        """Read every version from the store, whatever is remembered of it.

        Raises:
            CorruptError: the newest version cannot be read.
        """
        self.memory = ReadMemory(None, self.now)
        self._manifests = Manifests(self.core.store, self.memory)
        self.mark = NO_MARK
        self._read_manifests(*self._list())

    def _list(self) -> tuple[Mapping[int, ObjectInfo], set[int]]:
        """Return the versions that are listed, and the numbers of all that stay."""
        # Records before the listing: a decided version may have no object yet, and its files are
        # needed.
        self.records = records_of(self.core.arbiter)
        decided = {} if self.records is None else self.records.by_version
        # Deletion trusts no single listing: versions are read again before anything goes.
        listed = list_versions(self.core.store)
        # What was not going when the plan was made, does not go now: its files were kept.
        self.going = self.choose(self, listed) - self.versions
        return listed, {*listed, *decided} - self.going

    def _read_manifests(self, listed: Mapping[int, ObjectInfo], numbers: set[int]) -> None:
        """Read versions, the newest first: older ones mostly show less of the same."""
        versions = sorted(numbers, reverse=True)
        highest, marks = self.newest, []
        told = self._manifests.read(versions, listed, self.records)
        for number, manifest in enumerate(told, 1):
            if manifest.body is None and manifest.version == versions[0] > highest:
                raise CorruptError("the newest version cannot be read", version=manifest.version)
            self.progress(number, len(versions))
            if manifest.body is None:
                continue
            self._note_needed(manifest.body)
            marks.append(read_mark(read_config(manifest.body)))
            self.versions.add(manifest.version)
        # From the oldest on, so the newest of the highest number stays.
        for mark in reversed(marks):
            if mark.number >= self.mark.number:  # a stock restore may have taken it back
                self.mark = mark

    def keep_the_rest(self) -> None:
        """Let no more versions go, and read those that are there: what they show is needed.

        Raises:
            CorruptError: the newest version cannot be read.
        """
        self.keep_versions_for = None
        self.look_again()

    def note_commits_under_way(self) -> None:
        """Keep what young transactions speak of: their commits may be about to land."""
        young = [
            path
            for path, info in self.objects.items()
            if is_transaction_path(path) and not self.is_old(info)
        ]
        self.under_way = {_read_version_of(path) for path in young}
        for body in in_parallel(self._bytes, young):
            self.named_by_commits.update(_names_in(body))

    def note_branches(self) -> None:
        """Keep what versions of branches show of the table's files.

        Raises:
            CorruptError: one cannot be read, so nobody knows which files it shows.
        """
        for body in in_parallel(self._bytes, branch_manifests(self.objects)):
            if body:
                self._note_needed(body)

    def _note_needed(self, manifest: bytes) -> None:
        """Keep what a version shows, and the files of transaction ids that its config names."""
        self.needed |= shown_files(manifest, everywhere=True)
        self.needed |= {file.path for file in older_files(read_config(manifest))}
        self.named.update(_names_in(manifest))

    def _bytes(self, path: str) -> bytes:
        kept = self.memory.recall(self.objects[path])
        if kept is not None:
            return kept.body
        try:
            body = self.core.store.get(path)
        except NotFoundError:  # collected meanwhile
            return b""
        self.memory.keep(self.objects[path], body)
        return body


def read_contents(
    core: TableCore,
    grace: timedelta,
    *,
    keep_versions_for: timedelta | None = None,
    choose: Choose | None = None,
    remember: bool = False,
    progress: Progress | None = None,
) -> Contents:
    """Read a table; writes nothing but the object that tells the time, and removes that.

    Raises:
        NotFoundError: the table has no version.
        CorruptError: a version cannot be read, so nobody knows which files it shows.
    """
    # Before the listing, so that ages come out too small rather than too large.
    now = _time_of(core.store, core.ids)
    objects = {info.path: info for info in core.store.list() if is_path(info.path)}
    contents = Contents(
        core=core,
        records=None,
        now=now,
        grace=grace,
        objects=objects,
        memory=open_memory(core.store, core.arbiter.pin, now)
        if remember
        else ReadMemory(None, now),
    )
    if progress is not None:
        contents.progress = progress
    if choose is not None:
        contents.keep_versions_for, contents.choose = keep_versions_for, choose
    # Transactions first, versions afterwards: a commit that lands in between is in one of the two.
    contents.note_commits_under_way()
    contents.note_branches()
    contents.look_again()
    if not contents.versions:
        raise NotFoundError("the table has no version yet", location=core.store.location)
    contents.memory.save(contents.objects)
    return contents


def _time_of(store: ObjectStore, ids: Ids) -> float:
    """Return the store's own time; the clock of this machine may be another."""
    stamp = temporary_path(ids.token())
    store.put(stamp, b"what time is it?")
    now = store.head(stamp).modified
    with suppress(HoldfastError):  # one that stays is a leftover itself
        store.delete([stamp])
    return now


def _names_in(body: bytes) -> Iterator[bytes]:
    for name in _FILE_NAME.findall(body):
        yield from (name[start:] for start in range(_LENGTH_BYTES + 1))


def _names_of(path: str) -> Iterator[bytes]:
    """Yield the names by which an object may be spoken of.

    Its own, and those of data files that it goes with: such files are in a folder of its name.
    """
    yield path.rpartition("/")[2].encode()
    for part in _parents(path):
        yield f"{part.rpartition('/')[2]}.lance".encode()


def _read_version_of(path: str) -> int:
    """Return the version that a transaction file's name says it was built on; -1 if none."""
    number = path.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else -1


def _parents(path: str) -> Iterable[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
