"""`Versions`: the versions of one table as Lance's commit path sees them.

Lance stages a manifest and asks for it to become version N. `create` marks the manifest
with a token and the transactions it applies, makes the files it shows durable, and decides
the name of version N. Check and decision are one step: the ledger that is checked is the
one inside the manifest that is decided.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from holdfast.arbiter import (
    MOST_UNFINISHED,
    Decision,
    EndsTurn,
    Lost,
    SupportsChains,
    SupportsRaces,
    SupportsSeries,
    SupportsTurns,
    choose_together,
)
from holdfast.commits._columns import check_rebased
from holdfast.commits._floor import (
    carried_mark,
    check_floor,
    check_not_due,
    config_below,
    mark_above,
)
from holdfast.commits._ledger import Ledger, MissingTxnFileError
from holdfast.commits._log_rules import After, LogKeeper, check_log_id, check_merged, keep_log
from holdfast.commits._newest import (
    Newest,
    Overtaking,
    find_newest,
    find_newest_object,
    find_overtaking,
)
from holdfast.commits._queue import Queue
from holdfast.core import TableCore
from holdfast.errors import (
    AlreadyExistsError,
    CollectedError,
    CommitStoreRegressedError,
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    InvalidInputError,
    NextStep,
    NotFoundError,
    PermissionDeniedError,
    StaleHandleError,
    StaleWorkError,
    UnavailableError,
)
from holdfast.formats import (
    TOKEN_KEY,
    VERSIONS_FOLDER,
    VERSIONS_SERIES,
    AppendBase,
    AppendTransaction,
    Head,
    Name,
    VacuumMark,
    carried_ledger,
    decision_mark,
    is_of_table,
    is_path,
    is_staged_manifest,
    read_config,
    read_mark,
    shown_elsewhere,
    shown_files,
    transaction_path,
    version_name,
    version_of,
)
from holdfast.storage import (
    NotDurableError,
    SupportsFileIds,
    SupportsLocalFiles,
    SupportsSync,
    sync_file,
)
from holdfast.txn import Txn

Edit: TypeAlias = Callable[[bytes], bytes]
"""Changes the manifest that is about to be decided, or refuses by raising a `HoldfastError`.

