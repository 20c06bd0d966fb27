"""Bodies leave the commit store once nobody needs them: only the newest of a series keep theirs.

A record with its body inside costs up to 64 KiB, in the memory of a Redis, say. The body is
there so that anybody can make the copy at the name. Copies are made in order (step 5 of
`RecordedDecisions`), so below a number that was acknowledged every copy is there. The newest 16
keep their bodies all the same: with them a copy that a stale handle overwrote is put back.

Every eighth decision of a series replaces the older ones by their records without a body. A record
of up to 1 KiB stays as it is: without its body it would be half of that, and a durable write to be
rid of it costs more. Best effort: what a dead process left is found by the next two rounds, and by
`vacuum`.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.arbiter._commit_store import CommitStore, Key
from holdfast.errors import HoldfastError
from holdfast.formats import RecordState, decode_record, encode_record

KEPT = 16
EVERY = 8
SMALL_BYTES = 1024
_ROUNDS = 3


def shed_bodies(commit_store: CommitStore, series: str, number: int) -> None:
    """Take the bodies out of older records, if it is the turn of this decision. Never raises."""
    if number % EVERY or number <= KEPT:
        return
    highest = number - KEPT
    lowest = max(0, highest - _ROUNDS * EVERY)
    with suppress(HoldfastError):
        for entry in commit_store.scan(series, after=lowest - 1, limit=highest - lowest):
            if entry.number >= highest or len(entry.value) <= SMALL_BYTES:
                continue
            record = decode_record(entry.value)
            if record.state is RecordState.INLINE:
                smaller = encode_record(record.finished())
                commit_store.compare_and_set(Key(series, entry.number), entry.value, smaller)
