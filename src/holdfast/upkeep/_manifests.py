"""Read the manifests of many versions: each fragment once, and nothing twice.

Manifests of one table repeat each other. Versions are told newest first, and of each only the
fragments that an earlier told one, its *parent*, does not have; whoever looks at all of them has
seen every fragment, and each fragment first in the newest version that has it. What earlier runs
read is taken from `ReadMemory`, as long as the parent is the same object, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.commits import Records, in_parallel, read_version
from holdfast.formats import Reference
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.upkeep._memory import ReadMemory, Remembered

_WINDOW = 64
_BETWEEN_REFERENCES = 16  # to note all fragments of a manifest takes longer than to compare it


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version as it is told.

    Attributes:
        version: its number.
        body: its manifest without the fragments of its parent; None if it is gone.
        as_decided: whether its bytes are those of its record; None without a record.
    """

    version: int
    body: bytes | None
    as_decided: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """One manifest from the store or from memory; `kept` in the second case."""

    version: int
    body: bytes | None
    sha256: str | None = None
    kept: Remembered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parent:
    version: int
    tag: str | None
    fragments: Reference
    can_be_kept: bool


class Manifests:
    """Tells the versions of one table."""

    def __init__(self, store: ObjectStore, memory: ReadMemory) -> None:
        self._store = store
        self._memory = memory
        self._parent: _Parent | None = None
        self._told: set[int] = set()
        self._since_reference = 0

    def read(
        self,
        versions: Sequence[int],
        listed: Mapping[int, ObjectInfo],
        records: Records | None,
    ) -> Iterator[Manifest]:
        """Yield versions, which are given from the newest on."""
        decided = {} if records is None else records.by_version
        kept = {
            version: known
            for version, known in self._recall(versions, listed).items()
            if version not in decided or known.sha256 is not None
        }

        def load(version: int) -> _Loaded:
            record = decided.get(version)
            body = read_version(self._store, version, record)
            sha256 = None if record is None or body is None else hashlib.sha256(body).hexdigest()
            return _Loaded(version=version, body=body, sha256=sha256)

        for loaded in _in_order(versions, kept, load):
            if loaded.body is None:
                yield Manifest(version=loaded.version, body=None)
                continue
            record = decided.get(loaded.version)
            yield Manifest(
                version=loaded.version,
                body=self._without_known(loaded, listed.get(loaded.version)),
                as_decided=None if record is None else loaded.sha256 == record.sha256,
            )
            self._told.add(loaded.version)

    def _recall(
        self, versions: Sequence[int], listed: Mapping[int, ObjectInfo]
    ) -> dict[int, Remembered]:
        """Return what is remembered of versions whose parents are told, too, as they were."""
        found: dict[int, Remembered] = {}
        for version in versions:
            kept = self._memory.recall(listed.get(version))
            if kept is None:
                continue
            if kept.parent is None:
                found[version] = kept
                continue
            number, tag = kept.parent
            parent = found.get(number)
            if parent is None and number in self._told:
                parent = self._memory.recall(listed.get(number))
            if parent is not None and parent.tag == tag:
                found[version] = kept
        return found

    def _without_known(self, loaded: _Loaded, info: ObjectInfo | None) -> bytes:
        """Return a manifest without the fragments that its parent has, and remember it."""
        body = loaded.body or b""
        if loaded.kept is not None and loaded.kept.parent is not None:
            return body
        small, parent = self._compare(loaded.version, body, info)
        if parent is None and loaded.kept is not None:
            return body  # it is remembered as it is
        if info is not None and (parent is None or parent.can_be_kept):
            whose = None if parent is None else (parent.version, parent.tag or "")
            self._memory.keep(info, small, parent=whose, sha256=loaded.sha256)
        return small

    def _compare(
        self, version: int, body: bytes, info: ObjectInfo | None
    ) -> tuple[bytes, _Parent | None]:
        """Return the bytes to tell, and the version that has the rest; None for all bytes."""
        parent = self._parent
        can_be_kept = self._memory.can_keep(info)
        self._since_reference += 1
        # One that can be remembered must not lean on one that cannot.
        leans = parent is not None and (parent.can_be_kept or not can_be_kept)
        if leans and parent is not None and version < parent.version:
            small = parent.fragments.without_known(body)
            if 2 * len(small) < len(body):
                return small, parent
            if self._since_reference < _BETWEEN_REFERENCES:
                return body, None
        self._since_reference = 0
        self._parent = _Parent(
            version=version,
            tag=None if info is None else info.tag,
            fragments=Reference(body),
            can_be_kept=can_be_kept,
        )
        return body, None


def _in_order(
    versions: Sequence[int], kept: Mapping[int, Remembered], load: Callable[[int], _Loaded]
) -> Iterator[_Loaded]:
    """Yield what is remembered, and load the rest, several at a time and not far ahead."""
    for start in range(0, len(versions), _WINDOW):
        window = versions[start : start + _WINDOW]
        missing = [version for version in window if version not in kept]
        loaded = {one.version: one for one in in_parallel(load, missing)} if missing else {}
        for version in window:
            known = kept.get(version)
            yield (
                loaded[version]
                if known is None
                else _Loaded(version=version, body=known.body, sha256=known.sha256, kept=known)
            )
