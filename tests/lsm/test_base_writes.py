"""Writes to the base of a table with a log: what waited when they began never comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from command_line import Cli
from holdfast.commits._log_rules import keeper_of
from holdfast.errors import FencedError, InvalidInputError, LogLostError, LogWaitsError, NextStep
from holdfast.shard._config import ShardWriterConfig
from holdfast.testing import FaultyS3Process, mutate
from holdfast.upkeep import FindingKind, doctor, rescue
from holdfast.upkeep._waiting import Keeper
from holdfast.wal import WalAppender
from lsm.tables import SCHEMA, make_table, manifests_of, merged_of, new_shard, rows_of
from shard.test_places import commit_store
from upkeep.stock import take_away

pytestmark = [pytest.mark.requirement("P1"), pytest.mark.requirement("P2")]

OTHER = pa.schema([pa.field("k", pa.int64()), pa.field("country", pa.string())])
WAL_ONLY = ShardWriterConfig(enable_memtable=False)


@pytest.fixture(params=["memory", "log"])
def config(request: pytest.FixtureRequest) -> ShardWriterConfig:
    return WAL_ONLY if request.param == "log" else ShardWriterConfig()


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(4)])


def fresh(table: Any) -> dict[Any, Any]:
    rows = table.to_table().to_pylist()
    found = {row["k"]: row["v"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def arrow(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


# Appends and changes of rows.


def test_an_append_survives_the_merge_of_an_older_tombstone(
    table: Any, config: ShardWriterConfig
) -> None:
    with table.claim_writer(new_shard(), config=config) as writer:
        writer.delete_keys([1])
        assert 1 not in fresh(table)
        done = table.append([{"k": 1, "v": "again"}], txn=("job", 1))
        assert done.applied
        assert fresh(table)[1] == "again"
        writer.put([{"k": 2, "v": "later"}])
    table.merge_log()
    assert rows_of(table) == {0: "base", 1: "again", 2: "later", 3: "base"}
    assert table.append([{"k": 1, "v": "again"}], txn=("job", 1)).applied is False


@pytest.mark.parametrize("verb", ["commit", "write_table", "commit_operation", "namespace"])
def test_every_way_to_append_merges_first_or_refuses(table: Any, verb: str) -> None:
    rows = arrow([{"k": 1, "v": "again"}])
    with table.claim_writer(new_shard()) as writer:
        writer.delete_keys([1])
        if verb == "commit":
            table.commit(lance.fragment.write_fragments(rows, table.dataset(), mode="append"))
        elif verb == "write_table":
            holdfast.write_table(rows, table.uri)
        elif verb == "commit_operation":
            new = lance.fragment.write_fragments(rows, table.dataset(), mode="append")
            operation = lance.LanceOperation.Append(new)
            table.commit_operation(operation, read_version=table.dataset().version)
        else:
            path = Path(table.uri)
            renamed = path.rename(path.with_suffix(".lance"))
            writer.abort()
            moved = holdfast.open_table(renamed)
            tables = holdfast.Namespace(str(path.parent))
            target: Any = {"namespace_client": tables, "table_id": ["t"], "mode": "append"}
            with pytest.raises(OSError, match="unknown"):
                lance.write_dataset(rows, **target)
            moved.merge_log()
            lance.write_dataset(rows, **target)
            assert fresh(moved)[1] == "again"
            return
    table.merge_log()
    assert rows_of(table)[1] == "again"


def test_a_change_by_lance_itself_is_refused_while_rows_wait_and_then_stands(table: Any) -> None:
    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": 1, "v": "waits"}])
        changes: list[Callable[[], Any]] = [
            lambda: table.dataset().delete("k = 1"),
            lambda: table.dataset().update({"v": "'new'"}, where="k = 1"),
            lambda: table.dataset().insert(arrow([{"k": 9, "v": "new"}])),
        ]
        for change in changes:
            with pytest.raises(LogWaitsError, match="merge_log"):
                change()
        table.merge_log()
        table.dataset().delete("k = 1")
        writer.put([{"k": 2, "v": "later"}])
    table.merge_log()
    assert rows_of(table) == {0: "base", 2: "later", 3: "base"}


def test_an_operation_built_elsewhere_is_refused_while_rows_wait(table: Any) -> None:
    read = table.dataset().version
    fragment = table.dataset().get_fragments()[0].delete("k = 1")
    operation = lance.LanceOperation.Delete([fragment], [], "k = 1")
    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": 1, "v": "waits"}])
        with pytest.raises(LogWaitsError) as refused:
            table.commit_operation(operation, read_version=read)
        assert refused.value.next_step is NextStep.REBUILD
    assert fresh(table)[1] == "waits"


def test_a_table_without_a_key_takes_rows_beside_its_log(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", [{"k": 1, "v": "a"}], key=())
    with table.claim_writer(new_shard(), config=WAL_ONLY) as writer:
        writer.put([{"k": 1, "v": "b"}])
        table.append([{"k": 1, "v": "c"}])
    assert merged_of(table) == {}
    assert sorted(table.to_table()["v"].to_pylist()) == ["a", "b", "c"]


def test_many_appends_beside_a_live_writer_all_stand(table: Any) -> None:
    with table.claim_writer(new_shard()) as writer:
        for number in range(5):
            writer.put([{"k": 100 + number, "v": "put"}])
            writer.delete_keys([200 + number])
            table.append([{"k": 200 + number, "v": "appended"}])
    table.merge_log()
    found = rows_of(table)
    assert [found[200 + number] for number in range(5)] == ["appended"] * 5
    assert [found[100 + number] for number in range(5)] == ["put"] * 5


def test_a_rescued_append_stands(table: Any) -> None:
    lance.write_dataset(arrow([{"k": 9, "v": "lost"}]), table.uri, mode="append")
    take_away(table.uri, lance.dataset(table.uri).version)
    with table.claim_writer(new_shard()) as writer:
        writer.delete_keys([9])
        (lost,) = doctor(table.uri).candidates
        assert len(rescue(table.uri, ids=[lost.id], confirm=True).rescued) == 1
    table.merge_log()
    assert rows_of(table)[9] == "lost"


@pytest.mark.parametrize("place", ["commit store", "honest s3", "ignoring s3"])
def test_the_rule_holds_on_every_kind_of_store(
    tmp_path: Path, place: str, faulty_s3_process: Callable[..., FaultyS3Process]
) -> None:
    uri, options = str(tmp_path / "t"), {}
    if place != "commit store":
        server = faulty_s3_process(conditions=place.split(maxsplit=1)[0])
        uri, options = server.url("bucket", "t"), dict(server.storage_options())
    url = None if place == "honest s3" else commit_store(tmp_path)
    table = holdfast.create_table(
        uri, SCHEMA, primary_key=["k"], commit_store=url, storage_options=options
    )
    other = holdfast.open_table(uri, options)
    table.append([{"k": 1, "v": "base"}])
    with table.claim_writer("unsharded", config=WAL_ONLY) as writer:
        writer.delete_keys([1])
        table.append([{"k": 1, "v": "again"}])
        writer.delete_keys([2])
        other.append([{"k": 2, "v": "other"}])
        table.append([{"k": 3, "v": "third"}])
        assert fresh(other) == {1: "again", 2: "other", 3: "third"}
        writer.put([{"k": 2, "v": "waits"}])
        rows = arrow([{"k": 7, "v": "new"}])
        holdfast.write_table(rows, uri, mode="overwrite", storage_options=options)
        writer.put([{"k": 8, "v": "behind"}])
        table.append([{"k": 9, "v": "last"}])
    expected = {7: "new", 8: "behind", 9: "last"}
    assert fresh(table) == expected
    table.merge_log()
    assert other.to_table(freshness="base").num_rows == len(expected)
    assert fresh(other) == expected


# Overwrites and restores.


def overwrite(table: Any, how: str, rows: pa.Table) -> None:
    if how == "write_table":
        holdfast.write_table(rows, table.uri, mode="overwrite")
        return
    new = lance.fragment.write_fragments(rows, table.dataset(), mode="overwrite")
    operation = lance.LanceOperation.Overwrite(rows.schema, new)
    table.commit_operation(operation, read_version=table.dataset().version)


@pytest.mark.parametrize("how", ["write_table", "commit_operation"])
def test_an_overwrite_supersedes_what_waited_and_nothing_else(
    table: Any, config: ShardWriterConfig, how: str
) -> None:
    shard = new_shard()
    with table.claim_writer(shard, config=config) as writer:
        writer.put([{"k": 1, "v": "merged"}])
        table.merge_log()
        writer.put([{"k": 1, "v": "old"}, {"k": 7, "v": "old"}])
        rows = arrow([{"k": 1, "v": "new"}], table.schema)
        overwrite(table, how, rows)
        assert fresh(table) == {1: "new"}
        writer.put([{"k": 2, "v": "behind"}])
        assert fresh(table) == {1: "new", 2: "behind"}
    assert fresh(table) == {1: "new", 2: "behind"}
    table.merge_log()
    assert rows_of(table) == {1: "new", 2: "behind"}
    assert merged_of(table)[shard] == manifests_of(table, shard).latest().current_generation - 1  # type: ignore[union-attr]


def test_an_overwrite_with_other_columns_locks_writers_out_first(table: Any) -> None:
    shard = new_shard()
    writer = table.claim_writer(shard)
    writer.put([{"k": 1, "v": "email"}])
    holdfast.write_table(arrow([{"k": 1, "country": "NO"}], OTHER), table.uri, mode="overwrite")
    with pytest.raises(FencedError):
        writer.put([{"k": 2, "v": "email"}])
    assert table.to_table().to_pylist() == [{"k": 1, "country": "NO"}]
    with table.claim_writer(shard) as again:
        again.put([{"k": 2, "country": "SE"}])
        assert table.count() == 2
    table.merge_log()
    rows = sorted(table.to_table().to_pylist(), key=lambda row: row["k"])
    assert rows == [{"k": 1, "country": "NO"}, {"k": 2, "country": "SE"}]


def test_a_changed_copy_of_the_keeper_does_not_take_its_place(table: Any) -> None:
    kept = keeper_of(table.versions)
    mutate("holdfast.upkeep._waiting", ("_TRIES = 4", "_TRIES = 5"))
    assert type(keeper_of(table.versions)) is type(kept) is Keeper


def test_a_writer_that_claims_in_the_last_moment_is_not_read_as_other_columns(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims behind the overwrite's fence, and before the overwrite is decided."""
    shard = new_shard()
    writers: list[Any] = []
    tries: list[bool] = []
    with table.claim_writer(shard) as writer:
        writer.put([{"k": 1, "v": "email"}])
    supersede = Keeper.supersede

    def slow(keeper: Keeper, *, fence: bool) -> dict[str, int]:
        found = supersede(keeper, fence=fence)
        tries.append(fence)
        if not writers:
            writers.append(holdfast.open_table(table.uri).claim_writer(shard))
            writers[0].put([{"k": 2, "v": "email"}])
        return found

    monkeypatch.setattr(Keeper, "supersede", slow)
    holdfast.write_table(arrow([{"k": 1, "country": "NO"}], OTHER), table.uri, mode="overwrite")
    assert tries == [True], "an overwrite that is tried again supersedes the row, too"
    expected = [{"k": 1, "country": "NO"}, {"k": 2, "country": None}]
    assert sorted(table.to_table().to_pylist(), key=lambda row: row["k"]) == expected
    with pytest.raises(FencedError, match="columns"):
        writers[0].flush()
    table.merge_log()
    assert sorted(table.to_table().to_pylist(), key=lambda row: row["k"]) == expected


