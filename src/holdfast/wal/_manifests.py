"""`ShardManifests`: who owns a shard, decided one version after the other.

    manifests = ShardManifests(core, shard_id)
    mine = manifests.claim()                       # a higher epoch: the one before is out
    manifests.update(mine.writer_epoch, publish)   # FencedError once somebody claimed after us

The newest version is looked for by listing, which is only a hint, and then by reading on until
nothing is there. Stock's own hint file is written now and then for its sake, and never read.

Old versions are deleted, so a name may be free although it was decided long ago. No clock says
how long a caller was away; three rules do without:

| who                   | rule                                                                |
|-----------------------|---------------------------------------------------------------------|
| collects old versions | raises the boundary first, then deletes one by one, oldest first    |
| reads the newest, N   | finds nothing at N+1, and N there *afterwards*: so N+1 never was    |
| decided, or owns, N   | reads the boundary afterwards: N counts only above it               |

| stopped after                   | others see                     | who goes on               |
|---------------------------------|--------------------------------|---------------------------|
| deciding a version              | the version                    | anyone, from it           |
| creating a name that was free   | a version below the boundary,  | the next collection       |
| only because it was collected   | which nobody follows           | removes it                |
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.arbiter import Lost, SupportsSeries
from holdfast.core import TableCore
from holdfast.errors import (
    CollectedError,
    CommitUnknownError,
    ConflictError,
    CorruptError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    SealedError,
    StaleHandleError,
)
from holdfast.events import EventKind, emit
from holdfast.formats import (
    BoundaryKind,
    Name,
    ShardManifest,
    check_shard_id,
    decode_shard_manifest,
    encode_shard_manifest,
    generation_of,
    position_of,
    shard_folder,
    shard_manifest_folder,
    shard_manifest_name,
    shard_version_of,
    version_hint_path,
)
from holdfast.wal._boundary import NOTHING, Boundary

_CLAIMS = 16
_UPDATES = 64
_HINT_EVERY = 8
Change = Callable[[ShardManifest], ShardManifest]


class ShardManifests:
    """The manifests of one shard.

    Raises:
        InvalidInputError: the shard id is no UUID.
    """

    def __init__(self, core: TableCore, shard_id: str) -> None:
        self._core = core
        self._shard_id = check_shard_id(shard_id)
        self._boundary = Boundary(core.store, self._shard_id, BoundaryKind.MANIFEST)
        self._known: ShardManifest | None = None

    def latest(self) -> ShardManifest | None:
        """Return the newest version, or None for a shard that nobody made yet. Never writes.

        Raises:
            CorruptError: a version cannot be read.
            UnavailableError, PermissionDeniedError: a store did not tell.
            CommitStoreRegressedError, ForeignVersionError: a version is not the decided one.
        """
        # Listings of object stores may lag and pages of one are taken at different times: the
        # number is where the search begins, never its result.
        version = self._last_seen()
        for _ in range(_CLAIMS):
            version = self._follow(version)
            # Read last: versions are deleted in order, so while this one is there, the next one
            # was not deleted before it was found missing.
            newest = self._read(version) if version else None
            # A shard whose versions were all collected does not exist: the newest stays. No version
            # and no boundary means that nobody made it yet.
            if newest is not None or (not version and self._boundary.read() == NOTHING):
                self._known = newest
                return newest
            version = self._newest_listed()
        raise self._too_many()

    def read(self, version: int) -> ShardManifest | None:
        """Return one version; None when it is not there, or not any more.

        Raises:
            As for `latest`.
        """
        return self._read(version)

    def claim(
        self,
        *,
        shard_spec_id: int = 0,
        field_entries: Sequence[tuple[str, bytes]] = (),
        first_generation: int = 1,
    ) -> ShardManifest:
        """Take the shard: decide a version with a higher epoch. Writes; makes a missing shard.

        A new shard begins with `first_generation`: a table may have merged generations of a
        shard that is not there, as a clone has, and readers pass those numbers over.

        Whoever owned it can no longer update a manifest. To stop its appends, too, a fence in
        the log is needed: use `WalAppender.claim`.

        Raises:
            FencedError: another writer claimed it at the same time.
            SealedError: the shard is sealed.
            CorruptError: it has rows and no manifest: somebody deleted its manifests.
            CommitUnknownError: the outcome could not be learnt; claim again.
            Other errors: as for `latest`.
        """
        for _ in range(_CLAIMS):
            current = self.latest() or self._latest_beside_rows()
            wanted = self._successor(current, shard_spec_id, field_entries, first_generation)
            theirs = self._decide(wanted)
            if theirs is None:
                assert self._known is not None  # noqa: S101 - set by the decision that was won
                return self._known
            # Another claimer was faster. One of equal rank does not try again: the two would lock
            # each other out in turn, and each claim ends a writer that works.
            if theirs.writer_epoch >= wanted.writer_epoch:
                raise fenced_error(self._shard_id, wanted.writer_epoch, theirs.writer_epoch)
        raise self._too_many()

    def update(self, epoch: int, change: Change) -> ShardManifest:
        """Decide the next version; only the newest owner can.

        `change` may be called several times: each time another process was faster, on what it
        wrote. It must notice its own work: after a lost answer it may meet it. Returning what
        it was given writes nothing.

        Args:
            epoch: what the caller claimed.
            change: returns the manifest it is given, changed; its version, epoch and token are
                set here.

        Raises:
            FencedError: another writer claimed the shard since.
            InvalidInputError: the change would move the flushed cursor or the generation back.
            NotFoundError: there is no such shard.
            CommitUnknownError: the outcome could not be learnt; update again.
            Other errors: as for `latest`.
        """
        # From memory first: an owner's flush costs one decision and no read as long as nobody else
        # wrote.
        current, fresh = self._known, False
        for _ in range(_UPDATES):
            if current is None:
                current, fresh = self.latest(), True
            if current is None:
                raise self._missing_error()
            self._check_epoch(current, epoch)
            wanted = change(current)
            # Only a fresh read proves that there is nothing to do: what is remembered may be old.
            if wanted == current and fresh:
                return current
            if wanted == current:
                current = None  # perhaps there is work to do on a newer version
                continue
            current, fresh = self._decide(self._check_update(current, wanted)), True
            if current is None:
                assert self._known is not None  # noqa: S101 - set by the decision that was won
                return self._known
        raise self._too_many()

    def seal(self, epoch: int) -> ShardManifest:
        """Decide that nobody claims this shard again.

        Raises:
            As for `update`.
        """
        return self.update(epoch, lambda current: replace(current, sealed=True))

    def check(self, epoch: int) -> ShardManifest:
        """Return the newest version if `epoch` still owns the shard.

        Raises:
            FencedError: it does not.
            NotFoundError: there is no such shard.
            Other errors: as for `latest`.
        """
        version = self._last_seen()
        for _ in range(_CLAIMS):
            version = self._follow(version)
            known = self._known if self._known and self._known.version == version else None
            current = known or (self._read(version) if version else None)
            # After the version: a boundary that was raised in between shows that newer versions
            # were decided and that ours may be among the deleted ones.
            boundary = self._boundary.read()
            if current is None and boundary == NOTHING:
                raise self._missing_error()
            if current is not None and version > boundary:
                self._known = current
                self._check_epoch(current, epoch)
                return current
            version = self._newest_listed()  # newer ones were decided, and deleted, meanwhile
        raise self._too_many()

    def _latest_beside_rows(self) -> ShardManifest | None:
        """Return the newest version of a shard that seemed new; None if it is.

        A first manifest for rows that are there would hide those that were flushed, and vacuum
        would take them. Every row comes after a manifest, and the newest manifest stays, so
        whoever finds rows and then no manifest knows that it was deleted.

        Raises:
            CorruptError: it was.
        """
        beside = self._core.store.list(shard_folder(self._shard_id))
        if not any(_has_rows(info.path) for info in beside):
            return None
        newest = self.latest()
        if newest is None:
            raise CorruptError(
                "the shard has rows and no manifest: somebody deleted its manifests; bring back "
                "the folder from a backup before anybody writes, see `holdfast doctor`",
                shard_id=self._shard_id,
                folder=shard_manifest_folder(self._shard_id),
            )
        return newest

    def _last_seen(self) -> int:
        """Return the newest version that is known here, or that a listing shows."""
        return self._newest_listed() if self._known is None else self._known.version

    def _follow(self, version: int) -> int:
        """Return the last version that is there when one goes on from this one."""
        while self._read(version + 1) is not None:
            version += 1
        return version

    def _newest_listed(self) -> int:
        """Return the newest version that a listing shows; 0 when it shows none."""
        versions = (
            shard_version_of(info.path)
            for info in self._core.store.list(shard_manifest_folder(self._shard_id))
        )
        return max((version for version in versions if version is not None), default=0)

    def _successor(
        self,
        current: ShardManifest | None,
        shard_spec_id: int,
        field_entries: Sequence[tuple[str, bytes]],
        first_generation: int,
    ) -> ShardManifest:
        if current is None:
            return ShardManifest(
                shard_id=self._shard_id,
                version=1,
                writer_epoch=1,
                current_generation=first_generation,
                shard_spec_id=shard_spec_id,
                field_entries=tuple(field_entries),
            )
        if current.sealed:
            raise SealedError("this shard is sealed: write to another", shard_id=self._shard_id)
        return replace(current, version=current.version + 1, writer_epoch=current.writer_epoch + 1)

    def _check_epoch(self, current: ShardManifest, epoch: int) -> None:
        if current.writer_epoch > epoch:
            raise fenced_error(self._shard_id, epoch, current.writer_epoch)
        # Epochs only rise. A lower one than we claimed means that decided manifests are gone.
        if current.writer_epoch < epoch:
            raise CorruptError(
                "the shard's epoch went back: somebody removed or replaced its manifests",
                shard_id=self._shard_id,
                epoch=epoch,
                stored_epoch=current.writer_epoch,
            )

    def _check_update(self, current: ShardManifest, wanted: ShardManifest) -> ShardManifest:
        went_back = (
            wanted.replay_after < current.replay_after
            or wanted.current_generation < current.current_generation
        )
        if went_back or wanted.shard_id != current.shard_id:
            raise InvalidInputError(
                "an update never moves the flushed cursor or the generation back",
                shard_id=self._shard_id,
                replay_after=wanted.replay_after,
                current_replay_after=current.replay_after,
            )
        return replace(wanted, version=current.version + 1, writer_epoch=current.writer_epoch)

    def _decide(self, wanted: ShardManifest) -> ShardManifest | None:
        """Decide one version; None when it is ours, else the version to go on from.

        A version that was deleted since we read is not ours, even if it could be created: its
        number was decided long ago. A commit store refuses it; an object store does not know.
        """
        token = self._core.ids.token()
        wanted = replace(wanted, token=token)
        name = shard_manifest_name(self._shard_id, wanted.version)
        body = encode_shard_manifest(wanted)
        # Before and after the decision: put-if-absent knows no table ids, so a handle of a table
        # that was dropped and made anew would otherwise claim a shard of the new one.
        self._core.arbiter.confirm_place()
        try:
            decision = self._core.arbiter.decide(name, body, token)
        except CollectedError:
            return self._newest_again()
        if isinstance(decision, Lost):
            self._known = self._decode(wanted.version, decision.body)
            return self._known
        self._confirm_place(name)
        # A commit store keeps the boundary itself and has refused already.
        recorded = isinstance(self._core.arbiter, SupportsSeries)
        if not recorded and self._is_collected(wanted.version):
            # Taken back as far as that works. If it stays, nobody follows it: it is at or below the
            # boundary.
            self._delete(name)
            return self._newest_again()
        self._known = replace(wanted, source=body)
        self._write_hint(wanted.version)
        return None

    def _confirm_place(self, name: Name) -> None:
        """Take a version back that we put into another table than ours."""
        try:
            self._core.arbiter.confirm_place()
        except StaleHandleError:
            self._delete(name)
            raise
        except HoldfastError as error:
            raise CommitUnknownError(
                "decided, but not shown to be in the table that was opened: try again",
                shard_id=self._shard_id,
                version=name.number,
            ) from error

    def _delete(self, name: Name) -> None:
        with contextlib.suppress(HoldfastError):
            self._core.store.delete([name.path])

    def _is_collected(self, version: int) -> bool:
        try:
            return version <= self._boundary.read()
        except HoldfastError as error:
            raise CommitUnknownError(
                "decided, but not shown to be newer than what was collected: try again",
                shard_id=self._shard_id,
                version=version,
            ) from error

    def _newest_again(self) -> ShardManifest:
        self._known = None
        newest = self.latest()
        if newest is None:
            raise self._missing_error()
        return newest

    def _write_hint(self, version: int) -> None:
        """Spare stock readers some looking; only now and then, and never needed."""
        if version % _HINT_EVERY == 0:
            with contextlib.suppress(HoldfastError):
                body = json.dumps({"version": version}, separators=(",", ":")).encode()
                self._core.store.put(version_hint_path(self._shard_id), body)

    def _read(self, version: int) -> ShardManifest | None:
        try:
            body = self._core.arbiter.read(shard_manifest_name(self._shard_id, version))
        except CollectedError:  # a moment ago: there is a newer one
            return None
        return None if body is None else self._decode(version, body)

    def _decode(self, version: int, body: bytes) -> ShardManifest:
        return decode_shard_manifest(body, shard_id=self._shard_id, version=version)

    def _missing_error(self) -> NotFoundError:
        """Return the error of a shard that is not there, if its table is.

        Raises:
            StaleHandleError: it went with its table.
        """
        self._core.arbiter.confirm_place()
        return NotFoundError("there is no such shard", shard_id=self._shard_id)

    def _too_many(self) -> ConflictError:
        return ConflictError(
            "other processes changed this shard each time first: try again",
            shard_id=self._shard_id,
        )


def _has_rows(path: str) -> bool:
    """Tell whether an object of a shard is a log entry, or belongs to an SSTable."""
    return position_of(path) is not None or generation_of(path.split("/")[2]) is not None


def fenced_error(
    shard_id: str, epoch: int, stored_epoch: int | None, **details: object
) -> FencedError:
    """Return the error of a writer whose shard has another owner, and tell the subscribers."""
    emit(EventKind.FENCED, shard_id=shard_id, epoch=epoch, stored_epoch=stored_epoch)
    return FencedError(
        "another writer owns this shard now: what was acknowledged is safe with it; open the "
        "shard again to go on",
        shard_id=shard_id,
        epoch=epoch,
        stored_epoch=stored_epoch,
        **details,
    )
