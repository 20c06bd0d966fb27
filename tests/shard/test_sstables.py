"""SSTables as stock Lance reads them, and as stock Lance would have written them."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import lance
import lance.lance as native
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader
from lance.mem_wal import LsmVectorSearchPlanner

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats._bloom import bloom_filter, hash_rows, may_contain
from holdfast.formats._keys import check_key_types, hashed_bytes, key_values, newest_per_key
from holdfast.formats._sstable import (
    BLOOM_FILE,
    KEY_INDEX_DATA,
    KEY_INDEX_LOOKUP,
    column_ids,
    generation_of,
    renumber_columns,
    sstable_folder,
)
from shard.lsm import (
    base_of,
    key_field,
    look_up,
    new_shard,
    scan,
    snapshot,
    sstables_of,
    storage_rows,
)

pytestmark = pytest.mark.requirement("W11")

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int32": (pa.int32(), [-(2**31), -1, 0, 7, 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 7, 2**63 - 1]),
    "uint64": (pa.uint64(), [0, 7, 2**64 - 1]),
    "utf8": (pa.string(), ["", "a", "ab", "é", "x" * 40]),
    "int8": (pa.int8(), [-1, 0, 7]),
    "uint16": (pa.uint16(), [0, 7]),
    "large_binary": (pa.large_binary(), [b"", b"x"]),
    "large_utf8": (pa.large_string(), ["", "z", "longer than eight"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x00\xff", b"abc"]),
    "bool": (pa.bool_(), [False, True]),
}


def make_table(uri: Path, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    lance.write_dataset(pa.Table.from_pylist(rows, schema=schema), str(uri))
    lance.dataset(str(uri)).initialize_mem_wal(maintained_indexes=[])


@pytest.mark.parametrize("kind", sorted(KEYS))
@pytest.mark.requirement("W13")
def test_a_generation_shadows_the_base_for_every_type_of_key(tmp_path: Path, kind: str) -> None:
    dtype, keys = KEYS[kind]
    schema = pa.schema([key_field("k", dtype), pa.field("v", pa.string())])
    uri, shard = tmp_path / "t", new_shard()
    make_table(uri, schema, [{"k": key, "v": "base"} for key in keys])
    base = base_of(uri)
    rows = [{"k": keys[0], "v": None, "_tombstone": True}, {"k": keys[1], "v": "new"}]
    table = sstables_of(uri).write(base, shard, 1, storage_rows(base, rows))

    expected = dict.fromkeys(keys[1:], "base") | {keys[1]: "new"}
    assert {row["k"]: row["v"] for row in scan(uri, shard, [table])} == expected
    assert look_up(uri, shard, [table], pa.array([keys[0]], dtype)) == []
    (found,) = look_up(uri, shard, [table], pa.array([keys[1]], dtype))
    assert found["v"] == "new"


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_key_index_and_filter_equal_those_of_stock(tmp_path: Path, kind: str) -> None:
    dtype, keys = KEYS[kind]
    schema = pa.schema([key_field("k", dtype), pa.field("v", pa.string())])
    check_files_equal_stock(tmp_path / "t", schema, [{"k": key, "v": "x"} for key in keys])


def test_a_generation_is_one_file_however_many_batches_it_came_in(tmp_path: Path) -> None:
    schema = pa.schema([key_field("k", pa.int64()), pa.field("v", pa.string())])
    uri, shard = tmp_path / "t", new_shard()
    make_table(uri, schema, [])
    base = base_of(uri)
    batches = [storage_rows(base, [{"k": number, "v": "x"}]) for number in range(3)]
    table = sstables_of(uri).write(base, shard, 1, pa.concat_tables(batches))
    assert len(list(uri.glob(f"_mem_wal/{shard}/{table.path}/data/*.lance"))) == 1
    assert len(scan(uri, shard, [table])) == 3


def test_a_composite_key_equals_that_of_stock(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            key_field("name", pa.string(), 1),
            key_field("number", pa.int64(), 2),
            key_field("blob", pa.binary(), 3),
            key_field("flag", pa.bool_(), 4),
            key_field("small", pa.uint8(), 5),
            pa.field("v", pa.string()),
        ]
    )
    names = ["b", "a\x00", "a", "", "a"]
    rows = [
        {
            "name": name,
            "number": i - 2,
            "blob": b"\x00" * i,
            "flag": i % 2 == 0,
            "small": i,
            "v": "",
        }
        for i, name in enumerate(names)
    ]
    uri, shard, table = check_files_equal_stock(tmp_path / "t", schema, rows)
    wanted = pa.StructArray.from_arrays(
        [pa.array([rows[3][f.name]], f.type) for f in schema][:5], fields=list(schema)[:5]
    )
    (found,) = look_up(uri, shard, [table], wanted)
    assert found["number"] == 1


def check_files_equal_stock(
    uri: Path, schema: pa.Schema, rows: list[dict[str, Any]]
) -> tuple[Path, str, Any]:
    make_table(uri, schema, [])
    base, shard = base_of(uri), new_shard()
    stored = storage_rows(base, rows)
    table = sstables_of(uri).write(base, shard, 1, stored)
    folder = uri / "_mem_wal" / shard / table.path
    mine = {name: read_lance(folder / name) for name in (KEY_INDEX_DATA, KEY_INDEX_LOOKUP)}

    native_write = vars(native)["_write_pk_sidecar"]  # shipped for tests like this one
    native_write(str(folder), stored.to_reader(), list(base.keys))
    for name, content in mine.items():
        assert read_lance(folder / name).equals(content, check_metadata=True)

    theirs = new_shard()
    with lance.dataset(str(uri)).mem_wal_writer(theirs) as writer:
        writer.put(pa.Table.from_pylist(rows, schema=schema))
    (stock,) = (uri / "_mem_wal" / theirs).glob("*_gen_1")
    assert (folder / BLOOM_FILE).read_bytes() == (stock / BLOOM_FILE).read_bytes()
    return uri, shard, table


def read_lance(file: Path) -> pa.Table:
    return LanceFileReader(str(file)).read_all().to_table()


def test_a_key_index_of_many_pages_equals_that_of_stock(tmp_path: Path) -> None:
    schema = pa.schema([key_field("k", pa.string()), pa.field("v", pa.int64())])
    rows = [{"k": f"key {(i * 7919) % 20_000}", "v": i} for i in range(20_000)]
    check_files_equal_stock(tmp_path / "t", schema, rows)


def test_a_filter_says_no_only_when_a_key_is_absent() -> None:
    names = pa.array([f"key {i}" for i in range(1_000)])
    hashes = hash_rows(hashed_bytes([names]))
    content = bloom_filter(hashes)
    assert may_contain(content, hashes).all()
    others = hash_rows(hashed_bytes([pa.array([f"other {i}" for i in range(1_000)])]))
    assert may_contain(content, others).sum() < 50
    with pytest.raises(CorruptError):
        may_contain(content[:-1], hashes)


def test_columns_keep_the_base_ids_after_columns_were_dropped(tmp_path: Path) -> None:
    """Readers pair by id: numbered from 0, the values would come back in other columns."""
    schema = pa.schema(
        [
            key_field("k", pa.int64()),
            pa.field("gone", pa.string()),
            pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])),
            pa.field("c1", pa.string()),
        ]
    )
    uri, shard = tmp_path / "t", new_shard()
    row = {"k": 1, "gone": "g", "s": {"x": 1, "y": "a"}, "c1": "one"}
    lance.write_dataset(pa.Table.from_pylist([row], schema=schema), str(uri))
    lance.dataset(str(uri)).drop_columns(["gone"])
    lance.dataset(str(uri)).add_columns({"gone": "cast(k as string)", "c2": "'two'"})
    lance.dataset(str(uri)).drop_columns(["c1"])
    lance.dataset(str(uri)).initialize_mem_wal(maintained_indexes=[])
    base = base_of(uri)
    assert base.ids["s", "x"] == 3
    new = {"k": 2, "s": {"x": 2, "y": "b"}, "gone": "again", "c2": "second"}
    table = sstables_of(uri).write(base, shard, 1, storage_rows(base, [new]))
    assert sorted(scan(uri, shard, [table]), key=lambda one: one["k"])[1] == new
    (found,) = look_up(uri, shard, [table], pa.array([2]))
    assert found == new
    opened = sstables_of(uri).open(shard, table.path)
    ids = {field.name(): field.id() for field in opened.lance_schema.fields()}
    assert ids == {"k": 0, "s": 2, "gone": 6, "c2": 7, "_tombstone": 8}


def test_a_manifest_of_other_columns_is_refused(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": [1], "b": [2]}), str(tmp_path / "t"))
    (file,) = (tmp_path / "t" / "_versions").glob("*.manifest")
    manifest = file.read_bytes()
    assert column_ids(manifest) == {("a",): 0, ("b",): 1}
    assert renumber_columns(manifest, {("a",): 0, ("b",): 1}) == manifest
    with pytest.raises(CorruptError, match="columns that the table has not"):
        renumber_columns(manifest, {("a",): 0})
    with pytest.raises(CorruptError):
        renumber_columns(b"no manifest", {})


TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), -1),
    "uint32": (pa.uint32(), 2**32 - 1),
    "float16": (pa.float16(), np.float16(1.5)),
    "float64": (pa.float64(), 2.5),
    "decimal128": (pa.decimal128(10, 2), decimal.Decimal("1.25")),
    "decimal256": (pa.decimal256(40, 2), decimal.Decimal("1.25")),
    "utf8": (pa.string(), "é"),
    "large_utf8": (pa.large_string(), "é"),
    "binary": (pa.binary(), b"\x00"),
    "large_binary": (pa.large_binary(), b"\x00"),
    "fixed_binary": (pa.binary(3), b"abc"),
    "date32": (pa.date32(), dt.date(2020, 1, 2)),
    "date64": (pa.date64(), dt.date(2020, 1, 2)),
    "time32": (pa.time32("s"), dt.time(1, 2, 3)),
    "time64": (pa.time64("us"), dt.time(1, 2, 3)),
    "timestamp": (pa.timestamp("us"), dt.datetime(2020, 1, 2, 3, 4, 5)),  # noqa: DTZ001
    "timestamp_tz": (pa.timestamp("us", "UTC"), dt.datetime(2020, 1, 2, tzinfo=dt.UTC)),
    "duration": (pa.duration("us"), dt.timedelta(seconds=1)),
    "list": (pa.list_(pa.int32()), [1, None]),
    "large_list": (pa.large_list(pa.string()), ["a"]),
    "vector": (pa.list_(pa.float32(), 2), [0.5, 1.5]),
    "struct": (pa.struct([pa.field("x", pa.list_(pa.string()))]), {"x": ["a", None]}),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), "d"),
}


def test_columns_of_every_type_come_back(tmp_path: Path) -> None:
    fields = [pa.field(name, kind) for name, (kind, _) in TYPES.items()]
    schema = pa.schema([key_field("k", pa.int64()), *fields])
    uri, shard = tmp_path / "t", new_shard()
    make_table(uri, schema, [])
    base = base_of(uri)
    row = {"k": 1, **{name: value for name, (_, value) in TYPES.items()}}
    stored = storage_rows(base, [row, {"k": 2, "_tombstone": True}, {"k": 3}])
    table = sstables_of(uri).write(base, shard, 1, stored)
    first, second = sorted(scan(uri, shard, [table]), key=lambda one: one["k"])
    assert first == pa.Table.from_pylist([row], schema=schema).to_pylist()[0]
    assert second == {"k": 3, **dict.fromkeys(TYPES)}


def test_indexes_that_the_base_maintains_are_in_the_sstable(tmp_path: Path) -> None:
    """Without its index, an SSTable's rows are silently missing from a vector search."""
    schema = pa.schema(
        [
            key_field("k", pa.int64()),
            pa.field("n", pa.int32()),
            pa.field("text", pa.string()),
            pa.field("vec", pa.list_(pa.float32(), 4)),
            pa.field("tags", pa.list_(pa.string())),
        ]
    )
    random = np.random.default_rng(1)

    def row(k: int) -> dict[str, Any]:
        vector = random.random(4).astype("float32").tolist()
        return {"k": k, "n": k, "text": f"word{k} all", "vec": vector, "tags": ["t"]}

    uri, shard = tmp_path / "t", new_shard()
    lance.write_dataset(pa.Table.from_pylist([row(k) for k in range(300)], schema=schema), str(uri))
    dataset = lance.dataset(str(uri))
    dataset.create_scalar_index("n", "BTREE", name="by_n")
    dataset.create_scalar_index("text", "INVERTED", name="by_text", with_position=True)
    dataset.create_scalar_index("tags", "LABEL_LIST", name="by_tag")
    dataset.create_index("vec", "IVF_FLAT", name="by_vec", num_partitions=1, metric="cosine")
    dataset.initialize_mem_wal()
    base = base_of(uri)
    new = [row(k) for k in range(300, 320)]
    stored = storage_rows(base, [*new, {"k": 5, "_tombstone": True}])
    table = sstables_of(uri).write(base, shard, 1, stored)
    described = sstables_of(uri).open(shard, table.path).describe_indices()
    assert {one.name: one.index_type for one in described} == {
        "by_n": "BTree",
        "by_text": "Inverted",
        "by_vec": "IVF_HNSW_SQ",
    }
    planner = LsmVectorSearchPlanner(
        lance.dataset(str(uri)), [snapshot(shard, [table])], "vec", distance_type="cosine"
    )
    query = pa.array(new[3]["vec"], pa.float32())
    assert planner.plan_search(query, k=1, columns=["k"]).to_table()["k"].to_pylist() == [303]
    assert 5 not in {one["k"] for one in scan(uri, shard, [table])}