def test_a_claimer_that_slept_through_an_overwrite_writes_for_its_columns(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = WalAppender.claim
    slept: list[bool] = []

    def slow(*args: Any, **options: Any) -> WalAppender:
        if not slept:
            slept.append(True)
            rows = arrow([{"k": 1, "country": "NO"}], OTHER)
            holdfast.write_table(rows, table.uri, mode="overwrite")
        return claim(*args, **options)

    shard = new_shard()
    table.claim_writer(shard).close()
    monkeypatch.setattr("holdfast.shard._claims.WalAppender.claim", slow)
    with table.claim_writer(shard) as writer:
        writer.put([{"k": 2, "country": "SE"}])
    assert table.lookup([2]).to_pylist() == [{"k": 2, "country": "SE"}]


def test_rows_for_other_columns_are_not_kept(plain: Any) -> None:
    with plain.claim_writer(new_shard()) as writer:
        writer.put([{"k": 1, "v": "email"}])
    before = plain.dataset().version
    key = pa.schema([plain.schema.field("k"), OTHER.field("country")])
    lance.write_dataset(arrow([{"k": 1, "country": "NO"}], key), plain.uri, mode="overwrite")
    with pytest.raises(InvalidInputError, match="other columns"):
        plain.reset_log("keep", confirm=True)
    plain.dataset(before).restore()
    assert fresh(plain) == {1: "email"}


def test_an_overwrite_keeps_how_rows_are_divided(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("v", pa.string()), pa.field("k", pa.int64())])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    table.prepare_writers(sharding=holdfast.Sharding.bucket("k", 2))
    with table.claim_writer("bucket-0") as writer:
        (_, rows), *_ = [
            part
            for part in table.router().split([{"k": n, "v": "x"} for n in range(9)])
            if part[0].shard_id == writer.shard_id
        ]
        writer.put(rows)
    holdfast.write_table(arrow([{"k": 1, "country": "NO"}], OTHER), table.uri, mode="overwrite")
    again = holdfast.open_table(table.uri)
    parts = again.router().split([{"k": n, "country": "x"} for n in range(9)])
    assert sum(part.num_rows for _, part in parts) == 9
    assert len(parts) == 2


