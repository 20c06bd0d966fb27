"""Real servers that cannot decide: OpenStack Swift (racy) and `rclone serve s3` (ignoring).

For `./run explore --servers`. What stock Lance loses there is printed, not demanded: it is luck.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import lance
import pytest

import holdfast
import s3_servers
import swift_server
from commits import table_worker
from commits.table_worker import Place, rows, set_up, spawned
from holdfast.errors import UnsafeStoreError

WORKERS, APPENDS, PUTS = 5, 10, 20
pytestmark = [
    pytest.mark.requirement("C1", "C2", "C3"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("HOLDFAST_EXPLORE"), reason="for ./run explore --servers"
    ),
]

Server = s3_servers.S3Server | swift_server.Swift
EXPECTED = {"swift": "racy", "rclone": "ignored"}


@pytest.fixture(scope="module", params=["swift", "rclone"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server]]:
    name = request.param
    reason = swift_server.missing() if name == "swift" else s3_servers.missing(name)
    if reason is not None:
        pytest.skip(reason)
    running: Server = swift_server.Swift() if name == "swift" else s3_servers.start_rclone()
    yield name, running
    running.stop()


def test_its_probe_says_so(server: tuple[str, Server]) -> None:
    name, running = server
    for number in range(5):
        report = holdfast.probe(running.url(f"probed-{number}"), running.storage_options())
        assert report.verdict == EXPECTED[name]
    with pytest.raises(UnsafeStoreError):
        Place(uri=running.url("refused"), options=running.storage_options()).create()


def test_nothing_is_lost_with_a_commit_store(server: tuple[str, Server], tmp_path: Path) -> None:
    _, running = server
    place = Place(
        uri=running.url("events"),
        options=running.storage_options(),
        commit_store=set_up(f"sqlite:///{tmp_path}/commits.db?single_host=true"),
    )
    table = place.create(primary_key=["id"])
    with spawned(WORKERS) as pool:
        work = [
            pool.submit(table_worker.append_each, place, range(first, first + APPENDS))
            for first in range(0, WORKERS * APPENDS, APPENDS)
        ]
        with table.claim_writer("unsharded") as writer:
            for number in range(500, 500 + PUTS):
                writer.put(rows(number))
        done = [each.result() for each in work]
    # rclone answers a range with the whole object, which stops Lance after some conflicts: told.
    print([error for _, errors in done for error in errors])
    acknowledged = {number for numbers, _ in done for number in numbers}
    table.compact_lsm()
    found = Counter(table.scan(["id"]).read_all()["id"].to_pylist())
    assert acknowledged | set(range(500, 500 + PUTS)) <= set(found), "acknowledged and lost"
    assert set(found.values()) == {1}, "doubled"
    table.close()


def test_what_stock_loses_is_told(server: tuple[str, Server]) -> None:
    name, running = server
    uri, options = running.url("stock"), running.storage_options()
    lance.write_dataset(rows(0), uri, storage_options=options)
    with spawned(WORKERS) as pool:
        work = [
            pool.submit(append_by_stock, uri, options, range(first, first + APPENDS))
            for first in range(1, WORKERS * APPENDS, APPENDS)
        ]
        acknowledged = {number for each in work for number in each.result()}
    found = set(lance.dataset(uri, storage_options=options).to_table()["id"].to_pylist())
    print(f"{name}: stock lost {len(acknowledged - found)} of {len(acknowledged)} appends")


def append_by_stock(uri: str, options: dict[str, str], numbers: range) -> list[int]:
    """Append row by row; return those that stock acknowledged."""
    done = []
    for number in numbers:
        try:
            lance.write_dataset(rows(number), uri, mode="append", storage_options=options)
        except OSError:
            continue  # too many conflicts, or an answer that it cannot read: told
        done.append(number)
    return done
