"""The real verbs, stopped before their decision while vacuum runs three times, on S3 servers.

Vacuum has then deleted what nobody showed. Each verb must end in a typed error or commit what
can be read; what it acknowledges is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import holdfast
from holdfast.arbiter import ConditionalPut, RecordedDecisions
from holdfast.commits._held import report_commits
from holdfast.errors import ConflictError, StaleWorkError
from holdfast.formats import VERSIONS_SERIES, version_name
from holdfast.formats._version_files import HINT_PATH
from holdfast.options import StorageOptions
from holdfast.storage import open_store
from holdfast.testing import FaultyS3
from holdfast.upkeep import doctor, rescue
from lsm.tables import SCHEMA, new_shard
from shard.test_places import commit_store
from upkeep.test_late_work import DAYS, Shifted

pytestmark = pytest.mark.requirement("P1", "C8")
REFUSED = (StaleWorkError, ConflictError)
BASE = dict.fromkeys(range(6), "base")


@dataclass
class Lake:
    """A table on a server whose clock can be moved, and a way to stop a verb in the middle."""

    server: FaultyS3
    uri: str
    options: dict[str, str]
    patch: pytest.MonkeyPatch
    clock: Shifted = field(default_factory=Shifted)
    stops: int = 0

    def open(self) -> holdfast.Table:
        return holdfast.open_table(self.uri, self.options)

    def vacuum(self) -> None:
        """Let the grace pass and vacuum, three times: what nobody showed is deleted then."""
        table = self.open()
        for _ in range(3):
            write_fragments(arrow({99: "garbage"}), table.dataset(), mode="append")
            self.clock.ahead += (DAYS + 1) * 24 * 3600
            assert table.vacuum(confirm=True).raised
        table.close()

    def stop_before_deciding(self) -> None:
        """Let the next decision of a version wait until vacuum ran."""
        waiting = [True]

        def stopped(decide: Any) -> Any:
            def call(arbiter: Any, name: Any, body: bytes, token: str, **how: Any) -> Any:
                if waiting and name.series == VERSIONS_SERIES:
                    waiting.clear()
                    self.stops += 1
                    self.vacuum()
                return decide(arbiter, name, body, token, **how)

            return call

        for kind, verb in (
            (ConditionalPut, "decide"),
            (RecordedDecisions, "decide"),
            (RecordedDecisions, "decide_next"),
        ):
            self.patch.setattr(kind, verb, stopped(getattr(kind, verb)))

    def rows(self) -> dict[int, str]:
        """Return the rows as stock reads them, every file of them."""
        found = lance.dataset(self.uri, storage_options=self.options).to_table().to_pylist()
        assert len({row["k"] for row in found}) == len(found)
        return {row["k"]: row["v"] for row in found}


@pytest.fixture(params=["honest", "ignoring"])
def lake(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    faulty_s3: Callable[..., FaultyS3],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lake]:
    decider = None if request.param == "honest" else commit_store(tmp_path)
    yield make_lake(faulty_s3(conditions=request.param), decider, monkeypatch)
    monkeypatch.undo()


def make_lake(server: FaultyS3, decider: str | None, patch: pytest.MonkeyPatch) -> Lake:
    """Return a table of two fragments."""
    options = dict(server.storage_options())
    made = Lake(server, server.url("lake", "t"), options, patch)
    server.objects._clock = made.clock
    table = holdfast.create_table(
        made.uri, SCHEMA, primary_key=["k"], commit_store=decider, storage_options=options
    )
    for start in (0, 3):
        table.append([{"k": k, "v": v} for k, v in BASE.items() if start <= k < start + 3])
    table.close()
    return made


def arrow(rows: dict[int, str]) -> pa.Table:
    return pa.table({"k": list(rows), "v": list(rows.values())}, schema=SCHEMA)


def late(lake: Lake, verb: Callable[[], object]) -> bool:
    """Run a verb through three vacuums; return whether it was acknowledged."""
    lake.stop_before_deciding()
    try:
        verb()
    except REFUSED:
        return False
    finally:
        assert lake.stops == 1
        lake.patch.undo()
    return True


def check(lake: Lake, expected: dict[int, str]) -> None:
    """Everything can be read, nothing is missing, and the table goes on."""
    assert lake.rows() == expected
    table = lake.open()
    assert {row["k"]: row["v"] for row in table.to_table().to_pylist()} == expected
    problems = [one for one in doctor(lake.uri, lake.options).findings if one.severity == "problem"]
    assert problems == []
    assert table.append([{"k": 1000, "v": "next"}]).applied
    assert lake.rows() == {**expected, 1000: "next"}


def test_merge_of_a_log(lake: Lake) -> None:
    table = lake.open()
    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": 1, "v": "new"}, {"k": 7, "v": "new"}])
        writer.delete_keys([2])
        writer.flush()
    expected = {**BASE, 1: "new", 7: "new"}
    del expected[2]
    done = late(lake, table.compact_lsm)
    if not done:
        table.compact_lsm()
    check(lake, expected)


def test_flush_and_merge_of_a_log(lake: Lake) -> None:
    table = lake.open()
    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": 7, "v": "new"}])
        if not late(lake, table.merge_log):
            table.merge_log()
    check(lake, {**BASE, 7: "new"})


def test_an_append_with_a_txn(lake: Lake) -> None:
    table = lake.open()

    def append() -> object:
        return table.append([{"k": 7, "v": "new"}], txn="late")

    if not late(lake, append):
        assert table.append([{"k": 7, "v": "new"}], txn="late").applied
    check(lake, {**BASE, 7: "new"})


def test_an_overwrite(lake: Lake) -> None:
    new = {7: "new"}

    def overwrite() -> object:
        return holdfast.write_table(
            arrow(new), lake.uri, mode="overwrite", storage_options=lake.options
        )

    check(lake, new if late(lake, overwrite) else BASE)


def test_a_compaction(lake: Lake) -> None:
    data: Any = lake.open().dataset()

    def compact() -> None:
        with report_commits(data):
            data.optimize.compact_files()

    late(lake, compact)
    check(lake, BASE)


def test_an_index_build(lake: Lake) -> None:
    table = lake.open()
    done = late(lake, lambda: table.create_index("v", "fts", tasks=2))
    check(lake, BASE)
    if not done:
        table.create_index("v", "fts", tasks=2)
    data = lance.dataset(lake.uri, storage_options=lake.options)
    assert data.to_table(full_text_query="base").num_rows == len(BASE)


def test_a_rescue(lake: Lake) -> None:
    lance.write_dataset(arrow({7: "lost"}), lake.uri, mode="append", storage_options=lake.options)
    newest = int(lance.dataset(lake.uri, storage_options=lake.options).version)
    store = open_store(lake.uri, StorageOptions(lake.options))
    store.delete([version_name(newest).path, HINT_PATH])
    (lost,) = doctor(lake.uri, lake.options).candidates

    def save() -> object:
        return rescue(lake.uri, lake.options, ids=[lost.id], confirm=True)

    done = late(lake, save)
    check(lake, {**BASE, 7: "lost"} if done else BASE)
