"""What a table's versions and logs tell a reader of changes; read once, and kept in mind.

Nothing is written, claimed or fenced here. (On a table with a commit store, reading may copy a
decided entry or version to its name if its writer died before doing so.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from holdfast.arbiter import read_pin
from holdfast.changes._cursor import ChangeCursor
from holdfast.commits import Versions, check_log_id, list_versions, transaction_of
from holdfast.errors import CollectedError, InvalidInputError, NotFoundError, WalGapError
from holdfast.formats import (
    FieldEntry,
    FragmentState,
    Head,
    ShardRecord,
    SnapshotRecord,
    VersionFacts,
    read_log_entry,
    version_name,
)
from holdfast.wal import Log, ShardManifests, find_covered

_WAY_OUT = (
    "begin again with a snapshot (`since=None`; in Spark, a new checkpointLocation), and keep "
    "what slow readers need: `keep_versions_for` and `grace` of vacuum"
)


def collected_error(what: str, **details: object) -> CollectedError:
    """Return the error of a reader that came too late."""
    return CollectedError(
        f"{what} was collected before its changes were read: {_WAY_OUT}", **details
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLook:
    """What the manifest of one version tells.

    Attributes:
        version: its number; 0 for the table before its first version.
        time: when its writer made it, by that machine's clock.
        operation: Lance's word for what made it.
        fragments: by id, what tells whether a fragment changed.
        merged: by shard, the newest generation that it has merged.
        keyed: whether the table has a primary key.
        fields: its columns and their parts, with Lance's ids.
    """

    version: int
    time: datetime
    operation: str
    fragments: Mapping[int, FragmentState]
    merged: Mapping[str, int]
    keyed: bool
    fields: tuple[FieldEntry, ...]


_NOTHING = VersionLook(
    version=0,
    time=datetime.fromtimestamp(0, UTC),
    operation="",
    fragments={},
    merged={},
    keyed=False,
    fields=(),
)


class History:
    """The versions and logs of one table, for readers of changes."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._core = versions.core
        self._looks: dict[int, VersionLook] = {0: _NOTHING}
        self._fields: dict[tuple[FieldEntry, ...], tuple[FieldEntry, ...]] = {}  # each once
        self._manifests: dict[str, ShardManifests] = {}
        self._covered: dict[tuple[str, int], int] = {}
        self._sizes: dict[str, tuple[int, int]] = {}  # by shard: entries that were read, bytes

    def table_id(self) -> str:
        """Return the id of the table that is there now; it may be made anew under a reader."""
        pin = read_pin(self._core.store)
        return "" if pin is None else pin.table_id

    def check(self, cursor: ChangeCursor) -> None:
        """Refuse a cursor of another table.

        Raises:
            InvalidInputError: it is one.
        """
        table = self.table_id()
        # Version numbers of a table that was made anew begin at 1 again: the cursor would point at
        # rows that have nothing to do with it.
        if cursor.table != table:
            raise InvalidInputError(
                "the cursor is of another table: this one was made anew or copied since. Begin "
                "again with a snapshot (`since=None`; in Spark, a new checkpointLocation)",
                cursor=cursor.table,
                table=table,
            )

    def newest(self) -> int:
        """Return the newest version.

        Raises:
            NotFoundError: there is none.
        """
        manifest = self._versions.newest_manifest()
        if manifest is None:
            raise NotFoundError("the table has no version", location=self._core.store.location)
        return Head(manifest).version

    def version_at(self, moment: datetime) -> int:
        """Return the version that was the newest at a time; 0 before the first.

        Raises:
            CollectedError: the versions of that time are gone.
        """
        listed = sorted(list_versions(self._core.store), reverse=True)
        for version in listed:
            if self.look(version).time <= moment:
                return version
        if not listed or listed[-1] > 1:
            raise collected_error("the version of that time", time=moment.isoformat())
        return 0

    def look(self, version: int) -> VersionLook:
        """Return what a version tells.

        Raises:
            CollectedError: it is gone.
            LogLostError: it does not say how far the log is merged.
        """
        if version not in self._looks:
            self._looks[version] = self._read(version)
        return self._looks[version]

    def forget(self, below: int) -> None:
        """Let go of versions that are behind a reader."""
        for version in [one for one in self._looks if 0 < one < below]:
            del self._looks[version]

    def _read(self, version: int) -> VersionLook:
        body = self._core.arbiter.read(version_name(version))
        if body is None:
            raise collected_error("a version", version=version)
        head, facts = Head(body), VersionFacts(body)
        entry = read_log_entry(body) if head.has_indexes else None
        check_log_id(head.config, entry, version=version)
        transaction = transaction_of(self._core.store, facts)
        return VersionLook(
            version=version,
            time=facts.time,
            operation="Unknown" if transaction is None else transaction.operation,
            fragments=facts.fragment_states(),
            merged={} if entry is None else entry.merged,
            keyed=head.has_key,
            fields=self._fields.setdefault(facts.fields, facts.fields),
        )

    def shards(self) -> list[str]:
        """Return the shards there are."""
        return [one for one in self._core.shard_ids() if self._of(one).latest() is not None]

    def covered_position(self, shard_id: str, generation: int) -> int:
        """Return the last position of a shard's log that a generation covers.

        Raises:
            CollectedError: nobody knows any more.
        """
        key = (shard_id, generation)
        if key not in self._covered:
            self._covered[key] = self._find_covered(shard_id, generation)
        return self._covered[key]

    def _find_covered(self, shard_id: str, generation: int) -> int:
        if generation == 0:
            # Positions began at 0 in the logs of one old release.
            return -1 if self._log(shard_id).read(0) is not None else 0
        position = find_covered(self._of(shard_id), generation)
        if position is None:
            raise collected_error(
                "the record of how far a generation reaches",
                shard_id=shard_id,
                generation=generation,
            )
        return position

    def position(self, cursor: ChangeCursor, shard_id: str) -> int:
        """Return how far a cursor has read a shard's log."""
        known = cursor.log.get(shard_id)
        if known is not None:
            return known
        return self.covered_position(shard_id, self.look(cursor.version).merged.get(shard_id, 0))

    def tip(self, shard_id: str, after: int) -> int:
        """Return the last position of a shard's log, at `after` or behind it.

        Raises:
            CollectedError: the entry after `after` is gone.
        """
        manifest = self._of(shard_id).latest()
        flushed = -1 if manifest is None else manifest.replay_after
        if after < flushed and not self._is_there(shard_id, after + 1):
            raise collected_error("a log entry", shard_id=shard_id, position=after + 1)
        return _last_present(partial(self._is_there, shard_id), max(after, flushed))

    def _is_there(self, shard_id: str, position: int) -> bool:
        entry = self._log(shard_id).read(position)
        if entry is not None:
            self._note_size(shard_id, entry.size)
        return entry is not None

    def _note_size(self, shard_id: str, size: int) -> None:
        entries, held = self._sizes.get(shard_id, (0, 0))
        self._sizes[shard_id] = (entries + 1, held + size)

    def size_of(self, shard_id: str, entries: int) -> int:
        """Return about how many bytes so many entries have: the mean of those that were read."""
        count, size = self._sizes.get(shard_id, (0, 0))
        return entries * size // count if count else 0

    def count_rows(self, shard_id: str, after: int, through: int, most: int) -> tuple[int, int]:
        """Return how far entries reach that together have `most` rows, and how many they have."""
        rows, position = 0, after
        try:
            for entry in self._log(shard_id).entries(after, through):
                position, rows = entry.position, rows + entry.rows
                self._note_size(shard_id, entry.size)
                if rows >= most:
                    break
        except WalGapError as error:
            raise collected_error(
                "a log entry", shard_id=shard_id, position=position + 1
            ) from error
        return position, rows

    def position_at(self, shard_id: str, after: int, moment: datetime) -> int:
        """Return the last position that was stored by a time, by the store's clock.

        Args:
            shard_id: of the log.
            after: the position that the version of that time has merged: the least.
            moment: the time.

        Raises:
            CollectedError: the entries of that time are gone.
        """
        listed = self._log(shard_id).list_entries()
        limit = moment.timestamp()
        last = max((at for at, info in listed.items() if info.modified <= limit), default=-1)
        if last > after:
            return last
        # None of the entries that are left is so old. Those of that time may have been collected,
        # and then nobody knows how far the log reached.
        manifest = self._of(shard_id).latest()
        if manifest is not None and manifest.replay_after > after and (after + 1) not in listed:
            raise collected_error("a log entry", shard_id=shard_id, position=after + 1)
        return after

    def above(self, version: int, log: Mapping[str, int]) -> tuple[ShardRecord, ...]:
        """Return what shards have above a version, up to positions of their logs."""
        merged = self.look(version).merged
        records = (self._above(one, merged.get(one, 0), at) for one, at in sorted(log.items()))
        return tuple(one for one in records if one is not None)

    def state(self, version: int, shard_id: str, position: int) -> SnapshotRecord:
        """Return a version with what one shard has above it, up to a position of its log."""
        return SnapshotRecord(
            base_version=version, shards=self.above(version, {shard_id: position})
        )

    def _above(self, shard_id: str, merged: int, position: int) -> ShardRecord | None:
        after = self.covered_position(shard_id, merged)
        if position <= after:
            return None
        manifest = self._of(shard_id).latest()
        sstables: list[tuple[int, str]] = []
        # SSTables stand for entries that may be collected already; those that were merged
        # into a later version are not named any more, and their entries are read instead.
        for one in () if manifest is None else manifest.sstables:
            if one.generation == merged + len(sstables) + 1:
                reach = self.covered_position(shard_id, one.generation)
                if reach > position:
                    break
                sstables.append((one.generation, one.path))
                after = reach
        return ShardRecord(
            shard_id=shard_id,
            manifest_version=0 if manifest is None else manifest.version,
            replay_after=after,
            last_position=max(position, after),
            sstables=tuple(sstables),
        )

    def _of(self, shard_id: str) -> ShardManifests:
        if shard_id not in self._manifests:
            self._manifests[shard_id] = ShardManifests(self._core, shard_id)
        return self._manifests[shard_id]

    def _log(self, shard_id: str) -> Log:
        return Log(self._core, shard_id)


def _last_present(is_there: Callable[[int], bool], known: int) -> int:
    """Return the last position that is there, from one that is, or was."""
    step = 1
    while is_there(known + step):
        known, step = known + step, step * 2
    while step > 1:
        step //= 2
        if is_there(known + step):
            known += step
    return known
