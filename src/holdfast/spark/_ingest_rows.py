"""A task of `ingest`: rows of a few shards become one log entry each, at the places given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.arbiter import Arbiter, ConditionalPut, Verdict, open_arbiter
from holdfast.errors import (
    CommitUnknownError,
    HoldfastError,
    InvalidInputError,
    PinMismatchError,
    UnavailableError,
)
from holdfast.formats import bucket, decode_pin, key_values
from holdfast.options import StorageOptions
from holdfast.shard import Base, InputRows, rows_of, stored_batch, tombstones_of
from holdfast.spark._ingest_work import (
    DELETED,
    MOST_PARTS,
    ORDER,
    PART,
    SHARD,
    IngestTarget,
    IngestWork,
    WrittenEntries,
    entry_txns,
)
from holdfast.spark._types import batch_for_table
from holdfast.storage import open_store
from holdfast.wal import append_at

Answer = dict[str, Any]  # Any: JSON

_SHOWN_KEYS = 5
_ARBITERS: dict[str, Arbiter] = {}
"""A worker serves many tasks: it opens a table once. Keyed by all that says how."""


def write_entries(work: IngestWork, batches: Iterator[pa.RecordBatch]) -> Answer:
    """Write the rows of every shard that a task got; return where they are, by shard.

    Safe to repeat: what is at its place is not written again. An error that trying again would
    not mend is an answer, for which Spark need not try four times.

    Raises:
        UnavailableError, CommitUnknownError: trying again may help; Spark does.
    """
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return {"taken": {}}
    try:
        written = _write(work, pa.Table.from_batches(filled))
        return {"taken": {n: [astuple(one) for one in some] for n, some in written.items()}}
    except (UnavailableError, CommitUnknownError):
        _ARBITERS.pop(_way(work), None)  # perhaps it is the connection
        raise
    except HoldfastError as error:
        details = {key: str(value) for key, value in error.details.items() if value is not None}
        return {"error": type(error).__name__, "message": error.message, "details": details}


def _write(work: IngestWork, rows: pa.Table) -> dict[int, list[WrittenEntries]]:
    base = work.base()
    numbers = rows[SHARD].combine_chunks()
    prepared = []
    for number in pc.unique(numbers).to_pylist():
        if number in work.targets:  # the others have the batch already
            chosen = rows.filter(pc.equal(numbers, number))
            prepared.append((number, _entries(work, base, number, chosen)))
    # All rows are looked at before the first entry is written: what is refused leaves nothing.
    return {number: _append(work, work.targets[number], entries) for number, entries in prepared}


def _entries(
    work: IngestWork, base: Base, number: int, rows: pa.Table
) -> list[tuple[int, pa.RecordBatch]]:
    """Return what becomes of a shard's rows: for each part that has some, its entry."""
    if base.keys:
        rows = rows.take(_newest(work, base, rows))
    parts = rows[PART].to_pylist() if work.parts > 1 else [0] * rows.num_rows
    entries = []
    for part in sorted(set(parts)):
        mask = pa.array([one == part for one in parts]) if work.parts > 1 else None
        chosen = rows if mask is None else rows.filter(mask)
        _check_size(work, int(chosen.nbytes))
        given = _split_rows(base, chosen)
        entry = stored_batch(given, base.log_schema)
        _check_members(work, number, entry)
        entries.append((part, entry))
    return entries


def _split_rows(base: Base, rows: pa.Table) -> list[InputRows]:
    """Return rows as what is put and what is deleted; of keyed rows, each key is in one of them."""
    given = []
    putting, deleting = rows, None
    if DELETED in rows.column_names:
        deleted = rows[DELETED]
        putting, deleting = rows.filter(pc.invert(deleted)), rows.filter(deleted)
    if putting.num_rows:
        there = [field for field in base.schema if field.name in rows.column_names]
        batch = _one(putting.select([field.name for field in there]))
        given.append(rows_of(batch_for_table(batch, pa.schema(there)), base))
    if deleting is not None and deleting.num_rows:
        wanted = pa.schema([base.schema.field(name) for name in base.keys])
        given.append(
            tombstones_of(batch_for_table(_one(deleting.select(wanted.names)), wanted), base)
        )
    return given


