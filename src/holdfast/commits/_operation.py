"""`CommitHook`: the namespace that one operation commits through, and what became of it.

Lance reports the end of a commit by messages. Here the hook itself keeps the verdict: which
version was decided, that the transactions were there already, or that the outcome could
not be learnt. One object per operation; `DatasetHook` serves the handles that users hold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from holdfast.commits._lance import meaning_of
from holdfast.commits._log_rules import After
from holdfast.commits._namespace_errors import for_lance, raising_for_lance
from holdfast.commits._versions import AlreadyAppliedError, Edit, Versions
from holdfast.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    LogWaitsError,
    NextStep,
    NotFoundError,
)
from holdfast.txn import Txn

log = logging.getLogger("holdfast.commits")

TABLE_ID = ["table"]
"""Lance asks for a table by id; an operation knows only one."""
STAYS_HERE = (
    "this dataset commits through Holdfast and would lose that on its way to another process: "
    "send the holdfast.Table, or its URI for holdfast.open_table; to read only, open the URI "
    "there with lance.dataset"
)
"""Why a dataset refuses to be pickled, and what to send instead."""


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


class _StationaryText(str):
    """A value that refuses to travel."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(STAYS_HERE)


class Stationary(dict[str, str]):
    """Storage options that refuse to travel, and with them every dataset that holds them.

    A pickled pylance dataset silently loses its namespace, and so its hook; what it does
    pickle are its storage options. `lance.write_dataset` copies them into a dict of its own:
    so each value refuses, too.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({key: _StationaryText(value) for key, value in options.items()})

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(STAYS_HERE)


class DatasetHook:
    """The hook of a dataset handle that a user keeps: every commit of it is decided.

    Args:
        versions: the versions of the table.
        after: how far the table's log was merged for its commits; None: nothing may wait
            there, see `holdfast.commits._log_rules`.
        begun_on: the version that was read before files were written, if a commit's transaction
            may have read a later one.
    """

    def __init__(
        self,
        versions: Versions,
        after: After | None = None,
        begun_on: int | None = None,
    ) -> None:
        self._after = after
        self._begun_on = begun_on
        self._versions = versions
        self._options = Stationary(versions.core.resolved)
        self._trouble: HoldfastError | None = None  # why Lance was told nothing of a version
        self._refused: dict[int, HoldfastError] = {}  # the last error of each version's commit

    def namespace_id(self) -> str:
        """Return what tells this table from others."""
        return f"holdfast({self._versions.core.location})"

    def describe_table(self, request: object) -> TableAnswer | dict[str, object]:
        """Say where the table is.

        Lance asks with a dict, for the storage options of a table on Google Cloud Storage, and
        wants an answer that is JSON.
        """
        if isinstance(request, Mapping):
            options = {key: str(value) for key, value in self._options.items()}
            return {"location": self._versions.core.location, "storage_options": options}
        return TableAnswer(location=self._versions.core.location, storage_options=self._options)

    declare_table = describe_table

    def create_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Decide one version."""
        version = int(request["version"])
        try:
            answer = self._versions.create(request, begun_on=self._begun_on, after=self._after)
        except HoldfastError as error:
            self._refused[version] = error
            if isinstance(error, LogWaitsError):  # pylance's own functions do not say why
                log.warning("a change of the table was refused: %s", error)
            raise for_lance(error) from error
        self._refused.clear()
        return answer

    def list_table_versions(self, _request: object) -> dict[str, object]:
        """Return the newest decided version."""
        with raising_for_lance(), self._note_error():
            return self._versions.newest()

    def describe_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Return one version, or where it would be."""
        version = int(request["version"])
        with raising_for_lance(), self._note_error():
            try:
                return self._versions.describe(version)
            except NotFoundError:
                return self._versions.describe_place(version)

    @property
    def trouble(self) -> HoldfastError | None:
        """Return why Lance was last told nothing of a version."""
        return self._trouble

    def why_refused(self, version: int) -> HoldfastError | None:
        """Return why the last commit of a version failed, if it was asked of this hook."""
        return self._refused.get(version)

    @contextmanager
    def raising_outcome(self) -> Iterator[None]:
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
                raise self._meaning_of(error) from error
            raise self._trouble from error

    def _meaning_of(self, error: Exception) -> HoldfastError:
        return meaning_of(error, self._versions.core.location)

    @contextmanager
    def _note_error(self) -> Iterator[None]:
        """Keep what went wrong: on its way through Lance an error becomes a mere text."""
        try:
            yield
        except HoldfastError as error:
            self._trouble = error
            raise


class CommitHook(DatasetHook):
    """The hook of one commit.

    Args:
        versions: the versions of the table.
        txns: the transactions it applies.
        synced: the data files it adds are durable once `edit` returned, which adds none.
        creates: it makes version 1 or none.
        edit: changes the manifest that is about to be decided, or refuses.
        files: the data files it adds, as far as they are known.
        decided: called once the version is decided, whatever Lance does after that.
        begun_on: the version that was read before files were written, if the transaction may
            have read a later one.
        after: as for `DatasetHook`.
        built_anew: whoever commits it builds it on the newest version for each try.
    """

    def __init__(
        self,
        versions: Versions,
        txns: Sequence[Txn] = (),
        *,
        synced: bool = False,
        creates: bool = False,
        edit: Edit | None = None,
        files: Collection[str] = (),
        decided: Callable[[], None] | None = None,
        begun_on: int | None = None,
        after: After | None = None,
        built_anew: bool = False,
    ) -> None:
        super().__init__(versions, after, begun_on)
        self._built_anew = built_anew
        self._files = files
        self._txns = txns
        self._synced = synced
        self._creates = creates
        self._edit = edit
        self._decided = decided
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
                files=self._files,
                begun_on=self._begun_on,
                after=self._after,
            )
        except HoldfastError as error:
            lost = self._creates and isinstance(error, ConflictError)
            created = AlreadyExistsError("somebody else created the table: open it")
            self._verdict = created if lost else error
            raise for_lance(error) from error
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

    def note_success(self, version: int) -> int:
        """Take note that Lance reports success, and return the version that was made.

        After a lost answer Lance reads the version back through this hook, and reports
        success when it finds its own transaction there; so that is the outcome.

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
    def raising_outcome(self) -> Iterator[None]:
        """Replace whatever Lance raises by the verdict, if there is one.

        Raises:
            AlreadyAppliedError: the transactions are in the table.
            CommitUnknownError: the outcome could not be learnt.
            ConflictError: other writers were faster, more often than Lance cares to try.
            UnavailableError: a store gave no answer, and nothing was decided.
            HoldfastError: the hook refused, or Lance failed.
        """
        try:
            with super().raising_outcome():
                yield
        except HoldfastError as error:
            if self.version is not None:
                return  # decided, and durable: what failed came after
            if self._verdict is None:
                raise
            if _is_mere_loss(self._verdict):
                raise ConflictError(
                    "other writers changed what this commit is based on: read again, rebuild "
                    "and try again",
                    reason=str(error)[:300],
                ).leading_to(_next_step(error)) from error
            raise self._verdict from error

    def _meaning_of(self, error: Exception) -> HoldfastError:
        meant = super()._meaning_of(error)
        if self._built_anew and isinstance(meant, ConflictError):
            return meant.leading_to(NextStep.AGAIN)  # what excludes this try tells nothing of that
        return meant


class LentHook(DatasetHook):
    """The hook of a handle that was opened to look, and that one commit may then use."""

    operation: CommitHook | None = None

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


def _next_step(error: HoldfastError) -> NextStep:
    return error.next_step if isinstance(error, ConflictError) else NextStep.NEVER


def _is_mere_loss(verdict: HoldfastError) -> bool:
    """Tell whether somebody else had the version, and nothing more is known against the commit."""
    return isinstance(verdict, ConflictError) and verdict.next_step is NextStep.AGAIN


__all__ = [
    "TABLE_ID",
    "AlreadyAppliedError",
    "CommitHook",
    "Committed",
    "DatasetHook",
    "LentHook",
    "TableAnswer",
]
