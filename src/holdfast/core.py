"""`TableCore`: the one bundle of a table's store, arbiter, options, clock and ids.

What everybody asks of them is asked here: the manifest of a version, the shards there are, a
call repeated until it is answered. The packages above are functions and small classes of a
`TableCore`; nothing else holds a store and an arbiter together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import Arbiter, Attempts, RetryPolicy, SupportsVerdict, for_reading
from holdfast.errors import NotFoundError, UnavailableError
from holdfast.formats import MEM_WAL_FOLDER, shard_of, version_name
from holdfast.options import StorageOptions, resolve
from holdfast.storage import (
    Handle,
    ObjectStore,
    SupportsFolders,
    SupportsLanceAddress,
    SupportsLocalFiles,
)

T = TypeVar("T")


class TableCore(Handle):
    """One table's object store and arbiter, with its options, a clock and ids.

    Attributes:
        store: the table's object store.
        arbiter: who decides the table's names.
        location: the table's address, in its one spelling.
        options: storage options as they were given; they may travel to other processes.
        resolved: the same with their values, as pylance takes them. May hold secrets.
        clock: time.
        ids: where tokens and jitter come from.
    """

    def __init__(
        self,
        store: ObjectStore,
        arbiter: Arbiter,
        uri: str | Path | None = None,
        storage_options: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        self.store = store
        self.arbiter = arbiter
        self.location = address_of(store.location if uri is None else uri, store)
        self.options = StorageOptions(storage_options)
        self.resolved = {key: resolve(key, value) for key, value in self.options.items()}
        self.clock = clock or SystemClock()
        self.ids = ids or RandomIds()
        self._retry_policy = retry_policy or RetryPolicy()

    def __repr__(self) -> str:
        return f"TableCore({self.location})"

    def for_reading(self) -> TableCore:
        """Return the same table through an arbiter that finishes nothing and decides nothing."""
        return TableCore(
            self.store,
            for_reading(self.arbiter),
            self.location,
            self.options,
            clock=self.clock,
            ids=self.ids,
            retry_policy=self._retry_policy,
        )

    def manifest(self, version: int) -> bytes:
        """Return the decided bytes of a version.

        Raises:
            NotFoundError: there is no such version.
            UnavailableError: a store gave no answer.
            CommitStoreRegressedError, ForeignVersionError, CorruptError: the bytes at its name
                are not what was decided.
        """
        body = self.arbiter.read(version_name(version))
        if body is None:
            raise NotFoundError("there is no such version", version=version)
        return body

    def shard_ids(self) -> list[str]:
        """Return the ids of the table's shards, sorted.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        return list_shards(self.store)

    def retry(self, path: str, step: str, call: Callable[[], T]) -> T:
        """Repeat a call that can be repeated without harm, until it answers.

        Raises:
            UnavailableError: it never did.
        """
        last: UnavailableError | None = None
        for attempt in Attempts(self._retry_policy, self.clock, self.ids).of(path, step):
            try:
                return call()
            except UnavailableError as error:
                last, attempt.reason = error, str(error)
        raise last or UnavailableError("no attempt was made", path=path)

    def check_writable(self) -> None:
        """Return if the table's names can be decided; may probe the object store.

        Raises:
            UnsafeStoreError: the store failed the probe.
            PermissionDeniedError: it cannot be written to.
        """
        if isinstance(self.arbiter, SupportsVerdict):
            self.arbiter.require_verdict()


def address_of(uri: str | Path, store: ObjectStore) -> str:
    """Return the one spelling of a table's address: no link, no `..`, no slash at the end."""
    if isinstance(store, SupportsLanceAddress):
        return store.lance_address
    return str(uri).rstrip("/")


def list_shards(store: ObjectStore) -> list[str]:
    """Return the ids of the shards that a table's store shows, sorted.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    if isinstance(store, SupportsFolders):  # a log may have very many entries
        names = store.folders(MEM_WAL_FOLDER)
        paths = [f"{MEM_WAL_FOLDER}/{name}/x" for name in names if _has_objects(store, name)]
    else:
        paths = [info.path for info in store.list(MEM_WAL_FOLDER)]
    shard_ids = {shard_of(path) for path in paths}
    return sorted(shard_id for shard_id in shard_ids if shard_id is not None)


def _has_objects(store: ObjectStore, name: str) -> bool:
    """Tell whether a folder is more than a name: a disk keeps those that were emptied."""
    if not isinstance(store, SupportsLocalFiles):
        return True
    folder = f"{MEM_WAL_FOLDER}/{name}"
    return bool(store.list(f"{folder}/manifest") or store.list(folder))
