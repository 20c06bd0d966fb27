"""kill -9 in the middle of a merge, at each of its steps; run again: exact rows."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lsm.tables import add_generation, make_table, merged_of, new_shard, pending_of, rows_of

pytestmark = pytest.mark.requirement("W13")

DEAD = {"v": None, "_tombstone": True}
# Where it dies: a function of the merge, before or after it, and what is marked by then.
POINTS = [
    ("_compact_lsm.RowChanges.mark", "before", 0),  # rows are written
    ("_compact_lsm.LancePass.commit", "before", 0),  # deletion files, too
    ("_compact_lsm.mark_merged", "after", 0),  # inside the commit, before it is decided
    ("_compact_lsm.LancePass.commit", "after", 2),
    ("_compact_lsm.drain", "after", 2),
    ("_flush_log.publish_part", "before", 0),
    ("_flush_log.publish_part", "after", 0),
]
CHILD = """
import os, signal, sys
import holdfast
from holdfast.upkeep import _compact_lsm, _flush_log
from lsm.test_kill import die_at
uri, point, when = sys.argv[1:]
table = holdfast.open_table(uri)
die_at(point, when)
for shard in table.core.shard_ids():
    table.flush_log(shard)
table.compact_lsm()
"""


def die_at(point: str, when: str) -> None:
    """Let this process kill itself before or after a function is called."""
    import os

    from holdfast import upkeep  # noqa: F401 - the modules below are its own

    module, *names = point.split(".")
    owner = sys.modules[f"holdfast.upkeep.{module}"]
    for name in names[:-1]:
        owner = getattr(owner, name)
    real = getattr(owner, names[-1])

    def dying(*given: object, **more: object) -> object:
        if when == "after":
            real(*given, **more)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    setattr(owner, names[-1], dying)


@pytest.mark.parametrize(("point", "when", "marked"), POINTS)
def test_a_killed_merge_is_finished_by_the_next(
    tmp_path: Path, point: str, when: str, marked: int
) -> None:
    table = make_table(tmp_path / "t", [{"k": n, "v": "base"} for n in range(6)])
    shard = new_shard()
    if point.startswith("_flush"):
        from holdfast.shard._config import ShardWriterConfig

        with table.claim_writer(shard, config=ShardWriterConfig(enable_memtable=False)) as writer:
            writer.put([{"k": 1, "v": "one"}, {"k": 2, "v": "two"}, {"k": 9, "v": "new"}])
            writer.delete_keys([3])
    else:
        add_generation(
            table, shard, [{"k": 1, "v": "old"}, {"k": 2, "v": "two"}, {"k": 3, "v": "x"}]
        )
        add_generation(table, shard, [{"k": 1, "v": "one"}, {"k": 3, **DEAD}, {"k": 9, "v": "new"}])
    died = subprocess.run(
        [sys.executable, "-c", CHILD, table.uri, point, when],
        cwd=Path(__file__).parent.parent,
        check=False,
        capture_output=True,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-2000:]
    assert merged_of(table).get(shard, 0) == marked
    found = {row["k"]: row["v"] for row in table.scan().read_all().to_pylist()}
    expected = {0: "base", 1: "one", 2: "two", 4: "base", 5: "base", 9: "new"}
    assert found == expected
    table.flush_log(shard)
    table.compact_lsm()
    assert rows_of(table) == expected
    assert pending_of(table, shard) == []
