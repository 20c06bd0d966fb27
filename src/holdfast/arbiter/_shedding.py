"""Bodies leave the commit store once nobody needs them: at most 16 of a series stay.

A record with its body inside costs up to 64 KiB, in the memory of a Redis, say. The body is
there so that anybody can make the copy at the name. Copies are made in order (step 5 of
`RecordedDecisions`), so below a number that was acknowledged every copy is there. The newest 8
keep their bodies all the same: with them a copy that a stale handle overwrote is put back.

Every eighth decision of a series replaces the older ones by their records without a body: by two
requests, a scan and one change of all (`SupportsReplaceMany`), so a quarter of a request per
decision. Best effort: what a dead process left is found by the next round, and by `vacuum`.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.arbiter._commit_store import CommitStore, Key, Replacement, SupportsReplaceMany
from holdfast.errors import HoldfastError
from holdfast.formats import RecordState, decode_record, encode_record

LEAST = 8
EVERY = 8
MOST = LEAST + EVERY
_ROUNDS = 2


def shed_bodies(commit_store: CommitStore, series: str, number: int) -> None:
    """Take the bodies out of older records, if it is the turn of this decision. Never raises."""
    if number % EVERY or number <= LEAST:
        return
    highest = number - LEAST
    below = max(-1, highest - _ROUNDS * EVERY)
    with suppress(HoldfastError):
        changes = []
        for entry in commit_store.scan(series, after=below, limit=highest - below):
            record = decode_record(entry.value)
            if entry.number <= highest and record.state is RecordState.INLINE:
                smaller = encode_record(record.to_finished())
                changes.append(Replacement(entry.number, entry.value, smaller))
        _replace(commit_store, series, changes)


def _replace(commit_store: CommitStore, series: str, changes: list[Replacement]) -> None:
    if isinstance(commit_store, SupportsReplaceMany):
        if changes:
            commit_store.replace_many(series, changes)
        return
    for number, expected, value in changes:
        commit_store.compare_and_set(Key(series, number), expected, value)
