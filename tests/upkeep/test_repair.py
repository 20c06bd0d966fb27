"""`holdfast repair`: the documented command on a damaged table, and writing goes on afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import connect_commit_store, open_arbiter, read_pin, repin
from holdfast.cli import main
from holdfast.core import TableCore
from holdfast.errors import HoldfastError, InvalidInputError, PinMismatchError
from holdfast.formats import PIN_PATH, version_name
from holdfast.formats._wal_names import entry_name, shard_manifest_name
from holdfast.storage import ObjectStore, open_store
from holdfast.testing import FaultyS3
from holdfast.upkeep import RepairState, doctor, repair
from holdfast.wal import Log, ShardManifests, collect_log

pytestmark = pytest.mark.requirement("O1", "P1", "P2")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
KINDS = ["local sqlite", "local postgres", "s3 sqlite", "s3 postgres"]
TWO = pytest.mark.parametrize("place", ["local sqlite", "s3 postgres"], indirect=True)


@dataclass
class Place:
    """A table with its commit store, and what can happen to the two."""

    uri: str
    options: dict[str, str]
    commit_store: str
    spare: str
    folder: Path

    @property
    def store(self) -> ObjectStore:
        return open_store(self.uri, self.options)

    @property
    def table_id(self) -> str:
        pin = read_pin(self.store)
        assert pin is not None
        return pin.table_id

    def open(self) -> holdfast.Table:
        return holdfast.open_table(self.uri, self.options)

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        pairs = [word for k, v in self.options.items() for word in ("-o", f"{k}={v}")]
        with _printed() as lines:
            code = main(["repair", self.uri, *words, *pairs, "--json"])
        return code, json.loads("\n".join(lines))

    @contextmanager
    def database(self) -> Iterator[Callable[..., Any]]:
        """Yield a function that runs SQL in the commit store."""
        url = self.commit_store
        if url == "sqlite":
            url = f"sqlite:///{self.uri}/_holdfast/commits.db"
        store: Any = connect_commit_store(url)
        with store._use() as connection:

            def run(statement: str, *values: object) -> Any:
                if hasattr(connection, "exec_driver_sql"):
                    return connection.exec_driver_sql(statement.replace("?", "%s"), values)
                return connection.execute(statement, values)

            yield run
            connection.commit()
        store.close()

    def take_backup(self) -> dict[str, list[tuple[Any, ...]]]:
        with self.database() as run:
            return {
                name: [tuple(row) for row in run(f"SELECT * FROM {name}").fetchall()]
                for name in ("holdfast_records", "holdfast_boundaries")
            }

    def restore_backup(self, backup: dict[str, list[tuple[Any, ...]]]) -> None:
        with self.database() as run:
            for name, rows in backup.items():
                run(f"DELETE FROM {name}")
                marks = "?, ?, ?" if name == "holdfast_records" else "?, ?"
                for row in rows:
                    run(f"INSERT INTO {name} VALUES ({marks})", *row)

    def lose_commit_store(self) -> None:
        """Lose everything that it knew; a server keeps answering, as one that was set up anew."""
        if self.commit_store == "sqlite":
            for file in Path(self.uri, "_holdfast").glob("commits.db*"):
                file.unlink()
            return
        with self.database() as run:
            for name in ("records", "boundaries"):
                run(f"DELETE FROM holdfast_{name} WHERE series LIKE ?", f"{self.table_id}/%")
        self.set_identity(holdfast.new_token())

    def set_identity(self, identity: str) -> None:
        with self.database() as run:
            run("UPDATE holdfast_meta SET value = ? WHERE name = 'identity'", identity)


@contextmanager
def _printed() -> Iterator[list[str]]:
    import contextlib
    import io

    out, lines = io.StringIO(), list[str]()
    with contextlib.redirect_stdout(out):
        yield lines
    lines += out.getvalue().splitlines()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return _make_place(request, tmp_path, monkeypatch, request.param)


@pytest.fixture
def kept_identity(place: Place) -> Iterator[None]:
    """Give a server that other tests use its identity back."""
    if place.commit_store == "sqlite":
        yield
        return
    store: Any = connect_commit_store(place.commit_store)
    identity = store.identity()
    store.close()
    yield
    place.set_identity(identity)


def _make_place(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> Place:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    where, what = kind.split()
    uri, options = str(folder / "t.lance"), dict[str, str]()
    commit_store = "sqlite" if where == "local" else f"sqlite:///{folder}/c.db?single_host=true"
    spare = "sqlite" if where == "local" else f"sqlite:///{folder}/n.db?single_host=true"
    if where == "s3":
        start: Callable[..., FaultyS3] = request.getfixturevalue("faulty_s3")
        server = start(conditions="ignoring")
        uri, options = server.url("bucket", "t.lance"), dict(server.storage_options())
    if what == "postgres":
        commit_store = request.getfixturevalue("postgres").url
        spare = f"sqlite:///{folder}/n.db?single_host=true"
        monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", commit_store)
    for url in {commit_store, spare} - {"sqlite"}:
        store: Any = connect_commit_store(url)
        store.set_up()
        store.close()
    return Place(uri, options, commit_store, spare, folder)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "text": [f"w{n}" for n in ids]}, schema=SCHEMA)


def make_table(place: Place) -> str:
    """Give a table versions, a shard with a collected log, SSTables and rows in its log."""
    table = holdfast.create_table(
        place.uri,
        SCHEMA,
        primary_key=["id"],
        commit_store=place.commit_store,
        storage_options=place.options,
    )
    table.append(rows(1, 2), txn="one")
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(3))
        writer.put(rows(4))
        writer.flush()
    (shard,) = table.shards()
    arbiter = open_arbiter(place.uri, place.options)
    collect_log(TableCore(place.store, arbiter), shard, confirm=True)
    arbiter.close()
    table.close()
    return str(shard)


def write_more(place: Place) -> None:
    table = place.open()
    table.append(rows(5), txn="two")
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(6))
    table.append(rows(8), txn="three")
    (shard,) = table.shards()
    with table.claim_appender(shard) as appender:  # its rows stay in the log
        appender.append(rows(7).to_batches()[0])
        appender.append(rows(9).to_batches()[0])
    table.close()


ALL = (1, 2, 3, 4, 5, 6, 7, 8, 9)


def check_goes_on(place: Place, ids: tuple[int, ...] = ALL) -> None:
    """Read all rows, and write in every way."""
    table = place.open()
    assert sorted(table.to_table()["id"].to_pylist()) == sorted(ids)
    for txn in ("one", "two", "three"):
        assert not table.append(rows(1), txn=txn).applied
    assert table.append(rows(20), txn="four").applied
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(21))
        writer.flush()
        writer.put(rows(22))
    table.compact_lsm()
    table.append(rows(23))
    table.close()
    again = place.open()
    assert sorted(again.to_table()["id"].to_pylist()) == sorted([*ids, 20, 21, 22, 23])
    again.close()
    assert doctor(place.uri, place.options).healthy
    assert repair(place.uri, place.options).steps == ()


def is_refused(place: Place) -> bool:
    try:
        table = place.open()
        table.append(rows(99))
    except HoldfastError:
        return True
    return False


def objects(place: Place) -> dict[str, bytes]:
    store = place.store
    return {
        info.path: store.get(info.path) for info in store.list() if "commits.db" not in info.path
    }


def test_a_commit_store_that_was_set_back(place: Place) -> None:
    make_table(place)
    backup = place.take_backup()
    write_more(place)
    place.store.delete([version_name(2).path])  # as vacuum does: it must not come back
    place.restore_backup(backup)
    assert is_refused(place)
    before = objects(place)

    code, plan = place.run()
    assert code == 1
    assert {step["kind"] for step in plan["steps"]} == {"records"}
    assert {step["state"] for step in plan["steps"]} == {"planned"}
    assert len(plan["steps"]) == 3  # versions, the shard's manifests, its log
    assert plan["left"] == []
    assert objects(place) == before
    assert is_refused(place)

    code, done = place.run("--confirm")
    assert (code, done["whole"]) == (0, True)
    assert objects(place) == before
    check_goes_on(place)


@pytest.mark.usefixtures("kept_identity")
def test_a_commit_store_that_is_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(place)
    write_more(place)
    first_id = place.table_id
    place.lose_commit_store()
    assert is_refused(place)

    code, plan = place.run()
    assert code == 1
    (step,) = plan["steps"]
    assert (step["kind"], step["state"]) == ("commit_store", "choose")
    assert "--new-commit-store" in step["commands"][0]
    code, plan = place.run("--new-commit-store", place.spare)
    assert (code, plan["steps"][0]["state"]) == (1, "planned")
    assert is_refused(place)

    code, done = place.run("--new-commit-store", place.spare, "--confirm")
    assert (code, done["whole"]) == (0, True), done
    assert place.table_id != first_id
    code, again = place.run("--new-commit-store", place.spare, "--confirm")
    assert (code, again["whole"]) == (0, True)  # the same command finishes what was cut off

    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    check_goes_on(place)


@TWO
@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_a_pin_that_the_commit_store_still_knows(place: Place, damage: str) -> None:
    make_table(place)
    write_more(place)
    first_id = place.table_id
    if damage == "gone":
        place.store.delete([PIN_PATH])
    else:
        place.store.put(PIN_PATH, b'{"v": 1, "table')
    assert is_refused(place)
    words = [] if place.commit_store == "sqlite" else ["--commit-store", place.commit_store]
    code, plan = place.run(*words)
    assert (code, plan["steps"][0]["kind"]) == (1, "pin")
    assert is_refused(place)
    code, done = place.run(*words, "--confirm")
    assert (code, done["whole"]) == (0, True), done
    assert place.table_id == first_id
    check_goes_on(place)


@pytest.mark.parametrize(
    ("what", "damage"),
    [("version", "damaged"), ("old version", "gone"), ("log entry", "damaged")],
)
@pytest.mark.parametrize("place", ["s3 postgres"], indirect=True)
def test_an_object_that_its_record_still_holds(place: Place, what: str, damage: str) -> None:
    shard = make_table(place)
    write_more(place)
    arbiter = open_arbiter(place.uri, place.options)
    manifest = ShardManifests(TableCore(place.store, arbiter), shard).latest()
    newest = arbiter.newest("versions")  # type: ignore[union-attr]
    assert manifest is not None
    assert newest is not None
    path = {
        "version": version_name(newest).path,
        "old version": version_name(newest - 1).path,
        "shard manifest": shard_manifest_name(shard, manifest.version).path,
        "log entry": entry_name(
            shard, max(Log(TableCore(place.store, arbiter), shard).list_entries()) - 1
        ).path,
    }[what]
    arbiter.close()
    whole = place.store.get(path)
    if damage == "gone":
        place.store.delete([path])
    else:
        place.store.put(path, whole[:20])

    code, plan = place.run()
    assert (code, [step["path"] for step in plan["steps"]]) == (1, [path])
    code, done = place.run("--confirm")
    assert (code, done["whole"]) == (0, True), done
    assert place.store.get(path) == whole
    if damage == "damaged":
        (kept,) = done["steps"][0]["kept"]
        assert place.store.get(kept) == whole[:20]
    check_goes_on(place)


@pytest.mark.parametrize("kind", ["local sqlite"])
@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_a_hole_in_a_log_is_closed(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    damage: str,
) -> None:
    """No record holds the entry: its rows are given up, and the plan says so."""
    place = _make_place(request, tmp_path, monkeypatch, kind)
    shard = make_table(place)
    table = place.open()
    with table.claim_appender(shard) as appender:
        positions = [appender.append(rows(n).to_batches()[0]).position for n in (30, 31, 32)]
    table.close()
    arbiter: Any = open_arbiter(place.uri, place.options)
    arbiter.accept(f"log/{shard}", positions[-1])  # the bodies leave the commit store
    arbiter.close()
    path = entry_name(shard, positions[1]).path
    if damage == "gone":
        place.store.delete([path])
    else:
        place.store.put(path, b"nonsense")
    code, plan = place.run()
    (step,) = plan["steps"]
    assert (code, step["kind"], "rows" in step["loses"]) == (1, "log", True)
    code, done = place.run("--confirm")
    assert (code, done["whole"]) == (0, True), done
    table = place.open()
    assert sorted(table.to_table()["id"].to_pylist()) == [1, 2, 3, 4, 30, 32]
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(33))
    assert table.count() == 7
    table.close()


@TWO
@pytest.mark.parametrize("how", ["copied", "moved"])
def test_a_table_that_was_copied_or_moved(place: Place, how: str) -> None:
    make_table(place)
    write_more(place)
    copy = _copied(place)
    if how == "moved":
        place.store.delete([info.path for info in place.store.list()])
    with pytest.raises(PinMismatchError):
        copy.open()
    code, plan = copy.run()
    (step,) = plan["steps"]
    assert (code, step["kind"], step["state"]) == (1, "address", "choose")
    assert any(f"--{how} --confirm" in command for command in step["commands"])
    assert copy.run(f"--{how}")[0] == 1
    with pytest.raises(PinMismatchError):
        copy.open()
    code, done = copy.run(f"--{how}", "--confirm")
    assert (code, done["whole"]) == (0, True), done
    check_goes_on(copy)
    if how == "copied":
        check_goes_on(place)


def _copied(place: Place) -> Place:
    uri = place.uri.replace("t.lance", "copy.lance")
    copy = Place(uri, place.options, place.commit_store, place.spare, place.folder)
    if place.options:
        for info in place.store.list():
            copy.store.put(info.path, place.store.get(info.path))
    else:
        shutil.copytree(place.uri, uri)
    return copy


def test_a_damaged_pin_of_a_table_without_a_commit_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = Place(str(tmp_path / "t.lance"), {}, "", "", tmp_path)
    table = holdfast.create_table(place.uri, SCHEMA, primary_key=["id"])
    for txn, ids in (("one", ALL[:4]), ("two", ALL[4:6]), ("three", ALL[6:])):
        table.append(rows(*ids), txn=txn)
    table.close()
    first_id = place.table_id
    place.store.put(PIN_PATH, place.store.get(PIN_PATH)[:-3])
    code, plan = place.run()
    assert (code, plan["steps"][0]["state"]) == (1, RepairState.CHOOSE.value)
    code, done = place.run("--conditional-put", "--confirm")
    assert (code, done["whole"]) == (0, True), done
    assert place.table_id == first_id  # the damaged bytes still told it
    check_goes_on(place)


@TWO
def test_a_commit_store_that_answers_is_not_replaced(place: Place) -> None:
    make_table(place)
    for confirm in (False, True):
        with pytest.raises(InvalidInputError, match="store move"):
            repair(place.uri, place.options, new_commit_store=place.spare, confirm=confirm)


@TWO
def test_what_a_stranger_wrote_is_left_alone(place: Place) -> None:
    """Only what was decided once counts as forgotten."""
    make_table(place)
    newest = max(int(place.open().dataset().version), 1)
    body = place.store.get(version_name(newest).path)
    place.store.put(version_name(newest + 1).path, body)
    before = objects(place)
    code, done = place.run("--confirm")
    assert (code, done["steps"]) == (1, [])
    assert [one["kind"] for one in done["left"]] == ["foreign_version"]
    assert objects(place) == before


@pytest.mark.parametrize("place", ["local sqlite"], indirect=True)
def test_versions_that_were_cleaned_up_stay_away(place: Place) -> None:
    make_table(place)
    (first, *_) = [info.path for info in place.store.list("data")]
    place.store.delete([version_name(2).path, first])
    assert [step.path for step in repair(place.uri, place.options).steps] == []


@pytest.mark.parametrize("place", ["local sqlite"], indirect=True)
def test_a_copy_whose_log_was_collected_goes_on(place: Place) -> None:
    """Its records begin behind what was flushed, not behind the last entry that is there."""
    make_table(place)
    copy = _copied(place)
    repin(copy.uri, copy.options, how="copied").close()
    table = copy.open()
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(21))
    assert sorted(table.to_table()["id"].to_pylist()) == [1, 2, 3, 4, 21]
    table.close()
