"""`Table.changes`: where it begins and ends, what it refuses, and what it says when it is late."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.changes._compare import compare, row_codes
from holdfast.errors import (
    CollectedError,
    InvalidInputError,
    LogLostError,
    NotFoundError,
    UpgradeError,
)
from holdfast.formats import shard_manifest_name, version_name
from holdfast.formats._wal_names import entry_name
from holdfast.wal import Log, ShardManifests

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def rows(*pairs: tuple[int, int]) -> list[dict[str, int]]:
    return [{"k": k, "v": v} for k, v in pairs]


def told(changes: Any) -> list[tuple[str, int, int]]:
    """Return type, key and value of each change row."""
    return [(row["_change_type"], row["k"], row["v"]) for row in changes.to_table().to_pylist()]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[holdfast.Table]:
    made = holdfast.create_table(tmp_path / "t.lance", SCHEMA, primary_key=["k"])
    yield made
    made.close()


@pytest.mark.requirement("S4")
def test_a_row_is_told_once_on_its_way_from_the_log_to_the_base(table: holdfast.Table) -> None:
    table.append(rows((1, 1)))
    cursor = table.change_cursor()
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((1, 2), (5, 5)))
        first = table.changes(cursor)
        assert told(first) == [
            ("update_preimage", 1, 1),
            ("update_postimage", 1, 2),
            ("insert", 5, 5),
        ]
        positions = first.to_table()["_log_position"].to_pylist()
        assert positions == [positions[0]] * 3
        assert positions[0] is not None
        writer.flush()
        second = table.changes(first.cursor)
        assert told(second) == []
        table.compact_lsm()
        third = table.changes(str(second.cursor))
        assert told(third) == []
    late = table.changes(cursor)  # from the log, although the base has the rows by now
    assert told(late) == told(first)
    assert told(table.changes(cursor.version, freshness="base")) == told(first)


def test_changes_begin_and_end_where_they_are_told(table: holdfast.Table) -> None:
    table.append(rows((1, 1)))
    table.append(rows((2, 2)))
    table.append(rows((3, 3)))
    newest = table.dataset().version
    everything = [("insert", 1, 1), ("insert", 2, 2), ("insert", 3, 3)]
    assert told(table.changes()) == everything
    assert told(table.changes(0)) == everything
    assert told(table.changes(newest - 1)) == everything[2:]
    assert told(table.changes(newest)) == []
    assert told(table.changes("now")) == []
    assert told(table.changes(0, until=newest - 1)) == everything[:2]
    end = table.change_cursor(newest - 1)
    assert told(table.changes(0, until=end)) == everything[:2]
    assert told(table.changes(0, until=str(end))) == everything[:2]
    assert table.changes(0).to_table()["_commit_version"].to_pylist() == [2, 3, 4]
    with pytest.raises(NotFoundError, match="no such version yet"):
        table.changes(newest + 1)
    with pytest.raises(NotFoundError, match="no such version yet"):
        table.changes(0, until=newest + 1)
    with pytest.raises(InvalidInputError, match="before the start"):
        table.changes(newest, until=1)


def test_two_cursors_of_one_reading_follow_alike(table: holdfast.Table) -> None:
    table.append(rows((1, 1)))
    fresh, base = table.change_cursor(1), table.change_cursor(freshness="base")
    with pytest.raises(InvalidInputError, match="different freshness"):
        table.changes(fresh, until=base)


def test_a_time_whose_versions_are_gone_is_named(table: holdfast.Table) -> None:
    table.append(rows((1, 1)))
    early = datetime.now(UTC) - timedelta(days=1)
    Path(table.uri, version_name(1).path).unlink()
    with pytest.raises(CollectedError, match="the version of that time was collected"):
        table.changes(early)


def test_how_far_a_generation_reached_may_be_forgotten(table: holdfast.Table) -> None:
    """Old manifests of a shard go after a week; a reader that needs them is told."""
    start = table.change_cursor()
    with table.claim_writer("unsharded") as writer:
        for number in range(3):
            writer.put(rows((number, number)))
            writer.flush()
            table.compact_lsm()
        shard = writer.shard_id
    newest = ShardManifests(table.core, shard).latest()
    assert newest is not None
    for version in range(1, newest.version):
        Path(table.uri, shard_manifest_name(shard, version).path).unlink(missing_ok=True)
    with pytest.raises(CollectedError, match="how far a generation reaches"):
        table.changes(start)


def test_changes_begin_at_a_time(table: holdfast.Table) -> None:
    early = datetime.now(UTC) - timedelta(days=1)
    table.append(rows((1, 1)))
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((2, 2)))
    assert told(table.changes(early)) == [("insert", 1, 1), ("insert", 2, 2)]
    assert told(table.changes(early.replace(tzinfo=None))) == told(table.changes(early))
    late = datetime.now(UTC) + timedelta(days=1)
    assert told(table.changes(late)) == []
    times = table.changes(early).to_table()["_commit_timestamp"].to_pylist()
    assert all(early < one < late for one in times)


def age_entries(table: holdfast.Table, shard: str, first: datetime) -> None:
    """Let the log's entries be stored one minute after the other, from a time on."""
    entries = Log(table.core, shard).list_entries()
    for number, info in enumerate(entries.values()):
        stored = (first + timedelta(minutes=number)).timestamp()
        os.utime(Path(table.uri, info.path), (stored, stored))


