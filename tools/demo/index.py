"""An index build on Spark is killed half-way; anybody goes on from there.

The build has four tasks. The driver is killed when the second has finished; a plain Python
process, without Spark, finishes the build. The independent reader compares what the index finds
with what is in the rows.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from tools.demo.ledger import Ledger
from tools.demo.pipeline import wait_for
from tools.demo.terminal import chapter, line

import holdfast
import holdfast.spark
import holdfast.spark._index
from holdfast.formats import Plan, decode_task, task_name
from holdfast.index._finalize import Finalizer
from holdfast.index._plan import make_plan
from holdfast.index._results import IndexResult

TASKS, DOCUMENTS = 4, 2_000
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
WORDS = ("storm", "harbour", "anchor", "tide", "gull", "rope", "mast", "fog")
ROOT = Path(__file__).parents[2]


def run(ledger: Ledger, folder: Path, number: int, seed: int, *, planned: bool) -> None:
    """Kill a build, finish it, and let the ledger say what a search must find."""
    uri = str(folder / "documents.lance")
    chapter(number, "Index: a build on Spark is killed half-way, and finished without Spark")
    table = holdfast.create_table(uri, SCHEMA)
    page = ledger.page("index", uri)
    page.search = {"column": "text", "word": "storm"}
    choose = random.Random(seed)  # noqa: S311 - data, not secrets
    for part in range(TASKS):
        ids = list(range(part * DOCUMENTS, (part + 1) * DOCUMENTS))
        texts = [" ".join(choose.choices(WORDS, k=4)) for _ in ids]
        table.append(pa.table([ids, texts], schema=SCHEMA))
        ledger.acknowledge("index", ids)
    build_id = kill_a_build(folder, uri)
    line(f"a driver was killed when 2 of {TASKS} tasks had finished; build {build_id[:8]}")
    done = resume(table, build_id, planned=planned)
    line(
        f"finished: {done.rows} documents, {done.partitions} parts, "
        f"{done.reused} tasks reused, table version {done.version}"
    )


def resume(table: holdfast.Table, build_id: str, *, planned: bool) -> IndexResult:
    """Go on with the build; or finalize what a listing happens to show."""
    if planned:
        return table.create_index("text", "fts", tasks=TASKS)
    line("finalized WITHOUT a plan: with the tasks that a listing shows")
    Finalizer._freeze = take_what_is_listed  # type: ignore[method-assign]  # noqa: SLF001
    return table.finalize_index(build_id)


def take_what_is_listed(self: Finalizer, build_id: str) -> Plan:
    """Return a plan of the tasks that have finished by now, as if that were all."""
    record, files = self.record(build_id), self._files
    bodies = [files.read(task_name(build_id, task)) for task in range(len(record.tasks))]
    listed = [decode_task(body) for body in bodies if body is not None]
    shown = replace(record, tasks=tuple(one.fragments for one in listed))
    tasks = [replace(one, task=number) for number, one in enumerate(listed)]
    return replace(make_plan(shown, tasks, files.core.ids.token()), fragments=record.fragments)


def kill_a_build(folder: Path, uri: str) -> str:
    """Run a driver until half of its tasks have finished; return the id of the build."""
    note, pids = folder / "build-id", folder / "index-pids"
    environment = {**os.environ, "DEMO_MARKER": str(note), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tools.demo.index", uri, str(pids)]
    with (folder / "index-driver.log").open("w") as log:
        driver = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        wait_for(note, driver)
        os.kill(int(pids.read_text()), signal.SIGKILL)
    finally:
        driver.kill()
        driver.wait(30)
    return note.read_text()


def be_the_doomed_driver(uri: str, pids: str) -> None:
    """Build on Spark, one task after the other, until somebody kills us."""
    spark = holdfast.spark.session("local[1]", name="holdfast demo, index")
    java = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # noqa: SLF001
    Path(pids).write_text(str(java))
    ours: Any = holdfast.spark._index  # noqa: SLF001
    ours._TASK = "tools.demo.index:build_half"  # noqa: SLF001
    holdfast.spark.table(spark, uri).create_index("text", "fts", tasks=TASKS)


def build_half(given: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON
    """Build the first tasks as Holdfast does; then say so and wait for death."""
    if given["task"] < TASKS // 2:
        return holdfast.spark._index.build(given)  # noqa: SLF001
    marker = Path(os.environ["DEMO_MARKER"])
    fresh = marker.with_suffix(".fresh")
    fresh.write_text(given["build_id"])
    fresh.replace(marker)
    time.sleep(600)
    raise TimeoutError("nobody killed this task")


if __name__ == "__main__":
    be_the_doomed_driver(*sys.argv[1:])
