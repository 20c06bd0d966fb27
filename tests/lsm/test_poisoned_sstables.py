"""SSTables that cannot be read, whoever wrote or damaged them: there is a way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast._ids import RandomIds
from holdfast.cli import main
from holdfast.cli._output import Exit
from holdfast.errors import ConflictError, CorruptError, HoldfastError, UnavailableError
from holdfast.formats._shard_manifest import ShardManifest, SsTable
from holdfast.formats._sstable import (
    BLOOM_FILE,
    KEY_INDEX_DATA,
    KEY_INDEX_LOOKUP,
    SSTABLE_MANIFEST,
    TOMBSTONE,
    sstable_path,
)
from holdfast.shard._config import ShardWriterConfig
from holdfast.shard._sstables import SstableWriter
from holdfast.testing import FaultyS3Process
from holdfast.upkeep import (
    RepairKind,
    RepairState,
    SstableDamage,
    _repair_shard,
    doctor,
    repair,
)
from holdfast.upkeep._sstable_exam import SstableExam
from lsm.tables import base_of, manifests_of, new_shard
from lsm.test_content import bad_text, inside_list
from lsm.test_vacuum_log import grow_old
from shard.test_places import commit_store

pytestmark = [pytest.mark.requirement("P4"), pytest.mark.requirement("O2")]

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.list_(pa.string()))])
BEFORE = {1: ["base"], 2: ["base"], 3: ["base"]}
WITHOUT = {**BEFORE, 4: ["older"], 5: ["newer"]}
"""What is there without the generation in the middle."""
GOOD_ROWS = {10: None, 3: None}
"""What can be read of it."""


@pytest.fixture(params=["local", "sqlite", "honest s3", "ignoring s3"])
def table(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    faulty_s3_process: Callable[..., FaultyS3Process],
) -> holdfast.Table:
    place = request.param
    uri, options = str(tmp_path / "t"), {}
    if place.endswith("s3"):
        server = faulty_s3_process(conditions=place.split()[0])
        uri, options = server.url("bucket", "t"), dict(server.storage_options())
    decider = {"sqlite": "sqlite", "ignoring s3": commit_store(tmp_path)}.get(place)
    made = holdfast.create_table(
        uri, SCHEMA, primary_key=["k"], commit_store=decider, storage_options=options
    )
    made.append([{"k": k, "v": v} for k, v in BEFORE.items()])
    made.dataset().initialize_mem_wal(maintained_indexes=[])
    return made


def written(table: holdfast.Table, shard_id: str, rows: pa.Table) -> SsTable:
    """Publish one generation of rows that nobody looks at, as an older writer did."""
    manifests = manifests_of(table, shard_id)
    current = manifests.latest() or manifests.claim()
    sstables = SstableWriter(table.core.store, table.uri, table.core.resolved, RandomIds())
    made = sstables.write(base_of(table), shard_id, current.current_generation, rows)

    def publish(found: ShardManifest) -> ShardManifest:
        generation = made.generation + 1
        return replace(found, sstables=(*found.sstables, made), current_generation=generation)

    manifests.update(current.writer_epoch, publish)
    return made


def rows(table: holdfast.Table, given: dict[int, Any]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"k": k, "v": v, TOMBSTONE: False} for k, v in given.items()],
        schema=base_of(table).storage_schema,
    )


def poisoned(table: holdfast.Table) -> pa.Table:
    """Return three rows, of which nobody can read the second one once it is stored."""
    nothing = pa.nulls(1, SCHEMA.field("v").type)
    bad = inside_list(bad_text(), pa.field("item", pa.string()))
    columns = [
        pa.array([10, 2, 3]),
        pa.concat_arrays([nothing, bad, nothing]),
        pa.array([False] * 3),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=base_of(table).storage_schema)
    return pa.Table.from_batches([batch])


def three_generations(table: holdfast.Table, middle: pa.Table) -> tuple[str, SsTable]:
    shard_id = new_shard()
    written(table, shard_id, rows(table, {4: ["older"]}))
    damaged = written(table, shard_id, middle)
    written(table, shard_id, rows(table, {5: ["newer"]}))
    return shard_id, damaged


def file_of(table: holdfast.Table, shard_id: str, one: SsTable, part: str) -> str:
    folder = sstable_path(shard_id, one.path)
    found = [info.path for info in table.core.store.list(f"{folder}/{part}")]
    return found[0] if found else f"{folder}/{part}"


def fresh(table: holdfast.Table) -> dict[int, Any]:
    return {row["k"]: row["v"] for row in table.to_table().to_pylist()}


def cli(table: holdfast.Table, *command: str) -> int:
    options = [f"--option={key}={value}" for key, value in table.core.resolved.items()]
    noun, verb, *rest = command
    return int(main([noun, verb, table.uri, *rest, *options]))


def goes_on(table: holdfast.Table, shard_id: str, expected: dict[int, Any]) -> None:
    """Put, flush, merge, vacuum, look: all is as if there had been no damage."""
    assert fresh(table) == expected
    with table.claim_writer(shard_id) as writer:
        writer.put([{"k": 6, "v": ["later"]}])
    table.compact_lsm()
    expected = {**expected, 6: ["later"]}
    assert fresh(table) == expected
    assert {row["k"]: row["v"] for row in table.dataset().to_table().to_pylist()} == expected
    if "://" not in table.uri:
        grow_old(table)
    table.vacuum(grace=timedelta(hours=1), confirm=True)
    assert fresh(table) == expected
    assert doctor(table.uri, table.core.resolved).healthy
    assert not table.repair_shard(shard_id).wounds


def test_a_row_that_nobody_can_read_is_set_aside_and_the_others_stay(
    table: holdfast.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    shard_id, damaged = three_generations(table, poisoned(table))
    with pytest.raises(HoldfastError):
        table.to_table()
    with pytest.raises(CorruptError, match="shard repair"):
        table.compact_lsm()
    found = [
        one for one in doctor(table.uri, table.core.resolved).findings if one.shard == shard_id
    ]
    assert [one.command for one in found] == [
        f"holdfast shard repair {table.uri} {shard_id} --confirm"
    ]
    before = manifests_of(table, shard_id).latest()
    assert cli(table, "shard", "repair", shard_id) == Exit.UNFIT
    assert "generation 2: poisoned, 1 rows cannot be read, 2 can" in capsys.readouterr().out
    assert manifests_of(table, shard_id).latest() == before
    with table.claim_writer(shard_id) as writer:  # a live writer goes on through the repair
        writer.put([{"k": 7, "v": ["waits"]}])
        assert cli(table, "shard", "repair", shard_id, "--confirm") == Exit.OK
        writer.put([{"k": 8, "v": ["waits"]}])
        writer.flush()
    kept = [info.path for info in table.core.store.list("_holdfast/quarantine")]
    for part in ("data/", SSTABLE_MANIFEST, KEY_INDEX_DATA, BLOOM_FILE):
        assert any(f"/{part}" in path for path in kept), part
    named = manifests_of(table, shard_id).latest()
    assert named is not None
    assert damaged.path not in {one.path for one in named.sstables}
    assert [one.generation for one in named.sstables][:3] == [1, 2, 3]
    goes_on(table, shard_id, {**WITHOUT, **GOOD_ROWS, 7: ["waits"], 8: ["waits"]})


DAMAGES = ["data gone", "data cut off", "data garbled", "manifest gone", "manifest garbled", "all"]


def damage(table: holdfast.Table, shard_id: str, one: SsTable, what: str) -> None:
    store = table.core.store
    if what == "all":
        store.delete([info.path for info in store.list(sstable_path(shard_id, one.path))])
        return
    part, how = what.split(maxsplit=1)
    path = file_of(table, shard_id, one, "data" if part == "data" else SSTABLE_MANIFEST)
    body = store.get(path)
    if how == "gone":
        store.delete([path])
    else:
        store.put(path, body[: len(body) // 2] if how == "cut off" else b"\7" * len(body))


@pytest.mark.parametrize(
    ("table", "what"),
    [*(("local", what) for what in DAMAGES), ("ignoring s3", "data cut off"), ("honest s3", "all")],
    indirect=["table"],
)
def test_a_generation_without_its_files_is_given_up_and_nothing_else(
    table: holdfast.Table, what: str
) -> None:
    shard_id, damaged = three_generations(table, rows(table, {2: ["new"], 10: ["new"]}))
    damage(table, shard_id, damaged, what)
    with pytest.raises(HoldfastError):
        table.to_table()
    planned = table.repair_shard(shard_id)
    assert [(one.generation, one.damage, one.rows) for one in planned.wounds] == [
        (2, SstableDamage.LOST, 2)
    ]
    assert not planned.applied
    assert not doctor(table.uri, table.core.resolved).healthy
    done = table.repair_shard(shard_id, confirm=True)
    assert done.applied
    assert done.rows == 2
    goes_on(table, shard_id, WITHOUT)


@pytest.mark.parametrize("how", ["gone", "garbled"])
@pytest.mark.parametrize("part", [KEY_INDEX_DATA, KEY_INDEX_LOOKUP, BLOOM_FILE])
@pytest.mark.parametrize("table", ["local"], indirect=True)
def test_what_only_helps_to_find_rows_is_made_anew(
    table: holdfast.Table, part: str, how: str
) -> None:
    shard_id, damaged = three_generations(table, rows(table, {2: ["new"], 10: ["new"]}))
    path = file_of(table, shard_id, damaged, part)
    table.core.store.delete([path]) if how == "gone" else table.core.store.put(path, bytes(32768))
    (wound,) = table.repair_shard(shard_id, confirm=True).wounds
    assert (wound.damage, wound.rows, wound.kept) == (SstableDamage.BESIDE, 0, 2)
    assert [row["v"] for row in table.lookup([10]).to_pylist()] == [["new"]]
    goes_on(table, shard_id, {**WITHOUT, 2: ["new"], 10: ["new"]})


@pytest.mark.parametrize("table", ["local", "ignoring s3"], indirect=True)
def test_the_one_repair_of_a_table_does_it_too(table: holdfast.Table) -> None:
    three_generations(table, poisoned(table))
    (planned,) = repair(table.uri, table.core.resolved).steps
    assert (planned.kind, planned.state) == (RepairKind.GENERATION, RepairState.PLANNED)
    assert "1 of its rows" in (planned.loses or "")
    done = repair(table.uri, table.core.resolved, confirm=True)
    assert done.whole, done.left
    assert done.steps[0].kept
    assert fresh(table) == {**WITHOUT, **GOOD_ROWS}
    assert repair(table.uri, table.core.resolved).steps == ()


@pytest.mark.parametrize("table", ["local"], indirect=True)
def test_a_healthy_shard_is_left_alone(table: holdfast.Table) -> None:
    shard_id, _ = three_generations(table, rows(table, {2: ["new"]}))
    before = manifests_of(table, shard_id).latest()
    done = table.repair_shard(shard_id, confirm=True)
    assert (done.wounds, done.applied) == ((), False)
    assert manifests_of(table, shard_id).latest() == before
    assert cli(table, "shard", "repair", shard_id) == Exit.OK


@pytest.mark.parametrize("table", ["honest s3"], indirect=True)
def test_a_store_without_an_answer_is_no_damage(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_id, _ = three_generations(table, rows(table, {2: ["new"]}))
    before = manifests_of(table, shard_id).latest()

    get = type(table.core.store).get

    def fail(*_: object, **__: object) -> bytes:
        raise UnavailableError("no answer")

    def get_others(store: Any, path: str, **how: Any) -> bytes:
        return fail() if "_gen_" in path else get(store, path, **how)

    monkeypatch.setattr(SstableWriter, "open", fail)
    monkeypatch.setattr(type(table.core.store), "get", get_others)
    with pytest.raises(UnavailableError):
        table.repair_shard(shard_id, confirm=True)
    monkeypatch.undo()
    assert manifests_of(table, shard_id).latest() == before


@pytest.mark.parametrize("step", ["kept", "written"])
@pytest.mark.parametrize("table", ["local", "sqlite"], indirect=True)
def test_a_repair_that_dies_is_repeated(
    table: holdfast.Table, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_id, _ = three_generations(table, poisoned(table))

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_repair_shard, {"kept": "_write", "written": "_decide"}[step], die)
    with pytest.raises(KeyboardInterrupt):
        table.repair_shard(shard_id, confirm=True)
    monkeypatch.undo()
    with pytest.raises(HoldfastError):
        table.to_table()
    assert table.repair_shard(shard_id, confirm=True).applied
    goes_on(table, shard_id, {**WITHOUT, **GOOD_ROWS})


@pytest.mark.parametrize("table", ["local", "sqlite"], indirect=True)
def test_vacuum_takes_nothing_of_a_repair_that_sleeps(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old the new SSTable is when its repair goes on: it is there."""
    shard_id, _ = three_generations(table, poisoned(table))
    decide = _repair_shard._decide

    def sleep_first(*arguments: Any) -> bool:
        grow_old(table)
        table.vacuum(grace=timedelta(hours=1), confirm=True)
        return decide(*arguments)

    monkeypatch.setattr(_repair_shard, "_decide", sleep_first)
    assert table.repair_shard(shard_id, confirm=True).applied
    goes_on(table, shard_id, {**WITHOUT, **GOOD_ROWS})