@pytest.mark.parametrize("how", ["dataset", "commit_operation"])
def test_a_restore_supersedes_what_waited_and_keeps_the_marker(table: Any, how: str) -> None:
    shard = new_shard()
    before = table.dataset().version
    with table.claim_writer(shard) as writer:
        writer.put([{"k": 1, "v": "merged"}])
        table.merge_log()
        writer.put([{"k": 2, "v": "waits"}])
        if how == "dataset":
            table.dataset(before).restore()
        else:
            table.commit_operation(
                lance.LanceOperation.Restore(before), read_version=table.dataset().version
            )
        assert fresh(table) == dict.fromkeys(range(4), "base")
        writer.put([{"k": 3, "v": "behind"}])
    assert fresh(table)[3] == "behind"
    table.merge_log()
    assert rows_of(table) == {0: "base", 1: "base", 2: "base", 3: "behind"}


def test_a_restore_to_before_there_was_a_log_keeps_the_log(tmp_path: Path) -> None:
    table: Any = holdfast.create_table(tmp_path / "t", SCHEMA, primary_key=["k"])
    table.append([{"k": 1, "v": "base"}])
    before = table.dataset().version
    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": 1, "v": "waits"}])
        table.dataset(before).restore()
        assert fresh(table) == {1: "base"}
        writer.put([{"k": 1, "v": "behind"}])
    assert fresh(table) == {1: "behind"}


