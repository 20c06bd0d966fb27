"""Appends whose manifest is made here instead of by Lance: same bytes, a third of the time.

Lance needs some milliseconds to make a manifest, and on a local disk writers take turns, so
all wait for that; on an object store it needs more requests, and waits for long when it loses. An
append on top of the newest version needs none of what Lance looks at: it goes behind what is
there, and its columns are the very same. The steps:

| step                                          | left behind by a crash                    |
|-----------------------------------------------|-------------------------------------------|
| 1 data files and the transaction are durable  | files that nobody needs                   |
| 2 local: wait for our turn. List the          | the same                                  |
|   versions, read the newest unless it is      |                                           |
|   known; with a commit store the known one    |                                           |
|   will do                                     |                                           |
| 3 same columns, and none of our transactions? | the same                                  |
| 4 decide the next version: its manifest       | nothing                                   |
| 5 is it the newest, or below one upon it?     | nothing, or a manifest at an old name     |

Who loses in 4 has got the winner's bytes and goes back to 3 with them. Whatever is not plain
(`formats._append` says what is) is left to Lance, and decided by the hook as ever.

By put-if-absent nobody gives turns: `_contention` says how nobody starves there all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import lance

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import EndsTurn, Lost
from holdfast.commits._contention import Contention
from holdfast.commits._log_rules import After
from holdfast.commits._loop import CommitPlan, make_version
from holdfast.commits._versions import AlreadyAppliedError, Versions
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    LogLostError,
    LogWaitsError,
    NextStep,
    UnavailableError,
)
from holdfast.formats import (
    HINT_PATH,
    AppendBase,
    AppendTransaction,
    DataFileEntry,
    FragmentEntry,
    Shape,
    hint_of,
)
from holdfast.storage import SupportsLocalFiles
from holdfast.txn import Txn

_HINT_EVERY = 8  # Lance looks on from the hint, one version after the other


class Direct:
    """Commits plain appends to one table.

    It remembers the newest version that it knows. On an object store rows are written for that
    one without asking anybody, and with a commit store it is built upon, too: a version that is
    not the newest loses its decision, and the winner's bytes come with the answer.
    """

    def __init__(
        self, versions: Versions, *, clock: Clock | None = None, ids: Ids | None = None
    ) -> None:
        self.versions = versions
        self.clock = clock or SystemClock()
        self._ids = ids or RandomIds()
        self._last: AppendBase | None = None  # a version that is or was the newest
        # On a local disk a look is cheap, and others may change the table without our knowing.
        self.remembers = not isinstance(versions.core.store, SupportsLocalFiles)
        self._contention = Contention(self.clock, self._ids)
        # Elsewhere writers take turns: in a commit store, or in the kernel's line.
        self._races = self.remembers and not versions.core.arbiter.refuses_old_names

    def hint(self) -> AppendBase | None:
        """Return a version that is good enough to write rows for, as `newest`; it may be older.

        Raises:
            HoldfastError: as for `Table.dataset`.
        """
        if self.remembers:
            return _plain(self._known_base()) or self.newest()
        known = self._last.version if self._last is not None else 0
        with _translate_errors():
            manifest = self.versions.manifest_after(known)
        return self.newest() if manifest is None else _plain(self._learn(manifest))

    def newest(self) -> AppendBase | None:
        """Return the newest version, if appends to it may be made here.

        Raises:
            HoldfastError: as for `Table.dataset`.
        """
        known = self._last if self.remembers else None
        with _translate_errors():
            manifest = self.versions.newest_manifest(known)
        if manifest is None:
            self._last = None
            return None
        if known is not None and manifest is known.manifest:
            return _plain(known)
        return _plain(self._learn(manifest))

    def _known_base(self) -> AppendBase | None:
        """Return the version that is remembered: ours, or a newer one that Lance made here."""
        made, self.versions.made = self.versions.made, None
        if made is not None:
            base = AppendBase(made, lance.__version__)
            if self._last is None or self._last.version < base.version:
                self._last = base
        return self._last

    def _learn(self, manifest: bytes) -> AppendBase:
        self._last = AppendBase(manifest, lance.__version__)
        return self._last

    def transaction(self, fragments: Sequence[Any], read_version: int) -> AppendTransaction | None:
        """Return the transaction that adds fragments; None if Lance must do this append."""
        added = [_entry(fragment) for fragment in fragments]
        known = [entry for entry in added if entry is not None]
        if len(known) < len(added):
            return None
        return AppendTransaction(read_version, self._ids.token(), known)

    def write(self, transaction: AppendTransaction) -> None:
        """Write the transaction's file, durably.

        Raises:
            HoldfastError: the store gave no answer, or refused.
        """
        self.versions.core.store.put(transaction.path, transaction.body)

    def commit(
        self,
        transaction: AppendTransaction,
        shape: Shape,
        txns: Sequence[Txn],
        durable: Callable[[], None],
        after: After | None = None,
    ) -> int | None:
        """Make the next version; return which, or None if Lance must do it.

        `durable` returns once the data files and the transaction are; `after` tells how far the
        table's log was merged for it.

        Raises:
            AlreadyAppliedError: the newest version holds some of the transactions.
            CommitUnknownError: the outcome could not be learnt; the transaction stays.
            ConflictError: other writers were faster, again and again.
            LogWaitsError, LogLostError: see `holdfast.commits._log_rules`.
            HoldfastError: a store gave no answer, or refused; nothing was decided.
        """
        line = PlaceInLine(self.versions)
        plan = PlainAppend(self, transaction, shape, txns, durable, after, line)
        try:
            version = self._carry_out(plan)
        except CommitUnknownError:
            raise
        except HoldfastError:
            self._drop(transaction, durable)
            raise
        except Exception as error:
            raise CommitUnknownError(
                "an unexpected error during the decision: repeat it with the same txn",
                reason=f"{type(error).__name__}: {error}"[:300],
            ) from error
        if version is None:
            self._drop(transaction, durable)
        return version

    def _carry_out(self, plan: PlainAppend) -> int | None:
        if self._races:
            self._contention.begin()
        try:
            return make_version(plan)
        finally:
            plan.line.leave()

    def _drop(self, transaction: AppendTransaction, durable: Callable[[], None]) -> None:
        with suppress(Exception):
            durable()  # it may be on its way still
        self.versions.drop(transaction.path)

    @property
    def meets_others(self) -> bool:
        """Tell whether somebody else is likely to want the same version."""
        return self._races and self._contention.meets_others

    def win(self, manifest: bytes) -> None:
        """Remember the version that we made."""
        if self._races:
            self._contention.win()
        self._learn(manifest)

    def after_loss(self, winner: bytes, line: PlaceInLine) -> tuple[AppendBase | None, bool]:
        """Return the version to build on next, and whether it is surely the newest."""
        base = self._learn(winner)
        if self._races and self._contention.lose():
            return self.newest(), True
        if self.remembers and line.join():
            base = self._peek(base)
        return _plain(base), False

    def _peek(self, base: AppendBase) -> AppendBase:
        """Return the newest decided version, if it is above the one that we know."""
        manifest = self.versions.peek_newest()
        if manifest is None:
            return base
        newest = AppendBase(manifest, lance.__version__)
        if newest.version <= base.version:
            return base
        self._last = newest
        return newest

    def first(self) -> tuple[AppendBase | None, bool]:
        """Return the version to build on, and whether it is surely the newest.

        One that is remembered will do where an old name is refused. Put-if-absent would give it
        away, so there the versions are listed.
        """
        if self.remembers and self.versions.core.arbiter.refuses_old_names:
            known = self._known_base()
            if known is not None:
                return _plain(known), False
        return self.newest(), True

    def leave_hint(self, version: int) -> None:
        """Tell Lance's own writers about where to look for the newest version; best effort."""
        if version % _HINT_EVERY == 0:
            with suppress(HoldfastError):
                self.versions.core.store.put(HINT_PATH, hint_of(version))


