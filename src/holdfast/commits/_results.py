"""`CommitResult`: what one write did."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.txn import TxnLike


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What one write did.

    Attributes:
        version: the version that holds it.
        rows: how many rows it wrote; 0 when not `applied`.
        txn: the transaction id it was made under.
        applied: False when the transaction was in the table already.
        elapsed: seconds.
    """

    version: int
    rows: int
    txn: TxnLike | None
    applied: bool
    elapsed: float