Called for each try with the very bytes that Lance wants to commit, so what it finds there
still holds when they are decided.
"""


class AlreadyAppliedError(ConflictError):
    """Some transactions of a commit are in the table already; the commit was not made.

    Attributes:
        txns: which.
        version: a version that has them.
    """

    next_step = NextStep.NEVER

    def __init__(self, message: str, *, txns: Sequence[Txn] = (), version: int = 0) -> None:
        super().__init__(message, txns=tuple(txns), version=version)
        self.txns = tuple(txns)
        self.version = version


class _MadeBelow(NamedTuple):
    """The version below a staged manifest, if it was made here: what tells it from others."""

    version: int
    md5: str  # of the bytes that were decided

    def has_md5(self, digest: str | None) -> bool:
        return digest == self.md5


class Versions:
    """Decides and describes the versions of one table.

    Attributes:
        later: runs what nobody needs to wait for; a server does it beside its answer.
    """

    def __init__(
        self,
        core: TableCore,
        *,
        keeper: LogKeeper | None = None,
    ) -> None:
        self.core = core
        self.keeper = keeper  # looks after the table's shards; the registered one by default
        self.ledger = Ledger(core.store, core.ids)
        self.queue = Queue(core.store)  # where writers of a local table wait for their turn
        self.made: bytes | None = None  # the newest manifest that Lance made here
        self.later: Callable[[Callable[[], None]], None] = _now
        self._last_made: tuple[int, str] | None = None  # the version of `made`, and its MD5
        self._known = 0  # the newest version that was recorded when somebody looked
        self._unsure: set[str] = set()  # tokens of ours that may be at names of old versions
        self._not_durable: NotDurableError | None = None  # why this table is not written to
        self._durable: set[str] = set()  # what was shown by the last version that we made durable
        self._durable_elsewhere: set[str] = set()  # the same, in other folders

    def create(
        self,
        fields: Mapping[str, Any],
        txns: Sequence[Txn] = (),
        *,
        synced: bool = False,
        creates: bool = False,
        edit: Edit | None = None,
        files: Collection[str] = (),
        begun_on: int | None = None,
        after: After | None = None,
    ) -> dict[str, object]:
        """Make a staged manifest the version it wants to be.

        `synced` says that the data files the version adds are durable once `edit` returned,
        and that `edit` changes no files; `creates` that somebody here is about to create the
        table; `edit` has the last word on the manifest; `files` are the data files that the
        version adds, as far as they are known; `begun_on` is the version that was read before
        files were written, if the transaction read a later one; `after` tells how far the
        table's log was merged for it, see `holdfast.commits._log_rules`.

        Raises:
            AlreadyExistsError: another writer created the table meanwhile.
            ConflictError: another writer has this version; Lance rebases and asks again.
            AlreadyAppliedError: the version below holds some of `txns`.
            ColumnsChangedError: Lance put appended rows upon other columns.
            StaleWorkError: vacuum may have taken files that it shows.
            LogWaitsError: rows of the table's log would win over it.
            LogLostError: nobody knows which rows of the log wait.
            CommitUnknownError: the outcome could not be learnt.
            HoldfastError: whatever `edit` raised; nothing was decided.
        """
        version, staged = int(fields["version"]), str(fields["manifest_path"])
        self._check_kind(fields, version)
        folder, _, file = staged.rpartition("/")
        name, token = version_name(version), self.core.ids.token()
        ours = f"{posixpath.dirname(name.path)}/{file}"
        if not is_staged_manifest(ours):  # a version's own name: it would be removed below
            raise InvalidInputError(
                "a commit names the manifest that was staged for it", manifest_path=staged[-120:]
            )
        manifest = self._read_staged(ours, looks=edit is None)
        head = Head(manifest)
        if creates and version > 1 and _begins(head):
            # A table that appears while Lance creates one would be overwritten, as version 2.
            raise AlreadyExistsError("somebody else created the table", version=version)
        below = config_below(self.core.arbiter, head) if head.replaces_config else head.config
        entries = carried_ledger(head.config, below) if head.changes_config else {}
        config = below if head.changes_config else head.config
        self._refuse_applied(config, txns, version)
        check_rebased(self.core.store, manifest, head)
        mark = carried_mark(head.config, self._mark_above(below, version - 1))
        check_floor(mark, _oldest(head.read_version, begun_on))
        if read_mark(head.config).number < mark.number:
            manifest = head.with_config(mark.entry)
            head = Head(manifest)
        entries.update(self._record(config, txns, version))
        if synced:  # an append; `edit` waits until its data is durable, so do our part first
            self._sync_transaction(head)
        with _noticing_lost_files():
            manifest, head = self._edit(manifest, head, edit, after)
            if not synced:
                self._sync_shown(manifest)
        if head.has_bases:
            self._sync_elsewhere(manifest)
        mark_here = decision_mark(head.config, token, version, self._table_id)
        body = head.with_config({**entries, **mark_here})
        decision = self._decide(
            name,
            body,
            token,
            txns,
            files,
            upon=self._made_below(version),
            looked=edit is None and not head.changes_config,
        )
        if isinstance(decision, Lost):
            raise ConflictError("another writer has this version", version=version)
        self.made = body
        self._last_made = (version, hashlib.md5(body, usedforsecurity=False).hexdigest())
        self.later(partial(self.drop, ours))
        return _answer(version, f"{folder}/{posixpath.basename(name.path)}", len(body))

    def _read_staged(self, path: str, *, looks: bool) -> bytes:
        """Return a staged manifest; where `looks`, the table is looked at side by side."""
        read = partial(self.core.store.get, path)
        if not looks or isinstance(self.core.store, SupportsFileIds):
            return read()  # or a look costs no request, and is made before the put
        staged: list[bytes] = []
        ask = choose_together(self.core.store)
        ask([self.core.arbiter.confirm_place, lambda: staged.append(read())])
        return staged[0]

    def _made_below(self, version: int) -> _MadeBelow | None:
        """Return the version below, if this object made it."""
        last = self._last_made
        if last is None or last[0] != version - 1:
            return None
        return _MadeBelow(version - 1, last[1])

    def _edit(
        self, manifest: bytes, head: Head, edit: Edit | None, after: After | None
    ) -> tuple[bytes, Head]:
        """Return the manifest as it may be decided, besides its config."""
        edited = manifest if edit is None else edit(manifest)
        if edited is not manifest:
            head = Head(edited)
        marked = self._mark_columns(head, edited) if head.adds_columns else edited
        if marked is not edited:
            head = Head(marked)
        kept = keep_log(self, marked, head, after, self.core.ids.token())
        return kept, head if kept is marked else Head(kept)

    def _mark_columns(self, head: Head, manifest: bytes) -> bytes:
        """Return the manifest with its version in the columns that it adds."""
        below = self.core.arbiter.read(version_name(head.version - 1))
        return manifest if below is None else head.with_new_columns(Head(below))

    def append(
        self,
        base: AppendBase,
        transaction: AppendTransaction,
        txns: Sequence[Txn],
        durable: Callable[[], None],
        now: float,
        *,
        dated: bool = True,
        after: After | None = None,
        decided: Callable[[], None] | None = None,
        races: bool = False,
    ) -> bytes | Lost:
        """Make the version above `base`, with a transaction's fragments; return its manifest.

        Another writer may have that version: then its manifest is returned as `Lost`.
        `durable` returns once the data files and the transaction are; unless it is `dated`, the
        version that the transaction read was remembered and may be older than the files.
        `decided` may be called when the version is decided and not at its name yet. `races` says
        that others are likely to want the same version.

        Raises:
            AlreadyAppliedError: `base` holds some of `txns`.
            ConflictError: the name is not ours to decide: read again.
            StaleWorkError: vacuum may have taken the data files.
            LogWaitsError, LogLostError: as for `create`.
            CommitUnknownError: the outcome could not be learnt.
            HoldfastError: whatever `durable` raised, or a store; nothing was decided.
        """
        version = base.version + 1
        self._refuse_applied(base.config, txns, version)
        vacuumed = self._mark_above(base.config, base.version)
        try:
            check_floor(vacuumed, transaction.read_version)
        except StaleWorkError:
            if dated:
                raise
            check_not_due(self.core.store, vacuumed, transaction.files)
        entry = base.log_entry
        if entry is not None and base.has_key:
            check_log_id(base.config, entry, version=base.version)
            check_merged(self, entry, after)
        entries = self._record(base.config, txns, version)
        with _noticing_lost_files():
            durable()
        token = self.core.ids.token()
        mark = decision_mark(base.config, token, version, self._table_id)
        if vacuumed != read_mark(base.config):
            mark.update(vacuumed.entry)
        body = base.append(transaction, {**entries, **mark}, now)
        decision = self._decide(
            version_name(version),
            body,
            token,
            txns,
            transaction.files,
            upon=base,
            decided=decided,
            races=races,
        )
        return decision if isinstance(decision, Lost) else body

    def take_turn(self) -> EndsTurn | None:
        """Stand in line after a lost decision; None where nobody does."""
        if isinstance(self.core.arbiter, SupportsTurns):
            return self.core.arbiter.take_turn(VERSIONS_SERIES)
        return None

    def peek_newest(self) -> bytes | None:
        """Return the newest decided version, as if we had lost to it; None if nobody tells.

        Nothing may be acknowledged because of it: it may not be at its name yet.
        """
        if not isinstance(self.core.arbiter, SupportsTurns):
            return None
        try:
            return self.core.arbiter.peek_newest(VERSIONS_SERIES)
        except (UnavailableError, PermissionDeniedError):
            return None

    def _mark_above(self, config: Mapping[str, str], version: int) -> VacuumMark:
        """Return the mark of vacuum that holds above a version with this config."""
        return mark_above(self.core, config, version)

    def _refuse_applied(self, config: Mapping[str, str], txns: Sequence[Txn], version: int) -> None:
        """Look transactions up in the config of the version that `version` is built on."""
        with self._noticing_others(version):
            applied = self.ledger.applied(config, txns)
        if applied:
            raise AlreadyAppliedError("in the table already", txns=applied, version=version - 1)

    def _record(
        self, config: Mapping[str, str], txns: Sequence[Txn], version: int
    ) -> dict[str, str | None]:
        """Return what the ledger says once the transactions are in it; what it names is durable."""
        with self._noticing_others(version):
            return self.ledger.record(config, txns)

    @contextmanager
    def _noticing_others(self, version: int) -> Iterator[None]:
        """Take a missing file for a conflict if somebody has the version that we want.

        Vacuum takes files that only old versions name: we slept, and others went on.
        """
        try:
            yield
        except MissingTxnFileError as error:
            if self.core.arbiter.read(version_name(version)) is None:
                raise
            raise ConflictError("another writer has this version", version=version) from error

    def _decide(
        self,
        name: Name,
        body: bytes,
        token: str,
        txns: Sequence[Txn],
        files: Collection[str],
        *,
        upon: AppendBase | _MadeBelow | None = None,
        looked: bool = False,
        decided: Callable[[], None] | None = None,
        races: bool = False,
    ) -> Decision:
        """Decide a version; `upon` is the one below that it was built on, if its bytes are known.

        A plain append may be decided upon a version that is not at its name yet. It is spared the
        look where what it builds on, read just now, says that it is this table's; others look
        here, unless they `looked` a moment ago.
        """
        known = upon is not None
        plain = isinstance(upon, AppendBase)
        self.core.arbiter.confirm_place(
            if_cheap=looked or (isinstance(upon, AppendBase) and self._is_ours(upon))
        )
        self._unsure.add(token)
        decide = self.core.arbiter.decide
        if plain and isinstance(self.core.arbiter, SupportsChains):
            decide = partial(self.core.arbiter.decide_next, decided=decided)
        elif races and isinstance(self.core.arbiter, SupportsRaces):
            decide = self.core.arbiter.decide_racing
        try:
            decision = decide(name, body, token)
        except NotDurableError as error:
            self._not_durable = error
            raise
        except CollectedError as error:
            raise ConflictError(
                "this version was made, and collected, since the commit began: read again",
                version=name.number,
            ) from error
        if isinstance(decision, Lost):
            self._unsure.discard(token)
            return decision
        self._confirm_place(name, if_cheap=known)
        # A commit store refuses the name of an old version; put-if-absent gives it away again.
        if not self.core.arbiter.refuses_old_names:
            look = None if upon is None else partial(self._confirm_below, name, upon)
            overtaking = find_overtaking(self.core.store, name, token, files, look)
            if overtaking is not None:
                raise self._overtaken(name, overtaking, txns)
        self._unsure.discard(token)
        return decision

    @property
    def _table_id(self) -> str | None:
        pin = self.core.arbiter.pin
        return None if pin is None else pin.table_id

    def _is_ours(self, base: AppendBase) -> bool:
        """Tell whether a version says that it is of the table that was opened."""
        return self._table_id is None or is_of_table(base.config, self._table_id)

    def _confirm_below(self, name: Name, base: AppendBase | _MadeBelow, newest: Newest) -> None:
        """Take a version back that we put upon another one than we built it on.

        A table that was made anew between the look and the put has another version there, or
        none. The listing that is made anyway tells; where it does not, the pin is looked at.
        """
        if isinstance(self.core.store, SupportsFileIds):
            return  # a look at the pin costs no request, and was made
        if not base.has_md5(newest.md5_of(base.version)):
            self._confirm_place(name, if_cheap=False)

    def _confirm_place(self, name: Name, *, if_cheap: bool) -> None:
        """Take a version back that we put into another table than ours."""
        try:
            self.core.arbiter.confirm_place(if_cheap=if_cheap)
        except StaleHandleError:
            self.drop(name.path)
            raise
        except HoldfastError as error:
            raise CommitUnknownError(
                "decided, but not shown to be in the table that was opened: repeat it with the "
                "same txn",
                version=name.number,
                decided=True,
            ) from error

    def _overtaken(self, name: Name, by: Overtaking, txns: Sequence[Txn]) -> HoldfastError:
        """Return what became of a commit that has a name, and that nobody built on.

        The ledger of the newest version is exact: what is not in it may be tried again.
        """
        if not txns:
            return CommitUnknownError(
                "decided, but a newer version does not show it: either the name was an old "
                "version's and nothing was committed, or others have replaced it since; look for "
                "the rows before you repeat it, and give a txn next time",
                version=name.number,
                newest=by.version,
                decided=True,
            )
        try:
            applied = self.ledger.applied(read_config(by.manifest), txns)
        except HoldfastError as error:
            raise CommitUnknownError(
                "decided, but nobody could tell whether the newest version holds it: repeat it "
                "with the same txn",
                version=name.number,
                newest=by.version,
                reason=str(error)[:300],
            ) from error
        if applied:
            return AlreadyAppliedError("in the table already", txns=applied, version=by.version)
        if by.alone:
            self.drop(name.path)
        return ConflictError(
            "the name was that of an old version: read again",
            version=name.number,
            newest=by.version,
        )

    def sync(self, paths: Sequence[str]) -> None:
        """Make files that Lance wrote durable, where that is ours to do."""
        if isinstance(self.core.store, SupportsSync):
            self.core.store.sync(paths)

    def _sync_transaction(self, head: Head) -> None:
        """Make the transaction durable, the one file that an append adds besides its data.

        The commit of an append must not cost more with every fragment there is.
        """
        if head.transaction_file:
            self.sync([transaction_path(head.transaction_file)])

    def _sync_shown(self, manifest: bytes) -> None:
        """Make durable what the version shows and nobody made durable before."""
        if not isinstance(self.core.store, SupportsSync):
            return
        shown = shown_files(manifest)
        fresh = shown - self._durable
        folders = [path[:-1] for path in fresh if path.endswith("/")]
        files = [path for path in fresh if not path.endswith("/")]
        inside = (info.path for folder in folders for info in self.core.store.list(folder))
        self.core.store.sync([*files, *(path for path in inside if is_path(path))])
        self._durable = shown

    def _check_durable(self) -> None:
        """Build on nothing, and call nothing applied, that a power cut may take."""
        if self._not_durable is not None:
            raise UnavailableError(
                "the disk failed to make a version durable, so nobody knows what a power cut "
                "would leave: check the disk, then open the table again",
                **self._not_durable.details,
            )

    def _sync_elsewhere(self, manifest: bytes) -> None:
        """Make durable what the version shows in other folders of this machine.

        What is not there cannot be: Lance wrote new files just now, and the others belong to
        a table that this one was cloned from.
        """
        if not isinstance(self.core.store, SupportsLocalFiles):
            return
        shown = shown_elsewhere(manifest)
        for path in sorted(shown - self._durable_elsewhere):
            if "://" not in path or path.startswith("file://"):
                file = Path(path.removeprefix("file://")).absolute()
                with suppress(NotFoundError, PermissionDeniedError, InvalidInputError):
                    sync_file(file)
        self._durable_elsewhere = shown

    def drop(self, path: str) -> None:
        """Remove a staged manifest that nobody needs any more; best effort."""
        with suppress(HoldfastError):
            self.core.store.delete([path])

    def newest(self) -> dict[str, object]:
        """Return the newest decided version, finished; an empty answer makes Lance list.

        Raises:
            UnavailableError: a store gave no answer, or a disk that failed cannot be trusted.
        """
        self._check_durable()
        if not isinstance(self.core.arbiter, SupportsSeries):
            return {"versions": []}
        number = self._newest_recorded(self.core.arbiter)
        if not number:
            return {"versions": []}
        try:
            return {"versions": [self._describe_newest(number)["version"]]}
        except NotFoundError as error:
            if find_newest(self.core.store):
                raise self._regressed_error(number) from error
            raise

    def newest_listed(self) -> dict[str, object]:
        """Return the newest version, also where a listing tells it; an empty answer without one.

        For a client that asks a server: what the server knows it need not look for itself. Where
        the listing tells the manifest's size, nobody reads the manifest for it.

        Raises:
            UnavailableError: as for `newest`.
        """
        if isinstance(self.core.arbiter, SupportsSeries):
            return self.newest()
        self._check_durable()
        newest = find_newest_object(self.core.store)
        if newest is None:
            return {"versions": []}
        name = version_name(newest.version)
        info = newest.listed.get(posixpath.basename(name.path))
        if info is None or self._unsure:
            return {"versions": [self.describe(newest.version)["version"]]}
        path = f"{_store_path(self.core.location)}/{name.path}"
        return {"versions": [_answer(newest.version, path, info.size)["version"]]}

    def _describe_newest(self, number: int) -> dict[str, object]:
        """Return the newest version; to a reader that may not copy it, the newest that is there.

        Nobody was told that a version is committed before it and all below it are at their names.
        """
        try:
            return self.describe(number)
        except PermissionDeniedError:
            for below in range(number - 1, max(0, number - 1 - MOST_UNFINISHED), -1):
                if self._is_there(version_name(below)):
                    return self.describe(below)
            raise

    def numbers(self) -> set[int]:
        """Return the numbers of the versions that are there, or about to be."""
        listed = (version_of(info.path) for info in self.core.store.list(VERSIONS_FOLDER))
        versions = {number for number in listed if number is not None}
        if isinstance(self.core.arbiter, SupportsSeries):
            newest = self.core.arbiter.newest(VERSIONS_SERIES) or 0
            beyond = max(versions, default=newest - 1) + 1
            versions.update(range(max(1, beyond), newest + 1))
        return versions

    def newest_manifest(self, known: AppendBase | None = None) -> bytes | None:
        """Return the newest decided version's bytes, finished; None when Lance must look.

        By listing, as Lance does: see `manifest_after`. The bytes of a `known` version are not
        read again where the listing shows that they are the same: a table that was made anew
        has other ones.

        Raises:
            UnavailableError: as for `newest`.
        """
        self._check_durable()
        if isinstance(self.core.arbiter, SupportsSeries):
            number = self._newest_recorded(self.core.arbiter)
            return self.core.arbiter.read(version_name(number)) if number else None
        newest = find_newest_object(self.core.store)
        if newest is None:
            return None
        if known is not None and known.version == newest.version and known.has_md5(newest.md5):
            return known.manifest
        return self.core.arbiter.read(version_name(newest.version))

    def manifest_after(self, known: int) -> bytes | None:
        """Return the bytes of the newest version that follows a known one without a gap.

        A hint, and only on local disk: nobody is asked whether it was decided, and it may be
        a version that outlived its successors because it has a tag.
        """
        if not known or not isinstance(self.core.store, SupportsLocalFiles):
            return None
        self._check_durable()
        root = self.core.store.root
        while os.path.exists(f"{root}/{version_name(known + 1).path}"):  # noqa: PTH110 - strings
            known += 1
        try:
            return self.core.store.get(version_name(known).path)
        except NotFoundError:
            return None

    def _newest_recorded(self, arbiter: SupportsSeries) -> int | None:
        """Return the newest recorded version, once it is shown that nothing lies beyond it.

        Raises:
            CommitStoreRegressedError: there is a version that the commit store forgot.
            ForeignVersionError: there is a version that another writer made without us.
        """
        number = arbiter.newest(VERSIONS_SERIES)
        while self._is_beyond(number):
            before, number = number, arbiter.newest(VERSIONS_SERIES)
            if number == before:
                newest = find_newest(self.core.store)
                if not newest or arbiter.read(version_name(newest)) is None:
                    break  # gone again, or left by a stale handle: nobody decided it
                before, number = number, arbiter.newest(VERSIONS_SERIES)
                if number == before:
                    raise self._regressed_error(number)
        self._known = max(self._known, number or 0)
        return number

    def _is_beyond(self, newest: int | None) -> bool:
        """Tell whether a version is there although no record tells of it.

        One look suffices where a newer record was never seen: versions come without a hole. A
        handle's first look lists them, and so does one that is told less than before: a commit
        store may have been set back to a version that has a tag, with its successors collected.
        """
        if newest is not None and 0 < self._known <= newest:
            return self._is_there(version_name(newest + 1))
        return (find_newest(self.core.store) or 0) > (newest or 0)

    def _regressed_error(self, recorded: int | None) -> CommitStoreRegressedError:
        return CommitStoreRegressedError(
            "the table has other versions than its commit store knows: stop writing, see "
            "docs/troubleshooting.md",
            newest_recorded=recorded,
            newest_in_store=find_newest(self.core.store),
            location=self.core.location,
        )

    def _is_there(self, name: Name) -> bool:
        try:
            self.core.store.head(name.path)
        except NotFoundError:
            return False
        return True

    def describe(self, version: int) -> dict[str, object]:
        """Return one version, finished.

        Raises:
            NotFoundError: nobody decided it.
            UnavailableError: as for `newest`.
        """
        self._check_durable()
        name = version_name(version)
        # Lance opens the object at the name: bytes that wait elsewhere are no answer to it.
        if isinstance(self.core.arbiter, SupportsSeries):
            body = self.core.arbiter.read_finished(name)
        else:
            body = self.core.arbiter.read(name)
        if body is None:
            raise NotFoundError("no such version", version=version, location=self.core.location)
        self._check_ours(name, body)
        return _answer(version, f"{_store_path(self.core.location)}/{name.path}", len(body))

    def describe_place(self, version: int) -> dict[str, object]:
        """Return where a version would be that nobody decided.

        Lance looks there, finds nothing, and says so in its own words: a missing tag target,
        the end of the history. An error would be a failure of the whole call to it.
        """
        return _answer(
            version, f"{_store_path(self.core.location)}/{version_name(version).path}", None
        )

    def _check_ours(self, name: Name, body: bytes) -> None:
        """Let Lance not take a version for made because it finds its own transaction there."""
        if not self._unsure or isinstance(self.core.arbiter, SupportsSeries):
            return
        token = read_config(body).get(TOKEN_KEY, "")
        if token in self._unsure and find_overtaking(self.core.store, name, token) is not None:
            raise CollectedError(
                "this name was that of an old version: nobody builds on it", version=name.number
            )

    def _check_kind(self, fields: Mapping[str, Any], version: int) -> None:
        if fields.get("branch") or version < 0:
            raise InvalidInputError(
                "branches and detached versions are not decided by Holdfast",
                location=self.core.location,
            )
        if fields.get("naming_scheme") != "V2":
            raise InvalidInputError(
                "this table has the old manifest names: migrate it with "
                "`LanceDataset.migrate_manifest_paths_v2`",
                location=self.core.location,
            )


def _now(work: Callable[[], None]) -> None:
    work()


@contextmanager
def _noticing_lost_files() -> Iterator[None]:
    """Say of a data file that is gone before it was committed what became of the work."""
    try:
        yield
    except NotFoundError as error:
        if not error.missing_path.startswith("data/"):
            raise
        raise StaleWorkError(
            "a file of this commit is gone: vacuum took it, or somebody else; nothing was "
            "committed, so write it anew",
            **error.details,
        ) from error


def _oldest(read_version: int | None, begun_on: int | None) -> int | None:
    """Return the version that a commit's files were begun on, as far as anything tells."""
    if read_version is None or begun_on is None:
        return read_version if begun_on is None else begun_on
    return min(read_version, begun_on)


def _begins(head: Head) -> bool:
    """Tell whether a version was made without reading another: its transaction read none."""
    return (head.transaction_file or "").startswith("0-")


def _answer(version: int, path: str, size: int | None) -> dict[str, object]:
    described: dict[str, object] = {"version": version, "manifest_path": path}
    if size is not None:
        described["manifest_size"] = size
    return {"version": described}


def _store_path(location: str) -> str:
    """Return a table's place as Lance's object store names it: without bucket or first slash."""
    if "://" in location:
        return location.split("://", 1)[1].partition("/")[2]
    return location.lstrip("/")
