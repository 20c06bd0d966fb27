"""What `doctor` says of a table's shards: their manifests, logs and SSTables. Reads only."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from holdfast.core import TableCore
from holdfast.errors import (
    CommitStoreRegressedError,
    CorruptError,
    ForeignVersionError,
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.formats import (
    BLOOM_FILE,
    KEY_INDEX_DATA,
    KEY_INDEX_LOOKUP,
    SSTABLE_MANIFEST,
    entry_name,
    log_folder,
    shard_manifest_folder,
    shard_manifest_name,
    shard_of,
    shown_files,
    sstable_path,
)
from holdfast.shard import sstables_of
from holdfast.storage import ObjectInfo
from holdfast.upkeep._findings import Finding, FindingKind, Severity, stamp_of
from holdfast.upkeep._sstable_exam import SstableExam, SstableWound
from holdfast.wal import Log, ShardManifest, ShardManifests, SsTable, repair_log

_NO_ANSWER = (UnavailableError, PermissionDeniedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardsExam:
    """Looks at all shards of a table.

    Attributes:
        uri: the table's address, for commands.
        core: the table, with an arbiter that finishes nothing.
        objects: the table's objects.
        merged: by shard, the newest generation that the newest version has merged.
    """

    uri: str
    core: TableCore
    objects: Mapping[str, ObjectInfo]
    merged: Mapping[str, int]

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with the shards."""
        shards = {shard for path in self.objects if (shard := shard_of(path)) is not None}
        for shard_id in sorted(shards | set(self.merged)):
            yield from self._shard(shard_id)

    def _shard(self, shard_id: str) -> Iterator[Finding]:
        try:
            manifest = ShardManifests(self.core, shard_id).latest()
        except _NO_ANSWER:
            raise
        except HoldfastError as error:
            yield self._unreadable(shard_id, error)
            return
        if manifest is None:
            yield from self._find_unmanaged(shard_id)
            return
        merged = self.merged.get(shard_id, 0)
        if merged >= manifest.current_generation:
            yield self._problem(
                shard_id,
                f"the shard's manifest is older than the table: generation {merged} is merged, "
                f"but the shard's next one is {manifest.current_generation}",
                "stop its writers: they would write what readers pass over; bring back the "
                "objects of the folder from a backup",
            )
        yield from self._log(shard_id)
        yield from self._not_in_place(manifest)  # after the log was read in order
        yield from self._sstables(manifest)

    def _not_in_place(self, manifest: ShardManifest) -> Iterator[Finding]:
        """Tell of what is decided, and read from its record, but has no object at its name."""
        path = shard_manifest_name(manifest.shard_id, manifest.version).path
        entries = self._entries_not_in_place(manifest)
        if self._is_there(path) and not entries:
            return
        what = (
            "the shard's newest manifest"
            if not entries
            else f"{len(entries)} log entries of the shard"
        )
        yield Finding(
            kind=FindingKind.UNFINISHED,
            severity=Severity.WARNING,
            what=f"{what}: decided, but not in place, so stock readers do not see all rows",
            advice="the next writer of the shard puts it there, and so does the command",
            command=f"holdfast repair {self.uri} --confirm",
            path=entries[0] if entries else path,
            shard=manifest.shard_id,
            since=self._newest_stamp(posixpath.dirname(path)),
        )

    def _entries_not_in_place(self, manifest: ShardManifest) -> list[str]:
        listed = Log(self.core, manifest.shard_id).list_entries()
        after = manifest.replay_after
        missing = [n for n in range(after + 1, max([after, *listed])) if n not in listed]
        names = [entry_name(manifest.shard_id, n) for n in missing]
        with suppress(CorruptError, CommitStoreRegressedError, ForeignVersionError):
            return [name.path for name in names if self.core.arbiter.read(name) is not None]
        return []

    def _unreadable(self, shard_id: str, error: HoldfastError) -> Finding:
        regressed = isinstance(error, CommitStoreRegressedError)
        foreign = isinstance(error, ForeignVersionError)
        kind = FindingKind.REGRESSED if regressed else FindingKind.SHARD
        return Finding(
            kind=FindingKind.FOREIGN if foreign else kind,
            severity=Severity.PROBLEM,
            what=f"the shard's newest manifest cannot be read: {error}",
            advice="nobody writes to the shard or reads its rows until then; "
            + (
                "see what can be put back with the command"
                if regressed or foreign
                else "bring back the object from a backup"
            ),
            command=f"holdfast repair {self.uri}" if regressed or foreign else None,
            path=shard_manifest_folder(shard_id),
            shard=shard_id,
            since=self._newest_stamp(shard_manifest_folder(shard_id)),
        )

    def _find_unmanaged(self, shard_id: str) -> Iterator[Finding]:
        """Tell of rows in a shard without a manifest; leftovers of one that never was are none."""
        merged = self.merged.get(shard_id, 0)
        entries = [path for path in self.objects if self._is_entry(shard_id, path)]
        if merged or entries:
            yield self._problem(
                shard_id,
                f"the shard has no manifest: {len(entries)} log entries, and {merged} "
                "generations merged",
                "somebody deleted it; bring back the folder from a backup before anybody writes",
            )

    def _log(self, shard_id: str) -> Iterator[Finding]:
        try:
            repair = repair_log(self.core, shard_id)
        except _NO_ANSWER:
            raise
        except HoldfastError as error:
            regressed = isinstance(error, CommitStoreRegressedError)
            yield Finding(
                kind=FindingKind.REGRESSED if regressed else FindingKind.LOG,
                severity=Severity.PROBLEM,
                what=f"the shard's log cannot be read: {error}",
                advice="nobody writes to the shard or reads its rows until then; see what can be "
                "put back with the command",
                command=f"holdfast repair {self.uri}",
                path=log_folder(shard_id),
                shard=shard_id,
                since=self._newest_stamp(log_folder(shard_id)),
            )
            return
        for wound in repair.wounds:
            path = entry_name(shard_id, wound.position).path
            later = entry_name(shard_id, wound.position + 1).path
            rows = "" if wound.rows is None else f", {wound.rows} rows cannot be read"
            yield Finding(
                kind=FindingKind.LOG,
                severity=Severity.PROBLEM,
                what=f"log entry {wound.position} is {wound.damage.value}{rows}: nothing after it "
                "is read or flushed",
                advice="bring back the object from a backup; else give up its rows and close the "
                "hole with the command",
                command=f"holdfast repair {self.uri} --confirm",
                path=path,
                shard=shard_id,
                since=stamp_of(self.objects.get(path) or self.objects.get(later)),
            )

    def _sstables(self, manifest: ShardManifest) -> Iterator[Finding]:
        shard_id = manifest.shard_id
        merged = self.merged.get(shard_id, 0)
        for table in manifest.sstables:
            folder = sstable_path(shard_id, table.path)
            gone = [path for path in self._parts(folder, table) if not self._is_there(path)]
            wound = None
            if table.generation > merged:
                wound = SstableExam(
                    self.core.store, sstables_of(self.core), shard_id, table
                ).wound()
            if not self._is_listed(shard_id, table.generation):
                continue  # merged and collected while we looked
            if wound is not None:
                yield self._broken(shard_id, table, wound, gone)
            elif gone:
                yield self._merged_finding(shard_id, table, gone)

    def _merged_finding(self, shard_id: str, table: SsTable, gone: Sequence[str]) -> Finding:
        """Tell of files that only stock readers still look for: the table has their rows."""
        return Finding(
            kind=FindingKind.MISSING,
            severity=Severity.NOTE,
            what=f"generation {table.generation} of the shard lacks {len(gone)} of its files; it "
            "is merged, so no row is lost",
            advice="let it be taken out of the shard's manifest with the command",
            command=f"holdfast maintain {self.uri}",
            path=gone[0],
            shard=shard_id,
            since=self._newest_stamp(sstable_path(shard_id, table.path)),
        )

    def _broken(
        self, shard_id: str, table: SsTable, wound: SstableWound, gone: Sequence[str]
    ) -> Finding:
        """Tell of a generation that cannot be read whole, and waits to be merged."""
        folder = sstable_path(shard_id, table.path)
        rows = "all" if wound.rows is None else wound.rows
        lacks = f"lacks {len(gone)} of its files" if gone else "is damaged"
        return Finding(
            kind=FindingKind.MISSING if gone else FindingKind.SHARD,
            severity=Severity.PROBLEM,
            what=f"generation {table.generation} of the shard {lacks}: {rows} of its "
            f"{table.physical_rows} rows cannot be read or merged",
            advice="bring back the objects from a backup; else give up what cannot be read, and "
            "keep the other rows, with the command",
            command=f"holdfast shard repair {self.uri} {shard_id} --confirm",
            path=gone[0] if gone else folder,
            shard=shard_id,
            since=self._newest_stamp(folder),
        )

    def _parts(self, folder: str, table: SsTable) -> Iterator[str]:
        """Yield the files that an SSTable must have."""
        main = f"{folder}/{SSTABLE_MANIFEST}"
        yield main
        with suppress(NotFoundError, CorruptError):
            yield from (
                f"{folder}/{path}" for path in _files(shown_files(self.core.store.get(main)))
            )
        if table.primary_key_bytes is not None:
            yield from (
                f"{folder}/{name}" for name in (BLOOM_FILE, KEY_INDEX_DATA, KEY_INDEX_LOOKUP)
            )

    def _is_there(self, path: str) -> bool:
        if path in self.objects:
            return True
        with suppress(NotFoundError):  # it may be younger than the listing
            self.core.store.head(path)
            return True
        return False

    def _is_listed(self, shard_id: str, generation: int) -> bool:
        """Tell whether a generation is still published: it may have been drained meanwhile."""
        manifest = ShardManifests(self.core, shard_id).latest()
        return manifest is not None and any(
            one.generation == generation for one in manifest.sstables
        )

    def _problem(self, shard_id: str, what: str, advice: str) -> Finding:
        return Finding(
            kind=FindingKind.SHARD,
            severity=Severity.PROBLEM,
            what=what,
            advice=advice,
            path=posixpath.dirname(shard_manifest_folder(shard_id)),
            shard=shard_id,
            since=self._newest_stamp(posixpath.dirname(shard_manifest_folder(shard_id))),
        )

    def _newest_stamp(self, folder: str) -> datetime | None:
        infos = [info for path, info in self.objects.items() if path.startswith(f"{folder}/")]
        return stamp_of(max(infos, key=lambda info: info.modified, default=None))

    @staticmethod
    def _is_entry(shard_id: str, path: str) -> bool:
        return path.startswith(f"_mem_wal/{shard_id}/wal/") and path.endswith(".arrow")


def _files(paths: Collection[str]) -> list[str]:
    """Return data and deletion files: what no reader of rows can do without."""
    return sorted(path for path in paths if path.startswith(("data/", "_deletions/")))
