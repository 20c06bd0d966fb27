"""`Versions`: the versions of one table as Lance's commit path sees them.

Lance stages a manifest and asks for it to become version N. `create` marks the manifest
with a token and the transactions it applies, makes the files it shows durable, and decides
the name of version N. Check and decision are one step: the ledger that is checked is the
one inside the manifest that is decided.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import Arbiter, Lost, RecordedDecisions
from holdfast.commits._boundary import CHECK_AFTER, VersionsBoundary
from holdfast.commits._columns import check_rebased
from holdfast.errors import (
    AlreadyExistsError,
    CollectedError,
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
)
from holdfast.formats import (
    TOKEN_KEY,
    VERSIONS_SERIES,
    Name,
    is_applied,
    record_txns,
    shown_files,
    version_name,
)
from holdfast.formats._append import AppendTransaction, Base
from holdfast.formats._manifest import Head
from holdfast.formats._transaction import transaction_path
from holdfast.formats._version_files import VERSIONS_FOLDER, newest_version
from holdfast.storage import LocalStore, ObjectStore
from holdfast.txn import Txn

Edit: TypeAlias = Callable[[bytes], bytes]
"""Changes the manifest that is about to be decided, or refuses by raising a `HoldfastError`.

Called for each try with the very bytes that Lance wants to commit, so what it finds there
still holds when they are decided.
"""


class AlreadyAppliedError(ConflictError):
    """Some transactions of a commit are in the table already; the commit was not made."""

    def __init__(self, message: str, *, txns: Sequence[Txn] = (), version: int = 0) -> None:
        super().__init__(message, txns=tuple(txns), version=version)


class Versions:
    """Decides and describes the versions of one table."""

    def __init__(
        self,
        store: ObjectStore,
        arbiter: Arbiter,
        location: str | Path,
        ids: Ids | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.arbiter = arbiter
        self.location = address_of(location, store)
        self._ids = ids or RandomIds()
        self._clock = clock or SystemClock()
        self._durable: set[str] = set()  # what was shown by the last version that we made durable

    def create(
        self,
        fields: Mapping[str, Any],
        txns: Sequence[Txn] = (),
        *,
        synced: bool = False,
        creates: bool = False,
        edit: Edit | None = None,
        begun: float | None = None,
    ) -> dict[str, object]:
        """Make a staged manifest the version it wants to be.

        `synced` says that the data files the version adds are durable once `edit` returned,
        and that `edit` changes no files; `creates` that somebody here is about to create the
        table; `edit` has the last word on the manifest; `begun` is when, by `elapsed`, the
        commit began to look for the newest version, just now unless told.

        Raises:
            AlreadyExistsError: another writer created the table meanwhile.
            ConflictError: another writer has this version; Lance rebases and asks again.
            AlreadyAppliedError: the version below holds some of `txns`.
            ColumnsChangedError: Lance put appended rows upon other columns.
            CollectedError: this version was made and collected since the commit began.
            CommitUnknownError: the outcome could not be learnt.
            HoldfastError: whatever `edit` raised; nothing was decided.
        """
        version, staged = int(fields["version"]), str(fields["manifest_path"])
        self._check_kind(fields, version)
        folder, _, file = staged.rpartition("/")
        name, token = version_name(version), self._ids.token()
        ours = f"{posixpath.dirname(name.path)}/{file}"
        manifest = self.store.get(ours)
        if creates and version > 1 and _begins(manifest):
            # A table that appears while Lance creates one would be overwritten, as version 2.
            raise AlreadyExistsError("somebody else created the table", version=version)
        head = Head(manifest)
        entries = _entries(head.config, txns, version)
        check_rebased(self.store, manifest, head)
        if synced:  # an append; `edit` waits until its data is durable, so do our part first
            self._sync_transaction(head)
        edited = manifest if edit is None else edit(manifest)
        if edited is not manifest:
            manifest, head = edited, Head(edited)
        if not synced:
            self._sync_shown(manifest)
        body = head.with_config({**entries, TOKEN_KEY: token})
        self._decide(name, body, token, begun)
        self.drop(ours)
        return _answer(version, f"{folder}/{posixpath.basename(name.path)}", len(body))

    def append(
        self,
        base: Base,
        transaction: AppendTransaction,
        txns: Sequence[Txn],
        durable: Callable[[], None],
        now: float,
        *,
        begun: float | None = None,
    ) -> int:
        """Make the version above `base`, with a durable transaction's fragments; return which.

        `durable` returns once the data files are; `begun` as for `create`.

        Raises:
            AlreadyAppliedError: `base` holds some of `txns`.
            ConflictError: another writer has this version.
            CollectedError: this version was made and collected since the commit began.
            CommitUnknownError: the outcome could not be learnt.
            HoldfastError: whatever `durable` raised, or a store; nothing was decided.
        """
        version = base.version + 1
        entries = _entries(base.config, txns, version)
        durable()
        token = self._ids.token()
        body = base.append(transaction, {**entries, TOKEN_KEY: token}, now)
        self._decide(version_name(version), body, token, begun)
        return version

    def elapsed(self) -> float:
        """Return seconds since an arbitrary start, sleep included."""
        return self._clock.elapsed()

    def _decide(self, name: Name, body: bytes, token: str, begun: float | None) -> None:
        if isinstance(self.arbiter.decide(name, body, token), Lost):
            raise ConflictError("another writer has this version", version=name.number)
        slept = begun is not None and self.elapsed() - begun > CHECK_AFTER.total_seconds()
        # A commit store has refused an old name already; put-if-absent gives it away again.
        if slept and not isinstance(self.arbiter, RecordedDecisions):
            self._refuse_collected(name)

    def _refuse_collected(self, name: Name) -> None:
        """Acknowledge no version whose name was decided, and collected, while we slept."""
        try:
            boundary = VersionsBoundary(self.store).read()
        except HoldfastError as error:
            raise CommitUnknownError(
                "decided, but not shown to be newer than what was collected: repeat it with the "
                "same txn",
                name=name.path,
                decided=True,
            ) from error
        if name.number <= boundary:
            self.drop(name.path)
            raise CollectedError(
                "decided long ago: read the table again", name=name.path, boundary=boundary
            )

    def sync(self, paths: Sequence[str]) -> None:
        """Make files that Lance wrote durable, where that is ours to do."""
        if isinstance(self.store, LocalStore):
            self.store.sync(paths)

    def _sync_transaction(self, head: Head) -> None:
        """Make the transaction durable, the one file that an append adds besides its data.

        The commit of an append must not cost more with every fragment there is.
        """
        if head.transaction_file:
            self.sync([transaction_path(head.transaction_file)])

    def _sync_shown(self, manifest: bytes) -> None:
        """Make durable what the version shows and nobody made durable before."""
        if not isinstance(self.store, LocalStore):
            return
        shown = shown_files(manifest)
        fresh = shown - self._durable
        folders = [path[:-1] for path in fresh if path.endswith("/")]
        files = [path for path in fresh if not path.endswith("/")]
        self.store.sync([*files, *(info.path for f in folders for info in self.store.list(f))])
        self._durable = shown

    def drop(self, path: str) -> None:
        """Remove a staged manifest that nobody needs any more; best effort."""
        with suppress(HoldfastError):
            self.store.delete([path])

    def newest(self) -> dict[str, object]:
        """Return the newest decided version, finished; an empty answer makes Lance list."""
        if not isinstance(self.arbiter, RecordedDecisions):
            return {"versions": []}
        number = self.arbiter.newest(VERSIONS_SERIES)
        return {"versions": [] if not number else [self.describe(number)["version"]]}

    def newest_manifest(self) -> bytes | None:
        """Return the newest decided version's bytes, finished; None when Lance must look.

        By listing, as Lance does: see `manifest_after`.
        """
        if isinstance(self.arbiter, RecordedDecisions):
            number = self._newest_recorded(self.arbiter)
        else:
            number = newest_version(self._version_files())
        return self.arbiter.read(version_name(number)) if number else None

    def manifest_after(self, known: int) -> bytes | None:
        """Return the bytes of the newest version that follows a known one without a gap.

        A hint, and only on local disk: nobody is asked whether it was decided, and it may be
        a version that outlived its successors because it has a tag.
        """
        if not known or not isinstance(self.store, LocalStore):
            return None
        root = self.store.root
        while os.path.exists(f"{root}/{version_name(known + 1).path}"):  # noqa: PTH110 - strings
            known += 1
        try:
            return self.store.get(version_name(known).path)
        except NotFoundError:
            return None

    def _newest_recorded(self, arbiter: RecordedDecisions) -> int | None:
        """Return the newest recorded version, unless there is one that no record tells of.

        A stranger wrote that, or the commit store forgot it: nobody may claim its name anew.
        """
        number = arbiter.newest(VERSIONS_SERIES)
        while number and self._is_there(version_name(number + 1)):
            before, number = number, arbiter.newest(VERSIONS_SERIES)
            if number == before:
                return None
        return number

    def _is_there(self, name: Name) -> bool:
        try:
            self.store.head(name.path)
        except NotFoundError:
            return False
        return True

    def _version_files(self) -> Sequence[str]:
        if isinstance(self.store, LocalStore):
            with suppress(OSError):
                return os.listdir(self.store.root / VERSIONS_FOLDER)  # noqa: PTH208 - strings
            return ()
        return [posixpath.basename(info.path) for info in self.store.list(VERSIONS_FOLDER)]

    def describe(self, version: int) -> dict[str, object]:
        """Return one version, finished.

        Raises:
            NotFoundError: nobody decided it.
        """
        name = version_name(version)
        body = self.arbiter.read(name)
        if body is None:
            raise NotFoundError("no such version", version=version, location=self.location)
        return _answer(version, f"{_store_path(self.location)}/{name.path}", len(body))

    def _check_kind(self, fields: Mapping[str, Any], version: int) -> None:
        if fields.get("branch") or version < 0:
            raise InvalidInputError(
                "branches and detached versions are not decided by Holdfast",
                location=self.location,
            )
        if fields.get("naming_scheme") != "V2":
            raise InvalidInputError(
                "this table has the old manifest names: migrate it with "
                "`LanceDataset.migrate_manifest_paths_v2`",
                location=self.location,
            )


def _entries(config: Mapping[str, str], txns: Sequence[Txn], version: int) -> dict[str, str | None]:
    """Return what the ledger says once the transactions are in it."""
    applied = [txn for txn in txns if is_applied(config, txn)]
    if applied:
        raise AlreadyAppliedError("in the table already", txns=applied, version=version - 1)
    return record_txns(config, txns)


def _begins(manifest: bytes) -> bool:
    """Tell whether a version was made without reading another: its transaction read none."""
    return any(path.startswith("_transactions/0-") for path in shown_files(manifest))


def address_of(uri: str | Path, store: ObjectStore) -> str:
    """Return the one spelling of a table's address: no link, no `..`, no slash at the end."""
    return str(store.root) if isinstance(store, LocalStore) else str(uri).rstrip("/")


def _answer(version: int, path: str, size: int) -> dict[str, object]:
    return {"version": {"version": version, "manifest_path": path, "manifest_size": size}}


def _store_path(location: str) -> str:
    """Return a table's place as Lance's object store names it: without bucket or first slash."""
    if "://" in location:
        return location.split("://", 1)[1].partition("/")[2]
    return location.lstrip("/")
