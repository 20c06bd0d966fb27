"""Any Lance operation, built elsewhere, committed under a transaction id exactly once.

The operation is tried again as it is when others were merely faster. When they changed what
it is based on, its maker hears of a conflict: only he can build it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import lance

from holdfast.commits._lance import OVERTAKEN
from holdfast.commits._opening import opened
from holdfast.commits._operation import (
    AlreadyAppliedError,
    Committed,
    LongLived,
    Operation,
)
from holdfast.commits._queue import Queue
from holdfast.commits._versions import Edit, Versions
from holdfast.errors import ConflictError, InvalidInputError, NotFoundError
from holdfast.formats import is_applied, read_config, version_name
from holdfast.formats._manifest import Head
from holdfast.txn import Txn

LanceOperation: TypeAlias = lance.LanceOperation.BaseOperation

_TRIES = 3


class Committer:
    """Commits operations to one table."""

    def __init__(self, versions: Versions, options: Mapping[str, str]) -> None:
        self._versions = versions
        self._options = options
        self._queue = Queue(versions.store)

    def commit(
        self,
        operation: LanceOperation,
        *,
        read_version: int,
        txn: Txn | None = None,
        edit: Edit | None = None,
    ) -> Committed:
        """Make the next version by this operation, unless its transaction is in the table.

        Raises:
            ConflictError: others changed what it is based on; `retryable` tells whether
                building it anew may help.
            CommitUnknownError: the outcome could not be learnt; repeat with the same txn.
            InvalidInputError, NotFoundError: no such operation or version.
            HoldfastError: whatever `edit` raised, or a store; nothing was committed.
        """
        _check_operation(operation)
        for left in reversed(range(_TRIES)):
            try:
                return self._try_commit(operation, read_version, txn, edit)
            except AlreadyAppliedError as error:
                return Committed(int(str(error.details["version"])), applied=False)
            except ConflictError as error:
                there = self._find(txn)
                if there is not None:  # a repeat of this very operation was the other writer
                    return Committed(there, applied=False)
                if not error.details.get(OVERTAKEN) or not left:
                    raise
        raise AssertionError("unreachable")

    def _try_commit(
        self, operation: LanceOperation, read_version: int, txn: Txn | None, edit: Edit | None
    ) -> Committed:
        txns = [] if txn is None else [txn]
        if isinstance(operation, lance.LanceOperation.Restore) and txn is not None:
            edit = self._not_below(txn, edit)
        hook = Operation(self._versions, self._options, txns, edit=edit)
        client: Any = hook  # Any: Lance wants a namespace and gets one by its methods
        with self._queue.turn(), hook.settled():
            table = opened(client)
            if txn is not None and is_applied(table.config(), txn):
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
        hook = LongLived(self._versions, self._options)
        client: Any = hook
        with hook.settled():
            table = opened(client)
            found = txn is not None and is_applied(table.config(), txn)
        return int(table.version) if found else None

    def _not_below(self, txn: Txn, edit: Edit | None) -> Edit:
        """Look for the transaction in the version below: a restore takes its entry away."""

        def check(manifest: bytes) -> bytes:
            below = Head(manifest).version - 1
            body = self._versions.arbiter.read(version_name(below))
            if body is not None and is_applied(read_config(body), txn):
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
