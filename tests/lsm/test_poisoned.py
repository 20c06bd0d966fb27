"""Values that nobody can read, let in by older or foreign writers: there is a way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from command_line import Cli
from holdfast.cli._output import Exit
from holdfast.errors import HoldfastError
from holdfast.formats._sstable import TOMBSTONE
from holdfast.wal import repair_log
from lsm.tables import base_of
from lsm.test_content import bad_index, bad_text, inside_list, json_text, null_inside

pytestmark = [pytest.mark.requirement("P4"), pytest.mark.requirement("L10")]

BAD: dict[str, Callable[[], pa.Array]] = {
    "text": bad_text,
    "text in a list": lambda: inside_list(bad_text(), pa.field("item", pa.string())),
    "index": bad_index,
    "null": null_inside,
    "json": lambda: json_text("{"),
}


def poison(table: holdfast.Table, shard_id: str, bad: pa.Array) -> None:
    """Write one entry past the checks, as an older writer did: good rows, a bad one, good rows."""
    base = base_of(table)
    if pa.types.is_dictionary(bad.type):  # joined with others, the index would be looked up
        numbers = pa.array([None, 5, None], bad.type.index_type)
        values = pa.DictionaryArray.from_arrays(numbers, bad.dictionary, safe=False)
    else:
        nothing = pa.nulls(1, bad.type)
        values = pa.concat_arrays([nothing, bad, nothing])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([10, 2, 3]), values, pa.array([False] * 3)], schema=base.log_schema
    )
    assert batch.schema.names == ["k", "v", TOMBSTONE]
    with table.claim_appender(shard_id) as appender:
        appender.append(appender.draft(batch))


@pytest.mark.parametrize("commit_store", [None, "sqlite"])
@pytest.mark.parametrize("what", BAD)
def test_rows_that_nobody_can_read_are_set_aside(
    tmp_path: Path, what: str, commit_store: str | None, cli: Cli
) -> None:
    bad = BAD[what]()
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", bad.type)])
    table = holdfast.create_table(
        tmp_path / "t", schema, primary_key=["k"], commit_store=commit_store
    )
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": k, "v": None} for k in (1, 2, 4)])
        shard_id = writer.shard_id
    poison(table, shard_id, bad)
    with table.claim_appender(shard_id) as appender:
        base = base_of(table)
        newer = pa.RecordBatch.from_arrays(
            [pa.array([3]), pa.nulls(1, bad.type), pa.array([True])], schema=base.log_schema
        )
        appender.append(newer)  # deletes the third row: what is put back stays before it
    with pytest.raises(HoldfastError):
        table.to_table()
    shown = cli.text("wal", "repair", table.uri, shard_id, code=Exit.UNFIT)
    assert "poisoned, 1 rows cannot be read" in shown
    with pytest.raises(HoldfastError):
        table.to_table()
    assert cli("wal", "repair", table.uri, shard_id, "--confirm") == Exit.OK
    wanted = [1, 2, 4, 10]  # 2 as it was before the bad row
    assert sorted(table.to_table()["k"].to_pylist()) == wanted
    kept = list(table.core.store.list("_holdfast/quarantine"))
    assert len(kept) == 1
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 5, "v": None}])
    table.compact_lsm()
    assert sorted(table.to_table()["k"].to_pylist()) == sorted([*wanted, 5])
    assert not repair_log(table.core, shard_id).wounds


def test_an_entry_of_bad_rows_only_becomes_a_fence(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 1, "v": "a"}])
        shard_id = writer.shard_id
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1]), bad_text(), pa.array([False])], schema=base_of(table).log_schema
    )
    with table.claim_appender(shard_id) as appender:
        appender.append(appender.draft(batch))
    done = repair_log(table.core, shard_id, confirm=True)
    assert [wound.rows for wound in done.wounds] == [1]
    assert table.to_table().to_pylist() == [{"k": 1, "v": "a"}]
