"""Drivers and executors that die, speculation between two hosts, and Spark Connect."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyspark
import pytest

from holdfast.spark import jar_path
from holdfast.spark._java import find_java_home
from holdfast.spark._python import worker_python
from spark.conftest import importable_by_workers
from spark.faulty_source import await_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Popen = subprocess.Popen[str]

Ids = Callable[..., Counter[int]]
DRIVER = Path(__file__).with_name("driver.py")
SECONDS = 280


def start(*arguments: str) -> Popen:
    """Start a driver in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, str(DRIVER), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": importable_by_workers(),
            # All hosts are this one, so they all have the script that starts workers fast.
            "PYSPARK_DRIVER_PYTHON": worker_python(os.environ),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(*arguments: str) -> None:
    driver = start(*arguments)
    try:
        said, _ = driver.communicate(timeout=SECONDS)
    finally:
        kill_group(driver)
    assert driver.returncode == 0 and "done" in said, said[-3000:]


def kill_group(driver: Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(60)
    if driver.stdout is not None:
        driver.stdout.close()


@pytest.mark.requirement("C7", "C8")
def test_a_driver_killed_before_its_commit_leaves_nothing_and_its_rerun_applies_once(
    spark: SparkSession, uri: str, ids: Ids, tmp_path: Path
) -> None:
    driver = start("append", "local[2]", uri, f"hold-commit:{tmp_path}", "1")
    try:
        await_file(tmp_path / "held")
    finally:
        kill_group(driver)
    assert ids(uri) == Counter()
    assert len(list(Path(uri, "data").iterdir())) == 4, "all rows were written"
    for _ in range(2):  # submitted again, by another driver, and once more
        writer = spark.range(0, 100, numPartitions=4).write.format("holdfast").mode("append")
        writer.option("txnAppId", "job").option("txnVersion", "1").save(uri)
        assert ids(uri) == Counter(range(100))


@pytest.mark.requirement("C7")
def test_an_executor_that_is_killed_is_made_up_for(uri: str, ids: Ids) -> None:
    run("append", "local-cluster[2,1,512]", uri, "kill-executor")
    assert ids(uri) == Counter(range(100))


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[str]:
    """Run a standalone cluster on 127.0.0.1 and 127.0.0.2: speculation wants two hosts."""
    home = Path(pyspark.__file__).parent
    with ExitStack() as stack:

        def launch(host: str, *arguments: str) -> Path:
            said = tmp_path / f"{arguments[0]}-{host}.log"
            log = stack.enter_context(said.open("wb"))
            command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{arguments[0]}"]
            process = subprocess.Popen(
                [*command, "--host", host, "--webui-port", "0", *arguments[1:]],
                env={
                    **os.environ,
                    "JAVA_HOME": str(find_java_home()),
                    "SPARK_LOCAL_IP": host,
                    "SPARK_HOME": str(home),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
                    "SPARK_WORKER_DIR": str(tmp_path / f"work-{host}"),
                    "PYTHONPATH": importable_by_workers(),
                    "PYSPARK_PYTHON": sys.executable,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

            def stop() -> None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)

            stack.callback(stop)
            return said

        master = _await_master(launch("127.0.0.1", "master.Master", "--port", "0"))
        for host in ("127.0.0.1", "127.0.0.2"):
            launch(host, "worker.Worker", "--cores", "2", "--memory", "1g", master)
        yield master


def _await_master(log: Path) -> str:
    """Return the address of a master, once it says that it listens there."""
    deadline = time.monotonic() + SECONDS / 2
    while time.monotonic() < deadline:
        found = re.search(r"Starting Spark master at (spark://\S+)\s", log.read_text())
        if found is not None:
            return found[1]
        time.sleep(0.1)
    raise TimeoutError(f"the master does not listen: {log.read_text()[-2000:]}")


@pytest.mark.requirement("C7")
def test_a_task_that_is_doubled_by_speculation_counts_once(
    uri: str, ids: Ids, tmp_path: Path, two_hosts: str
) -> None:
    # The first try waits for ever; only its double on the other host can end the job.
    run("append", two_hosts, uri, f"hold-first-try:{tmp_path}")
    assert (tmp_path / "held").exists()
    assert ids(uri) == Counter(range(100))


def test_spark_connect_appends_reads_and_streams(uri: str, ids: Ids) -> None:
    run("connect", "local[2]", uri)
    assert ids(uri) == Counter(range(60)) + Counter(range(60, 110))
    assert ids(f"{uri}-copy") == ids(uri)


@pytest.mark.requirement("S2")
def test_spark_connect_has_tables_by_name_where_its_server_has_the_jar(uri: str) -> None:
    run("connect_by_name", "local[2]", uri)
    rows = lance.dataset(uri).to_table().to_pylist()
    assert sorted((row["id"], row["w"]) for row in rows) == [(1, "A"), (2, "m"), (3, "n")]


SUBMITTED = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sql("CREATE TABLE lake.t AS SELECT id FROM range(7)")
spark.read.format("holdfast").load("ROOT/t.lance").write.format("holdfast").mode("append").save(
    "ROOT/copy.lance"
)
spark.stop()
"""


@pytest.mark.requirement("S2")
def test_spark_submit_needs_the_jar_and_settings_only(tmp_path: Path) -> None:
    """As docs/how-to/spark.md says: no session of ours."""
    script = tmp_path / "job.py"
    script.write_text(SUBMITTED.replace("ROOT", str(tmp_path)))
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[1]", "--jars", str(jar_path())),
        *("--conf", "spark.sql.catalog.lake=org.holdfast.spark.HoldfastCatalog"),
        *("--conf", f"spark.sql.catalog.lake.root={tmp_path}"),
        str(script),
    ]
    environ = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert lance.dataset(str(tmp_path / "copy.lance")).count_rows() == 7
