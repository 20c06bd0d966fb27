"""What index verbs return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.txn import OwnTxn


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexResult:
    """What an index build did.

    Attributes:
        version: the table version that has the index.
        rows: how many documents this call indexed; 0 when not `applied`.
        txn: the transaction id that makes the commit happen once; `Table.applied` knows it.
        applied: False when the index was complete already.
        elapsed: seconds.
        name: the index's name.
        build_id: the UUID of what was built.
        partitions: of how many parts it consists.
        reused: how many tasks an earlier run had finished.
        uncovered: how many fragments of the newest version are in no segment of the index.
    """

    version: int
    rows: int
    txn: OwnTxn | None
    applied: bool
    elapsed: float
    name: str
    build_id: str | None
    partitions: int
    reused: int
    uncovered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexInfo:
    """An index of a table.

    Attributes:
        name: its name.
        kind: what kind of index.
        columns: what is indexed.
        rows: how many rows it covers.
        segments: the UUIDs of its segments.
        partitions: of how many parts they consist; None for other kinds.
        covered: how many fragments it covers.
        uncovered: how many fragments it does not: `refresh_index` builds those.
        parameters: how it was built.
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    rows: int
    segments: tuple[str, ...]
    partitions: int | None
    covered: int
    uncovered: int
    parameters: Mapping[str, Any]
