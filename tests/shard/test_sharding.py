"""Rows go where Lance and LanceDB would send them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.mem_wal import ShardingField, ShardingSpec, evaluate_sharding_spec

import holdfast
from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats._mem_wal_details import (
    MemWalDetails,
    decode_details,
    encode_details,
    read_details,
)
from holdfast.formats._sharding import (
    bucket,
    shard_id_of_bucket,
    shard_id_of_value,
    shard_id_unsharded,
)
from holdfast.shard import Sharding, ShardWriter, ShardWriterConfig
from holdfast.shard._prepare import read_newest_base
from shard.levels import KEYED, manifest_of

VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "utf8": (pa.string(), st.text()),
    "large_utf8": (pa.large_string(), st.text()),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats()),
    "date32": (pa.date32(), st.dates()),
    "timestamp": (
        pa.timestamp("us"),
        st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)),  # noqa: DTZ001
    ),
    "time64": (pa.time64("us"), st.times()),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lance.LanceDataset]:
    folder = tmp_path_factory.mktemp("types")
    return {
        name: lance.write_dataset(
            pa.schema([pa.field("c", kind)]).empty_table(), str(folder / name)
        )
        for name, (kind, _) in VALUES.items()
    }


@pytest.mark.parametrize("name", sorted(VALUES))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_buckets_equal_those_of_stock(
    datasets: dict[str, lance.LanceDataset], name: str, data: st.DataObject
) -> None:
    kind, values = VALUES[name]
    column = pa.array(data.draw(st.lists(st.none() | values, min_size=1, max_size=20)), kind)
    buckets = data.draw(st.integers(1, 1024))
    spec = ShardingSpec(
        1, [ShardingField("bucket", [0], "bucket", None, "int32", {"num_buckets": str(buckets)})]
    )
    batch = pa.record_batch([column], schema=pa.schema([pa.field("c", kind)]))
    stock = evaluate_sharding_spec(batch, spec, datasets[name].lance_schema)
    assert bucket(column, buckets).tolist() == stock.column(0).to_pylist()


def test_what_stock_cannot_divide_is_refused() -> None:
    for kind in (pa.binary(), pa.date64(), pa.list_(pa.int32())):
        with pytest.raises(InvalidInputError, match="divided"):
            bucket(pa.nulls(1, kind), 4)
    for buckets in (0, 1025):
        with pytest.raises(InvalidInputError, match="1 to 1024"):
            bucket(pa.array([1]), buckets)


def test_ids_are_stable() -> None:
    assert shard_id_unsharded() == "aa48498d-ac91-59e2-8452-69f46010ace2"
    assert shard_id_of_value(pa.scalar("eu")) != shard_id_of_value(pa.scalar("us"))
    assert shard_id_of_value(pa.scalar(1, pa.int32())) != shard_id_of_value(
        pa.scalar(1, pa.int64())
    )
    with pytest.raises(InvalidInputError, match="null"):
        shard_id_of_value(pa.scalar(None, pa.string()))


def test_details_come_back_as_stock_writes_them(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(KEYED.empty_table(), uri)
    lance.dataset(uri).initialize_mem_wal(bucket_column="k", num_buckets=4, maintained_indexes=[])
    (manifest,) = sorted((tmp_path / "t" / "_versions").glob("*.manifest"))[:1]
    details = read_details(manifest.read_bytes())
    assert details is not None
    assert (details.num_shards, details.maintain_all_indexes) == (4, False)
    (spec,) = details.sharding_specs
    assert spec.fields[0].parameters == {"num_buckets": "4"}
    assert decode_details(encode_details(details)) == details

    ours = holdfast.create_table(tmp_path / "ours", KEYED)
    ours.prepare_writers(
        sharding=Sharding.bucket("k", 4),
        maintained_indexes=[],
    )
    assert read_newest_base(ours.versions).details == details
    assert stock_details(ours.uri) == stock_details(uri)


def stock_details(uri: str) -> Any:
    """Return what stock reads of a log, without the id that Holdfast gives it."""
    found: Any = lance.dataset(uri).mem_wal_index_details()
    found["writer_config_defaults"].pop("holdfast.log", None)
    return found


def test_details_keep_how_far_shards_are_merged() -> None:
    shard = shard_id_of_bucket(1)
    details = MemWalDetails(compacted={shard: 7}, index_catchup={"i": {shard: 6}})
    assert decode_details(encode_details(details)) == details
    with pytest.raises(CorruptError):
        decode_details(b"\xff\xff")
    with pytest.raises(CorruptError):
        read_details(b"no manifest")


def test_a_table_without_a_log_has_no_details(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", KEYED)
    assert read_newest_base(table.versions).details is None


SHARDINGS: dict[str, tuple[Sharding, dict[str, Any]]] = {
    "unsharded": (Sharding.unsharded(), {"unsharded": True}),
    "bucket": (Sharding.bucket("k", 3), {"bucket_column": "k", "num_buckets": 3}),
    "identity": (Sharding.identity("k"), {"identity_column": "k"}),
}


@pytest.mark.parametrize("name", sorted(SHARDINGS))
def test_shardings_are_recorded_as_stock_records_them(tmp_path: Path, name: str) -> None:
    sharding, stock = SHARDINGS[name]
    uri = str(tmp_path / "t")
    lance.write_dataset(KEYED.empty_table(), uri)
    lance.dataset(uri).initialize_mem_wal(**stock)
    ours = holdfast.create_table(tmp_path / "ours", KEYED)
    ours.prepare_writers(sharding=sharding)
    assert stock_details(ours.uri) == stock_details(uri)


@pytest.mark.parametrize("name", sorted(SHARDINGS))
def test_a_router_divides_rows_and_writers_take_them(tmp_path: Path, name: str) -> None:
    sharding, _ = SHARDINGS[name]
    table = holdfast.create_table(tmp_path / "t", KEYED)
    table.prepare_writers(sharding=sharding)
    router = table.router()
    rows = [{"k": key, "v": str(key)} for key in range(6)]
    seen: dict[str, list[int]] = {}
    for shard, part in router.split(rows):
        with table.claim_writer(shard) as writer:
            writer.put(part)
        seen[shard.shard_id] = part["k"].to_pylist()
        manifest = manifest_of(table, shard.shard_id)
        assert manifest.shard_spec_id == 1
        assert [entry[0] for entry in manifest.field_entries] == [shard.values[0][0]]
    assert sorted(key for keys in seen.values() for key in keys) == list(range(6))
    assert len(seen) == {"unsharded": 1, "bucket": 3, "identity": 6}[name]
    if name == "identity":
        with pytest.raises(InvalidInputError, match="new shard"):
            router.shards()
    else:
        assert set(seen) <= {shard.shard_id for shard in router.shards()}


def test_lancedb_reads_what_was_written_to_its_shards(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", KEYED)
    table.prepare_writers(sharding=Sharding.bucket("k", 2))
    for shard, part in table.router().split([{"k": key, "v": "x"} for key in range(10)]):
        with table.claim_writer(shard) as writer:
            writer.put(part)
    found = lancedb.connect(str(tmp_path)).open_table("t").to_arrow()
    assert sorted(found["k"].to_pylist()) == list(range(10))


def test_shards_have_names(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", KEYED)
    table.prepare_writers(sharding=Sharding.bucket("k", 2))
    with table.claim_writer("bucket-1") as writer:
        assert writer.shard_id == shard_id_of_bucket(1)
    for wrong in ("bucket-2", "unsharded", "nothing", "bucket-x", ""):
        with pytest.raises(InvalidInputError):
            table.claim_writer(wrong)


def test_a_table_without_sharding_has_no_router(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", KEYED)
    table.claim_writer("bucket-7").close()
    with pytest.raises(InvalidInputError, match="by hand"):
        table.router()


@pytest.mark.parametrize(
    "sharding",
    [Sharding.bucket("nothing", 2), Sharding.bucket("v", 2), Sharding.identity("v")],
    ids=str,
)
def test_a_sharding_that_could_tear_a_key_apart_is_refused(
    tmp_path: Path, sharding: Sharding
) -> None:
    table = holdfast.create_table(tmp_path / "t", KEYED)
    with pytest.raises(InvalidInputError):
        table.prepare_writers(sharding=sharding)
    assert read_newest_base(table.versions).details is None


def test_an_unknown_index_is_refused(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", KEYED)
    with pytest.raises(InvalidInputError, match="no such index"):
        table.prepare_writers(maintained_indexes=["nothing"])


WRITES: dict[str, Callable[[ShardWriter, list[int]], Any]] = {
    "put": lambda writer, keys: writer.put([{"k": key, "v": "x"} for key in keys]),
    "put_nowait": lambda writer, keys: writer.put_nowait([{"k": key, "v": "x"} for key in keys]),
    "delete": lambda writer, keys: writer.delete_keys(keys),
    "delete_nowait": lambda writer, keys: writer.delete_keys_nowait(keys),
}


@pytest.mark.requirement("P1", "W13")
@pytest.mark.parametrize("enable_memtable", [True, False], ids=["MemTable", "log only"])
@pytest.mark.parametrize("name", ["bucket", "identity"])
def test_rows_of_another_shard_are_refused(
    tmp_path: Path, name: str, enable_memtable: bool
) -> None:
    """Two shards with rows of one key would show the older one."""
    table = holdfast.create_table(tmp_path / "t", KEYED)
    table.prepare_writers(sharding=SHARDINGS[name][0])
    parts = table.router().split([{"k": key, "v": str(key)} for key in range(6)])
    config = ShardWriterConfig(enable_memtable=enable_memtable)
    (shard, part), (_, other), *_ = parts
    ours, theirs = part["k"].to_pylist(), other["k"].to_pylist()
    for claimed in (shard, shard.shard_id):
        with table.claim_writer(claimed, config=config) as writer:
            for write in WRITES.values():
                for keys in (theirs, [*ours, *theirs]):
                    with pytest.raises(InvalidInputError, match=r"router\(\)"):
                        write(writer, keys)
            assert writer.stats().buffered_bytes == 0
            assert writer.wal_stats().entries == 0
            for write in (WRITES["delete"], WRITES["put"]):
                write(writer, ours)
    assert sorted(table.to_table()["k"].to_pylist()) == sorted(ours)


def test_a_shard_that_is_none_of_the_table_s_takes_no_rows(tmp_path: Path) -> None:
    stranger = "11111111-2222-4333-8444-555555555555"
    for name, (sharding, _) in SHARDINGS.items():
        table = holdfast.create_table(tmp_path / name, KEYED)
        table.prepare_writers(sharding=sharding)
        with table.claim_writer(stranger) as writer, pytest.raises(InvalidInputError):
            writer.put([{"k": 1, "v": "x"}])


def test_shards_that_are_named_by_hand_take_any_row(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", KEYED)
    with table.claim_writer("bucket-7") as writer:
        writer.put([{"k": key, "v": "x"} for key in range(9)])
    assert table.count() == 9


@pytest.mark.requirement("W13")
def test_keys_are_deleted_where_stock_divides_by_another_column(tmp_path: Path) -> None:
    """A tombstone has no value in that column, so nothing tells where it belongs."""
    uri = str(tmp_path / "t")
    lance.write_dataset(KEYED.empty_table(), uri)
    lance.dataset(uri).initialize_mem_wal(bucket_column="v", num_buckets=3)
    table = holdfast.adopt_table(uri)
    ((shard, part),) = table.router().split([{"k": 1, "v": "x"}])
    with table.claim_writer(shard) as writer:
        writer.put(part)
        writer.delete_keys([1])
    assert table.count() == 0
