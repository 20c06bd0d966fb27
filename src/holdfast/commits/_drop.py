"""Dropping a table: planned first, then removed so that nobody reads a part of it.

| removed              | a crash behind it leaves                                            |
|----------------------|---------------------------------------------------------------------|
| manifests, oldest    | the newest version, complete: the table reads as it was             |
| first                |                                                                     |
| the newest manifest  | no table; with a commit store, one whose newest version is missing, |
|                      | which every reader reports                                          |
| all other files      | the pin: the next drop finishes, no creation mistakes it            |
| the pin              | nothing                                                             |

Whoever misses a manifest that a commit store has decided puts it back, readers included. So the
table's id is retired there once its newest manifest is gone, and what came back until then goes
with the other files: else a lone manifest without a pin would bar this place for ever.

What writers add meanwhile, and names that no table has (`.DS_Store`), stay behind and belong
to nothing. Records in a commit store stay: the table that is made next at this place gets an
id of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from holdfast.arbiter import SupportsRetirement, open_arbiter
from holdfast.errors import HoldfastError, InvalidInputError, NotFoundError
from holdfast.formats import PIN_PATH, check_path, version_of
from holdfast.options import StorageOptions
from holdfast.storage import ObjectInfo, ObjectStore, open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Doomed:
    """What a drop removes, in this order."""

    paths: Sequence[str]
    bytes: int
    newest_version: int | None

    @property
    def objects(self) -> int:
        """Return how many objects go."""
        return len(self.paths)


def plan_drop(store: ObjectStore) -> Doomed:
    """Return what a drop of the table in `store` would remove; removes nothing.

    Raises:
        NotFoundError: no Holdfast table is there.
    """
    infos = [info for info in store.list() if _is_ours(info.path)]
    if not any(info.path == PIN_PATH for info in infos):
        raise NotFoundError(
            "no Holdfast table is here: a plain Lance table is not dropped by Holdfast",
            location=store.location,
        )
    versions = [version for info in infos if (version := version_of(info.path)) is not None]
    return Doomed(
        paths=[info.path for info in sorted(infos, key=_turn)],
        bytes=sum(info.size for info in infos),
        newest_version=max(versions, default=None),
    )


def drop(store: ObjectStore, doomed: Doomed, uri: str, options: StorageOptions) -> None:
    """Remove what was planned, one stage after the other. Safe to repeat."""
    manifests = [path for path in doomed.paths if version_of(path) is not None]
    others = doomed.paths[len(manifests) : -1]
    for stage in (manifests[:-1], manifests[-1:]):  # a batch has no order
        store.delete(stage)
    _retire(uri, options)
    store.delete(others)
    store.delete([info.path for info in store.list() if version_of(info.path) is not None])
    store.delete([PIN_PATH])


def _retire(uri: str, options: StorageOptions) -> None:
    """End the table's id, so that no manifest of it is put back any more.

    A commit store that gives no answer gives readers none either, so they put nothing back.
    """
    with suppress(HoldfastError):
        arbiter = open_arbiter(uri, options)
        if isinstance(arbiter, SupportsRetirement):
            arbiter.retire()
        arbiter.close()


def drop_table(uri: str, storage_options: StorageOptions) -> Doomed:
    """Destroy the table at an address. Safe to repeat: a drop that was killed is finished.

    Raises:
        NotFoundError: no Holdfast table is there.
    """
    store = open_store(uri, storage_options)
    doomed = plan_drop(store)
    drop(store, doomed, uri, storage_options)
    return doomed


def _turn(info: ObjectInfo) -> tuple[int, int, str]:
    version = version_of(info.path)
    if version is not None:
        return (0, version, info.path)
    return (2 if info.path == PIN_PATH else 1, 0, info.path)


def _is_ours(path: str) -> bool:
    try:
        check_path(path)
    except InvalidInputError:
        return False
    return True
