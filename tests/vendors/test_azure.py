"""Azure Blob, played by azurite: the port, the probe, tables, logs and a Spark job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pytest

import azure_server
import holdfast
from commits.table_worker import Place, rows
from holdfast.shard import ShardWriterConfig
from holdfast.storage import ObjectStore, open_store
from holdfast.testing import ObjectStoreSuite
from holdfast.upkeep import doctor

JOB = Path(__file__).with_name("spark_job.py")

pytestmark = [pytest.mark.requirement("C2"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def azurite() -> Iterator[azure_server.Azurite]:
    reason = azure_server.missing()
    if reason is not None:
        pytest.skip(reason)
    server = azure_server.Azurite()
    yield server
    server.stop()


class TestAzure(ObjectStoreSuite):
    many = 60

    @pytest.fixture(autouse=True)
    def _server(self, azurite: azure_server.Azurite) -> None:
        self.server = azurite

    def make_store(self, place: str) -> ObjectStore:
        return open_store(self.server.url(place), self.server.storage_options())


def test_its_own_condition_decides(azurite: azure_server.Azurite) -> None:
    report = holdfast.probe(azurite.url("probed"), azurite.storage_options())
    assert report.verdict == "enforced"


def test_tables_logs_and_spark(azurite: azure_server.Azurite) -> None:
    place = Place(uri=azurite.url("events"), options=azurite.storage_options())
    table = place.create(primary_key=["id"])
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: table.append(rows(number)), range(12)))
    writer = table.claim_writer("unsharded", config=ShardWriterConfig(max_memtable_rows=8))
    for number in range(500, 512):
        writer.put(rows(number))
    writer.close()
    table.compact_lsm()
    table.create_index("text", tasks=2)
    assert table.search("text", "505")["id"].to_pylist() == [505]
    ended = subprocess.run(
        [sys.executable, str(JOB), place.uri],
        input=json.dumps([{f"storage.{key}": value for key, value in place.options.items()}]),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    table.vacuum(confirm=True)
    expected = [*range(12), *range(500, 512), *range(1000, 1100)]
    dataset = lance.dataset(place.uri, storage_options=place.options)
    assert sorted(dataset.to_table()["id"].to_pylist()) == expected
    assert doctor(place.uri, place.options).findings == ()
    table.close()
