"""Real failovers that lose acknowledged decisions: Redis and PostgreSQL with lagging replicas.

The replica is promoted at the primary's address, without what the primary acknowledged last. The
versions and log entries that were decided are in the bucket, so everybody must notice: whoever
was there before, whoever comes new, writers and readers. Then `repair` takes the bucket's word,
and nothing that was acknowledged is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from commits.table_worker import set_up
from holdfast.cli import main
from holdfast.errors import CommitStoreRegressedError, HoldfastError, UnavailableError
from standbys import Pair, postgres_pair, redis_pair

pytestmark = [pytest.mark.requirement("C5", "P1", "P2"), pytest.mark.timeout(600)]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


@pytest.fixture(params=[postgres_pair, redis_pair], ids=["postgresql", "redis"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    start: Callable[[], contextlib.AbstractContextManager[Pair]] = request.param
    with start() as pair:
        yield pair


@pytest.fixture
def url(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", pair.primary.url)
    return set_up(pair.primary.url)


def create(place: Path, url: str) -> str:
    holdfast.create_table(place, SCHEMA, primary_key=["id"], commit_store=url).close()
    return str(place)


def row(number: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": "x"}]


def expect_noticed(use: Callable[[], object]) -> None:
    """Use a table after the failover; connections from before are dead, so it may ask again."""
    for _ in range(50):
        with contextlib.suppress(UnavailableError):
            with pytest.raises(CommitStoreRegressedError):
                use()
            return
    pytest.fail("no answer")


def test_everybody_notices_what_a_failover_lost(pair: Pair, url: str, tmp_path: Path) -> None:
    appended, logged = create(tmp_path / "appended", url), create(tmp_path / "logged", url)
    table, log = holdfast.open_table(appended), holdfast.open_table(logged)
    reader = holdfast.open_table(appended)
    writer = log.claim_writer("unsharded")
    table.append(row(0))
    writer.put(row(0))
    reader.scan().read_all()
    pair.await_replica()
    pair.replica.shut_down()
    for number in range(1, 4):
        table.append(row(number))
        writer.put(row(number))
    pair.fail_over()

    expect_noticed(lambda: table.append(row(99)))
    expect_noticed(lambda: reader.scan().read_all())
    with pytest.raises(HoldfastError):  # it was there before, so it may only see silence
        writer.put(row(99))
    writer.abort()
    for handle in (table, log, reader):
        handle.close()
    expect_noticed(lambda: holdfast.open_table(appended).append(row(98)))
    expect_noticed(lambda: holdfast.open_table(appended).scan().read_all())
    expect_noticed(lambda: holdfast.open_table(appended).dataset())
    expect_noticed(lambda: holdfast.open_table(logged).claim_writer("unsharded"))
    expect_noticed(lambda: holdfast.open_table(logged).scan().read_all())

    for place in (appended, logged):
        assert main(["repair", place, "--confirm"]) == 0
    with contextlib.closing(holdfast.open_table(appended)) as again:
        again.append(row(4))
        assert sorted(again.scan().read_all()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    with contextlib.closing(holdfast.open_table(logged)) as again:
        with again.claim_writer("unsharded") as second:
            second.put(row(4))
        found = sorted(again.scan().read_all()["id"].to_pylist())
    # Row 99 was refused; that it is there is allowed, that it is there twice is not.
    assert [number for number in found if number != 99] == [0, 1, 2, 3, 4]
    assert found.count(99) <= 1
