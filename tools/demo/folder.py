"""`./run demo FOLDER`: ingest your own Parquet, CSV and JSON files by Spark, each exactly once.

Every file is one Spark job with a transaction id of its own. Then all jobs run a second time,
as after a crash that left nobody knowing what had been done: nothing is added twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools.demo.ledger import Ledger
from tools.demo.terminal import bar, chapter, errors_into, line

import holdfast
import holdfast.spark
from holdfast.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}


def find_files(folder: Path) -> list[Path]:
    """Return the files that can be read, in order of their names.

    Raises:
        InvalidInputError: there is no such folder, or nothing in it that can be read.
    """
    found = sorted(file for file in folder.rglob("*") if file.suffix.lower() in READERS)
    if not found:
        raise InvalidInputError(
            "there are no .parquet, .csv, .json or .jsonl files to ingest", folder=folder
        )
    return found


def ingest(folder: Path, out: Path, ledger: Ledger) -> None:
    """Append every file to one table, twice; note how many rows must be there."""
    files = find_files(folder)
    uri = str(out / "your-table.lance")
    chapter(1, f"{len(files)} files of {folder} into one table, one Spark job each")
    page = ledger.page("your-table", uri)
    page.rows = 0
    with errors_into(out / "spark.log"):
        spark = holdfast.spark.session("local[2]", name="holdfast demo")
        for attempt in ("first run", "second run, same transaction ids"):
            before = page.rows
            for number, file in enumerate(files):
                page.rows += append_file(spark, file, uri, str(file.relative_to(folder)))
                bar(number + 1, len(files), f"{attempt}: {page.rows - before} rows added")
        spark.stop()


def append_file(spark: SparkSession, file: Path, uri: str, app: str) -> int:
    """Append one file under its own transaction id; return how many rows that added."""
    reader = spark.read.format(READERS[file.suffix.lower()])
    if file.suffix.lower() == ".csv":
        reader = reader.option("header", "true").option("inferSchema", "true")
    rows = reader.load(str(file))
    told, fresh = rows.count(), not is_applied(uri, app)
    try:
        (
            rows.write.format("holdfast")
            .mode("append")
            .option("commitStoreUrl", "sqlite")
            .option("txnAppId", app)
            .option("txnVersion", "1")
            .save(uri)
        )
    except Exception as error:  # noqa: BLE001 - Spark wraps ours in its own; tell, and go on
        line(f"{file.name} was left out: {_reason(error)}")
        return 0
    return told if fresh else 0


def is_applied(uri: str, app: str) -> bool:
    """Tell whether the file's transaction is in the table, which may not be there yet."""
    try:
        return holdfast.open_table(uri).applied([(app, 1)])[0]
    except NotFoundError:
        return False


def _reason(error: Exception) -> str:
    """Return the line of a Spark error that says what went wrong."""
    lines = [text.strip() for text in str(error).splitlines() if "Error" in text]
    return (lines or [str(error)])[-1][:300]
