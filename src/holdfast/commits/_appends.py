"""Appends: fragments in, one version out, each under its transaction id exactly once.

Fragments are immutable files under unique names, so writing them decides nothing. All
appends of a process that wait at the same time become one version (one Lance Append of all
their fragments); a transaction that is in the table already is left out and told so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import lance

from holdfast.commits._columns import (
    Columns,
    check_columns,
    columns_of,
    fields_of,
)
from holdfast.commits._committer import LanceOperation, LancePlan
from holdfast.commits._direct import Direct
from holdfast.commits._floor import check_not_due
from holdfast.commits._group import GroupCommit, GroupItem
from holdfast.commits._log_rules import After
from holdfast.commits._loop import make_version
from holdfast.commits._opening import open_hooked
from holdfast.commits._operation import (
    AlreadyAppliedError,
    CommitHook,
    Committed,
    DatasetHook,
    LentHook,
)
from holdfast.commits._syncing import SYNCING
from holdfast.commits._versions import Versions
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
)
from holdfast.formats import Shape, read_config, read_mark, version_name
from holdfast.storage import SupportsLocalFiles
from holdfast.txn import Txn

# Errors that one append may bring upon its group; all others would meet every append alike.
_OF_ONE = {
    ErrorKind.CONFLICT,
    ErrorKind.INTERNAL,
    ErrorKind.INVALID_INPUT,
    ErrorKind.NOT_FOUND,
    ErrorKind.STALE_WORK,
}


@dataclass(frozen=True, slots=True)
class OpenDataset:
    """A version that was opened to look at, with its hook."""

    table: lance.LanceDataset
    hook: LentHook


class _Ready(NamedTuple):
    """A version that stays open to write rows of its shape, whatever is newest meanwhile."""

    shape: Shape
    table: lance.LanceDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What rows are written with.

    Attributes:
        table: a version with the columns that the newest has.
        version: the newest version.
        config: its table config.
        shape: what the rows will have been written for, if Holdfast may make the manifest.
        handle: the version, if Lance may use it once to make the manifest.
    """

    table: lance.LanceDataset
    version: int
    config: Mapping[str, str]
    shape: Shape | None = None
    handle: OpenDataset | None = None

    def append(self, fragments: Sequence[Any], txn: Txn | None) -> Append:
        """Return the append of rows that were written with this."""
        return Append(
            fragments=fragments,
            txn=txn,
            columns=columns_of(self.table),
            handle=self.handle,
            shape=self.shape,
            read_version=self.version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """What one caller wants to add.

    Attributes:
        fragments: where the rows are.
        txn: what makes a repeat harmless.
        others: transactions of other callers whose rows are in the same fragments.
        columns: the columns that the fragments were written for; None when not known.
        handle: the version that they were written for, if it may be used to commit.
        shape: what they were written for, if the manifest may be made without Lance.
        read_version: the newest version before they were written; None when not known.
        after: how far the table's log was merged for it; None: nothing may wait there.
    """

    fragments: Sequence[Any]  # Any: Lance's FragmentMetadata, which ships no types
    txn: Txn | None = None
    others: tuple[Txn, ...] = ()
    columns: Columns | None = None
    handle: OpenDataset | None = None
    shape: Shape | None = None
    read_version: int | None = None
    after: After | None = None

    @property
    def txns(self) -> tuple[Txn, ...]:
        """Return every transaction whose rows are in the fragments."""
        return self.others if self.txn is None else (self.txn, *self.others)

    @property
    def rows(self) -> int:
        """Count the rows."""
        return sum(int(fragment.physical_rows) for fragment in self.fragments)

    @property
    def files(self) -> list[str]:
        """Return the data files in the table's own folder, as paths in it."""
        files = (file for part in self.fragments for file in part.files)
        return [f"data/{file.path}" for file in files if file.base_id is None]

    @property
    def fields(self) -> set[int]:
        """Return the ids of the columns that are in the files."""
        return fields_of(self.fragments)


class AppendRequest(GroupItem):
    """An append that waits for its group, and what came of it.

    Args:
        append: what to add.
        durable: waits until its data files are durable; raises if they are not.
    """

    __slots__ = ("append", "committed", "durable")

    def __init__(self, append: Append, durable: Callable[[], None]) -> None:
        super().__init__()
        self.append = append
        self.durable = durable
        self.committed: Committed | None = None

    def succeed(self, committed: Committed) -> None:
        """Give the append its result."""
        self.committed = committed
        self.answer()


class Appender:
    """Commits appends to one table."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        # No gathering: those just woken write data files before they come back.
        self._group = GroupCommit(
            self._commit_group,
            name="holdfast-appends",
            wrapped=_cut_short,
            stops=False,
            gathers=False,
        )
        self._direct = Direct(versions)
        self._local = isinstance(versions.core.store, SupportsLocalFiles)
        self._ready: _Ready | None = None

    def prepare(self, *, exact: bool = False) -> Prepared:
        """Find out what rows must be written for to be appended now.

        Unless it is `exact`, the version may be one that nobody decided, or not the newest.

        Raises:
            HoldfastError: as for `Table.dataset`.
        """
        base = self._direct.newest() if exact else self._direct.hint()
        ready = self._ready
        if base is not None and ready is not None and ready.shape == base.shape:
            return Prepared(
                table=ready.table, version=base.version, config=base.config, shape=ready.shape
            )
        if base is not None:
            table = self._open_version(base.version)
            if table is not None:
                self._ready = _Ready(base.shape, table)
                return Prepared(
                    table=table, version=base.version, config=base.config, shape=base.shape
                )
        handle = self.open()
        table = handle.table
        return Prepared(
            table=table, version=int(table.version), config=table.config(), handle=handle
        )

    def _open_version(self, version: int) -> lance.LanceDataset | None:
        """Open one version, not to be lent: it stays. None if it is gone by now.

        The newest would not do: while others commit it is another one than we read, and an
        append that starts so would be left to Lance, which waits for long when it loses.
        """
        hook = DatasetHook(self._versions)
        client: Any = hook  # Any: Lance wants a namespace and gets one by its methods
        try:
            with hook.raising_outcome():
                return open_hooked(client, version)
        except NotFoundError:
            return None

    def open(self) -> OpenDataset:
        """Open the newest version; an append may use the handle once.

        Raises:
            HoldfastError: as for `Table.dataset`.
        """
        hook = LentHook(self._versions)
        client: Any = hook  # Any: Lance wants a namespace and gets one by its methods
        with hook.raising_outcome():
            return OpenDataset(open_hooked(client), hook)

    def append(self, append: Append) -> Committed:
        """Add the fragments as a new version, alone or together with others.

        Raises:
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            ConflictError: other writers were faster, again and again, or changed the columns.
            InvalidInputError: the fragments do not belong to this table.
            NotFoundError: a data file is not there.
            StaleWorkError: vacuum may have taken a data file.
            LogWaitsError, LogLostError: see `holdfast.commits._log_rules`.
        """
        request = AppendRequest(append, self._sync(append.files))
        self._group.submit(request)
        assert request.committed is not None  # noqa: S101 - else `submit` raised its error
        return request.committed

    def _sync(self, files: Sequence[str]) -> Callable[[], None]:
        """Make files durable: immediately if we must wait anyway, else while Lance commits."""
        if self._group.busy:
            self._versions.sync(files)
            return _nothing
        return SYNCING.submit(partial(self._versions.sync, files)).result

    def _commit_group(self, items: Sequence[GroupItem]) -> None:
        """Give every append of a group its own outcome."""
        waiting = [item for item in items if isinstance(item, AppendRequest)]
        while waiting:
            now = _distinct(waiting)
            try:
                version = self._commit_once(now)
            except AlreadyAppliedError as error:
                _answer_applied(now, error)
            except Exception as error:  # noqa: BLE001 - each waiter gets it, as it is
                self._fail(now, error)
            else:
                for request in now:
                    request.succeed(Committed(version, applied=True))
            waiting = [request for request in waiting if not request.answered]

    def _fail(self, requests: Sequence[AppendRequest], error: Exception) -> None:
        """Let one bad append not sink the others; but never repeat what may have landed."""
        kind = getattr(error, "kind", ErrorKind.COMMIT_UNKNOWN)
        if len(requests) == 1 or kind not in _OF_ONE:
            for request in requests:
                request.answer(error)
            return
        for request in requests:
            self._commit_group([request])

    def _commit_once(self, requests: Sequence[AppendRequest]) -> int:
        """Make one version of all of them: here if they are plain, else by Lance."""
        appends = [request.append for request in requests]

        def durable() -> None:
            for request in requests:
                request.durable()

        version = self._append_directly(appends, durable)
        if version is None:
            version = make_version(AppendPlan(self._versions, appends, durable)).version
        return version

    def _append_directly(
        self, appends: Sequence[Append], durable: Callable[[], None]
    ) -> int | None:
        """Commit without Lance; return the version, or None if only Lance can."""
        shape = appends[0].shape
        if shape is None or any(one.shape != shape for one in appends):
            return None
        fragments = [fragment for append in appends for fragment in append.fragments]
        read_version = min(append.read_version or 0 for append in appends)
        transaction = self._direct.transaction(fragments, read_version)
        if transaction is None:
            return None
        txns = [txn for append in appends for txn in append.txns]
        written = SYNCING.submit(partial(self._direct.write, transaction)).result
        if self._local:
            written()  # a turn is scarce: nothing is left to do in it

        def all_durable() -> None:
            durable()
            written()

        queue = self._versions.queue
        with queue.line() as line:
            queue.wait(line)
            after = _join_markers(appends)
            version = self._direct.commit(transaction, shape, txns, all_durable, after)
        if version is not None and self._local:
            self._direct.leave_hint(version)
        return version


class AppendPlan(LancePlan):
    """Appends of one group, as one version that Lance makes.

    Appends read nothing, so they fit on any newer version with the same columns.
    """

    def __init__(
        self, versions: Versions, appends: Sequence[Append], durable: Callable[[], None]
    ) -> None:
        begun_on = (one.read_version for one in appends if one.read_version is not None)
        super().__init__(
            versions,
            [txn for append in appends for txn in append.txns],
            synced=True,
            edit=self._when_durable,
            files=[file for append in appends for file in append.files],
            begun_on=min(begun_on, default=None),
            after=_join_markers(appends),
            built_anew=True,
        )
        self._appends = appends
        self._durable = durable

    def open(self, hook: CommitHook) -> lance.LanceDataset:
        """Return the version that an append brought, if it is the newest still."""
        return self._borrowed_handle(hook) or super().open(hook)

    def operation(self, newest: lance.LanceDataset) -> tuple[LanceOperation, int]:
        """Return one append of all fragments."""
        _check_columns(columns_of(newest), self._appends)
        fragments = [fragment for append in self._appends for fragment in append.fragments]
        return lance.LanceOperation.Append(fragments), int(newest.version)

    def find(self, error: ConflictError) -> None:
        """Leave it to the group: some of the appends may be in the table, and others not."""

    def _when_durable(self, manifest: bytes) -> bytes:
        self._durable()
        undated = [one for one in self._appends if one.read_version is None]
        if undated:
            files = [file for append in undated for file in append.files]
            check_not_due(self.versions.core.store, read_mark(read_config(manifest)), files)
        return manifest

    def _borrowed_handle(self, hook: CommitHook) -> lance.LanceDataset | None:
        """Return the newest handle that the appends brought, unless there is a newer version.

        Only to save time: a version that is decided but not there yet shows in the decision.
        """
        handles = [one.handle for one in self._appends if one.handle is not None]
        if not handles:
            return None
        newest = max(handles, key=lambda handle: int(handle.table.version))
        try:
            self.versions.core.store.head(version_name(newest.table.version + 1).path)
        except NotFoundError:
            newest.hook.operation = hook
            return newest.table
        return None


def _join_markers(appends: Sequence[Append]) -> After | None:
    """Return what the log must be merged to for all of them."""
    generations: dict[str, int] = {}
    for append in appends:
        if append.after is None:
            return None
        for shard_id, generation in append.after.items():
            generations[shard_id] = max(generation, generations.get(shard_id, 0))
    return generations


def _nothing() -> None:
    pass


def _check_columns(now: Columns, appends: Sequence[Append]) -> None:
    """Refuse fragments that the table would misread."""
    for append in appends:
        if append.columns is not None:
            check_columns(append.columns, now, append.fields)
        elif not append.fields <= now.keys():
            raise InvalidInputError("the fragments have columns that the table does not have")


def _distinct(requests: Sequence[AppendRequest]) -> list[AppendRequest]:
    """Leave out repeats of a transaction: they find it applied once the first one is in."""
    seen: set[Txn] = set()
    chosen = []
    for request in requests:
        txns = request.append.txns
        if not seen.intersection(txns):
            chosen.append(request)
        seen.update(txns)
    return chosen


def _answer_applied(requests: Sequence[AppendRequest], error: AlreadyAppliedError) -> None:
    for request in requests:
        append = request.append
        if append.others and not set(append.txns).isdisjoint(error.txns):
            request.answer(error)  # only some of its rows are there: whoever joined them parts them
        elif append.txn in error.txns:
            request.succeed(Committed(error.version, applied=False))


def _cut_short(error: BaseException) -> CommitUnknownError:
    return CommitUnknownError(
        "the thread that committed this write was interrupted, so its outcome is unknown: repeat "
        "it with the same txn",
        reason=type(error).__name__,
    )
