"""Literal secrets in options show in no plan, page, event log, log line or error."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.testing import FaultyS3Process
from spark.conftest import CATALOG_SECRET, await_listeners

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANARY = "canary-7f3a91"


def pages_of(spark: SparkSession) -> str:
    """Return what Spark's pages show of queries, jobs, stages and settings."""
    context = spark.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    found = []
    for page in (
        "sql?details=true&planDescription=true&length=1000",
        "jobs",
        "stages",
        "environment",
    ):
        with urllib.request.urlopen(f"{base}/{page}", timeout=60) as answer:
            found.append(answer.read().decode())
    return "\n".join(found)


def test_a_secret_shows_nowhere(  # noqa: PLR0917 - fixtures
    spark: SparkSession,
    event_log: Path,
    faulty_s3_process: Callable[..., FaultyS3Process],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = faulty_s3_process(secret_key=CANARY)
    uri = server.url("lake", "t.lance")
    options = {f"storage.{k}": v for k, v in server.storage_options("lake").items()}
    assert CANARY in options.values()
    spark.range(5).write.format("holdfast").mode("append").options(**options).save(uri)
    frame = spark.read.format("holdfast").options(**options).load(uri)
    assert frame.count() == 5
    plan = frame._jdf.queryExecution().toString()
    stream = spark.readStream.format("holdfast").options(**options).load(uri)
    writer = stream.writeStream.format("holdfast").options(**options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(server.url("lake", "copy.lance"))
    query.awaitTermination()
    assert CATALOG_SECRET in str(spark.conf.get("spark.sql.catalog.hidden.commitStoreUrl"))
    settings = "\n".join(str(row) for row in spark.sql("SET -v").collect())
    settings += "\n".join(str(row) for row in spark.sql("SET").collect())
    with pytest.raises(Exception, match="no column") as wrong:
        spark.read.format("holdfast").options(columns="x", **options).load(uri).count()
    wrong_key = {**options, "storage.aws_secret_access_key": f"{CANARY}-wrong"}
    with pytest.raises(Exception, match="holdfast") as refused:
        spark.read.format("holdfast").options(**wrong_key).load(f"{uri}-none").count()
    await_listeners(spark)
    printed = capfd.readouterr()
    kept = [file.read_text(errors="replace") for file in event_log.rglob("*") if file.is_file()]
    checkpoint = [f.read_text(errors="replace") for f in tmp_path.rglob("*") if f.is_file()]
    shown = {
        "plan": plan,
        "settings": settings,
        "pages": pages_of(spark),
        "event log": "\n".join(kept),
        "checkpoint": "\n".join(checkpoint),
        "printed": printed.out + printed.err + caplog.text,
        "errors": f"{wrong.value} {refused.value}",
    }
    assert "holdfast" in shown["pages"] and "SparkListenerSQLExecutionStart" in shown["event log"]
    for secret in (CANARY, CATALOG_SECRET):
        assert [name for name, text in shown.items() if secret in text] == []
