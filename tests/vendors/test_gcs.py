"""Google Cloud Storage: the shape of requests, and tables by the real clients, on a fake.

It shows that obstore and Lance send the condition and that answers are understood; not that the
service keeps it. See `gcs_server`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import lance
import pytest

import gcs_server
import holdfast
from commits.table_worker import Place, rows
from holdfast.errors import AlreadyExistsError, UnsafeStoreError
from holdfast.shard import ShardWriterConfig
from holdfast.storage import ObjectStore, open_store
from holdfast.testing import ObjectStoreSuite
from holdfast.upkeep import doctor

pytestmark = pytest.mark.requirement("C2")


@pytest.fixture(scope="module")
def gcs() -> Iterator[gcs_server.FakeGcs]:
    with gcs_server.FakeGcs() as server:
        yield server


class TestGcs(ObjectStoreSuite):
    many = 60

    @pytest.fixture(autouse=True)
    def _server(self, gcs: gcs_server.FakeGcs) -> None:
        self.server = gcs

    def make_store(self, place: str) -> ObjectStore:
        return open_store(self.server.url("lake", place), self.server.storage_options())


def test_a_create_asks_for_generation_zero(gcs: gcs_server.FakeGcs) -> None:
    store = open_store(gcs.url("lake", "shape"), gcs.storage_options())
    gcs.headers.clear()
    store.put_if_absent("a/name", b"first")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a/name", b"second")
    assert [headers["x-goog-if-generation-match"] for headers in gcs.headers] == ["0", "0"]
    assert store.get("a/name") == b"first"


def test_tables_and_logs(gcs: gcs_server.FakeGcs) -> None:
    place = Place(uri=gcs.url("lake", "events"), options=gcs.storage_options())
    assert holdfast.probe(place.uri, place.options).verdict == "enforced"
    table = place.create(primary_key=["id"])
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: table.append(rows(number)), range(8)))
    with table.claim_writer("unsharded", config=ShardWriterConfig(max_memtable_rows=4)) as writer:
        for number in range(500, 508):
            writer.put(rows(number))
    table.compact_lsm()
    table.create_index("text", tasks=2)
    assert table.search("text", "505")["id"].to_pylist() == [505]
    table.vacuum(confirm=True)
    dataset = lance.dataset(place.uri, storage_options=place.options)
    assert sorted(dataset.to_table()["id"].to_pylist()) == [*range(8), *range(500, 508)]
    assert doctor(place.uri, place.options).findings == ()
    table.close()


def test_a_server_that_began_to_ignore_the_condition_is_refused() -> None:
    """Also by those who trusted it a moment ago: a bad verdict ends the remembered one."""
    with gcs_server.FakeGcs() as server:
        options = server.storage_options()
        Place(uri=server.url("changing", "first"), options=options).create().close()
        server.conditions = "ignoring"
        place = Place(uri=server.url("changing", "second"), options=options)
        assert holdfast.probe(place.uri, place.options).verdict == "ignored"
        with pytest.raises(UnsafeStoreError):
            place.create()
