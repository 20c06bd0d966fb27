"""Spark sessions in which Holdfast works: the right Python, a Java, quiet logs.

spark = session()                                        # a local Spark, ready to use
spark = configure(SparkSession.builder.appName("job")).getOrCreate()   # one of your own
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInputError, MissingExtraError
from holdfast.spark._jar import Catalogs, catalog_settings
from holdfast.spark._java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = Path(__file__).parent / "_quiet.properties"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SHUFFLE = "spark.sql.shuffle.partitions"
_PARTS_PER_CORE = 4
_JARS = "spark.jars"
_REDACTED_SETTINGS = (
    r"(?i)secret|password|token|access[.]?key|^spark[.]sql[.]catalog[.][^.]+[.](storage[.]|.*url)"
)
"""Settings that Spark hides: its own rule, and the storage options and URLs of catalogs."""
_REDACTED = "(?i)url|^storage[.]"
"""Options that Spark hides in plans: those with a URL (Spark's own rule), and storage options."""


def session(
    master: str = "local[*]",
    *,
    name: str = "holdfast",
    config: Mapping[str, str] | None = None,
    ui: bool = False,
    catalogs: Catalogs | None = None,
) -> SparkSession:
    """Return a Spark session in which Holdfast works; the one that is running, if there is one.

    A local Spark shuffles into four parts per core instead of Spark's 200, which suit a cluster.

    Args:
        master: where Spark runs.
        name: what Spark's pages call the application.
        config: more settings; they win over ours.
        ui: whether Spark serves its pages.
        catalogs: as for `configure`.

    Raises:
        InvalidInputError: a catalog's name or settings are malformed.
        MissingExtraError: pyspark or a Java is not installed; the message has the command.
        PermissionDeniedError: a small script to start Java with cannot be written.
    """
    begun: SparkSession.Builder = _pyspark_sql().SparkSession.builder
    builder = configure(begun.master(master).appName(name), ui=ui, catalogs=catalogs)
    if _is_local(master):
        builder = builder.config(_SHUFFLE, str(_PARTS_PER_CORE * (os.cpu_count() or 1)))
    for key, value in (config or {}).items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        # Spark's launcher forks only to start another program immediately.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        return builder.getOrCreate()


def configure(
    builder: SparkSession.Builder,
    *,
    ui: bool = True,
    quiet: bool = True,
    catalogs: Catalogs | None = None,
) -> SparkSession.Builder:
    """Add to a session builder what Holdfast needs; call `getOrCreate` on what it returns.

    It also sets `PYSPARK_PYTHON` (this Python, for the workers), `JAVA_HOME` and, for a local
    Spark, `SPARK_LOCAL_IP` in this process, each only if it is not set yet. On Spark Connect it
    adds no settings; a server that `remote("local")` starts here gets these three, and catalogs.

    Args:
        builder: `SparkSession.builder`, with your settings.
        ui: whether Spark serves its pages.
        quiet: log errors only, and draw no progress bars.
        catalogs: tables by name: `{"lake": "s3://bucket/lake"}` makes `lake.events` the table
            at `s3://bucket/lake/events.lance`. A mapping in the place of the root has more
            settings: `{"root": ..., "commitStoreUrl": ..., "allowDrop": "true"}`.

    Raises:
        InvalidInputError: a catalog's name or settings are malformed, or are a Connect server's.
        MissingExtraError: pyspark or a Java is not installed; the message has the command.
        PermissionDeniedError: a small script to start Java with cannot be written.
    """
    sql = _pyspark_sql()
    named = catalog_settings(catalogs or {}, _spark_version())
    given = builder._options  # noqa: SLF001 - a builder shows them nowhere else
    connects = "spark.remote" in given
    master = given.get("spark.remote") or given.get("spark.master", "")
    _choose_python(local=_is_local(master))
    if connects and not _is_local(master):
        if catalogs:
            raise InvalidInputError(
                "catalogs belong to the Spark Connect server: start it with --jars and the "
                "settings of the catalogs, see docs/how-to/spark-sql.md",
                catalogs=", ".join(catalogs),
            )
        return builder
    if sql.SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(find_java_home())
    if _is_local(master or "local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if connects:  # to a server that starts here
        return _with_settings(builder, named)
    ours = {
        "spark.ui.enabled": str(ui).lower(),
        "spark.sql.redaction.options.regex": _REDACTED,
        "spark.redaction.regex": _REDACTED_SETTINGS,
    }
    if quiet:
        ours["spark.ui.showConsoleProgress"] = "false"
        ours[_JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={_QUIET.as_uri()}"
    return _with_settings(builder, {**ours, **named})


def _with_settings(
    builder: SparkSession.Builder, settings: Mapping[str, str]
) -> SparkSession.Builder:
    """Add settings that the user has not given; of jars, ours besides the user's."""
    given = dict(builder._options)  # noqa: SLF001 - a builder shows them nowhere else
    for key, value in settings.items():
        if key == _JARS and given.get(key):
            builder = builder.config(key, f"{given[key]},{value}")
        elif key not in given:
            builder = builder.config(key, value)
    return builder


def _spark_version() -> str:
    import pyspark  # noqa: PLC0415 - optional

    return str(pyspark.__version__)


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _choose_python(*, local: bool) -> None:
    """Name the Python of the workers in `PYSPARK_PYTHON`, unless the user has named one."""
    from holdfast.spark._python import worker_python  # noqa: PLC0415 - loads pyspark

    fast = worker_python(os.environ)
    if os.environ.get("PYSPARK_PYTHON", fast) == fast:
        # Only this machine has the script; what an earlier session has chosen is no user's word.
        os.environ["PYSPARK_PYTHON"] = fast if local else sys.executable


def activate(spark: SparkSession) -> SparkSession:
    """Let the calling thread write with `spark`, and return it; safe to call again.

    Spark remembers its session per thread, and does not find a Python data source to write
    to in a thread that has none. Call this first in every thread you start yourself. On
    Spark Connect it is not needed, and does nothing.
    """
    if hasattr(spark, "_jsparkSession"):
        java: Any = spark._jvm  # noqa: SLF001 - the only way; Any: py4j
        sessions = java.org.apache.spark.sql.classic.SparkSession
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    return spark


def _pyspark_sql() -> ModuleType:
    try:
        import pyspark.sql  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtraError(
            "pyspark is not installed: pip install 'holdfast[local-spark]' brings Spark and a "
            "Java; beside a Spark of your own, `pip install 'pyspark>=4.1,<5'`"
        ) from error
    return pyspark.sql
