"""A table made anew under a handle, where put-if-absent decides and knows no table ids."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.core import TableCore
from holdfast.errors import HoldfastError, StaleHandleError
from holdfast.formats import PIN_PATH
from holdfast.formats._manifest import TABLE_KEY
from holdfast.shard import ShardWriterConfig
from holdfast.storage import ObjectStore
from holdfast.testing import FaultyS3
from holdfast.txn import FreeTxn
from holdfast.wal import ShardManifests
from holdfast.wal._memory import LogMemory, remember

pytestmark = pytest.mark.requirement("P1", "P2")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
SHARD = "11111111-2222-4333-8444-555555555555"


class Lake:
    """A place for a table, and how to empty it past Holdfast."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        self.uri, self.options = uri, options

    def make(self, *numbers: int) -> holdfast.Table:
        table = holdfast.create_table(
            self.uri, SCHEMA, primary_key=["id"], storage_options=self.options
        )
        for number in numbers:
            table.append([{"id": number}])
        return table

    def remove(self, store: ObjectStore) -> None:
        store.delete([info.path for info in store.list()])
        if not self.options:
            shutil.rmtree(self.uri)

    def ids(self) -> list[int]:
        found = holdfast.open_table(self.uri, self.options).to_table()["id"].to_pylist()
        return sorted(found)

    def stock_ids(self) -> list[int]:
        stock = lance.dataset(self.uri, storage_options=self.options or None)
        return sorted(stock.to_table()["id"].to_pylist())


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "local":
        return Lake(str(tmp_path / "t"), {})
    server: FaultyS3 = request.getfixturevalue("faulty_s3")()
    return Lake(server.url("bucket", "t"), dict(server.storage_options()))


def batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": list(ids)}, schema=SCHEMA)


@pytest.mark.parametrize("made", [(10,), (10, 11, 12, 13)], ids=["fewer", "more"])
def test_a_stale_handle_is_told_and_changes_nothing(lake: Lake, made: tuple[int, ...]) -> None:
    stale = lake.make(1, 2)
    opened = stale.dataset(over_log=True)
    shard = stale.claim_writer(SHARD)
    shard.put(batch(3))
    lake.remove(stale.core.store)
    fresh = lake.make(*made)
    writer = fresh.claim_writer(SHARD)
    writer.put(batch(20))
    calls: list[Callable[[], object]] = [
        lambda: stale.append([{"id": 66}]),
        lambda: stale.append([{"id": 66}], txn=("app", 1)),
        lambda: opened.insert(pa.table({"id": [66]}, schema=SCHEMA)),
        lambda: stale.claim_writer(SHARD),
        shard.flush,
    ]
    for call in calls:
        with pytest.raises(StaleHandleError, match="open it again"):
            call()
    for number in range(21, 26):
        writer.put(batch(number))
    writer.close()
    assert lake.ids() == [*made, *range(20, 26)]
    assert lake.stock_ids() == [*made]


def test_a_shard_that_went_with_its_table(lake: Lake) -> None:
    stale = lake.make(1)
    shard = stale.claim_writer(SHARD)
    shard.put(batch(3))
    lake.remove(stale.core.store)
    lake.make(10)
    with pytest.raises(StaleHandleError):
        shard.flush()
    assert lake.ids() == [10]


def test_a_put_into_another_table_s_log_is_refused_on_local_disk(tmp_path: Path) -> None:
    """On an object store a look would cost a request of each put: there it is assumed."""
    lake = Lake(str(tmp_path / "t"), {})
    stale = lake.make(1)
    shard = stale.claim_writer(SHARD)
    lake.remove(stale.core.store)
    fresh = lake.make(10)
    with pytest.raises(StaleHandleError):
        shard.put(batch(66))
    with fresh.claim_writer(SHARD) as writer:
        writer.put(batch(11))
    assert lake.ids() == [10, 11]


def test_a_handle_of_a_removed_table_makes_no_new_one(lake: Lake) -> None:
    stale = lake.make(1)
    lake.remove(stale.core.store)
    with pytest.raises(HoldfastError):
        stale.append([{"id": 66}])
    with pytest.raises(HoldfastError):
        stale.claim_writer(SHARD)
    lake.make(10)
    assert lake.ids() == [10]


