"""`IngestUpkeep`: while a query writes the log, flush it into generations and merge these.

A round is begun after a batch, when the time has come, in a thread that ends with the round; so
nothing outlives the query for long. It deletes nothing. Killed anywhere, the next one goes on.
"""

from __future__ import annotations

import logging
import re
import threading
from datetime import timedelta

from holdfast._clock import Clock, SystemClock
from holdfast.commits import open_dataset
from holdfast.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    UnavailableError,
)
from holdfast.shard import read_merged
from holdfast.spark._ingest_run import Run
from holdfast.upkeep import flush_log
from holdfast.wal import ShardManifests

log = logging.getLogger(__name__)

_GENERATIONS = 4
"""A shard with so many generations is merged: fewer, and larger, versions of the base."""
_UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
_INTERVAL = re.compile(r"\s*([0-9]{1,6})\s*(second|minute|hour|day)s?\s*", re.IGNORECASE)
# What the next round may find otherwise.
_PASSING = (CommitUnknownError, ConflictError, UnavailableError)


def interval_of(given: str | timedelta | None) -> timedelta | None:
    """Return how often upkeep runs; None for never.

    Raises:
        InvalidInputError: it is no interval, or none above zero.
    """
    if given is None:
        return None
    if isinstance(given, timedelta):
        interval = given
    else:
        match = _INTERVAL.fullmatch(str(given))
        if match is None:
            raise InvalidInputError(
                "upkeep is an interval such as '1 minute', a timedelta, or None for no upkeep",
                upkeep=repr(given)[:40],
            )
        interval = int(match[1]) * _UNITS[match[2].lower()]
    if interval <= timedelta(0):
        raise InvalidInputError("upkeep is an interval above zero", upkeep=str(given))
    return interval


class IngestUpkeep:
    """Rounds of upkeep for one run of a query."""

    def __init__(self, run: Run, every: timedelta, clock: Clock | None = None) -> None:
        self._run = run
        self._every = every.total_seconds()
        self._clock = clock or SystemClock()
        self._begun = self._clock.elapsed()
        self._thread: threading.Thread | None = None
        self._failure: HoldfastError | None = None  # written by the thread, read after it ended

    def tick(self) -> None:
        """Begin a round if it is time, and none is under way; called after each batch.

        Raises:
            HoldfastError: the round before failed in a way that the next one would, too.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._clock.elapsed() - self._begun < self._every:
            return
        self._begun = self._clock.elapsed()
        self._thread = threading.Thread(target=self._round, name="holdfast-upkeep")
        self._thread.start()

    def join(self) -> None:
        """Wait for the round that is under way."""
        if self._thread is not None:
            self._thread.join()

    def _round(self) -> None:
        try:
            look_after(self._run)
        except FencedError as error:
            log.info("upkeep stops: another run owns a shard: %s", error)
        except _PASSING as error:
            log.warning("upkeep waits for its next round: %s", error)
        except HoldfastError as error:
            self._failure = error


def look_after(run: Run) -> None:
    """Flush the logs of a run's shards, and merge what waits once it is worth a version.

    Raises:
        HoldfastError: as for `Table.flush_log` and `Table.compact_lsm`; run it again.
    """
    versions = run.table.versions
    waiting = 0
    merged = read_merged(versions.core, open_dataset(versions))
    for shard_id, epoch in run.epochs.items():
        # As its owner: entries of a stock writer from before the claim need no other claim.
        flushed = flush_log(versions, shard_id, idle=timedelta(0), owner=epoch)
        run.note_flushed(shard_id, flushed.position)
        manifest = ShardManifests(versions.core, shard_id).latest()
        sstables = () if manifest is None else manifest.sstables
        behind = [one for one in sstables if one.generation > merged.get(shard_id, 0)]
        waiting = max(waiting, len(behind))
    if waiting >= _GENERATIONS:
        run.table.compact_lsm()
