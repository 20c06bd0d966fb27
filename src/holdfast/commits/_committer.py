"""Any Lance operation, built elsewhere, committed under a transaction id exactly once.

The operation is tried again as it is when others were merely faster. When they changed what
it is based on, its maker hears of a conflict: only he can build it anew.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import lance

from holdfast.commits._log_rules import After
from holdfast.commits._opening import open_hooked
from holdfast.commits._operation import (
    AlreadyAppliedError,
    CommitHook,
    Committed,
    DatasetHook,
)
from holdfast.commits._queue import Queue
from holdfast.commits._versions import Edit, Versions
from holdfast.errors import ConflictError, InvalidInputError, NextStep, NotFoundError
from holdfast.formats import Head, read_config, version_name
from holdfast.txn import Txn

LanceOperation: TypeAlias = lance.LanceOperation.BaseOperation

_TRIES = 3


class Committer:
    """Commits operations to one table."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._queue = Queue(versions.core.store)

    def commit(
        self,
        operation: LanceOperation,
        *,
        read_version: int,
        txn: Txn | None = None,
        edit: Edit | None = None,
        begun_on: int | None = None,
        after: After | None = None,
    ) -> Committed:
        """Make the next version by this operation, unless its transaction is in the table.

        `begun_on` is the version that was read before its files were written, if that is
        older than `read_version`; `after` tells how far the table's log was merged for it.

        Raises:
            LogWaitsError, LogLostError: see `holdfast.commits._log_rules`.
            StaleWorkError: vacuum may have taken files that it shows.
            ConflictError: others changed what it is based on; `next_step` tells whether
                building it anew may help.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            InvalidInputError, NotFoundError: no such operation or version.
            HoldfastError: whatever `edit` raised, or a store; nothing was committed.
        """
        _check_operation(operation)
        oldest = read_version if begun_on is None else min(read_version, begun_on)
        for left in reversed(range(_TRIES)):
            try:
                return self._try_commit(operation, read_version, txn, edit, oldest, after=after)
            except AlreadyAppliedError as error:
                return Committed(error.version, applied=False)
            except ConflictError as error:
                there = self._find(txn)
                if there is not None:  # a repeat of this very operation was the other writer
                    return Committed(there, applied=False)
                if error.next_step is not NextStep.AGAIN or not left:
                    raise
        raise AssertionError("unreachable")

    def touch(self, edit: Edit) -> int:
        """Make a version that changes nothing but what `edit` does; return which.

        Raises:
            HoldfastError: as for `commit`.
        """
        live = DatasetHook(self._versions)
        client: Any = live
        with live.raising_outcome():
            newest = int(open_hooked(client).version)
        return self.commit(
            lance.LanceOperation.UpdateConfig(), read_version=newest, edit=edit
        ).version

    def _try_commit(
        self,
        operation: LanceOperation,
        read_version: int,
        txn: Txn | None,
        edit: Edit | None,
        begun_on: int,
        *,
        after: After | None,
    ) -> Committed:
        txns = [] if txn is None else [txn]
        if isinstance(operation, lance.LanceOperation.Restore) and txn is not None:
            edit = self._not_below(txn, edit)
        hook = CommitHook(self._versions, txns, edit=edit, begun_on=begun_on, after=after)
        client: Any = hook  # Any: Lance wants a namespace and gets one by its methods
        with self._queue.line() as line, hook.raising_outcome():
            self._queue.wait(line)
            table = open_hooked(client)
            if txn is not None and self._versions.ledger.holds(table.config(), txn):
                return Committed(int(table.version), applied=False)
            if read_version > table.version:
                raise NotFoundError(
                    "the operation is based on a version that is not there",
                    read_version=read_version,
                    newest=table.version,
                )
            done = lance.LanceDataset.commit(table, operation, read_version=read_version)
            hook.returned(int(done.version))
        return Committed(int(hook.version or 0), applied=True)

    def _find(self, txn: Txn | None) -> int | None:
        """Return the newest version if it holds the transaction."""
        hook = DatasetHook(self._versions)
        client: Any = hook
        with hook.raising_outcome():
            table = open_hooked(client)
            applied = txn is not None and self._versions.ledger.holds(table.config(), txn)
        return int(table.version) if applied else None

    def _not_below(self, txn: Txn, edit: Edit | None) -> Edit:
        """Look for the transaction in the version below: a restore takes its entry away."""

        def check(manifest: bytes) -> bytes:
            below = Head(manifest).version - 1
            body = self._versions.core.arbiter.read(version_name(below))
            if body is not None and self._versions.ledger.holds(read_config(body), txn):
                raise AlreadyAppliedError("in the table already", txns=[txn], version=below)
            return manifest if edit is None else edit(manifest)

        return check


def _check_operation(operation: object) -> None:
    if not isinstance(operation, lance.LanceOperation.BaseOperation):
        raise InvalidInputError(
            "an operation is one of lance.LanceOperation", given=type(operation).__name__
        )
    if isinstance(operation, lance.LanceOperation.Clone):
        raise InvalidInputError("a clone makes another table: use lance's shallow_clone")
