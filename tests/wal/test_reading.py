"""The read path: fetched ahead or one by one, with parsed schemas kept, always the same answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from holdfast.arbiter import ConditionalPut, Verdict
from holdfast.core import TableCore
from holdfast.errors import CorruptError, WalGapError
from holdfast.formats._entry import decode_entry, draft_entry, draft_fence
from holdfast.formats._wal_names import entry_name
from holdfast.testing import mutate
from holdfast.wal import RETENTION, ShardManifests, WalAppender, collect_log
from holdfast.wal import _log as log_module
from holdfast.wal._log import Log
from wal.log_world import SHARD, CountingStore, World, batch, ids

OTHER = "d86481e0-7f0b-47f8-aead-d10d7a62c5b2"
TOKEN = "hf-" + "c" * 32


def body_of(rows: pa.RecordBatch, position: int = 7, **given: object) -> bytes:
    settings: dict[str, Any] = {"shard_id": SHARD, "epoch": 3, "writer": "ab" * 16, **given}
    draft = draft_entry([rows], **settings)
    return draft.stamp(position=position, sequence=position, token=TOKEN)


def arrays() -> dict[str, pa.Array]:
    times = [datetime(2026, 1, 1, tzinfo=UTC), None]
    words = pa.array(["storm", "storm"]).dictionary_encode()
    return {
        "numbers": pa.array([1, None]),
        "booleans": pa.array([True, None]),
        "nulls": pa.nulls(2),
        "floats": pa.array([1.5, float("nan")]),
        "text": pa.array(["ä", None]),
        "large text": pa.array(["x", "y"], pa.large_string()),
        "views": pa.array(["a long string, not inlined", None], pa.string_view()),
        "bytes": pa.array([b"\x00", None]),
        "decimals": pa.array([Decimal("1.25"), None]),
        "times": pa.array(times, pa.timestamp("us", "UTC")),
        "durations": pa.array([timedelta(days=1), None]),
        "lists": pa.array([[1, 2], None]),
        "large lists": pa.array([[1], []], pa.large_list(pa.int8())),
        "vectors": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
        "structs": pa.array([{"a": 1, "b": ["x"]}, None]),
        "maps": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "dictionaries": words,
        "structs of dictionaries": pa.StructArray.from_arrays([words], ["word"]),
        "extensions": pa.array(['{"a": 1}', None], pa.json_(pa.string())),
    }


@pytest.mark.requirement("L10")
@pytest.mark.parametrize("rows", [1, 4_000], ids=["few", "many"])
@pytest.mark.parametrize("kind", arrays())
def test_every_type_comes_back_as_arrow_itself_reads_it(kind: str, rows: int) -> None:
    array = pa.concat_arrays([arrays()[kind]] * rows)
    column = pa.field("v", array.type, metadata={"lance:field_id": "4"})
    given = pa.record_batch([array], schema=pa.schema([column]))
    body = body_of(given)
    with ipc.open_stream(body) as reader:
        (plain,) = reader
    for _ in range(2):  # the second time from a schema that was kept
        (read,) = decode_entry(body, shard_id=SHARD, position=7).batches
        read.validate(full=True)
        assert read.schema.equals(given.schema, check_metadata=True)
        assert read.column(0).to_pylist() == plain.column(0).to_pylist() or kind == "floats"
        assert read.column(0).equals(plain.column(0)) or kind == "floats"


def test_what_differs_between_entries_is_not_taken_from_another() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"epoch": 4},
        {"writer": "cd" * 16},
        {"generation": 1},
        {"generation": 2},
        {"tags": {"job": "1"}},
        {"tags": {"job": "2"}},
    ]
    given = [(pos, rows, v) for pos in (1, 2) for rows in (1, 2) for v in variants]
    bodies = [body_of(pa.record_batch({"n": list(range(r))}), pos, **v) for pos, r, v in given]
    for _ in range(2):
        for (position, rows, variant), body in zip(given, bodies, strict=True):
            entry = decode_entry(body, shard_id=SHARD, position=position)
            assert (entry.position, entry.rows, entry.sequence) == (position, rows, position)
            assert entry.batches[0].num_rows == rows
            assert entry.epoch == variant.get("epoch", 3)
            assert entry.writer == variant.get("writer", "ab" * 16)
            assert entry.generation == variant.get("generation")
            assert entry.tags == variant.get("tags", {})
            entry.tags["mine"] = "yes"  # type: ignore[index]
    with pytest.raises(CorruptError, match="belongs elsewhere"):
        decode_entry(bodies[0], shard_id=SHARD, position=2)
    with pytest.raises(CorruptError, match="belongs elsewhere"):
        decode_entry(bodies[0], shard_id=OTHER, position=1)
    fence = draft_fence(shard_id=SHARD, epoch=3, writer="ab" * 16)
    body = fence.stamp(position=1, sequence=0, token=TOKEN)
    for _ in range(2):
        assert decode_entry(body, shard_id=SHARD, position=1).batches == ()


# Fetching ahead, as from a store behind a network.


def long_log(module: Any = log_module) -> tuple[CountingStore, Any]:
    """Return a log of 600 entries at positions 2 to 601, read as if from far away."""
    store = CountingStore()
    arbiter = ConditionalPut(store, Verdict.ENFORCED)
    with WalAppender.claim(TableCore(store, arbiter), SHARD) as appender:
        for number in range(2, 602):
            appender.append(batch(number))
    log = module.Log(TableCore(store, arbiter), SHARD)
    log._remote = True
    return store, log


def read_until_it_fails(log: Log) -> tuple[list[int], type[Exception]]:
    seen: list[int] = []
    try:
        for entry in log.entries(1, 601):
            seen += ids(iter([entry]))
            assert entry.position == seen[-1]
    except (WalGapError, CorruptError) as error:
        return seen, type(error)
    pytest.fail("the log was read to its end")


@pytest.mark.requirement("L10", "W7")
def test_entries_fetched_ahead_come_in_order_and_once() -> None:
    store, log = long_log()
    assert ids(log.entries(1, 601)) == list(range(2, 602))
    store.requests.clear()
    assert ids(log.entries(300, 302)) == [301, 302]
    assert len(store.requests) == 2


@pytest.mark.requirement("L10")
@pytest.mark.parametrize("position", [2, 3, 37, 400, 601])
def test_all_before_damage_or_a_hole_is_yielded_and_nothing_after(position: int) -> None:
    store, log = long_log()
    path = entry_name(SHARD, position).path
    body = store.get(path)
    store.put(path, body[:-20] + b"\x01" + body[-19:])
    assert read_until_it_fails(log) == (list(range(2, position)), CorruptError)
    store.delete([path])
    assert read_until_it_fails(log) == (list(range(2, position)), WalGapError)


@pytest.mark.mutant
def test_a_run_that_forgets_what_came_before_its_damage_is_noticed() -> None:
    careless = mutate(
        "holdfast.wal._log",
        ("            return entries, error\n", "            return [], error\n"),
    )
    store, log = long_log(careless)
    store.delete([entry_name(SHARD, 400).path])
    seen, _ = read_until_it_fails(log)
    assert seen != list(range(2, 400))


def test_how_far_ahead_is_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    store, log = long_log()
    size = next(log.entries(1, 2)).size
    for allowed in (4, 64):
        monkeypatch.setattr(log_module, "_AHEAD_BYTES", allowed * size)
        store.requests.clear()
        entries = log.entries(1, 601)
        for _ in range(100):
            next(entries)
        assert 100 <= len(store.requests) <= 100 + allowed + 8, allowed
        entries.close()


# The newest manifest.


@pytest.mark.requirement("L4")
def test_what_a_claim_costs(world: World) -> None:
    world.claim().append(batch(1))
    world.store.requests.clear()
    appender = world.claim()
    # The newest manifest, ours behind it, and whether its number was given out before.
    found = ["list", "get", "get", "put_if_absent", "list"]
    # The fence, and whether the manifest is still ours and its cursor before the fence.
    fenced = ["list", "put_if_absent", "get", "list"]
    assert world.store.requests == found + fenced
    world.store.requests.clear()
    assert ids(appender.replay()) == [1]
    assert world.store.requests == ["get"] * 3  # two fences and an entry


def test_a_known_manifest_costs_two_reads(world: World) -> None:
    manifests = ShardManifests(TableCore(world.store, world.arbiter), SHARD)
    world.claim()
    assert manifests.latest() is not None
    world.store.requests.clear()
    assert manifests.latest() is not None
    assert world.store.requests == ["get", "get"]  # the next one, then this one once more
    world.store.requests.clear()
    assert manifests.check(1).version == 1
    assert world.store.requests == ["get", "list"]  # the next one, and the boundary
    for _ in range(5):
        world.claim()
    latest = manifests.latest()
    assert latest is not None
    assert (latest.version, latest.writer_epoch) == (6, 6)


@pytest.mark.requirement("L12", "P2")
def test_who_slept_longer_than_manifests_live_lists_them_again(world: World) -> None:
    manifests = ShardManifests(TableCore(world.store, world.arbiter), SHARD)
    world.claim()
    manifests.latest()
    world.claim()
    world.clock.time += RETENTION.total_seconds() + 1
    world.claim()
    found = collect_log(TableCore(world.store, world.arbiter), SHARD, confirm=True)
    assert found.manifests == 2  # the one that is known, and the one after it
    latest = manifests.latest()
    assert latest is not None
    assert latest.writer_epoch == 3
    assert manifests.check(3).version == 3


@pytest.fixture
def world() -> World:
    return World()
