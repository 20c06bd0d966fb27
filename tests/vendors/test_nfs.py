"""A table on NFS, decided by `link(2)` of a real server, through two clients of their own.

For `./run explore --servers`. The clients answer from memory for some seconds, or never do.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
import nfs_server
from commits import table_worker
from commits.table_worker import Place, rows, spawned
from holdfast.errors import FencedError

WORKERS, APPENDS = 5, 10
pytestmark = [
    pytest.mark.requirement("C1", "C2"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("HOLDFAST_EXPLORE"), reason="for ./run explore --servers"
    ),
]


@pytest.fixture(scope="module")
def nfs() -> Iterator[nfs_server.Nfs]:
    reason = nfs_server.missing()
    if reason is not None:
        pytest.skip(reason)
    server = nfs_server.Nfs()
    yield server
    server.stop()


@pytest.mark.parametrize("cache_seconds", [0.0, 3.0])
def test_nothing_is_lost(nfs: nfs_server.Nfs, cache_seconds: float) -> None:
    here, there = (nfs.mount(cache_seconds=cache_seconds) for _ in range(2))
    name = f"events-{cache_seconds:.0f}"
    assert holdfast.probe(here / "probed").verdict == "enforced"
    places = [Place(uri=str(folder / name)) for folder in (here, there)]
    table = places[0].create(primary_key=["id"])
    with spawned(WORKERS) as pool:
        work = [
            pool.submit(
                table_worker.append_each,
                places[worker % 2],
                range(worker * APPENDS, (worker + 1) * APPENDS),
            )
            for worker in range(WORKERS)
        ]
        logged = write_log(table, Path(places[1].uri))
        done = [each.result() for each in work]
    print([error for _, errors in done for error in errors])
    acknowledged = {number for numbers, _ in done for number in numbers} | logged
    table.compact_lsm()
    table.vacuum(confirm=True)
    table.close()
    for place in places:
        found = Counter(holdfast.open_table(place.uri).scan(["id"]).read_all()["id"].to_pylist())
        assert acknowledged <= set(found), "acknowledged and lost"
        assert set(found.values()) == {1}, "doubled"


def write_log(table: holdfast.Table, other: Path) -> set[int]:
    """Write by one client, take the shard over by the other; return what was acknowledged."""
    first = holdfast.open_table(other).claim_writer("unsharded")
    for number in range(500, 510):
        first.put(rows(number))
    first.flush()
    second = table.claim_writer("unsharded")
    with pytest.raises(FencedError):
        first.put(rows(99_999))
    first.abort()
    for number in range(510, 515):
        second.put(rows(number))
    second.close()
    return set(range(500, 515))