def test_only_the_named_indexes_are_kept(tmp_path: Path) -> None:
    schema = pa.schema(
        [key_field("k", pa.int64()), pa.field("a", pa.int32()), pa.field("b", pa.int32())]
    )
    uri, shard = tmp_path / "t", new_shard()
    lance.write_dataset(pa.table({"k": [1], "a": [1], "b": [1]}, schema=schema), str(uri))
    dataset = lance.dataset(str(uri))
    dataset.create_scalar_index("a", "BTREE", name="by_a")
    dataset.create_scalar_index("b", "BTREE", name="by_b")
    dataset.initialize_mem_wal(maintained_indexes=["by_b"])
    base = base_of(uri)
    assert [index.name for index in base.indexes] == ["by_b"]
    table = sstables_of(uri).write(base, shard, 1, storage_rows(base, [{"k": 2, "a": 2, "b": 2}]))
    assert [one.name for one in sstables_of(uri).open(shard, table.path).describe_indices()] == [
        "by_b"
    ]


def test_an_append_only_table_has_no_key_index(tmp_path: Path) -> None:
    uri, shard = tmp_path / "t", new_shard()
    make_table(uri, pa.schema([pa.field("v", pa.int64())]), [])
    base = base_of(uri)
    table = sstables_of(uri).write(base, shard, 1, storage_rows(base, [{"v": 1}, {"v": 1}]))
    assert table.primary_key_bytes is None
    folder = uri / "_mem_wal" / shard / table.path
    assert (folder / BLOOM_FILE).stat().st_size == 32_768
    assert not (folder / "_pk_index").exists()
    assert sstables_of(uri).open(shard, table.path).count_rows() == 2


