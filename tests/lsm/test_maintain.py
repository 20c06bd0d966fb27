"""maintain: what a table needs, done once, beside others; nothing deleted unless confirmed."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from command_line import Cli
from holdfast.cli import main
from holdfast.errors import InvalidInputError
from holdfast.shard._config import ShardWriterConfig
from holdfast.upkeep._maintain import Policy, StepState
from lsm.tables import add_generation, make_table, merged_of, new_shard, pending_of, rows_of

pytestmark = pytest.mark.requirement("W13")

NOW = timedelta(0)
EAGER = Policy(log_age=NOW, generations=1, idle=NOW, small_fragments=2)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(4)])


def steps(done: Any) -> list[tuple[str, str]]:
    return [(one.kind.value, one.state.value) for one in done.steps]


def put(table: Any, shard: str, rows: list[dict[str, Any]]) -> None:
    with table.claim_writer(shard, config=ShardWriterConfig(enable_memtable=False)) as writer:
        writer.put(rows)


def test_rows_go_from_the_log_into_one_fragment_and_its_indexes(table: Any) -> None:
    shard = new_shard()
    table.dataset().create_scalar_index("k", "BTREE")
    table.create_index("v")
    put(table, shard, [{"k": 1, "v": "word"}, {"k": 9, "v": "word"}])
    version = table.dataset().version
    plan = table.maintain(EAGER, dry_run=True)
    assert steps(plan) == [("flush_log", "planned")]
    assert (plan.applied, table.dataset().version) == (False, version)
    done = table.maintain(EAGER)
    assert steps(done) == [
        ("flush_log", "done"),
        ("compact_lsm", "done"),
        ("compact", "done"),
        ("refresh_index", "done"),
        ("refresh_index", "done"),
    ]
    assert (done.applied, done.rows) == (True, 2)
    assert rows_of(table) == {0: "base", 1: "word", 2: "base", 3: "base", 9: "word"}
    for name in ("k_idx", "v_idx"):
        assert table.dataset().stats.index_stats(name)["num_unindexed_rows"] == 0
    assert steps(table.maintain(EAGER)) == [("compact", "done")]  # now the indexes cover both
    again = table.maintain(EAGER)
    assert (again.steps, again.applied) == ((), False)


def test_small_fragments_become_one(table: Any) -> None:
    shard = new_shard()
    for number in range(3):
        add_generation(table, shard, [{"k": number, "v": "new"}])
    table.compact_lsm(rows_at_once=1)
    assert len(table.dataset().get_fragments()) == 4
    assert steps(table.maintain(EAGER)) == [("compact", "done")]
    assert len(table.dataset().get_fragments()) == 1
    assert rows_of(table) == {0: "new", 1: "new", 2: "new", 3: "base"}


def test_nothing_is_due_before_its_time(table: Any) -> None:
    put(table, new_shard(), [{"k": 1, "v": "a"}])
    add_generation(table, new_shard(), [{"k": 2, "v": "a"}])
    assert table.maintain().steps == ()
    by_size = table.maintain(Policy(log_bytes=1, generation_bytes=1), dry_run=True)
    assert [one.kind.value for one in by_size.steps] == ["flush_log", "compact_lsm"]
    by_age = table.maintain(Policy(generation_age=NOW), dry_run=True)
    assert [one.kind.value for one in by_age.steps] == ["compact_lsm"]


def test_a_writer_with_memtables_that_was_here_lately_is_waited_for(table: Any) -> None:
    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": 1, "v": "a"}])
        done = table.maintain(Policy(log_age=NOW))
        assert steps(done) == [("flush_log", "waits")]
        assert "by itself" in done.steps[0].outcome
    table.maintain(EAGER)
    assert rows_of(table)[1] == "a"


def test_only_a_confirmed_run_deletes(table: Any) -> None:
    shard = new_shard()
    put(table, shard, [{"k": 1, "v": "a"}])
    table.maintain(EAGER)
    then = time.time() - 30 * 24 * 3600
    for path in Path(table.uri, "_mem_wal").rglob("*"):
        os.utime(path, (then, then))
    before = sorted(Path(table.uri).rglob("*"))
    done = table.maintain()
    assert steps(done) == [("vacuum", "waits")]
    assert sorted(Path(table.uri).rglob("*")) == before
    done = table.maintain(confirm=True)
    assert steps(done) == [("vacuum", "done")]
    assert not list(Path(table.uri, "_mem_wal", shard).glob("*_gen_*/data/*"))
    assert table.maintain().steps == ()


def test_maintainers_at_once(table: Any) -> None:
    shards = [new_shard() for _ in range(2)]
    for number, shard in enumerate(shards):
        put(table, shard, [{"k": 10 + number, "v": "a"}])
    found: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(holdfast.open_table(table.uri).maintain(EAGER))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert StepState.FAILED not in {one.state for done in found for one in done.steps}
    table.maintain(EAGER)
    assert rows_of(table) == {0: "base", 1: "base", 2: "base", 3: "base", 10: "a", 11: "a"}
    assert merged_of(table) == dict.fromkeys(shards, 1)
    assert [pending_of(table, shard) for shard in shards] == [[], []]


def test_a_step_that_fails_stops_no_other(table: Any) -> None:
    broken, fine = sorted([new_shard(), new_shard()])
    written = add_generation(table, broken, [{"k": 1, "v": "a"}])
    add_generation(table, fine, [{"k": 2, "v": "b"}])
    data = next(Path(table.uri, "_mem_wal", broken, written.path, "data").iterdir())
    data.write_bytes(b"damaged")
    done = table.maintain(Policy(generations=1))
    assert steps(done) == [("compact_lsm", "failed"), ("compact_lsm", "done")]
    assert rows_of(table)[2] == "b"
    assert main(["maintain", table.uri, "--set", "generations=1"]) == 1


def test_the_command(table: Any, cli: Cli) -> None:
    shard = new_shard()
    put(table, shard, [{"k": 1, "v": "a"}])
    arguments = ["maintain", table.uri, "--set", "log_age=0m", "--set", "generations=1"]
    assert "planned" in cli.text(*arguments, "--dry-run")
    shown = cli.json(*arguments)
    assert [one["state"] for one in shown["steps"]] == ["done", "done"]
    assert cli.text(*arguments) == "nothing to do\n"


@pytest.mark.parametrize("wrong", ["generation=1", "generations=x", "log_age=5", "generations=0"])
def test_settings_that_are_none(table: Any, wrong: str) -> None:
    assert main(["maintain", table.uri, "--set", wrong]) == 2
    with pytest.raises(InvalidInputError):
        Policy(log_age=timedelta(seconds=-1))
