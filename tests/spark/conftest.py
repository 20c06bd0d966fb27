"""One Spark for all tests that can share it, and a look at tables that knows only stock Lance."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import holdfast.spark
from holdfast.spark._jar import Catalogs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG_SECRET = "canary-of-a-catalog-51c0"
"""A secret among the settings of a catalog of the shared Spark, which shows nowhere."""

TESTS = Path(__file__).resolve().parent.parent


def importable_by_workers() -> str:
    """Return a `PYTHONPATH` with which Spark's workers find the tests' own modules."""
    before = os.environ.get("PYTHONPATH")  # another release of a package, maybe
    ours = [TESTS, TESTS / "spark", TESTS / "spark" / "site"]
    return os.pathsep.join([*map(str, ours), *([before] if before else [])])


def await_listeners(spark: SparkSession) -> None:
    """Wait until Spark's own pages and logs have heard of all that has happened."""
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty(240_000)


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the shared Spark keeps its event log."""
    return tmp_path_factory.mktemp("spark-events")


@pytest.fixture(scope="session")
def catalog_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of the catalogs `lake` and, which may not drop, `kept`."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def fault_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that says what goes wrong with statements; see `spark.sql_faults`."""
    return tmp_path_factory.mktemp("fault") / "fault"


@pytest.fixture(scope="session")
def spark(event_log: Path, catalog_root: Path, fault_file: Path) -> Iterator[SparkSession]:
    """Return the shared session: two cores, a failed task is tried four times in all."""
    catalogs: Catalogs = {
        "lake": {"root": str(catalog_root), "allowDrop": "true"},
        "kept": str(catalog_root),
        "hidden": {
            "root": "s3://nowhere/lake",
            "storage.aws_secret_access_key": CATALOG_SECRET,
            "storage.aws_session_token": CATALOG_SECRET,
            "commitStoreUrl": f"postgresql://me:{CATALOG_SECRET}@nowhere/commits",
        },
    }
    config = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": event_log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.port": "0",
    }
    with pytest.MonkeyPatch.context() as patch:  # Spark keeps it for its workers
        patch.setenv("PYTHONPATH", importable_by_workers())
        patch.setenv("HOLDFAST_TEST_FAULT", str(fault_file))
        name, cores = "holdfast tests", "local[2,4]"
        session = holdfast.spark.session(
            cores, name=name, config=config, ui=True, catalogs=catalogs
        )
    yield session
    session.stop()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


@pytest.fixture
def ids() -> Callable[..., Counter[int]]:
    """Return a function that counts the ids in a table, as stock Lance reads it."""
    import lance

    def count(uri: str, **options: Any) -> Counter[int]:
        return Counter(lance.dataset(uri, **options).to_table(columns=["id"])["id"].to_pylist())

    return count
