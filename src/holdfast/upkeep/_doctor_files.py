"""What `doctor` says of a table's files: what is gone, and what is left over."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.commits import VERSIONS_FOLDER, Records
from holdfast.errors import NotFoundError
from holdfast.formats import (
    PROBE_FOLDER,
    STAGED_FOLDER,
    TEMPORARY_FOLDER,
    belongs_to_table,
    index_files,
    older_files,
    read_config,
    shown_files,
    version_name,
    version_of,
)
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.upkeep._findings import Finding, FindingKind, Severity, stamp_of
from holdfast.upkeep._survey import Survey

_WHOLE_BYTES = 1 << 20
_SAMPLES = 4
_HINT = f"{VERSIONS_FOLDER}/latest_version_hint.json"
_STRAYS = (
    (STAGED_FOLDER, "staged objects that no decision needs"),
    (TEMPORARY_FOLDER, "temporary files of writers that stopped half-way"),
    (PROBE_FOLDER, "objects of a probe that was cut off"),
    (VERSIONS_FOLDER, "staged manifests of commits that were cut off"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesExam:
    """Looks at the files of a table.

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
        """Yield what is missing, and what is left over."""
        yield from self._find_missing()
        yield from self._strays()

    def _find_missing(self) -> Iterator[Finding]:
        """Look for files that the newest version shows; what is listed is there."""
        manifest = self.seen.manifest
        files = {path for path in shown_files(manifest) if path.startswith("_deletions/")}
        files.update(file.path for file in older_files(read_config(manifest)))
        for path in sorted(self.seen.shown | files):
            if not self._is_there(path):
                yield self._missing_finding(path)
        gone = [path for path in sorted(index_files(manifest)) if not self._is_there(path)]
        for folder in sorted({posixpath.dirname(path) for path in gone}):
            whole = not any(path.startswith(f"{folder}/") for path in self.seen.objects)
            first = next(path for path in gone if posixpath.dirname(path) == folder)
            yield self._missing_finding(f"{folder}/" if whole else first)

    def _missing_finding(self, path: str) -> Finding:
        of_index = path.startswith("_indices/")
        return Finding(
            kind=FindingKind.MISSING,
            severity=Severity.PROBLEM,
            what=f"version {self.seen.version} shows a file "
            f"{'of an index ' if of_index else ''}that is not there",
            advice="somebody deleted it: bring back the object, or build the index again"
            if of_index
            else "somebody deleted it: bring back the object from a backup, or go back to a "
            "version that does not show it",
            command=f"holdfast index ls {self.uri}" if of_index else f"holdfast history {self.uri}",
            path=path,
            version=self.seen.version,
            since=stamp_of(self.seen.objects.get(version_name(self.seen.version).path)),
        )

    def _is_there(self, path: str) -> bool:
        """Tell whether a file, or anything in a folder, is there."""
        if path in self.seen.objects:
            return True
        if path.endswith("/"):
            return bool(self.store.list(path[:-1]))
        with suppress(NotFoundError):  # it may be younger than the listing
            self.store.head(path)
            return True
        return False

    def _strays(self) -> Iterator[Finding]:
        recorded = {} if self.records is None else self.records.by_version
        needed = {record.staged for record in recorded.values() if record.staged is not None}
        for folder, what in _STRAYS:
            left = [
                info
                for path, info in self.seen.objects.items()
                if path.startswith(f"{folder}/")
                and path not in needed
                and path != _HINT
                and version_of(path) is None
            ]
            if left:
                yield self._stray(folder, what, left)
        told = tuple(f"{folder}/" for folder, _ in _STRAYS)
        unknown = [
            info
            for path, info in self.seen.objects.items()
            if not belongs_to_table(path) and not path.startswith(told)
        ]
        if unknown:
            what = "files that no table has: left by a process that was killed, or by others"
            yield self._stray(unknown[0].path, what, unknown)

    def _stray(self, path: str, what: str, left: Sequence[ObjectInfo]) -> Finding:
        size = sum(info.size for info in left)
        return Finding(
            kind=FindingKind.STRAY,
            severity=Severity.NOTE,
            what=f"{len(left)} {what}, {size} bytes",
            advice="harmless; vacuum takes what is ours and old enough",
            command=f"holdfast vacuum {self.uri}",
            path=path,
            since=stamp_of(min(left, key=lambda info: info.modified)),
        )


def sample_of(store: ObjectStore, info: ObjectInfo) -> bytes:
    """Return a file's bytes, or of a large one some pieces, to compare."""
    if info.size <= _WHOLE_BYTES:
        return store.get(info.path)
    piece = _WHOLE_BYTES // _SAMPLES
    starts = [(info.size - piece) * number // (_SAMPLES - 1) for number in range(_SAMPLES)]
    return b"".join(store.get(info.path, start=start, end=start + piece) for start in starts)
