"""Claiming, appending, following and collecting, one rule at a time."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.arbiter import (
    Arbiter,
    RecordedDecisions,
    create_arbiter,
)
from holdfast.core import TableCore
from holdfast.errors import (
    CollectedError,
    CorruptError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    PermissionDeniedError,
    PoisonedError,
    SealedError,
    UnavailableError,
    WalGapError,
)
from holdfast.formats import PIN_PATH, encode_pin
from holdfast.formats._wal_names import entry_name, shard_manifest_folder, shard_manifest_name
from holdfast.storage import open_store
from holdfast.wal import (
    RETENTION,
    ShardManifests,
    SsTable,
    WalAppender,
    collect_log,
)
from holdfast.wal._collect import carry_out
from wal.log_world import SHARD, CountingStore, World, batch, ids


@pytest.fixture
def world() -> World:
    return World()


# Appending


@pytest.mark.requirement("L4", "W4", "W10")
def test_an_append_is_one_put_and_reads_nothing(world: World) -> None:
    appender = world.claim()
    world.store.requests.clear()
    done = [appender.append(batch(n)) for n in range(3)]
    assert world.store.requests == ["put_if_absent"] * 3
    assert [d.position for d in done] == [2, 3, 4]
    assert (done[0].rows, done[0].epoch) == (1, 1)
    assert appender.next_position == 5


@pytest.mark.requirement("L4")
@pytest.mark.parametrize(("rows", "requests"), [(1, 5), (100_000, 8)])
def test_what_an_append_costs_with_a_commit_store(tmp_path: Path, rows: int, requests: int) -> None:
    store = CountingStore()
    asked: list[str] = []
    made = create_arbiter(tmp_path, commit_store="sqlite")
    assert isinstance(made, RecordedDecisions)
    commits = made._commit_store

    class Counted:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            return getattr(commits, name)

    store.put(PIN_PATH, encode_pin(made.pin))
    arbiter = RecordedDecisions(store, Counted(), made.pin)  # type: ignore[arg-type]
    appender = WalAppender.claim(TableCore(store, arbiter), SHARD)
    appender.append(batch(0))
    store.requests.clear()
    asked.clear()
    rng = np.random.default_rng(0)
    appender.append(pa.record_batch({"id": rng.integers(0, 2**62, rows)}))
    # In memory a copy counts as two and a deletion as none; together as on a server.
    print(store.requests, asked)
    assert len(store.requests) + len(asked) == requests
    made.close()


def test_several_batches_are_one_entry(world: World) -> None:
    appender = world.claim()
    appender.append([batch(1), batch(2, 3)], generation=1, tags={"txn": "a-1"})
    draft = appender.draft(pa.Table.from_batches([batch(4), batch(5)]))
    appender.append(draft)
    first, second = world.tailer().entries()
    assert (first.rows, first.generation, first.tags) == (3, 1, {"txn": "a-1"})
    assert (second.rows, second.sequence) == (2, 2)
    with pytest.raises(InvalidInputError):
        world.claim().append(draft)


@pytest.mark.requirement("L2", "L3", "L7")
def test_a_successor_fences_and_replays(world: World) -> None:
    first = world.claim()
    first.append(batch(1))
    second = world.claim()
    assert ids(second.replay()) == [1]
    assert (second.epoch, second.fence_position) == (2, 3)
    with pytest.raises(FencedError) as caught:
        first.append(batch(2))
    assert (caught.value.epoch, caught.value.stored_epoch) == (1, 2)
    assert caught.value.unacknowledged == (batch(2),)
    assert "unacknowledged" not in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).unacknowledged == (batch(2),)
    world.store.requests.clear()
    for call in (lambda: first.append(batch(3)), first.check_fenced, lambda: list(first.replay())):
        with pytest.raises(FencedError):
            call()
    assert world.store.requests == []


@pytest.mark.requirement("L5")
def test_check_fenced_tells_without_an_append(world: World) -> None:
    first = world.claim()
    first.check_fenced()
    world.claim()
    with pytest.raises(FencedError):
        first.check_fenced()
    with pytest.raises(FencedError):
        first.manifests.update(first.epoch, lambda m: replace(m, replay_after=1))


@pytest.mark.requirement("L11")
def test_a_lost_answer_is_recognised(world: World) -> None:
    appender = world.claim()
    world.store.failing = answers_lost(world.store, times=1)
    assert appender.append(batch(1)).position == 2
    world.store.failing = lambda _verb, _path: None
    assert appender.append(batch(2)).position == 3
    assert ids(world.tailer().entries()) == [1, 2]


def answers_lost(store: CountingStore, times: int) -> Callable[[str, str], HoldfastError | None]:
    left = [times]

    def failing(verb: str, path: str) -> HoldfastError | None:
        if verb != "put_if_absent" or not left[0]:
            return None
        left[0] -= 1
        return UnavailableError("no answer")

    return failing


@pytest.mark.requirement("L7", "L11")
def test_an_unknown_outcome_poisons(world: World) -> None:
    appender = world.claim()
    world.store.failing = lambda _verb, _path: UnavailableError("no answer")
    with pytest.raises(PoisonedError) as caught:
        appender.append(batch(1))
    assert caught.value.unacknowledged == (batch(1),)
    world.store.failing = lambda _verb, _path: None
    world.store.requests.clear()
    with pytest.raises(PoisonedError) as again:
        appender.append(batch(2))
    assert again.value.unacknowledged == (batch(2),)
    assert world.store.requests == []
    assert ids(world.claim().replay()) == []


def test_a_refusal_leaves_the_appender_usable(world: World) -> None:
    appender = world.claim()
    world.store.failing = lambda verb, _path: (
        PermissionDeniedError("refused") if verb == "put_if_absent" else None
    )
    with pytest.raises(PermissionDeniedError):
        appender.append(batch(1))
    world.store.failing = lambda _verb, _path: None
    assert appender.append(batch(1)).position == 2


@pytest.mark.requirement("L6")
def test_a_late_fence_of_a_slow_claimer_is_stepped_over(world: World) -> None:
    world.claim()
    appender = world.claim()
    world.put_entry(appender.next_position, epoch=1, fence=True)
    assert appender.append(batch(1)).position == appender.fence_position + 2
    assert ids(world.claim().replay()) == [1]


@pytest.mark.requirement("L7")
@pytest.mark.parametrize(
    ("epoch", "fence", "error"),
    [
        (1, False, CorruptError),
        (2, False, CorruptError),
        (2, True, CorruptError),
        (3, False, FencedError),
        (3, True, FencedError),
    ],
)
def test_who_is_in_the_way(
    world: World, epoch: int, fence: bool, error: type[HoldfastError]
) -> None:
    world.claim()
    appender = world.claim()
    world.put_entry(appender.next_position, epoch=epoch, fence=fence)
    for _ in range(2):
        with pytest.raises(error):
            appender.append(batch(1))


def test_after_close_nothing_goes(world: World) -> None:
    with world.claim() as appender:
        appender.append(batch(1))
    world.store.requests.clear()
    with pytest.raises(InvalidInputError, match="closed"):
        appender.append(batch(2))
    assert world.store.requests == []
    with pytest.raises(TypeError, match="does not travel"):
        pickle.dumps(appender)


def test_rows_that_cannot_be_an_entry_write_nothing(world: World) -> None:
    appender = world.claim()
    world.store.requests.clear()
    bad: list[object] = [[], batch(), [batch(1), batch()], [{"id": 1}], pa.table({"id": []})]
    for rows in bad:
        with pytest.raises(InvalidInputError):
            appender.append(rows)
    assert world.store.requests == []
    assert appender.append(batch(1)).position == 2


# Claiming


@pytest.mark.requirement("L8")
def test_claiming_says_that_it_writes() -> None:
    first = (WalAppender.claim.__doc__ or "").splitlines()[0]
    assert "WRITES" in first


def test_a_sealed_shard_is_not_claimed(world: World) -> None:
    appender = world.claim()
    appender.manifests.seal(appender.epoch)
    with pytest.raises(SealedError):
        world.claim()


@pytest.mark.requirement("L10")
def test_a_hole_is_an_error_for_who_claims(world: World) -> None:
    appender = world.claim()
    for number in range(4):
        appender.append(batch(number))
    world.remove(3)
    with pytest.raises(WalGapError) as caught:
        world.claim()
    assert caught.value.position == 3
    with pytest.raises(WalGapError):
        list(world.tailer().entries())
    with pytest.raises(WalGapError):
        list(world.tailer().follow(timeout=timedelta(seconds=1)))


@pytest.mark.requirement("L10")
def test_a_damaged_entry_stops_replay(world: World) -> None:
    appender = world.claim()
    appender.append(batch(1))
    path = entry_name(SHARD, 2).path
    world.store.put(path, world.store.get(path)[:-1])
    with pytest.raises(CorruptError):
        list(world.claim().replay())


def test_a_broken_chain_stops_replay(world: World) -> None:
    appender = world.claim()
    appender.append(batch(1))
    world.put_entry(3, epoch=1)  # another writer's first number, same epoch
    world.put_entry(4, epoch=1)  # its number 1 again
    with pytest.raises(CorruptError, match="before this one is missing"):
        list(world.claim().replay())
    other = World()
    other.claim()
    other.claim()
    other.put_entry(3, epoch=1)
    with pytest.raises(CorruptError, match="locked out"):
        list(other.claim().replay())


@pytest.mark.requirement("W10")
def test_a_log_that_starts_at_0_is_read(world: World) -> None:
    manifests = ShardManifests(TableCore(world.store, world.arbiter), SHARD)
    manifests.claim()
    world.put_entry(0, epoch=1)
    appender = world.claim()
    assert appender.fence_position == 1
    assert ids(appender.replay()) == [9]
    assert [e.position for e in world.tailer().entries(fences=True)] == [0, 1]


@pytest.mark.requirement("W10")
def test_the_next_position_is_behind_the_flushed_cursor(world: World) -> None:
    appender = world.claim()
    for number in range(3):
        appender.append(batch(number))
    world.flush(appender)
    world.collect()
    again = world.claim()
    assert again.fence_position == 5
    assert ids(again.replay()) == []


def test_a_same_epoch_update_is_applied_again(world: World) -> None:
    appender = world.claim()
    other = ShardManifests(TableCore(world.store, world.arbiter), SHARD)
    table = SsTable(generation=1, path="aaaaaaaa_gen_1")
    other.update(1, lambda m: replace(m, sstables=(table,)))
    done = appender.manifests.update(1, lambda m: replace(m, replay_after=1))
    assert (done.sstables, done.replay_after, done.version) == ((table,), 1, 3)
    world.store.requests.clear()
    assert appender.manifests.update(1, lambda m: m).version == 3
    assert "put_if_absent" not in world.store.requests
    with pytest.raises(InvalidInputError, match="back"):
        appender.manifests.update(1, lambda m: replace(m, replay_after=0))


# Following


@pytest.mark.requirement("W7", "L6")
def test_a_tailer_follows_and_writes_nothing(world: World) -> None:
    appender = world.claim()
    appender.append(batch(1))
    tail = world.tailer().follow(timeout=timedelta(seconds=5))
    assert next(tail).rows == 1
    world.claim().append(batch(2))
    before = dict(world.store._objects)
    assert ids(tail) == [2]
    assert world.store._objects == before
    assert world.tailer().read(1).fence  # type: ignore[union-attr]
    assert world.tailer().read(9) is None
    assert ids(world.tailer().entries(after=2, through=2)) == []
    with pytest.raises(WalGapError):
        list(world.tailer().entries(through=9))


@pytest.mark.requirement("W7")
def test_a_tailer_survives_collection_of_what_it_read(world: World) -> None:
    appender = world.claim()
    appender.append(batch(1))
    tail = world.tailer().follow(timeout=timedelta(seconds=5))
    next(tail)
    world.flush(appender)
    world.collect()
    appender.append(batch(2))
    assert ids(tail) == [2]
    with pytest.raises(CollectedError) as caught:
        list(world.tailer().entries(after=0))
    assert caught.value.boundary == 2
    assert ids(world.tailer().entries()) == [2]


# Collecting


@pytest.mark.requirement("L12", "P1")
@pytest.mark.parametrize("step", [-(10**9), 0, 3600, 10**9], ids=str)
def test_a_fence_stays_whatever_clocks_say(world: World, step: int) -> None:
    sleeper = world.claim()
    sleeper.append(batch(1))
    appender = world.claim()
    appender.append(batch(2))
    world.flush(appender)
    planned = collect_log(TableCore(world.store, world.arbiter), SHARD)
    assert (planned.entries, planned.fences_kept) == (2, 2)
    assert world.collect() == 2
    world.clock.time += step
    world.collect()
    world.clock.time += step
    again = collect_log(TableCore(world.store, world.arbiter), SHARD, confirm=True)
    assert (again.entries, again.fences_kept) == (0, 2)
    with pytest.raises(FencedError) as caught:
        sleeper.append(batch(3))
    assert caught.value.stored_epoch == 2
    appender.append(batch(4))
    assert ids(world.claim().replay()) == [4]


@pytest.mark.requirement("L12", "P1")
def test_a_manifest_below_the_boundary_is_not_a_claim(world: World) -> None:
    first = world.claim()
    world.claim()
    third = world.claim()
    world.clock.time += RETENTION.total_seconds() + 1
    assert collect_log(TableCore(world.store, world.arbiter), SHARD, confirm=True).manifests == 2
    with pytest.raises(FencedError) as caught:  # version 2 is free again, and yet not ours
        first.manifests.update(1, lambda m: replace(m, replay_after=1))
    assert caught.value.stored_epoch == third.epoch
    assert [info.path for info in world.store.list(shard_manifest_folder(SHARD))] == [
        shard_manifest_name(SHARD, 3).path
    ]
    third.manifests.update(3, lambda m: replace(m, replay_after=1))


@pytest.mark.requirement("L12", "P1")
def test_no_version_goes_before_an_older_one(world: World) -> None:
    """Stamps of a clock that went back: the oldest version is the youngest by its stamp."""
    for _ in range(4):
        world.claim()
    world.clock.time += RETENTION.total_seconds() + 1
    planned = collect_log(TableCore(world.store, world.arbiter), SHARD)
    assert planned.manifests == 3
    oldest = shard_manifest_name(SHARD, 1).path
    kept = tuple(path for path in planned.paths if path != oldest)
    carry_out(TableCore(world.store, world.arbiter), replace(planned, paths=kept))
    assert len(world.store.list(shard_manifest_folder(SHARD))) == 4


def test_an_append_is_one_request_after_any_silence(world: World) -> None:
    appender = world.claim()
    world.store.requests.clear()
    for step in (0.0, 1e9, -2e9):
        world.clock.time += step
        appender.append(batch(1))
    assert world.store.requests == ["put_if_absent"] * 3


@pytest.mark.requirement("L12")
def test_what_is_small_is_a_fence_and_is_not_read(world: World) -> None:
    for _ in range(20):
        appender = world.claim()
    appender.append(batch(1))
    world.flush(appender)
    world.store.requests.clear()
    planned = collect_log(TableCore(world.store, world.arbiter), SHARD)
    assert (planned.entries, planned.fences_kept) == (1, 20)
    assert world.store.requests.count("get") <= 4  # two versions of the manifest, and the entry


def test_the_boundary_comes_before_the_first_deletion(world: World) -> None:
    appender = world.claim()
    appender.append(batch(1))
    world.flush(appender)
    world.store.failing = lambda verb, path: (
        UnavailableError("no answer") if verb == "put" and "/log-" in path else None
    )
    with pytest.raises(UnavailableError):
        world.collect()
    world.store.failing = lambda _verb, _path: None
    assert world.tailer().read(2) is not None


# Real places


@pytest.mark.requirement("L7")
def test_a_file_in_the_place_of_the_log_is_an_error(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    arbiter: Arbiter = create_arbiter(uri)
    store = open_store(uri)
    appender = WalAppender.claim(TableCore(store, arbiter), SHARD)
    folder = uri / "_mem_wal" / SHARD / "wal"
    before = sorted(folder.iterdir())
    moved = folder.rename(tmp_path / "aside")
    folder.write_text("a file in the way")
    with pytest.raises(HoldfastError):
        appender.append(batch(1))
    folder.unlink()
    moved.rename(folder)
    assert sorted(folder.iterdir()) == before


def test_a_thousand_hostile_shard_ids_are_refused(world: World) -> None:
    chance = random.Random(6)
    signs = "../\\%\x00\n abcdefAF0123456789-_:*?äß\u202e"
    for _ in range(1000):
        name = "".join(chance.choices(signs, k=chance.randint(0, 40)))
        with pytest.raises(InvalidInputError):
            WalAppender.claim(TableCore(world.store, world.arbiter), name)
    assert not world.store._objects
