"""What a commit store keeps after many decisions, counted."""

from __future__ import annotations

import contextlib
import random

from holdfast.arbiter import RecordedDecisions, Won, connect_commit_store, new_token
from holdfast.arbiter._shedding import EVERY, KEPT, SMALL_BYTES
from holdfast.formats import PIN_PATH, ArbiterKind, Pin, encode_pin, version_name
from holdfast.storage import MemoryStore

ROUNDS = 3 * (KEPT + EVERY)
BODY_BYTES = 20_000


def check_stays_small(url: str) -> None:
    """Decide many large bodies, then count the bytes of the records."""
    store = MemoryStore(f"memory://{new_token()}")
    with contextlib.closing(connect_commit_store(url)) as commit_store:
        pin = Pin(
            table_id=new_token(),
            arbiter=ArbiterKind.COMMIT_STORE,
            location=store.location,
            store_id=commit_store.identity(),
            store_url=commit_store.url,
        )
        store.put(PIN_PATH, encode_pin(pin))
        arbiter = RecordedDecisions(store, commit_store, pin)
        for number in range(1, ROUNDS + 1):
            token = new_token()
            body = token.encode() + random.Random(number).randbytes(BODY_BYTES)
            assert arbiter.decide(version_name(number), body, token) == Won()
        sizes = [len(entry.value) for entry in commit_store.scan(f"{pin.table_id}/versions")]
    assert len(sizes) == ROUNDS
    assert all(size < SMALL_BYTES for size in sizes[: -KEPT - EVERY]), "an old body is kept"
    assert all(size > BODY_BYTES for size in sizes[-KEPT:]), "a body that may be needed is gone"
    assert sum(sizes) < (KEPT + EVERY) * (BODY_BYTES + SMALL_BYTES) + ROUNDS * SMALL_BYTES