def test_newest_rows_are_the_last_of_each_key() -> None:
    names = pa.array(["a", "b", "a", "c", "b"])
    assert newest_per_key([names]).to_pylist() == [2, 3, 4]
    assert newest_per_key([names, pa.array([1, 2, 1, 3, 9])]).to_pylist() == [1, 2, 3, 4]
    assert newest_per_key([names.slice(0, 0)]).to_pylist() == []


def test_composite_values_sort_as_their_columns() -> None:
    names = ["a", "a\x00", "a\x00b", "ab", "", "b"]
    rows = sorted((name, number) for name in names for number in (-5, 0, 3))
    columns = [pa.array([r[0] for r in rows]), pa.array([r[1] for r in rows], pa.int64())]
    values = key_values(columns).to_pylist()
    assert values == sorted(values)
    assert len(set(values)) == len(rows)


@pytest.mark.parametrize("kind", [pa.float64(), pa.date32(), pa.list_(pa.int32())])
def test_a_key_of_another_type_is_refused(tmp_path: Path, kind: pa.DataType) -> None:
    uri = tmp_path / "t"
    schema = pa.schema([pa.field("k", kind, nullable=False), pa.field("v", pa.int32())])
    lance.write_dataset(schema.empty_table(), str(uri))
    with pytest.raises(InvalidInputError, match="a key column is"):
        check_key_types(schema, ["k"])


def test_folders_are_named_for_generation_and_attempt() -> None:
    folder = sstable_folder("hf-" + "ab12cd34" * 4, 7)
    assert folder == "ab12cd34_gen_7"
    assert generation_of(folder) == 7
    assert generation_of("wal") is None