@pytest.mark.parametrize("table", ["local", "sqlite"], indirect=True)
def test_a_repair_that_a_live_writer_overtook_begins_anew(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would name a folder whose number was taken, which vacuum may have deleted."""
    shard_id, _ = three_generations(table, poisoned(table))
    decide = _repair_shard._decide
    calls: list[bool] = []
    monkeypatch.setattr(_repair_shard, "_AHEAD", 0)

    def overtaken_once(*arguments: Any) -> bool:
        if not calls:
            written(table, shard_id, rows(table, {7: ["flushed"]}))
            grow_old(table)
            table.vacuum(grace=timedelta(hours=1), confirm=True)
        calls.append(decide(*arguments))
        return bool(calls[-1])

    monkeypatch.setattr(_repair_shard, "_decide", overtaken_once)
    assert table.repair_shard(shard_id, confirm=True).applied
    assert calls == [False, True]
    goes_on(table, shard_id, {**WITHOUT, **GOOD_ROWS, 7: ["flushed"]})


@pytest.mark.parametrize("table", ["sqlite"], indirect=True)
def test_a_repair_that_is_always_overtaken_says_so(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_id, _ = three_generations(table, poisoned(table))
    monkeypatch.setattr(_repair_shard, "_AHEAD", -1)
    monkeypatch.setattr(_repair_shard, "_TRIES", 2)
    with pytest.raises(ConflictError):
        table.repair_shard(shard_id, confirm=True)


@pytest.mark.parametrize("table", ["local", "sqlite"], indirect=True)
def test_a_claim_during_a_repair_does_not_undo_it(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_id, _ = three_generations(table, poisoned(table))
    latest, decide = _repair_shard._latest, _repair_shard._decide
    writers: list[Any] = []

    def claimed_after(versions: Any, name: str) -> ShardManifest:
        found = latest(versions, name)
        if len(writers) < 2:
            config = ShardWriterConfig(enable_memtable=False)
            writers.append(table.claim_writer(shard_id, config=config))
        return found

    def decide_beside(*arguments: Any) -> bool:
        monkeypatch.setattr(_repair_shard, "_latest", claimed_after)
        return decide(*arguments)

    monkeypatch.setattr(_repair_shard, "_decide", decide_beside)
    assert table.repair_shard(shard_id, confirm=True).applied
    writers[-1].put([{"k": 9, "v": ["live"]}])
    for writer in writers:
        writer.abort()
    monkeypatch.undo()
    goes_on(table, shard_id, {**WITHOUT, **GOOD_ROWS, 9: ["live"]})


@pytest.mark.parametrize("table", ["local"], indirect=True)
def test_what_is_merged_and_collected_during_a_look_is_no_damage(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_id, _ = three_generations(table, rows(table, {2: ["new"]}))
    look = SstableExam.wound
    looked: list[Any] = []

    def collected_first(exam: SstableExam) -> Any:
        if not looked:
            table.compact_lsm()
            grow_old(table)
            table.vacuum(grace=timedelta(hours=1), confirm=True)
        looked.append(look(exam))
        return looked[-1]

    monkeypatch.setattr(SstableExam, "wound", collected_first)
    assert table.repair_shard(shard_id, confirm=True).wounds == ()
    assert looked[0] is not None
    assert fresh(table) == {**WITHOUT, 2: ["new"]}
