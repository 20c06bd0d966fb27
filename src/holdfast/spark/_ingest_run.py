"""`Run`: one run of a streaming query, which owns its shards and hands out places in their logs.

    run = Run(table, shard=None, app="spark-ingest-...")   # writes: an epoch and a fence each
    targets = run.targets(batch, parts=1)                   # what the batch still needs
    run.done(batch, 1, {0: [written], 3: [written]})        # the entries of its tasks

Shards are claimed once per run: whatever an earlier run has sent and is still on its way finds
the fence of this one. A run that failed is never used again, as its tasks may still live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from holdfast.arbiter import SupportsVerdict, Verdict
from holdfast.errors import (
    ConflictError,
    InvalidInputError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.formats import encode_pin
from holdfast.shard import Base, Shard, Sharding, check_log, claim_slots, read_newest_base
from holdfast.spark._ingest_frame import Routing, routing_of
from holdfast.spark._ingest_work import (
    MOST_PARTS,
    IngestTarget,
    WrittenEntries,
    part_txn,
    whole_txn,
)
from holdfast.table import Table
from holdfast.wal import Slots

_CLAIMS = 16
"""How many shards are claimed at the same time."""
_BATCHES_UNCHECKED = 100
"""After so many batches a run looks whether the table can still read its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """What a batch has written, and how far the flush is behind, for Spark's progress.

    Attributes:
        rows: rows of the batch, deletes included; none if all shards had it.
        entries: log entries of the batch.
        size: their bytes.
        lag: by shard, entries that are not flushed yet, as far as the run has heard.
    """

    rows: int
    entries: int
    size: int
    lag: Mapping[str, int]

    def as_metrics(self) -> dict[str, str]:
        """Return it as Spark wants the metrics of a sink."""
        lag = {f"lag.{shard_id}": str(count) for shard_id, count in self.lag.items()}
        return {
            "rows": str(self.rows),
            "entries": str(self.entries),
            "bytes": str(self.size),
            **lag,
        }


class Run:
    """The shards of a table, claimed for one run of a query.

    Args:
        table: the table; the run closes it.
        shard: the one shard to write, for a table whose shards are named by hand.
        app: under which name batches are counted.

    Raises:
        HoldfastError: as for `Table.claim_writer`; or the table's rows are divided in a way
            that Spark cannot follow.
    """

    def __init__(self, table: Table, *, shard: str | None, app: str) -> None:
        self.table = table
        self.app = app
        if read_newest_base(table.versions).details is None:
            table.prepare_writers(sharding=Sharding.unsharded() if shard is None else None)
        self.routing: Routing = routing_of(read_newest_base(table.versions), shard)
        arbiter = table.core.arbiter
        self.verdict: str | None = None
        if isinstance(arbiter, SupportsVerdict):
            arbiter.require_verdict()
            self.verdict = Verdict.ENFORCED.value
        if arbiter.pin is None:
            raise InvalidInputError("the table is not tied to an arbiter: open it anew")
        self.pin = encode_pin(arbiter.pin).decode()
        self.table_id = arbiter.pin.table_id
        self.base, self._slots = self._claim(self.routing.shards)
        self._newest = -1  # the newest batch of this run
        self._unchecked = 0

    def close(self) -> None:
        """Let go of the table's connections. The shards stay with this run until the next."""
        self.table.close()

    @property
    def epochs(self) -> dict[str, int]:
        """Return the epoch of each shard, by its id."""
        return {one.next.shard_id: one.next.epoch for one in self._slots}

    def targets(self, batch: int, parts: int) -> dict[int, IngestTarget]:
        """Return the places for a batch in the shards that do not have it, by their numbers.

        Raises:
            InvalidInputError: a shard has a part of this batch, divided in another way.
            LogLostError, FencedError, StaleHandleError: nobody could read what is written.
            HoldfastError: a store failed.
        """
        self._look_at_table()
        if batch <= self._newest:
            return {}
        targets = {}
        for number, slots in enumerate(self._slots):
            if slots.holds(whole_txn(self.app, batch)):
                continue
            done = self._begun_parts(slots, batch, parts) if self._newest < 0 else ()
            targets[number] = IngestTarget(slot=slots.next, done=done)
        return targets

    def progress(self, written: Sequence[WrittenEntries]) -> BatchProgress:
        """Return what a batch has written, and where the run stands."""
        return BatchProgress(
            rows=sum(one.rows for one in written),
            entries=len(written),
            size=sum(one.size for one in written),
            lag={one.next.shard_id: one.lag for one in self._slots},
        )

    def note_flushed(self, shard_id: str, position: int) -> None:
        """Take note that the rows of a shard up to a position are in generations."""
        for one in self._slots:
            if one.next.shard_id == shard_id:
                one.flushed = max(one.flushed, position)

    def finish_batch(
        self, batch: int, parts: int, taken: Mapping[int, Sequence[WrittenEntries]]
    ) -> None:
        """Go on behind what the tasks of a batch have written."""
        for number, written in taken.items():
            entries = [(one.position, one.txns(self.app, batch, parts)) for one in written]
            self._slots[number].advance(entries)
        self._newest = max(self._newest, batch)

    def _claim(self, shards: Sequence[Shard]) -> tuple[Base, list[Slots]]:
        with ThreadPoolExecutor(
            min(_CLAIMS, len(shards)), thread_name_prefix="holdfast-claim"
        ) as pool:
            claimed = list(pool.map(partial(claim_slots, self.table.versions), shards))
        base = claimed[-1][0]
        if any(one.log_id != base.log_id for one, _ in claimed):
            raise ConflictError("the table's columns were replaced while it was claimed: try again")
        return base, [slots for _, slots in claimed]

    def _begun_parts(self, slots: Slots, batch: int, parts: int) -> tuple[int, ...]:
        """Return the parts of a batch that an earlier run has written, of a batch not whole."""
        for size in range(2, MOST_PARTS + 1):
            there = [n for n in range(size) if slots.holds(part_txn(self.app, batch, n, size))]
            if there and size != parts:
                raise InvalidInputError(
                    "this batch was begun with another entries_per_batch: restart the query with "
                    f"ingest(..., entries_per_batch={size}); it may change after this batch",
                    batch=batch,
                    entries_per_batch=size,
                )
            if there:
                return tuple(there)
        return ()

    def _look_at_table(self) -> None:
        """Now and then see that the table can still read its log; see `ShardWriter`."""
        self._unchecked += 1
        if self._unchecked >= _BATCHES_UNCHECKED:
            with suppress(UnavailableError, PermissionDeniedError):
                check_log(self.table.versions, self.base)
            self._unchecked = 0
