"""`CommitStore`: the small interface behind which a database decides names.

A commit store keeps records under keys. A key is a *series* (a string) and a *number* in
it; the numbers of one series are decided one after the other. A series is printable ASCII,
a number 0 to 2**63-1, a limit at least 1. All verbs are linearizable, and durable when they
return: what `get` shows survives a crash, too. A verb that cannot tell whether it was applied
raises `UnavailableError`; the arbiter then reads back, so an implementation never retries
by itself.

Each series has a *boundary*: numbers up to it are decided and their records are gone.
`collect` raises it in one atomic step, and `put_if_absent` looks at it in its own: so a writer
that slept through the collection cannot decide an old number again. Records at or below the
boundary are not shown by any verb; whether their bytes are deleted in that step or a moment
later is the store's affair.

The part of a series before its first slash is its *scope*: all series of one table share
one. `retire` ends a scope: from that moment every verb on its series raises
`StaleHandleError`. So a process that still holds a table which was removed and made anew
learns it from the very request that would have decided, read or collected.

Prove an implementation with `holdfast.testing.CommitStoreSuite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

MAX_SERIES_CHARS = 400
MAX_VALUE_BYTES = 256 * 1024


def scope_of(series: str) -> str:
    """Return the scope of a series: its part before the first slash."""
    return series.partition("/")[0]


class Key(NamedTuple):
    """Where a record is kept: a series and a number in it."""

    series: str
    number: int


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One record of a scan."""

    number: int
    value: bytes


class Replacement(NamedTuple):
    """A value of a series that takes the place of another one."""

    number: int
    expected: bytes
    value: bytes


class CommitStore(Protocol):
    """A linearizable, durable map that keeps the first value of every key.

    Every verb on a series of a retired scope raises `StaleHandleError`.
    """

    @property
    def url(self) -> str:
        """Return the URL without credentials, as it is pinned in tables and printed."""
        ...

    def identity(self) -> str:
        """Return the random id made when the store was set up; never its address.

        Raises:
            NotFoundError: the store was not set up (`holdfast store init URL`).
        """
        ...

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        """Keep `value` under `key` unless a value is there.

        Returns:
            None when stored now, else the value that was there first.

        Raises:
            CollectedError: the key's number is not above the boundary of its series.
        """
        ...

    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        """Return the value, or None; with `retired`, of a retired scope as well."""
        ...

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`; return whether `expected` was there."""
        ...

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        """Return up to `limit` records with numbers above `after`, in order of number."""
        ...

    def boundary(self, series: str, *, retired: bool = False) -> int:
        """Return the boundary of a series, -1 if it never had one; `retired` as for `get`."""
        ...

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary to `through` in one step; the records up to it are gone from then on.

        A boundary never goes down: a lower `through` changes nothing.

        Returns:
            How many records were removed.
        """
        ...

    def retire(self, scope: str) -> None:
        """Refuse every verb on the series of a scope from now on, for ever. Safe to repeat.

        The records stay, for `get` and `boundary` with `retired`. A scope has up to 100
        characters, and no slash.
        """
        ...

    def close(self) -> None:
        """Let go of connections; the object is not used afterwards."""
        ...


@runtime_checkable
class SupportsReplaceMany(Protocol):
    """A commit store that replaces several values of a series by one request."""

    def replace_many(self, series: str, changes: Sequence[Replacement]) -> int:
        """Do for each change what `compare_and_set` does; others see any of them first.

        Returns:
            How many values were replaced.
        """
        ...


@runtime_checkable
class SupportsSetUp(Protocol):
    """A commit store that can create its own schema and say what is wrong with its server."""

    def set_up(self) -> str:
        """Create what is missing and return the identity. Safe to repeat, and for many."""
        ...

    def check(self) -> Sequence[str]:
        """Return what makes this server unfit to decide names; empty when it is fit."""
        ...