# Past Holdfast.


def stock_overwrite(table: Any, *, initialize: bool = False) -> None:
    lance.write_dataset(arrow([{"k": 1, "v": "stock"}], table.schema), table.uri, mode="overwrite")
    if initialize:
        lance.dataset(table.uri).initialize_mem_wal(maintained_indexes=[])


@pytest.fixture
def plain(tmp_path: Path) -> Any:
    """A table whose versions the file system decides: stock writers are welcome."""
    return make_table(tmp_path / "t", [{"k": 1, "v": "base"}])


@pytest.mark.parametrize("initialize", [False, True])
@pytest.mark.parametrize("merged", [False, True])
def test_stocks_own_overwrite_is_noticed_everywhere(
    plain: Any, initialize: bool, merged: bool
) -> None:
    table, shard = plain, new_shard()
    writer = table.claim_writer(shard)
    writer.put([{"k": 1, "v": "older"}])
    if merged:
        table.merge_log()
    writer.put([{"k": 2, "v": "waits"}])
    stock_overwrite(table, initialize=initialize)
    for act in (
        table.to_table,
        table.count,
        table.compact_lsm,
        table.merge_log,
        lambda: table.flush_log(shard),
        lambda: table.claim_writer(shard),
        writer.flush,
        lambda: writer.put([{"k": 3, "v": "lost?"}]),
    ):
        with pytest.raises(LogLostError, match="wal reset"):
            act()
    assert table.to_table(freshness="base").to_pylist() == [{"k": 1, "v": "stock"}]


