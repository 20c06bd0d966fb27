"""A copy of a table with shards, logs, SSTables and an open index build goes on by itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import connect_commit_store, repin
from holdfast.errors import PinMismatchError, StaleHandleError
from holdfast.formats import version_name
from holdfast.index._indexes import Indexes
from holdfast.storage import ObjectStore, open_store
from holdfast.testing import FaultyS3
from holdfast.upkeep import doctor

pytestmark = pytest.mark.requirement("P1", "P2")
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())],
)
OPEN = "11111111-2222-4333-8444-555555555555"
MERGED = "22222222-2222-4333-8444-555555555555"


class Places:
    """Where tables are, and how other programs copy one: `cp -r`, `mc mirror`."""

    def __init__(self, folder: Path, commit_store: str | None, servers: list[FaultyS3]) -> None:
        self.commit_store = commit_store
        self._servers = servers
        self._folder = folder

    def uri(self, number: int) -> str:
        if self._servers:
            return self._servers[number].url("bucket", "t")
        return str(self._folder / f"t{number}")

    def options(self, number: int) -> dict[str, str]:
        return dict(self._servers[number].storage_options()) if self._servers else {}

    def store(self, number: int) -> ObjectStore:
        return open_store(self.uri(number), self.options(number))

    def create(self, number: int) -> holdfast.Table:
        return holdfast.create_table(
            self.uri(number),
            SCHEMA,
            primary_key=["id"],
            commit_store=self.commit_store,
            storage_options=self.options(number),
        )

    def open(self, number: int) -> holdfast.Table:
        return holdfast.open_table(self.uri(number), self.options(number))

    def copy(self) -> None:
        if not self._servers:
            shutil.copytree(self.uri(0), self.uri(1))
            return
        here, there = self.store(0), self.store(1)
        for info in here.list():
            there.put(info.path, here.get(info.path))

    def remove(self, number: int) -> None:
        store = self.store(number)
        store.delete([info.path for info in store.list()])
        if not self._servers:
            shutil.rmtree(self.uri(number))


@pytest.fixture(params=["embedded", "postgres", "mariadb", "redis", "ignoring s3", None])
def places(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Places:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    servers: list[FaultyS3] = []
    url: str | None = f"sqlite:///{tmp_path}/decisions.db?single_host=true"
    if request.param == "embedded":
        url = "sqlite"
    elif request.param in {"postgres", "mariadb", "redis"}:
        name = "redis_server" if request.param == "redis" else request.param
        url = request.getfixturevalue(name).url
        monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", str(url))
    elif request.param == "ignoring s3":
        start: Callable[..., FaultyS3] = request.getfixturevalue("faulty_s3")
        servers = [start(conditions="ignoring") for _ in range(2)]
    elif request.param is None:
        url = None
    if url not in {None, "sqlite"}:
        store: Any = connect_commit_store(str(url))
        store.set_up()
        store.close()
    return Places(tmp_path, url, servers)


def batch(*ids: int) -> pa.RecordBatch:
    texts = [f"word{number}" for number in ids]
    return pa.record_batch({"id": list(ids), "text": texts}, schema=SCHEMA)


def fill(table: holdfast.Table) -> str:
    """Give a table everything that is decided, and return the id of an index build under way."""
    table.append([{"id": 1, "text": "word1"}], txn=("app", 1))
    table.append([{"id": 2, "text": "word2"}])
    with table.claim_writer(MERGED) as writer:
        writer.put(batch(3))
        writer.flush()
    table.compact_lsm()
    table.vacuum(what=["log"], confirm=True)
    with table.claim_writer(OPEN) as writer:
        writer.put(batch(4))
        writer.flush()
        writer.put(batch(5))
    return _begin_build(table)


def _begin_build(table: holdfast.Table) -> str:
    indexes: Indexes = Indexes(table.versions)
    seen: list[str] = []

    class HaltError(Exception):
        """As a driver that dies when its tasks are done."""

    def runner(record: Any) -> Iterator[Any]:
        yield from indexes.run_here(record)
        seen.append(record.build_id)
        raise HaltError

    with pytest.raises(HaltError):
        indexes.create("text", tasks=2, runner=runner, parameters={})
    return seen[0]


def ids(table: holdfast.Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def go_on(table: holdfast.Table, first: int, build: str) -> None:
    """Write to a table in every way."""
    for number, shard in enumerate((OPEN, MERGED)):
        with table.claim_writer(shard) as writer:
            writer.put(batch(first + number))
            writer.flush()
            writer.put(batch(first + 2 + number))
    assert not table.append([{"id": 1, "text": "again"}], txn=("app", 1)).applied
    assert table.append([{"id": first + 4, "text": "more"}], txn=("app", first)).applied
    assert table.finalize_index(build).applied
    table.compact_lsm()
    table.maintain(confirm=True)
    table.vacuum(grace=timedelta(hours=1), confirm=True)


def test_a_copy_and_its_original_both_go_on(places: Places) -> None:
    original = places.create(0)
    build = fill(original)
    before = ids(original)
    assert before == [1, 2, 3, 4, 5]
    places.copy()
    if places.commit_store is not None:
        with pytest.raises(PinMismatchError, match="--copied"):
            places.open(1)
        repin(places.uri(1), places.options(1), how="copied")
    copy = places.open(1)
    assert ids(copy) == before
    go_on(copy, 10, build)
    assert ids(original) == before
    go_on(original, 20, build)
    assert ids(places.open(1)) == [*before, 10, 11, 12, 13, 14]
    assert ids(places.open(0)) == [*before, 20, 21, 22, 23, 24]
    for number, found in ((0, "word21"), (1, "word11")):
        table = places.open(number)
        assert table.search("text", found).num_rows == 1
        assert doctor(places.uri(number), places.options(number)).healthy


@pytest.mark.parametrize("places", ["embedded", "sqlite", "ignoring s3"], indirect=True)
def test_a_copy_is_made_anew_under_a_handle(places: Places) -> None:
    """What retires a table's id finds the copy's by its place."""
    places.create(0).append([{"id": 1, "text": "x"}])
    places.copy()
    repin(places.uri(1), places.options(1), how="copied")
    stale = places.open(1)
    stale.append([{"id": 6, "text": "x"}])
    version = int(stale.dataset().version)
    late = places.store(1).get(version_name(version).path)
    places.remove(1)
    made = places.create(1)
    while made.append([{"id": 50, "text": "x"}]).version < version:
        pass
    with pytest.raises(StaleHandleError):
        stale.append([{"id": 66, "text": "x"}])
    if places.commit_store != "sqlite":  # an embedded one goes with its table, and what it knew
        places.store(1).put(version_name(version).path, late)
    assert set(ids(places.open(1))) == {50}
    assert ids(places.open(0)) == [1]
