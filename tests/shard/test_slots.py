"""Places of a log that a run hands to tasks: what a long log costs the next run, in requests."""

from __future__ import annotations

import os
from collections.abc import Callable

import pyarrow as pa
import pytest

import holdfast
import holdfast.wal._slots
from holdfast.shard._claims import claim_slots
from holdfast.shard._rows import rows_of, stored_batch
from holdfast.testing._faulty_s3 import FaultyS3
from holdfast.txn import AppTxn
from holdfast.upkeep import Status
from holdfast.wal import append_at

pytestmark = [pytest.mark.requirement("S4"), pytest.mark.requirement("W7")]

LONG = "HOLDFAST_EXPLORE" in os.environ
ENTRIES, KEPT = (100_000, 1_000) if LONG else (520, 100)
SCHEMA = pa.schema([("id", pa.int64())])
PAGE = 1_000
"""Names in one answer to a listing."""


@pytest.mark.parametrize("keeps", [True, False])
def test_the_next_run_of_a_long_log_reads_little(
    faulty_s3: Callable[..., FaultyS3], monkeypatch: pytest.MonkeyPatch, *, keeps: bool
) -> None:
    monkeypatch.setattr(holdfast.wal._slots, "_KEEP_EVERY", KEPT if keeps else 10 * ENTRIES)
    server = faulty_s3()
    given = (server.url("bucket", "t"), server.storage_options())
    table = holdfast.create_table(given[0], SCHEMA, storage_options=given[1])
    base, slots = claim_slots(table.versions, "unsharded")
    row = stored_batch(
        [rows_of(pa.RecordBatch.from_pylist([{"id": 1}], SCHEMA), base)], base.log_schema
    )
    for number in range(ENTRIES if keeps else KEPT + 50):
        txn = AppTxn("q", number, in_order=True)
        taken = append_at(table.core.arbiter, slots.next, row, [txn])
        slots.advance([(taken.position, [txn])])

    def requests(name: str, act: Callable[[], object]) -> int:
        server.requests.clear()
        act()
        total = sum(one.requests for one in server.requests.totals().values())
        print(f"{name}: {total} requests")
        return total

    pages = -(-ENTRIES // PAGE)
    opened = []
    assert requests("open", lambda: opened.append(holdfast.open_table(*given))) < 10
    assert requests("shard states", opened[0].shard_states) < 2 * pages + 15
    seen: list[Status] = []
    assert requests("status", lambda: seen.append(opened[0].status())) < 2 * pages + 60
    assert seen[0].shards[0].lag_entries == (ENTRIES if keeps else KEPT + 50)
    claimed = []
    used = requests("resume", lambda: claimed.append(claim_slots(opened[0].versions, "unsharded")))
    if not keeps:  # what the memories are for
        assert used > KEPT + 50
        return
    assert used < KEPT + 3 * pages + 60
    _, again = claimed[0]
    assert again.holds(AppTxn("q", ENTRIES - 1)) and not again.holds(AppTxn("q", ENTRIES))
    assert again.next.position == ENTRIES + 3, "behind both fences"