@dataclass
class PlainAppend(CommitPlan[int | None]):
    """A plain append, upon one version after the other; its result is as for `Direct.commit`."""

    tries = 1_500

    direct: Direct
    transaction: AppendTransaction
    shape: Shape  # what the data files were written for
    txns: Sequence[Txn]
    durable: Callable[[], None]
    after: After | None
    line: PlaceInLine
    base: AppendBase | None = None  # the version to build on next
    exact: bool = False  # it is surely the newest

    def build(self) -> None:
        """Choose the version to build on first."""
        self.base, self.exact = self.direct.first()

    def attempt(self) -> int | None:
        """Decide the version above the one to build on."""
        base, direct = self.base, self.direct
        # Looked at anew after each loss: the winner may be a stock writer of any release.
        if base is None or base.shape != self.shape or not base.takes(self.transaction.added):
            return None
        try:
            made = direct.versions.append(
                base,
                self.transaction,
                self.txns,
                self.durable,
                direct.clock.now(),
                dated=not direct.remembers,
                after=self.after,
                decided=self.line.leave,
                races=direct.meets_others,
            )
        except LogLostError as error:
            if self.exact:
                raise
            raise _PassingError("seen in an old version, perhaps") from error
        if isinstance(made, Lost):
            raise _LostError(made.body)
        direct.win(made)
        return base.version + 1

    def judge(self, error: ConflictError) -> NextStep:
        """Go on with the winner's version, or the newest, unless what is there stays there."""
        if isinstance(error, _LostError):
            self.base, self.exact = self.direct.after_loss(error.winner, self.line)
            return NextStep.AGAIN
        seen_there = isinstance(error, AlreadyAppliedError | LogWaitsError)
        # What was seen in a version that may not be the newest may be gone in that.
        if self.exact if seen_there else error.next_step is not NextStep.AGAIN:
            return NextStep.NEVER
        self.base, self.exact = self.direct.newest(), True
        return NextStep.AGAIN

    def give_up(self, error: ConflictError) -> ConflictError:
        """Return a loss without the winner's bytes."""
        if isinstance(error, _LostError):
            return ConflictError(error.message)
        return error


