"""Rows of several callers that can become one fragment: checked one by one, then joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.commits._appends import Prepared
from holdfast.commits._data import as_reader
from holdfast.commits._ledger import Ledger
from holdfast.errors import HoldfastError
from holdfast.txn import Txn, TxnLike, parse_txn


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRows:
    """One caller's rows, in the table's own types.

    Attributes:
        number: which of the callers.
        rows: the rows, every value checked.
        txn: what makes a repeat harmless.
    """

    number: int
    rows: pa.Table
    txn: Txn | None


def join_rows(
    items: Sequence[tuple[pa.Table | list[dict[str, Any]], TxnLike | None]],
    prepared: Prepared,
    ledger: Ledger,
) -> list[JoinedRows]:
    """Return those whose rows fit together, with the columns of the first.

    Left out are: rows with other columns or none, rows that do not fit the table, and
    transactions that are, or may be, in the table or in another part.
    """
    parts: list[JoinedRows] = []
    seen: set[Txn] = set()
    for number, (data, txn) in enumerate(items):
        try:
            parsed = None if txn is None else parse_txn(txn)
            if parsed is not None:
                if parsed in seen or ledger.may_hold(prepared.config, parsed):
                    continue
                ledger.check_room(prepared.config, parsed)
            rows = as_reader(data, prepared.table.schema).read_all()
        except HoldfastError:
            continue  # it is told why when it comes alone
        if rows.num_rows and (not parts or rows.schema.equals(parts[0].rows.schema)):
            parts.append(JoinedRows(number=number, rows=rows, txn=parsed))
            if parsed is not None:
                seen.add(parsed)
    return parts