@pytest.mark.requirement("S4")
def test_changes_end_at_a_time(table: holdfast.Table) -> None:
    for number in (1, 2):
        table.append(rows((number, number)))
    with table.claim_writer("unsharded") as writer:
        for number in (3, 4, 5):
            writer.put(rows((number, number)))
        log = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        age_entries(table, writer.shard_id, log)  # the first is the writer's fence
    everything = [("insert", one, one) for one in range(1, 6)]
    times = table.changes(0).to_table()["_commit_timestamp"].to_pylist()
    assert times[2:] == [log + timedelta(minutes=one) for one in (1, 2, 3)]
    for number, time in enumerate(times, 1):
        head = table.changes(0, until=time)
        assert told(head) == everything[:number]
        assert told(table.changes(0, until=time.replace(tzinfo=None))) == told(head)
        for rest in (table.changes(time), table.changes(head.cursor)):
            assert told(rest) == everything[number:]
        base = table.changes(0, until=time, freshness="base")
        assert told(base) == everything[: min(number, 2)]
    assert sorted(told(table.changes(until=log + timedelta(days=1)))) == everything
    assert told(table.changes(times[1], until=times[3])) == everything[2:4]
    with pytest.raises(NotFoundError, match="no such version yet"):
        table.changes(0, until=99)
    with pytest.raises(InvalidInputError, match="a version, a time or a cursor"):
        table.changes(0, until=1.5)  # type: ignore[arg-type]


@pytest.mark.requirement("S4")
def test_a_reading_that_has_passed_a_time_does_not_end_there(table: holdfast.Table) -> None:
    table.append(rows((1, 1)))
    with table.claim_writer("unsharded") as writer:  # its first claim makes a version
        early = datetime.now(UTC)
        writer.put(rows((2, 2)))
        age_entries(table, writer.shard_id, early + timedelta(hours=1))
    cursors = [None, "now", table.change_cursor(), table.changes(max_files=1).cursor]
    for passed in cursors:  # the same version, and more of its log
        with pytest.raises(InvalidInputError, match="the end lies before the start"):
            table.changes(passed, until=early)
    table.append(rows((3, 3)))
    with pytest.raises(InvalidInputError, match="the end lies before the start"):
        table.changes("now", until=early)