class _LostError(ConflictError):
    """Another writer has the version that we wanted: its manifest is `winner`."""

    def __init__(self, winner: bytes) -> None:
        super().__init__("other writers were faster, again and again: try again later")
        self.winner = winner


class _PassingError(ConflictError):
    """What was seen may not be true of the newest version."""


class PlaceInLine:
    """Our place among those who lost a decision, if there is such a line."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._turn: EndsTurn | None = None
        self._joined = False

    def join(self) -> bool:
        """Wait for our turn, once; tell whether we got one now."""
        if self._joined:
            return False
        self._joined = True
        self._turn = self._versions.take_turn()
        return self._turn is not None

    def leave(self) -> None:
        """Let the next one go on; may be repeated."""
        if self._turn is not None:
            self._turn.end()


def _plain(base: AppendBase | None) -> AppendBase | None:
    return base if base is not None and base.is_plain else None


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise an error of ours whatever goes wrong in a store."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:  # a driver's own, say
        reason = f"{type(error).__name__}: {error}"[:300]
        raise UnavailableError("a store failed in a way of its own", reason=reason) from error


# Any: Lance's FragmentMetadata, which ships no types.
def _entry(fragment: Any) -> FragmentEntry | None:  # noqa: ANN401
    """Return a fragment as its transaction lists it; None if there is more to it than files."""
    if fragment.deletion_file or fragment.row_id_meta or fragment.overlays:
        return None
    if fragment.created_at_version_meta or fragment.last_updated_at_version_meta:
        return None
    files = tuple(
        DataFileEntry(
            path=file.path,
            fields=tuple(file.fields),
            column_indices=tuple(file.column_indices),
            major=file.file_major_version,
            minor=file.file_minor_version,
            size=file.file_size_bytes,
            base_id=file.base_id,
        )
        for file in fragment.files
    )
    return FragmentEntry(id=int(fragment.id), rows=int(fragment.physical_rows), files=files)
