"""`Operation`: the namespace that one operation commits through, and what became of it.

Lance reports the end of a commit by messages. Here the hook itself keeps the verdict: which
version was decided, that the transactions were there already, or that the outcome could
not be learnt. One object per operation; `LongLived` serves the handles that users hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.commits._versions import AlreadyAppliedError, Versions
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    HoldfastError,
    UnavailableError,
)
from holdfast.txn import Txn

TABLE_ID = ["table"]
"""Lance asks for a table by id; an operation knows only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAnswer:
    """What Lance wants to know of a table: where it is and that its versions are decided here."""

    location: str
    storage_options: Mapping[str, str] | None
    managed_versioning: bool = True
    version: int | None = None


class LongLived:
    """The hook of a dataset handle that a user keeps: every commit of it is decided."""

    def __init__(self, versions: Versions, options: Mapping[str, str]) -> None:
        self._versions = versions
        self._options = dict(options)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "this dataset commits through Holdfast and would lose that on its way to another "
            "process: send the table's URI and open it there with holdfast.open_table"
        )

    def namespace_id(self) -> str:
        """Return what tells this table from others."""
        return f"holdfast({self._versions.location})"

    def describe_table(self, _request: object) -> TableAnswer:
        """Say where the table is."""
        return TableAnswer(location=self._versions.location, storage_options=self._options or None)

    declare_table = describe_table

    def create_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Decide one version."""
        return self._versions.create(request)

    def list_table_versions(self, _request: object) -> dict[str, object]:
        """Return the newest decided version."""
        return self._versions.newest()

    def describe_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Return one version."""
        return self._versions.describe(int(request["version"]))


class Operation(LongLived):
    """The hook of one commit."""

    def __init__(
        self,
        versions: Versions,
        options: Mapping[str, str],
        txns: Sequence[Txn] = (),
        *,
        synced: bool = False,
    ) -> None:
        super().__init__(versions, options)
        self._txns = txns
        self._synced = synced
        self.version: int | None = None
        self._verdict: HoldfastError | None = None

    def create_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Decide one version, and remember how it went."""
        self._verdict = None
        try:
            answer = self._versions.create(request, self._txns, synced=self._synced)
        except HoldfastError as error:
            self._verdict = error
            raise
        self.version = int(request["version"])
        return answer

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Replace whatever Lance raises by the verdict, if there is one.

        Raises:
            AlreadyAppliedError: the transactions are in the table.
            CommitUnknownError: the outcome could not be learnt.
            ConflictError: other writers were faster, more often than Lance cares to try.
            HoldfastError: the hook refused.
        """
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            if self.version is not None:
                return  # decided, and durable: what failed came after
            if self._verdict is None:
                raise
            if isinstance(self._verdict, UnavailableError):
                raise CommitUnknownError(
                    "a store gave no answer during the commit: repeat it with the same txn",
                    reason=str(self._verdict),
                ) from error
            if type(self._verdict) is ConflictError:
                raise ConflictError(
                    "other writers changed what this commit is based on: read again, rebuild "
                    "and try again",
                    reason=str(error)[:300],
                ) from error
            raise self._verdict from error


__all__ = ["TABLE_ID", "AlreadyAppliedError", "LongLived", "Operation", "TableAnswer"]
