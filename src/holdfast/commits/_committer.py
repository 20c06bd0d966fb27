"""Any Lance operation, built elsewhere, committed under a transaction id exactly once.

`LancePlan` is what every plan has in common whose version Lance makes: operations here; appends
that are not plain, indexes, changes of rows and merges elsewhere.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack

import lance

from holdfast.commits._log_rules import After
from holdfast.commits._loop import CommitPlan, make_version
from holdfast.commits._opening import open_hooked
from holdfast.commits._operation import (
    AlreadyAppliedError,
    CommitHook,
    Committed,
    DatasetHook,
)
from holdfast.commits._versions import Edit, Versions
from holdfast.errors import (
    ConflictError,
    InvalidInputError,
    NextStep,
    NotFoundError,
    StaleWorkError,
)
from holdfast.formats import Head, read_config, version_name
from holdfast.txn import Txn

LanceOperation: TypeAlias = lance.LanceOperation.BaseOperation


class Terms(TypedDict, total=False):
    """What the hook of a commit is told; see `CommitHook`."""

    synced: bool
    edit: Edit | None
    files: Collection[str]
    begun_on: int | None
    after: After | None
    built_anew: bool


class LancePlan(CommitPlan[Committed]):
    """A version that Lance makes of an operation, and that the hook decides.

    Args:
        versions: of the table.
        txns: the transactions that it applies.
        terms: for the hook; a plan may change them between tries.
    """

    tries = 3  # each of them is many: Lance rebases and tries again by itself

    def __init__(
        self, versions: Versions, txns: Sequence[Txn] = (), **terms: Unpack[Terms]
    ) -> None:
        self.versions = versions
        self.txns = txns
        self.terms = terms

    @abstractmethod
    def operation(self, newest: lance.LanceDataset) -> tuple[LanceOperation, int]:
        """Return what is to be done to the newest version, and the version that it read.

        Raises:
            ConflictError: it does not fit that version.
        """

    def open(self, hook: CommitHook) -> lance.LanceDataset:
        """Return the newest version, to be committed to through `hook`."""
        client: Any = hook  # Any: Lance wants a namespace and gets one by its methods
        return open_hooked(client)

    def attempt(self) -> Committed:
        """Open the newest version and let Lance commit to it; the hook knows what came of it."""
        queue = self.versions.queue
        with queue.line() as line:
            queue.wait(line)
            # The turn ends with the decision: what Lance does after it is no other writer's wait.
            hook = CommitHook(self.versions, self.txns, decided=line.close, **self.terms)
            with hook.raising_outcome():
                newest = self.open(hook)
                self._refuse_applied(newest)
                operation, read_version = self.operation(newest)
                done = lance.LanceDataset.commit(newest, operation, read_version=read_version)
                hook.note_success(int(done.version))
        return Committed(int(hook.version or 0), applied=True)

    def find(self, error: ConflictError) -> Committed | None:
        """Return the newest version if a repeat of this very commit was the other writer."""
        if isinstance(error, AlreadyAppliedError):
            return Committed(error.version, applied=False)
        if not self.txns:
            return None
        # Lance may speak of another conflict: that the rows of our own repeat are in the way.
        hook = DatasetHook(self.versions)
        client: Any = hook  # Any: as above
        with hook.raising_outcome():
            newest = open_hooked(client)
            applied = self.versions.ledger.applied(newest.config(), self.txns)
        return Committed(int(newest.version), applied=False) if applied else None

    def _refuse_applied(self, newest: lance.LanceDataset) -> None:
        """Save Lance a try that the hook would refuse, and a warning on stderr; no decision."""
        if not self.txns:
            return
        applied = self.versions.ledger.applied(newest.config(), self.txns)
        if applied:
            raise AlreadyAppliedError(
                "in the table already", txns=applied, version=int(newest.version)
            )


class OperationPlan(LancePlan):
    """An operation that was built elsewhere, upon one version or (None) whatever is the newest.

    It is tried again as it is when others were merely faster. When they changed what it is based
    on, its maker hears of a conflict: only he can build it anew.
    """

    def __init__(
        self,
        versions: Versions,
        operation: LanceOperation,
        read_version: int | None,
        txn: Txn | None,
        **terms: Unpack[Terms],
    ) -> None:
        _check_operation(operation)
        super().__init__(versions, [] if txn is None else [txn], **terms)
        self._operation = operation
        self._read_version = read_version
        if txn is not None and isinstance(operation, lance.LanceOperation.Restore):
            self.terms["edit"] = self._not_below(txn, terms.get("edit"))

    def operation(self, newest: lance.LanceDataset) -> tuple[LanceOperation, int]:
        """Return the operation as it is."""
        version = int(newest.version)
        read_version = version if self._read_version is None else self._read_version
        if read_version > version:
            raise NotFoundError(
                "the operation is based on a version that is not there",
                read_version=read_version,
                newest=version,
            )
        return self._operation, read_version

    def _not_below(self, txn: Txn, edit: Edit | None) -> Edit:
        """Look for the transaction in the version below: a restore takes its entry away."""

        def check(manifest: bytes) -> bytes:
            below = Head(manifest).version - 1
            body = self.versions.core.arbiter.read(version_name(below))
            if body is not None and self.versions.ledger.holds(read_config(body), txn):
                raise AlreadyAppliedError("in the table already", txns=[txn], version=below)
            return manifest if edit is None else edit(manifest)

        return check


class ReplacingPlan(OperationPlan):
    """An operation that replaces all rows, whatever is the newest version."""

    tries = 30

    def judge(self, error: ConflictError) -> NextStep:
        """Put it upon the newest version, whatever others did: nothing of theirs is kept."""
        if error.next_step is NextStep.NEVER or isinstance(error, StaleWorkError):
            return NextStep.NEVER
        return NextStep.AGAIN


def touch(versions: Versions, edit: Edit) -> int:
    """Make a version that changes nothing but what `edit` does; return which.

    Raises:
        HoldfastError: as for an operation.
    """
    nothing = lance.LanceOperation.UpdateConfig()
    return make_version(OperationPlan(versions, nothing, None, None, edit=edit)).version


def _check_operation(operation: object) -> None:
    if not isinstance(operation, lance.LanceOperation.BaseOperation):
        raise InvalidInputError(
            "an operation is one of lance.LanceOperation", given=type(operation).__name__
        )
    if isinstance(operation, lance.LanceOperation.Clone):
        raise InvalidInputError("a clone makes another table: use lance's shallow_clone")