@pytest.mark.requirement("S4")
def test_a_time_whose_log_entries_are_gone_is_no_end(table: holdfast.Table) -> None:
    """Which entries were there by then, nobody knows: fewer changes would be silently left out."""
    table.append(rows((1, 1)))
    time = table.changes(0).to_table()["_commit_timestamp"].to_pylist()[-1]
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((2, 2)))
        writer.put(rows((3, 3)))
        writer.flush()
        shard = writer.shard_id
    table.compact_lsm()
    assert told(table.changes(0, until=time)) == [("insert", 1, 1)]
    for info in Log(table.core, shard).list_entries().values():
        Path(table.uri, info.path).unlink()
    with pytest.raises(CollectedError, match="a log entry was collected"):
        table.changes(0, until=time)
    assert told(table.changes(0, until=time, freshness="base")) == [("insert", 1, 1)]


def test_limits_end_a_reading_early(table: holdfast.Table) -> None:
    for number in range(5):
        table.append(rows((number, number)))
    first = table.changes(0, max_files=2)
    assert told(first) == [("insert", 0, 0), ("insert", 1, 1)]
    assert told(table.changes(first.cursor, max_rows=1)) == [("insert", 2, 2)]
    snapshot = table.changes(max_files=3)
    assert len(told(snapshot)) == 3
    table.append(rows((9, 9)))
    rest = table.changes(str(snapshot.cursor))
    assert len(told(rest)) == 3
    assert told(rest)[-1] == ("insert", 9, 9)
    with table.claim_writer("unsharded") as writer:
        for number in range(4):
            writer.put(rows((number, 10)))
        part = table.changes(rest.cursor, max_entries=2)
        # One of the two is the fence of the writer's claim.
        assert told(part) == [("update_preimage", 0, 0), ("update_postimage", 0, 10)]
        assert table.change_lag(part.cursor).versions == 0
        assert list(table.change_lag(str(part.cursor)).entries.values()) == [3]
        assert len(told(table.changes(part.cursor, max_rows=1))) == 2
        assert len(told(table.changes(part.cursor))) == 6
    for limit in ("max_rows", "max_files", "max_entries"):
        with pytest.raises(InvalidInputError, match=limit):
            table.changes(0, **{limit: 0})  # type: ignore[arg-type]


@pytest.mark.requirement("S4")
def test_a_cursor_of_a_table_made_anew_is_refused(table: holdfast.Table) -> None:
    table.append(rows((1, 1)))
    cursor = str(table.change_cursor())
    table.close()
    shutil.rmtree(table.uri)
    anew = holdfast.create_table(table.uri, SCHEMA, primary_key=["k"])
    for number in range(4):
        anew.append(rows((number, number)))
    for call in (anew.changes, anew.change_lag):
        with pytest.raises(InvalidInputError, match="of another table"):
            call(cursor)
    with pytest.raises(InvalidInputError, match="of another table"):
        anew.changes(0, until=cursor)
    anew.close()


@pytest.mark.parametrize(
    "given",
    ["", "nothing", "{}", "[]", '{"format": 1}', '{"format":1,"table":"x","freshness":"new"}'],
)
def test_what_is_no_cursor_is_refused(table: holdfast.Table, given: str) -> None:
    with pytest.raises(InvalidInputError, match="no cursor"):
        table.changes(given)


def test_a_damaged_or_newer_cursor_is_refused(table: holdfast.Table) -> None:
    plain = json.loads(str(table.change_cursor()))
    for broken in ({"version": -1}, {"version": "1"}, {"log": {"x": 1}}, {"files": None}):
        with pytest.raises(InvalidInputError, match="no cursor"):
            table.changes(json.dumps({**plain, **broken}))
    with pytest.raises(UpgradeError):
        table.changes(json.dumps({**plain, "format": 2}))
    with pytest.raises(InvalidInputError, match="another freshness"):
        table.changes(json.dumps(plain), freshness="base")
    for since in (-1, True, 1.5):
        with pytest.raises(InvalidInputError, match="begin at"):
            table.changes(since)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="'latest' or 'base'"):
        table.changes(0, freshness="flushed")