class Stalled:
    """A store whose caller stalls before its next put-if-absent below a folder."""

    def __init__(self, inner: Any, folder: str, meanwhile: Callable[[], None]) -> None:
        self._inner, self._folder = inner, folder
        self._meanwhile: Callable[[], None] | None = meanwhile

    def put_if_absent(self, path: str, body: bytes) -> None:
        meanwhile = self._meanwhile
        if meanwhile is not None and path.startswith(self._folder):
            self._meanwhile = None
            meanwhile()
        self._inner.put_if_absent(path, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("verb", ["append", "claim", "flush"])
def test_a_stall_between_the_look_and_the_put(lake: Lake, verb: str) -> None:
    stale = lake.make(1, 2, 3)
    shard = stale.claim_writer(SHARD)
    shard.put(batch(4))
    store = stale.core.store

    def made_anew() -> None:
        lake.remove(store)
        lake.make(10)

    folder = "_versions" if verb == "append" else f"_mem_wal/{SHARD}/manifest"
    arbiter: Any = stale.core.arbiter
    arbiter._store = Stalled(store, folder, made_anew)
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: stale.append([{"id": 66}]),
        "claim": lambda: stale.claim_writer(SHARD),
        "flush": shard.flush,
    }
    with pytest.raises(StaleHandleError):
        calls[verb]()
    assert lake.ids() == lake.stock_ids() == [10]
    with holdfast.open_table(lake.uri, lake.options).claim_writer(SHARD) as writer:
        writer.put(batch(11))
    assert lake.ids() == [10, 11]


@pytest.mark.parametrize("made", [(), (10,), (10, 11), (10, 11, 12), (10, 11, 12, 13)], ids=len)
@pytest.mark.parametrize("txn", [None, ("app", 1)], ids=["plain", "txn"])
def test_a_plain_append_stalls_while_its_table_is_made_anew(
    lake: Lake, made: tuple[int, ...], txn: tuple[str, int] | None
) -> None:
    """The new table has fewer versions, exactly as many, or more than the append built on."""
    stale = lake.make(1, 2)
    stale.append([{"id": 3}])
    store = stale.core.store

    def made_anew() -> None:
        lake.remove(store)
        lake.make(*made)

    arbiter: Any = stale.core.arbiter
    arbiter._store = Stalled(store, "_versions", made_anew)
    with pytest.raises(StaleHandleError, match="open it again"):
        stale.append([{"id": 66}], txn=txn)
    assert lake.ids() == lake.stock_ids() == [*made]
    again = holdfast.open_table(lake.uri, lake.options)
    assert again.append([{"id": 14}], txn=txn).applied
    assert lake.ids() == [*made, 14]


@pytest.mark.parametrize("made", [(10,), (10, 11), (10, 11, 12)], ids=len)
def test_a_plain_append_looks_before_it_puts(lake: Lake, made: tuple[int, ...]) -> None:
    stale = lake.make(1, 2)
    store = stale.core.store
    lake.remove(store)
    lake.make(*made)
    put: list[str] = []
    arbiter: Any = stale.core.arbiter
    arbiter._store = Noted(store, put)
    with pytest.raises(StaleHandleError):
        stale.append([{"id": 66}])
    assert put == []
    assert lake.ids() == lake.stock_ids() == [*made]


def test_a_table_of_stock_s_own_is_another_one(lake: Lake) -> None:
    stale = lake.make(1, 2)
    lake.remove(stale.core.store)
    for _ in range(3):
        lance.write_dataset(
            pa.table({"id": [10]}, schema=SCHEMA),
            lake.uri,
            mode="append",
            storage_options=lake.options or None,
        )
    with pytest.raises(StaleHandleError):
        stale.append([{"id": 66}])
    assert lake.stock_ids() == [10, 10, 10]


def test_a_version_that_does_not_say_its_table_is_no_stranger(lake: Lake) -> None:
    """An adopted table has no id in its versions before the first commit, and goes on."""
    lance.write_dataset(
        pa.table({"id": [1]}, schema=SCHEMA), lake.uri, storage_options=lake.options or None
    )
    table = holdfast.adopt_table(lake.uri, storage_options=lake.options)
    assert TABLE_KEY not in table.dataset().config()
    table.append([{"id": 2}])
    assert table.dataset().config()[TABLE_KEY]
    table.append([{"id": 3}])
    assert lake.ids() == [1, 2, 3]


def test_a_look_comes_before_anything_is_put(lake: Lake) -> None:
    """Else the new table's writers could build on what is taken back a moment later."""
    stale = lake.make(1, 2)
    shard = stale.claim_writer(SHARD)
    shard.put(batch(3))
    opened = stale.dataset(over_log=True)
    store = stale.core.store
    lake.remove(store)
    lake.make(10)
    put: list[str] = []
    arbiter: Any = stale.core.arbiter
    arbiter._store = Noted(store, put)
    calls: list[Callable[[], object]] = [
        lambda: opened.insert(pa.table({"id": [66]}, schema=SCHEMA)),
        lambda: stale.claim_writer(SHARD),
        shard.flush,
    ]
    for call in calls:
        with pytest.raises(StaleHandleError):
            call()
    assert put == []


def test_a_shard_s_manifest_is_decided_only_in_the_table_that_was_opened(lake: Lake) -> None:
    stale = lake.make(1)
    stale.claim_writer(SHARD).close()
    store, arbiter = stale.core.store, stale.core.arbiter
    known = ShardManifests(TableCore(store, arbiter), SHARD)
    owner = known.check(1)
    lake.remove(store)
    lake.make(10).claim_writer(SHARD).close()
    put: list[str] = []
    anything: Any = arbiter
    anything._store = Noted(store, put)
    with pytest.raises(StaleHandleError):
        known.update(owner.writer_epoch, lambda one: replace(one, last_seen=one.last_seen + 1))
    with pytest.raises(StaleHandleError):
        ShardManifests(TableCore(store, arbiter), SHARD).claim()
    assert put == []