def _one(rows: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch."""
    (batch,) = rows.combine_chunks().to_batches()
    return batch


def _newest(work: IngestWork, base: Base, rows: pa.Table) -> pa.Array:
    """Return which rows are the newest of their key, by the order that the user gave.

    Raises:
        InvalidInputError: a key is null, or nothing says which of two rows is the newer one.
    """
    keys = [rows[name].combine_chunks() for name in base.keys]
    if any(column.null_count for column in keys):
        raise InvalidInputError("a key is never null", key=", ".join(base.keys))
    codes = key_values(keys).dictionary_encode().indices.to_numpy()
    rank = _ranks(work, rows)
    order = np.lexsort((rank, codes))
    same_key = codes[order][1:] == codes[order][:-1]
    last = np.append(~same_key, True)
    tied = same_key & (rank[order][1:] == rank[order][:-1]) & last[1:]
    if tied.any():
        shown = rows.select(list(base.keys)).take(order[1:][tied][:_SHOWN_KEYS]).to_pylist()
        raise InvalidInputError(
            "a batch has several rows of one key, and nothing says which is the newest: restart "
            "the query with ingest(..., order_by=...), a column or several that differ between "
            "them, such as the time or the offset of the event",
            keys=str([tuple(row.values()) for row in shown]),
        )
    return pa.array(np.sort(order[last]))


def _ranks(work: IngestWork, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the place of each row in the user's order: the same for equal ones, nulls first."""
    ranks = np.zeros(rows.num_rows, np.int64)
    for index in range(work.ordered):
        column = rows[f"{ORDER}{index}"].combine_chunks()
        try:
            ranked = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
        except pa.ArrowException as error:
            raise InvalidInputError(
                "order_by cannot compare values of this type: give a number, a text or a time",
                type=str(column.type),
            ) from error
        ranked[column.is_null().to_numpy(zero_copy_only=False)] = 0  # Arrow has them last
        ranks = ranks * (rows.num_rows + 1) + ranked
        ranks = np.unique(ranks, return_inverse=True)[1].astype(np.int64)
    return ranks


def _check_size(work: IngestWork, size: int) -> None:
    if size <= work.limit:
        return
    # Rows do not divide evenly: ask for a few more than it takes.
    wanted = min(MOST_PARTS, 2 * work.parts * -(-size // work.limit))
    raise InvalidInputError(
        "a batch has more rows for one shard than a log entry holds; nothing of it is written "
        "there. Restart the query with the same checkpoint and "
        f"ingest(..., entries_per_batch={wanted}), and let batches be smaller",
        size=size,
        limit=work.limit,
        entries_per_batch=wanted,
    )


def _check_members(work: IngestWork, number: int, entry: pa.RecordBatch) -> None:
    """Refuse rows of other shards: there, an older row of the same key could win."""
    if work.column is None:
        return
    if not bool((bucket(entry[work.column], work.buckets) == number).all()):
        raise HoldfastError(
            "Spark divided rows in another way than Lance does; nothing was written",
            column=work.column,
            shard=number,
        )


def _append(
    work: IngestWork, target: IngestTarget, entries: Sequence[tuple[int, pa.RecordBatch]]
) -> list[WrittenEntries]:
    """Write the entries of one shard, in order; the last one says that the batch is whole."""
    slot, written = target.slot, []
    for part, entry in entries:
        if part in target.done:
            continue
        last = part == entries[-1][0]
        txns = entry_txns(work.app, work.batch, part, work.parts, last=last)
        taken = append_at(_arbiter(work), slot, entry, txns)
        written.append(
            WrittenEntries(taken.position, part, last, rows=entry.num_rows, size=taken.size)
        )
        slot = slot.after(taken.position)
    return written


def _arbiter(work: IngestWork) -> Arbiter:
    """Return who decides for the table; with the driver's verdict, so that no task probes."""
    way = _way(work)
    known = _ARBITERS.get(way)
    if known is None:
        known = _ARBITERS[way] = _open(work)
    return known


def _way(work: IngestWork) -> str:
    shown: Mapping[str, object] = dict(sorted(work.options.items()))
    return repr((work.uri, shown, work.commit_store, work.pin, work.verdict))


def _open(work: IngestWork) -> Arbiter:
    options, pin = StorageOptions(work.options), decode_pin(work.pin.encode())
    if work.verdict is not None:
        return ConditionalPut(open_store(work.uri, options), Verdict(work.verdict), pin=pin)
    arbiter = open_arbiter(work.uri, options, commit_store=work.commit_store)
    if arbiter.pin is None or arbiter.pin.table_id != pin.table_id:
        arbiter.close()
        raise PinMismatchError("another table is in the place of this one", table=work.uri)
    return arbiter
