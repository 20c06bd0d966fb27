"""`run_sql`: a statement that changes rows, run again when others were first, and applied once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import InvalidInputError, UnsupportedError
from holdfast.spark._progress import Session, is_connect
from holdfast.txn import AppTxn, TxnLike, parse_txn

TRIES = 5
_CONFLICT = "RowConflictError"
_APP, _NUMBER = "holdfast.txnAppId", "holdfast.txnVersion"


def run_sql(
    spark: Session, statement: str, *, txn: TxnLike | None = None, tries: int = TRIES
) -> Any:  # noqa: ANN401 - a DataFrame of either kind of session
    """Run a statement of Spark SQL that changes rows of a table of a catalog.

    An `UPDATE` or `MERGE INTO` whose rows were changed meanwhile by another writer changes nothing
    and raises `RowConflictError`; here it is run again. Under a `txn` it is applied once, however
    often it is run: `INSERT`, `UPDATE`, `DELETE` and `MERGE INTO`.

    Args:
        spark: the session.
        statement: SQL.
        txn: `(app, number)`: makes a repeat harmless, also by another driver.
        tries: how often to begin.

    Returns:
        What `spark.sql` returns.

    Raises:
        InvalidInputError: a malformed txn, or one that is a text; `tries` below 1.
        UnsupportedError: a txn on Spark Connect, which cannot carry it to the statement.
        Exception: Spark's own: the statement failed; nothing was changed.
    """
    if tries < 1:
        raise InvalidInputError("tries is at least 1", tries=tries)
    with _under_txn(spark, txn):
        for left in reversed(range(tries)):
            try:
                return spark.sql(statement)
            except Exception as error:  # of pyspark, or of py4j
                if not left or _CONFLICT not in str(error):
                    raise
    raise AssertionError("unreachable")


@contextmanager
def _under_txn(spark: Session, txn: TxnLike | None) -> Iterator[None]:
    """Let the statements of this thread be applied under a transaction id."""
    if txn is None:
        yield
        return
    parsed = parse_txn(txn)
    if not isinstance(parsed, AppTxn):
        raise InvalidInputError("the txn of a statement is (app, number)", given=repr(txn))
    if is_connect(spark):
        raise UnsupportedError(
            "Spark Connect cannot carry a txn to a statement: use merge_into, update or delete "
            "of holdfast.spark.table(...)"
        )
    context = spark.sparkContext
    try:
        context.setLocalProperty(_APP, parsed.app)
        context.setLocalProperty(_NUMBER, str(parsed.number))
        yield
    finally:
        for key in (_APP, _NUMBER):
            context.setLocalProperty(key, None)
