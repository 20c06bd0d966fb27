"""What `doctor` says of a table's versions: who decided them, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.commits import Records, foreign, list_versions, read_version, unfinished_versions
from holdfast.errors import CorruptError
from holdfast.formats import version_name, version_of
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.upkeep._branches import branch_parents
from holdfast.upkeep._candidates import Candidate, orphaned_changes
from holdfast.upkeep._findings import Finding, FindingKind, Severity, stamp_of
from holdfast.upkeep._survey import Survey
from holdfast.upkeep._vacuum_versions import tagged_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsExam:
    """Looks at all versions of a table.

    Attributes:
        uri: the table's address, for commands.
        store: the table's store.
        records: what its commit store knows; None without one.
        seen: what its files tell.
    """

    uri: str
    store: ObjectStore
    records: Records | None
    seen: Survey

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with the versions, tags and branches."""
        if self.records is not None:
            listed = list_versions(self.store)
            yield from self._find_undecided(self.records, listed)
            yield from self._find_unfinished(self.records, listed)
        yield from self._unreadable()
        yield from self._references()

    def find_lost(self, candidates: Sequence[Candidate], *, tied: bool) -> Iterator[Finding]:
        """Yield the appends and changes that no version shows."""
        for one in candidates:
            rows = f"{one.rows} row{'' if one.rows == 1 else 's'}"
            sure = one.doubt is None
            yield Finding(
                kind=FindingKind.LOST_APPEND,
                severity=Severity.WARNING if sure else Severity.NOTE,
                what=f"an append of {rows} is not in the table: {one.known}",
                advice="if its writer was told that it succeeded, bring it back: `holdfast rescue`"
                if sure
                else "most likely no loss; if it is one, `holdfast rescue --id` brings it back",
                command=f"holdfast rescue {self.uri} --id {one.id} --confirm",
                path=one.files[0],
                since=one.time,
                candidate=one,
            )
        for change in orphaned_changes(self.seen):
            operation = change.transaction.operation
            yield Finding(
                kind=FindingKind.ORPHANED_CHANGE,
                severity=Severity.NOTE if tied else Severity.WARNING,
                what=f"no version came of this {operation}, begun on version "
                f"{change.transaction.read_version}: it failed, or it was lost",
                advice="if its writer was told that it succeeded, and the history lacks it, do it "
                "again: it cannot be rescued",
                command=f"holdfast history {self.uri}",
                path=change.info.path,
                since=stamp_of(change.info),
            )

    def _find_undecided(
        self, records: Records, listed: Mapping[int, ObjectInfo]
    ) -> Iterator[Finding]:
        """Tell versions that strangers wrote from versions that the commit store forgot."""
        traces = self.seen.traces
        changed = [v for v, trace in traces.items() if trace.as_decided is False and v in listed]
        for version in sorted({*foreign(records, listed), *changed}):
            path = version_name(version).path
            if path in self.seen.unreadable:
                continue  # told as such
            trace, before = traces.get(version), traces.get(version - 1)
            token = None if trace is None else trace.token
            ours = token is not None and token != (None if before is None else before.token)
            accept = f"holdfast adopt {self.uri} --accept {max(listed)} --confirm"
            if ours and version not in changed:
                yield Finding(
                    kind=FindingKind.REGRESSED,
                    severity=Severity.PROBLEM,
                    what=f"the commit store forgot version {version}; it knows {records.newest}",
                    advice="stop all writers; was it restored from a backup? Then bring it up to "
                    "date, or take what the object store shows with the command",
                    command=f"holdfast repair {self.uri} --confirm",
                    path=path,
                    version=version,
                    since=stamp_of(listed.get(version)),
                )
                continue
            held = version in changed and self._is_held(records, version)
            yield Finding(
                kind=FindingKind.FOREIGN,
                severity=Severity.PROBLEM,
                what=f"version {version} was written past Holdfast",
                advice="find that writer and stop it; look at the version; to have the decided "
                "one back, the command; to keep what is there, `holdfast adopt --accept`"
                if held
                else "find that writer and stop it; look at the version; to keep it, "
                "`holdfast adopt --accept`",
                command=f"holdfast repair {self.uri} --confirm" if held else accept,
                path=path,
                version=version,
                since=stamp_of(listed.get(version)),
            )

    @staticmethod
    def _is_held(records: Records | None, version: int | None) -> bool:
        """Tell whether a version's record still has its bytes, as far as the record tells."""
        record = None if records is None or version is None else records.by_version.get(version)
        return record is not None and (record.body is not None or record.staged is not None)

    def _find_unfinished(
        self, records: Records, listed: Mapping[int, ObjectInfo]
    ) -> Iterator[Finding]:
        for version in unfinished_versions(records, listed):
            path = version_name(version).path
            if version in listed:
                yield Finding(
                    kind=FindingKind.UNFINISHED,
                    severity=Severity.NOTE,
                    what=f"version {version} is decided and in place, but not marked so",
                    advice="none needed: a staged copy stays behind until it is vacuumed",
                    command=f"holdfast vacuum {self.uri}",
                    path=path,
                    version=version,
                    since=stamp_of(listed[version]),
                )
            elif read_version(self.store, version, records.by_version[version]) is None:
                yield Finding(
                    kind=FindingKind.MISSING,
                    severity=Severity.PROBLEM,
                    what=f"version {version} is decided, but its bytes are gone",
                    advice="somebody deleted them: bring back the object from a backup",
                    path=path,
                    version=version,
                    since=stamp_of(listed.get(version - 1)),
                )
            else:
                yield Finding(
                    kind=FindingKind.UNFINISHED,
                    severity=Severity.WARNING,
                    what=f"version {version} is decided, but not in place: stock readers do not "
                    "see it",
                    advice="the next writer through Holdfast puts it there, and so does whoever "
                    "opens the table with the right to write, and the command",
                    command=f"holdfast repair {self.uri} --confirm",
                    path=path,
                    version=version,
                    since=stamp_of(listed.get(version - 1)),
                )

    def _unreadable(self) -> Iterator[Finding]:
        for path in self.seen.unreadable:
            version = version_of(path)
            newest = version is not None and version > self.seen.version
            held = self._is_held(self.records, version)
            yield Finding(
                kind=FindingKind.UNREADABLE,
                severity=Severity.PROBLEM if newest else Severity.WARNING,
                what="the newest manifest cannot be read, so nobody can open the table"
                if newest
                else "an object of the table cannot be read as what it should be",
                advice="its record still holds its bytes: put them back with the command"
                if held
                else "bring it back from a backup; nothing that is said here takes it into account",
                command=f"holdfast repair {self.uri} --confirm" if held else None,
                path=path,
                version=version,
                since=stamp_of(self.seen.objects.get(path)),
            )

    def _references(self) -> Iterator[Finding]:
        """Tell of tags and branches that cannot be read: while there are some, versions stay."""
        for read in (tagged_versions, branch_parents):
            try:
                read(self.store)
            except CorruptError as error:
                path = str(error.path)
                yield Finding(
                    kind=FindingKind.UNREADABLE,
                    severity=Severity.WARNING,
                    what=f"{error.message}: vacuum keeps all versions while it is there",
                    advice="make the tag or branch again, or remove the file if it is neither",
                    path=path,
                    since=stamp_of(self.seen.objects.get(path)),
                )