def test_a_writer_without_memtables_notices_it_while_it_writes(
    plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.shard._engine.ENTRIES_UNCHECKED", 3)
    writer = plain.claim_writer(new_shard(), config=WAL_ONLY)
    stock_overwrite(plain)
    for number in range(2):
        writer.put([{"k": number, "v": "x"}])
    with pytest.raises(LogLostError):
        writer.put([{"k": 3, "v": "x"}])


@pytest.mark.parametrize("waiting", ["keep", "discard"])
@pytest.mark.parametrize("initialize", [False, True])
def test_the_way_out_keeps_what_waits_or_gives_it_up(
    plain: Any, waiting: Any, initialize: bool, cli: Cli
) -> None:
    table, shard = plain, new_shard()
    with table.claim_writer(shard) as writer:
        writer.put([{"k": 1, "v": "older"}])
        writer.flush()
    with table.claim_writer(shard, config=WAL_ONLY) as writer:
        writer.put([{"k": 2, "v": "waits"}])
    stock_overwrite(table, initialize=initialize)
    assert "nothing was changed" in cli.text("wal", "reset", table.uri, f"--{waiting}")
    with pytest.raises(LogLostError):
        table.to_table()
    assert "2 rows are" in cli.text("wal", "reset", table.uri, f"--{waiting}", "--confirm")
    expected = {1: "older", 2: "waits"} if waiting == "keep" else {1: "stock"}
    assert fresh(table) == expected
    with table.claim_writer(shard) as again:
        again.put([{"k": 3, "v": "new"}])
    table.merge_log()
    assert rows_of(table) == {**expected, 3: "new"}


@pytest.mark.parametrize("waiting", ["keep", "discard"])
def test_the_way_out_after_a_restore_behind_what_is_drained(plain: Any, waiting: Any) -> None:
    table, shard = plain, new_shard()
    before = table.dataset().version
    with table.claim_writer(shard) as writer:
        writer.put([{"k": 1, "v": "drained"}])
        table.merge_log()
        writer.put([{"k": 2, "v": "waits"}])
    stock: Any = lance.dataset(table.uri, version=before)
    stock.restore()
    with pytest.raises(LogLostError, match="wal reset"):
        table.to_table()
    assert table.reset_log(waiting, confirm=True).applied
    kept = {2: "waits"} if waiting == "keep" else {}
    assert fresh(table) == {1: "base", **kept}
    table.merge_log()
    assert rows_of(table) == {1: "base", **kept}


def test_stocks_overwrite_is_undone_by_a_restore_with_all_that_waits(plain: Any) -> None:
    with plain.claim_writer(new_shard()) as writer:
        writer.put([{"k": 2, "v": "waits"}])
    before = plain.dataset().version
    stock_overwrite(plain)
    plain.dataset(before).restore()
    assert fresh(plain) == {1: "base", 2: "waits"}


def test_a_reset_that_was_killed_is_finished_by_the_next(
    plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = new_shard()
    with plain.claim_writer(shard) as writer:
        writer.put([{"k": 1, "v": "older"}])
    stock_overwrite(plain)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.upkeep._reset_log.touch", _killed)
        with pytest.raises(KeyboardInterrupt):
            plain.reset_log("discard", confirm=True)
    with pytest.raises(LogLostError):
        plain.claim_writer(shard)
    plain.reset_log("discard", confirm=True)
    with plain.claim_writer(shard) as again:
        again.put([{"k": 2, "v": "new"}])
    assert fresh(plain) == {1: "stock", 2: "new"}
    plain.merge_log()
    assert rows_of(plain) == {1: "stock", 2: "new"}


def _killed(*_: object) -> int:
    raise KeyboardInterrupt


def test_the_marker_is_checked_in_the_version_that_is_decided(table: Any) -> None:
    shard = new_shard()
    with table.claim_writer(shard) as writer:
        writer.put([{"k": 1, "v": "waits"}])
    new = lance.fragment.write_fragments(arrow([{"k": 9, "v": "x"}]), table.dataset())
    operation = lance.LanceOperation.Update(new_fragments=list(new))
    read = int(table.dataset().version)
    with pytest.raises(LogWaitsError):
        table.writes.commit_operation(operation, read_version=read, after={shard: 1})
    table.merge_log()
    assert table.writes.commit_operation(operation, read_version=read, after={shard: 1}).applied


def test_doctor_tells_of_a_lost_log_and_of_writes_past_it(plain: Any) -> None:
    with plain.claim_writer(new_shard()) as writer:
        writer.put([{"k": 2, "v": "waits"}])
    assert kinds(plain) == set()
    lance.write_dataset(arrow([{"k": 2, "v": "stock"}], plain.schema), plain.uri, mode="append")
    assert kinds(plain) == {FindingKind.PAST_LOG}
    assert doctor(plain.uri).healthy
    stock_overwrite(plain)
    assert FindingKind.LOG_LOST in kinds(plain)
    plain.reset_log("keep", confirm=True)
    assert doctor(plain.uri).healthy


def kinds(table: Any) -> set[FindingKind]:
    return {one.kind for one in doctor(table.uri).findings} - {FindingKind.STRAY}
