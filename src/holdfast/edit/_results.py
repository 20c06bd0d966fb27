"""What changes of rows return."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.txn import TxnLike


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult:
    """What one change of rows did.

    Attributes:
        version: the version that holds it.
        rows: how many rows it changed in all; 0 when not `applied`.
        updated: how many rows of the table were replaced.
        inserted: how many were added.
        deleted: how many were removed.
        txn: the transaction id it was made under.
        applied: False when the transaction was in the table already.
        tries: how often the change was computed; above 1, other writers changed the same rows
            first.
        elapsed: seconds.
    """

    version: int
    rows: int
    updated: int
    inserted: int
    deleted: int
    txn: TxnLike | None
    applied: bool
    tries: int
    elapsed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many rows a change updates, inserts and deletes."""

    updated: int = 0
    inserted: int = 0
    deleted: int = 0
