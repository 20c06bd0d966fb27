"""`CommitStore`: the small interface behind which a database decides names.

A commit store keeps records under keys. A key is a *series* (a string) and a *number* in
it; the numbers of one series are decided one after the other. A series is printable ASCII,
a number 0 to 2**63-1, a limit at least 1. All verbs are linearizable, and durable when they
return: what `get` shows survives a crash, too. A verb that cannot tell whether it was applied
raises `UnavailableError`; the arbiter then reads back, so an implementation never retries
by itself.

Each series has a *boundary*: numbers up to it are decided and their records are gone.
`collect` raises it and removes the records in one atomic step, so a writer that slept
through the collection cannot decide an old number again.

Prove an implementation with `holdfast.testing.CommitStoreSuite`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

MAX_SERIES_CHARS = 400
MAX_VALUE_BYTES = 256 * 1024


class Key(NamedTuple):
    """Where a record is kept: a series and a number in it."""

    series: str
    number: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a scan."""

    number: int
    value: bytes


class CommitStore(Protocol):
    """A linearizable, durable map that keeps the first value of every key."""

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

    def get(self, key: Key) -> bytes | None:
        """Return the value, or None."""
        ...

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`; return whether `expected` was there."""
        ...

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[Entry]:
        """Return up to `limit` records with numbers above `after`, in order of number."""
        ...

    def boundary(self, series: str) -> int:
        """Return the boundary of a series; -1 when it never had one."""
        ...

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary to `through` and remove the records up to it, in one step.

        A boundary never goes down: a lower `through` changes nothing.

        Returns:
            How many records were removed.
        """
        ...

    def close(self) -> None:
        """Let go of connections; the object is not used afterwards."""
        ...


@runtime_checkable
class SupportsSetUp(Protocol):
    """A commit store that can create its own schema and say what is wrong with its server."""

    def set_up(self) -> str:
        """Create what is missing and return the identity. Safe to call again, at once, by many."""
        ...

    def check(self) -> Sequence[str]:
        """Return what makes this server unfit to decide names; empty when it is fit."""
        ...
