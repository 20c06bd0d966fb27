"""The options by themselves, without a Spark."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from holdfast.errors import InvalidInputError
from holdfast.spark._options import OPTIONS, Use, options_page, parse
from pyspark_holdfast import DefaultSource

ROOT = Path(__file__).resolve().parent.parent.parent


def test_keys_come_back_from_lower_case() -> None:
    given = parse(
        {
            "path": "/t",
            "maxrowsperfile": "5",
            "storage.aws_region": "r",
            "v.arrow.fixed-size-list.size": "3",
        },
        Use.WRITE,
    )
    assert given.get("maxRowsPerFile") == 5
    assert dict(given.storage) == {"aws_region": "r"}
    assert given.sizes == {"v": 3}


def test_what_spark_adds_is_let_through() -> None:
    given = parse({"path": "/t", "checkpointlocation": "/c", "queryname": "q"}, Use.SINK)
    assert given.values == {}


def test_a_spark_that_cannot_follow_tables_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)  # as in 4.1
    with pytest.raises(InvalidInputError, match=r"needs Spark 4\.2"):
        DefaultSource({"path": "/t"}).streamReader(StructType())


def test_secrets_are_not_shown() -> None:
    given = parse(
        {"path": "/t", "storage.aws_secret_access_key": "canary", "commitstoreurl": "x://canary"},
        Use.READ,
    )
    assert "canary" not in repr(given)


def test_columns_may_hold_commas() -> None:
    given = parse({"path": "/t", "columns": " a, `b, c` ,d"}, Use.READ)
    assert given.get("columns") == ("a", "b, c", "d")


@pytest.mark.parametrize(
    ("options", "use", "said"),
    [
        ({}, Use.READ, "no table is named"),
        ({"paths": '["a","b"]'}, Use.READ, "one table"),
        ({"path": "/t", "maxRowPerFile": "1"}, Use.WRITE, "did you mean 'maxRowsPerFile'"),
        ({"path": "/t", "maxRowsPerFile": "0"}, Use.WRITE, "whole number from 1 on"),
        ({"path": "/t", "mergeSchema": "yes"}, Use.WRITE, "true or false"),
        ({"path": "/t", "txnAppId": "a"}, Use.WRITE, "come together"),
        ({"path": "/t", "txnAppId": "a", "txnVersion": "1"}, Use.SINK, "is for write, not for"),
        ({"path": "/t", "vectorColumns": "v"}, Use.WRITE, "such as Embedding:768"),
        (
            {"path": "/t", "vectorColumns": "v:2", "v.arrow.fixed-size-list.size": "3"},
            Use.WRITE,
            "two lengths",
        ),
        ({"path": "/t", "columns": "a,,b"}, Use.READ, "list of columns"),
        ({"path": "/t", "columns": "a,a"}, Use.READ, "twice"),
        ({"path": "/t", "filter": " "}, Use.READ, "is empty"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], use: Use, said: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(said)):
        parse(options, use)


def test_the_reference_page_has_every_option() -> None:
    page = (ROOT / "docs/reference/spark-options.md").read_text()
    assert options_page() in page
    assert all(f"`{option.name}`" in page for option in OPTIONS)
