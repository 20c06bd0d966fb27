"""Rows on all levels: the newest of each key, however they are spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import InvalidInputError
from read.lake import SCHEMA, Lake, in_order, row

MakeLake = Callable[..., Lake]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[MakeLake]:
    made: list[Lake] = []

    def make(*arguments: Any, **options: Any) -> Lake:
        made.append(Lake(tmp_path / str(len(made)), *arguments, **options))
        return made[-1]

    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    yield make
    for one in made:
        one.close()


def spread(lake: Lake) -> str:
    """Put rows on every level: base, a merged generation, two unmerged ones, the log."""
    (shard,) = lake.shards
    lake.append([row(n, n, "base") for n in range(10)])
    lake.put([row(1, 100, "merged"), row(2, 100, "merged")])
    assert lake.flush(shard) == 1
    lake.merge(shard, 1)
    lake.put([row(2, 200, "one"), row(3, 200, "one"), row(4, 200, "one"), row(20, 200, "one")])
    lake.delete([5])
    assert lake.flush(shard) == 2
    lake.put([row(3, 300, "two"), row(5, 300, "two"), row(21, 300, "two")])
    lake.delete([20])
    assert lake.flush(shard) == 3
    lake.put([row(4, 400, "log"), row(4, 401, "log"), row(22, 400, "log")])
    lake.delete([6, 21])
    return shard


@pytest.mark.requirement("W13")
def test_the_newest_row_of_each_key_is_read(lake: MakeLake) -> None:
    one = lake()
    spread(one)
    assert in_order(one.rows()) == in_order(one.wanted())
    assert one.table.count() == len(one.model)


def test_freshness_says_how_far_up_is_read(lake: MakeLake) -> None:
    one = lake()
    spread(one)
    base = {found["k"]: found["v"] for found in one.rows(freshness="base")}
    assert base[1] == 100 and base[2] == 100 and base[3] == 3
    flushed = {found["k"]: found["v"] for found in one.rows(freshness="flushed")}
    assert flushed[4] == 200 and flushed[3] == 300 and 20 not in flushed and 21 in flushed
    latest = {found["k"]: found["v"] for found in one.rows()}
    assert latest[4] == 401 and 21 not in latest and 6 not in latest


def test_a_filter_sees_only_the_newest_row_of_a_key(lake: MakeLake) -> None:
    one = lake()
    spread(one)
    assert one.rows(filter="v = 200 AND k = 3") == []  # generation 2 has it, 3 is newer
    assert one.rows(filter="v = 4") == []  # the base has it, the log is newer
    assert one.rows(filter="k = 5", columns=["v"]) == [{"v": 300}]
    wanted = [found for found in one.wanted() if found["v"] >= 300]
    assert in_order(one.rows(filter="v >= 300")) == in_order(wanted)
    assert one.table.count("v >= 300") == len(wanted)
    assert one.table.count("note IS NULL") == 0  # tombstones are no rows


def test_a_limit_is_kept_over_levels(lake: MakeLake) -> None:
    one = lake()
    spread(one)
    for limit in (0, 1, 5, 100):
        found = one.rows(limit=limit)
        assert len(found) == min(limit, len(one.model))
        assert all(part in one.wanted() for part in found)


def test_columns_come_as_asked_and_as_the_table_has_them(lake: MakeLake) -> None:
    one = lake()
    spread(one)
    reader = one.table.scan(["note", "v"])
    assert reader.schema.names == ["note", "v"]
    assert one.table.scan().schema.equals(one.table.schema, check_metadata=True)
    assert reader.read_all().num_rows == len(one.model)


def test_lookup_stops_at_the_first_level_that_knows_the_key(lake: MakeLake) -> None:
    one = lake()
    spread(one)
    keys = [22, 4, 3, 5, 2, 1, 7, 6, 20, 21, 999]
    found = one.table.lookup(keys).to_pylist()
    assert [part["k"] for part in found] == [22, 4, 3, 5, 2, 1, 7]
    assert found == [one.model[key] for key in keys if key in one.model]
    assert one.table.lookup(pa.array([4, 4, 4], pa.int64()), ["v"]).to_pylist() == [{"v": 401}]
    assert one.table.lookup([6, 20, 999]).num_rows == 0
    assert one.table.lookup([]).num_rows == 0


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (pa.string(), ["", "a'b", "ü", "a\x00b", "A", "z" * 300]),
        (pa.binary(), [b"", b"\x00", b"\x00\xff", b"abc", b"'"]),
        (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
        (pa.uint64(), [0, 1, 2**64 - 1, 2**63]),
        (pa.int8(), [-128, 0, 127]),
        (pa.bool_(), [True, False]),
    ],
    ids=str,
)
def test_keys_of_every_type(lake: MakeLake, key: Any, values: list[Any]) -> None:
    one = lake(pa.schema([("k", key), ("v", pa.int64())]), shards=2)
    one.append([{"k": value, "v": 0} for value in values])
    one.put([{"k": value, "v": 1} for value in values[::2]])
    for shard in one.shards:
        one.flush(shard)
    one.put([{"k": values[0], "v": 2}])
    one.delete([values[-1]])
    assert in_order(one.rows()) == in_order(one.wanted())
    found = one.table.lookup(values).to_pylist()
    assert found == [one.model[value] for value in values if value in one.model]
    assert one.table.count() == len(one.model)


def test_a_key_of_several_columns(lake: MakeLake) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32()), ("v", pa.int64())])
    one = lake(schema, ("a", "b"))
    (shard,) = one.shards
    one.append([{"a": a, "b": b, "v": 0} for a in "xyz" for b in (1, 2)])
    one.put([{"a": "x", "b": 1, "v": 1}, {"a": "y", "b": 2, "v": 1}])
    one.flush(shard)
    one.put([{"a": "x", "b": 1, "v": 2}])
    one.delete([("z", 1)])
    assert in_order(one.rows()) == in_order(one.wanted())
    keys = [("x", 1), ("x", 2), ("y", 2), ("z", 1), ("z", 2), ("q", 1)]
    found = one.table.lookup(keys).to_pylist()
    assert found == [one.model[key] for key in keys if key in one.model]
    assert one.table.lookup([{"a": "x", "b": 1}], ["v"]).to_pylist() == [{"v": 2}]
    assert one.table.count("v = 0") == 3


def test_an_append_only_table_keeps_every_row(lake: MakeLake) -> None:
    one = lake(SCHEMA, ())
    (shard,) = one.shards
    one.table.append([row(1, 1)])
    one.put([row(1, 2)])
    one.flush(shard)
    one.put([row(1, 3), row(2, 3)])
    assert sorted((part["k"], part["v"]) for part in one.rows()) == [(1, 1), (1, 2), (1, 3), (2, 3)]
    assert one.table.count() == 4 and one.table.count("k = 1") == 3
    assert len(one.rows(freshness="flushed")) == 2
    with pytest.raises(InvalidInputError, match="no primary key"):
        one.table.lookup([1])


def test_a_table_without_a_log_is_read_too(lake: MakeLake, tmp_path: Path) -> None:
    import holdfast

    table = holdfast.create_table(tmp_path / "plain.lance", SCHEMA, primary_key=["k"])
    table.append([row(1, 1), row(2, 2)])
    assert table.count() == 2 and table.to_table(filter="k = 1").num_rows == 1
    assert table.lookup([2], ["v"]).to_pylist() == [{"v": 2}]


def test_streams_stay_small(lake: MakeLake) -> None:
    one = lake()
    one.append([row(n, n) for n in range(50_000)])
    one.put([row(n, -n) for n in range(0, 50_000, 7)])
    sizes = [batch.num_rows for batch in one.table.scan()]
    assert sum(sizes) == 50_000 and max(sizes) <= 65_536
    reader = one.table.scan(limit=3)
    assert reader.read_all().num_rows == 3


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an unknown column": (lambda t: t.scan(["nope"]), "table_has"),
    "a column twice": (lambda t: t.scan(["v", "v"]), "each once"),
    "one name": (lambda t: t.scan("v"), "list of names"),
    "no columns": (lambda t: t.scan([]), "each once"),
    "a filter on nothing": (lambda t: t.scan(filter="nope > 1"), "nope"),
    "half a filter": (lambda t: t.scan(filter="v >"), ""),
    "half a filter to count": (lambda t: t.count("v >"), ""),
    "unknown freshness": (lambda t: t.scan(freshness="newest"), "freshness is"),
    "a limit below 0": (lambda t: t.scan(limit=-1), "limit"),
    "no number as limit": (lambda t: t.scan(limit=True), "limit"),
    "a key of another type": (lambda t: t.lookup(["a"]), "key columns"),
    "a null key": (lambda t: t.lookup([None]), "never null"),
    "one key": (lambda t: t.lookup("a"), "key columns"),
    "lookup of a column": (lambda t: t.lookup([1], ["nope"]), "table_has"),
    "no vectors": (lambda t: t.nearest("v", [1.0], 3), ""),
    "no column": (lambda t: t.nearest("nope", [1.0], 3), "no such column"),
    "no neighbours": (lambda t: t.nearest("v", [1.0], 0), "at least 1"),
    "no index": (lambda t: t.search("note", "x"), "index"),
}


def test_a_wrong_call_is_refused(lake: MakeLake) -> None:
    one = lake()
    spread(one)
    for what, (call, says) in WRONG.items():
        with pytest.raises(InvalidInputError) as refused:
            call(one.table)
        assert says in str(refused.value), what