def test_a_memory_of_ids_is_put_only_in_the_table_that_was_opened(lake: Lake) -> None:
    """In another table's folder it would be believed, and that table's puts called repeats."""
    stale = lake.make(1)
    store, arbiter = stale.core.store, stale.core.arbiter
    config = ShardWriterConfig(enable_memtable=False)
    with stale.claim_writer(SHARD, config=config) as writer:
        writer.put(batch(2), txn="first")
        writer.put(batch(3), txn="second")
    first, second = (entry.position for entry in stale.tailer(SHARD).entries())
    memory = LogMemory(TableCore(store, arbiter), SHARD)
    memory.read(first)
    memory.add(second, [FreeTxn("second")])
    fresh_memory = LogMemory(TableCore(store, arbiter), "22222222-2222-4333-8444-555555555555")
    kept = {info.path: store.get(info.path) for info in store.list("_mem_wal")}
    notes = {info.path: store.get(info.path) for info in store.list("_holdfast")}
    lake.remove(store)
    new = lake.make(10)
    for path, body in {**kept, **notes}.items():  # the same names, in the new table
        if path != PIN_PATH:
            store.put(path, body)
    before = {info.path for info in store.list()}
    with pytest.raises(StaleHandleError):
        fresh_memory.prepare(1)
    memory.put_flushed(second)  # tells nobody, and puts nothing
    with pytest.raises(StaleHandleError):
        remember(TableCore(store, arbiter), SHARD, second)
    assert {info.path for info in store.list()} == before
    new.close()


class Noted:
    """A store that notes which names somebody tries to create."""

    def __init__(self, inner: Any, put: list[str]) -> None:
        self._inner, self._put = inner, put

    def put_if_absent(self, path: str, body: bytes) -> None:
        self._put.append(path)
        self._inner.put_if_absent(path, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def by_namespace(lake: Lake) -> tuple[Callable[[int], object], Any]:
    """Return an append by stock pylance through a namespace, and the handle that it decides by."""
    lake.uri += ".lance"
    lake.make(1).close()
    root, _, name = lake.uri.rpartition("/")
    namespace = holdfast.Namespace(root, lake.options)

    def append(number: int) -> object:
        return lance.write_dataset(
            pa.table({"id": [number]}, schema=SCHEMA),
            mode="append",
            namespace_client=namespace,
            table_id=[name.removesuffix(".lance")],
            storage_options=lake.options or None,
        )

    append(2)
    append(3)  # upon a version that this namespace made: its bytes are known
    (versions,) = namespace._tables.values()
    return append, versions


@pytest.mark.parametrize("made", [(), (10,), (10, 11), (10, 11, 12), (10, 11, 12, 13)], ids=len)
def test_pylance_stalls_while_its_table_is_made_anew(lake: Lake, made: tuple[int, ...]) -> None:
    """Between the look and the put; the new table has fewer, as many or more versions."""
    append, versions = by_namespace(lake)
    store = versions.core.store

    def made_anew() -> None:
        lake.remove(store)
        lake.make(*made).close()

    versions.core.arbiter._store = Stalled(store, "_versions", made_anew)
    with pytest.raises((HoldfastError, OSError, RuntimeError)):
        append(66)
    assert lake.ids() == lake.stock_ids() == [*made]
    append(14)
    assert lake.ids() == lake.stock_ids() == [*made, 14]


def test_a_look_comes_before_pylance_s_version_is_put(lake: Lake) -> None:
    append, versions = by_namespace(lake)
    store, put = versions.core.store, list[str]()

    class Late(Noted):
        """Lets the table be made anew just before somebody looks at its pin."""

        anew = False

        def get(self, path: str, **more: Any) -> bytes:
            if path == PIN_PATH and not self.anew:
                self.anew = True
                lake.remove(store)
                lake.make(10).close()
            body: bytes = store.get(path, **more)
            return body

    versions.core.arbiter._store = Late(store, put)
    with pytest.raises((HoldfastError, OSError, RuntimeError)):
        append(66)
    assert put == []
    assert lake.ids() == lake.stock_ids() == [10]


def test_pylance_s_version_costs_no_second_look_upon_a_known_one(
    faulty_s3: Callable[..., FaultyS3], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = faulty_s3()
    append, _ = by_namespace(Lake(server.url("bucket", "t"), dict(server.storage_options())))
    server.requests.clear()
    append(4)
    asked = [(one.operation, one.key.rpartition("/")[2]) for one in server.requests.all()]
    # One says where the table is, one is made beside the read of the staged manifest.
    assert [what for what, name in asked if name == "pin.json"] == ["get", "get"]
    assert len(asked) == 12