@pytest.mark.requirement("S4")
def test_a_version_that_is_gone_is_named(table: holdfast.Table) -> None:
    for number in range(4):
        table.append(rows((number, number)))
    Path(table.uri, version_name(3).path).unlink()
    with pytest.raises(CollectedError, match=r"since=None.*version=3") as raised:
        table.changes(2)
    assert raised.value.version == 3
    assert len(told(table.changes(4))) == 1


@pytest.mark.requirement("S4")
def test_a_log_entry_that_is_gone_is_named(table: holdfast.Table) -> None:
    cursor = table.change_cursor()
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((1, 1)))
        middle = table.changes(cursor).cursor
        writer.put(rows((1, 2)))
        writer.put(rows((1, 3)))
        (shard,) = middle.log
        position = middle.log[shard] + 1
        planned = table.changes(middle)
        writer.flush()
        table.compact_lsm()
        Path(table.uri, entry_name(shard, position).path).unlink()
    for late in (planned, table):
        with pytest.raises(CollectedError, match="since=None") as raised:
            told(late if late is planned else table.changes(middle))
        assert raised.value.position == position
    assert told(table.changes(1, freshness="base")) == [("insert", 1, 3)]


@pytest.mark.requirement("S4")
def test_collected_entries_before_the_cursor_do_no_harm(table: holdfast.Table) -> None:
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((1, 1), (2, 2)))
        writer.flush()
        cursor = table.change_cursor()
        (shard,) = cursor.log
        for position in range(1, cursor.log[shard] + 1):
            Path(table.uri, entry_name(shard, position).path).unlink(missing_ok=True)
        writer.put(rows((1, 5)))
        writer.delete_keys([2])
        assert told(table.changes(cursor)) == [
            ("update_preimage", 1, 1),
            ("update_postimage", 1, 5),
            ("delete", 2, 2),
        ]


def test_a_change_of_the_base_under_a_row_of_the_log_is_not_seen(table: holdfast.Table) -> None:
    table.append(rows((1, 1), (2, 2), (3, 3)))
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((1, 10), (3, 30)))
    cursor = table.change_cursor()
    table.dataset(over_log=True).update({"v": "v + 5"}, where="k < 3")
    table.dataset(over_log=True).delete("k = 3")
    stock = pa.Table.from_pylist(rows((3, 99), (4, 4)), schema=table.schema)
    lance.write_dataset(stock, table.dataset(over_log=True), mode="append")
    wanted = [("update_preimage", 2, 2), ("update_postimage", 2, 7), ("insert", 4, 4)]
    changes = table.changes(cursor)
    assert told(changes) == wanted
    table.merge_log()
    assert told(table.changes(changes.cursor)) == []
    assert told(table.changes(cursor)) == wanted


def test_a_lost_log_is_an_error(table: holdfast.Table) -> None:
    cursor = table.change_cursor()
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((1, 1)))
    stock = pa.Table.from_pylist(rows((7, 7)), schema=table.schema)
    lance.write_dataset(stock, table.uri, mode="overwrite")
    with pytest.raises(LogLostError):
        table.changes(cursor)


def test_a_key_that_the_base_has_twice_becomes_one_row(table: holdfast.Table) -> None:
    table.append(rows((1, 1)))
    table.append(rows((1, 2)))
    table.append(rows((2, 1)))
    table.append(rows((2, 2)))
    cursor = table.change_cursor()
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((1, 9)))
        writer.delete_keys([2])
    found = told(table.changes(cursor))
    assert sorted(found[:3]) == sorted(
        [("delete", 1, 1), ("update_preimage", 1, 2), ("update_postimage", 1, 9)]
    )
    assert sorted(found[3:]) == [("delete", 2, 1), ("delete", 2, 2)]


