"""`Operation`: the namespace that one operation commits through, and what became of it.

Lance reports the end of a commit by messages. Here the hook itself keeps the verdict: which
version was decided, that the transactions were there already, or that the outcome could
not be learnt. One object per operation; `LongLived` serves the handles that users hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from holdfast.commits._lance import OVERTAKEN, RETRYABLE, meaning_of
from holdfast.commits._versions import AlreadyAppliedError, Edit, Versions
from holdfast.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    NotFoundError,
)
from holdfast.txn import Txn

TABLE_ID = ["table"]
"""Lance asks for a table by id; an operation knows only one."""
LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a write: the version, and whether this call made it."""

    version: int
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAnswer:
    """What Lance wants to know of a table: where it is and that its versions are decided here."""

    location: str
    storage_options: Mapping[str, str] | None
    managed_versioning: bool = True
    version: int | None = None


class Stationary(dict[str, str]):
    """Storage options that refuse to travel, and with them every dataset that holds them.

    A pickled pylance dataset silently loses its namespace, and so its hook; what it does
    pickle are its storage options.
    """

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(
            "this dataset commits through Holdfast and would lose that on its way to another "
            "process: send the holdfast.Table, or its URI for holdfast.open_table; to read "
            "only, open the URI there with lance.dataset"
        )


class LongLived:
    """The hook of a dataset handle that a user keeps: every commit of it is decided.

    Args:
        versions: the versions of the table.
        options: storage options with their values.
        guard: may refuse the manifest that is about to be decided.
    """

    def __init__(
        self, versions: Versions, options: Mapping[str, str], guard: Edit | None = None
    ) -> None:
        self._guard = guard
        self._versions = versions
        self._options = Stationary(options)
        self._trouble: HoldfastError | None = None  # why Lance was told nothing of a version

    def namespace_id(self) -> str:
        """Return what tells this table from others."""
        return f"holdfast({self._versions.location})"

    def describe_table(self, _request: object) -> TableAnswer:
        """Say where the table is."""
        return TableAnswer(location=self._versions.location, storage_options=self._options)

    declare_table = describe_table

    def create_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Decide one version."""
        # Nobody knows when this commit began: the handle may be years old.
        return self._versions.create(request, edit=self._guard, begun=LONG_AGO)

    def list_table_versions(self, _request: object) -> dict[str, object]:
        """Return the newest decided version."""
        with self._noted():
            return self._versions.newest()

    def describe_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Return one version."""
        with self._noted():
            return self._versions.describe(int(request["version"]))

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Replace whatever Lance raises by what this hook raised, or by what it means.

        Raises:
            HoldfastError: the hook refused, or Lance failed.
        """
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            if self._trouble is None:
                raise meaning_of(error, self._versions.location) from error
            raise self._trouble from error

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Keep what went wrong: on its way through Lance an error becomes a mere text."""
        try:
            yield
        except NotFoundError:
            raise
        except HoldfastError as error:
            self._trouble = error
            raise


class Operation(LongLived):
    """The hook of one commit.

    Args:
        versions: the versions of the table.
        options: storage options with their values.
        txns: the transactions it applies.
        synced: the data files it adds are durable once `edit` returned, which adds none.
        creates: it makes version 1 or none.
        edit: changes the manifest that is about to be decided, or refuses.
        decided: called once the version is decided, whatever Lance does after that.
    """

    def __init__(
        self,
        versions: Versions,
        options: Mapping[str, str],
        txns: Sequence[Txn] = (),
        *,
        synced: bool = False,
        creates: bool = False,
        edit: Edit | None = None,
        decided: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(versions, options)
        self._txns = txns
        self._synced = synced
        self._creates = creates
        self._edit = edit
        self._decided = decided
        self._begun = versions.elapsed()
        self.version: int | None = None
        self._verdict: HoldfastError | None = None

    def create_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Decide one version, and remember how it went."""
        self._verdict = None
        version = int(request["version"])
        try:
            answer = self._versions.create(
                request,
                self._txns,
                synced=self._synced,
                creates=self._creates,
                edit=self._edit,
                begun=self._begun,
            )
        except HoldfastError as error:
            lost = self._creates and isinstance(error, ConflictError)
            created = AlreadyExistsError("somebody else created the table: open it")
            self._verdict = created if lost else error
            raise
        except Exception as error:
            self._verdict = CommitUnknownError(
                "an unexpected error during the decision: repeat it with the same txn",
                reason=f"{type(error).__name__}: {error}"[:300],
            )
            raise
        self.version = version
        if self._decided is not None:
            self._decided()
        return answer

    def returned(self, version: int) -> int:
        """Take note that Lance reports success, and return the version that was made.

        After a lost answer Lance reads the version back through this hook, and reports
        success when it finds its own transaction there; so that settles the outcome.

        Raises:
            HoldfastError: the hook knows better.
        """
        if self.version is None:
            if not isinstance(self._verdict, CommitUnknownError):
                raise self._verdict or CommitUnknownError(
                    "Lance reports a commit that went past Holdfast", version=version
                )
            self.version = version
        return self.version

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Replace whatever Lance raises by the verdict, if there is one.

        Raises:
            AlreadyAppliedError: the transactions are in the table.
            CommitUnknownError: the outcome could not be learnt.
            ConflictError: other writers were faster, more often than Lance cares to try.
            UnavailableError: a store gave no answer, and nothing was decided.
            HoldfastError: the hook refused, or Lance failed.
        """
        try:
            with super().settled():
                yield
        except HoldfastError as error:
            if self.version is not None:
                return  # decided, and durable: what failed came after
            if self._verdict is None:
                raise
            if type(self._verdict) is ConflictError:
                raise ConflictError(
                    "other writers changed what this commit is based on: read again, rebuild "
                    "and try again",
                    **_kept(error),
                    reason=str(error)[:300],
                ) from error
            raise self._verdict from error


class Lent(LongLived):
    """The hook of a handle that was opened to look, and that one commit may then use."""

    operation: Operation | None = None

    def create_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Decide one version, for the operation that uses the handle."""
        if self.operation is None:
            return super().create_table_version(request)
        return self.operation.create_table_version(request)

    def list_table_versions(self, request: object) -> dict[str, object]:
        """Return the newest decided version."""
        if self.operation is None:
            return super().list_table_versions(request)
        return self.operation.list_table_versions(request)

    def describe_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Return one version."""
        if self.operation is None:
            return super().describe_table_version(request)
        return self.operation.describe_table_version(request)


def _kept(error: HoldfastError) -> dict[str, object]:
    """Return how a conflict may be tried again, if Lance said so."""
    return {key: error.details[key] for key in (RETRYABLE, OVERTAKEN) if key in error.details}


__all__ = [
    "TABLE_ID",
    "AlreadyAppliedError",
    "Committed",
    "Lent",
    "LongLived",
    "Operation",
    "TableAnswer",
]