def test_many_keys_are_found_in_the_base_and_above_it(table: holdfast.Table) -> None:
    count = 3000
    table.append(rows(*((n, 0) for n in range(count))))
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(*((n, 1) for n in range(0, count, 2))))
        cursor = table.change_cursor()
        writer.put(rows(*((n, 2) for n in range(count))))
        found = told(table.changes(cursor))
        before = {k: v for kind, k, v in found if kind == "update_preimage"}
        assert before == {n: 1 - n % 2 for n in range(count)}
        writer.put(rows(*((n, 3) for n in range(600))))  # few enough to be taken one by one
        assert len(told(table.changes(table.changes(cursor).cursor))) == 0
        late = told(table.changes(cursor))
        assert len(late) == 2 * count + 1200


def test_of_one_entry_the_last_row_of_a_key_counts(table: holdfast.Table) -> None:
    cursor = table.change_cursor()
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((1, 1), (1, 2), (1, 3)))
        assert told(table.changes(cursor)) == [("insert", 1, 3)]


def test_rows_written_again_with_the_same_values_are_no_change(table: holdfast.Table) -> None:
    table.append(rows((1, 1), (2, 2)))
    cursor = table.change_cursor()
    with table.claim_writer("unsharded") as writer:
        writer.put(rows((1, 1)))
    table.merge_log()
    table.dataset().update({"v": "v"})
    changes = table.changes(cursor)
    assert told(changes) == []
    assert changes.cursor.version == table.dataset().version


def test_chosen_columns_and_columns_that_came_later(table: holdfast.Table) -> None:
    table.append(rows((1, 1)))
    table.dataset().add_columns(pa.schema([pa.field("x", pa.int32())]))
    table.append([{"k": 2, "v": 2, "x": 3}])
    found = table.changes(0).to_table().to_pylist()
    assert [(row["k"], row["x"]) for row in found] == [(1, None), (2, 3)]
    narrow = table.changes(0, columns=["x"]).to_table()
    assert narrow.column_names[:2] == ["x", "_change_type"]
    table.dataset().update({"v": "7"}, where="k = 2")
    assert table.changes(table.dataset().version - 1, columns=["x"]).to_table().num_rows == 0
    with pytest.raises(InvalidInputError, match="no column 'vv'"):
        table.changes(0, columns=["vv"])


def test_a_column_with_the_name_of_one_beside_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("_change_type", pa.string())])
    table = holdfast.create_table(tmp_path / "t.lance", schema)
    with pytest.raises(InvalidInputError, match="change rows need"):
        table.changes(0)
    assert table.changes(0, columns=["id"]).to_table().num_rows == 0


def test_changes_are_an_arrow_stream(table: holdfast.Table) -> None:
    table.append(rows((1, 1)))
    changes = table.changes(0)
    assert pa.table(changes).num_rows == 1
    assert changes.reader().read_all().schema == changes.schema
    assert [batch.num_rows for batch in changes] == [1]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0, 2.0], None, [1.0, float("nan")], [1.0, 2.0]], pa.list_(pa.float32(), 2)),
        pa.array([[1, 2], None, [], [1, 2]], pa.list_(pa.int32())),
        pa.array([["a"], None, [None], ["a"]], pa.list_(pa.string())),
        pa.array([{"a": 1}, None, {"a": None}, {"a": 1}], pa.struct([("a", pa.int8())])),
        pa.array([[("a", 1)], None, [], [("a", 1)]], pa.map_(pa.string(), pa.int8())),
        pa.array([0.5, None, float("nan"), 0.5], pa.float16()),
        pa.array(["a", None, "b", "a"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_rows_of_any_type_are_compared(column: pa.Array) -> None:
    codes = row_codes(pa.table({"c": column}))
    assert codes[0] == codes[3]
    assert len(set(codes.tolist())) == 3
    before = pa.table({"k": [1, 2, 3, 4], "c": column})
    moved, types = compare(before, before.take([3, 2, 1, 0]), ["k"])
    assert (moved.num_rows, types) == (0, [])
