"""The jar in the wheel is what its sources give, and stays out of the way of another Spark."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest

from holdfast.errors import InvalidInputError
from holdfast.spark._jar import CATALOG, SUPPORTED, Catalogs, catalog_settings, jar_path

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("build_jar", ROOT / "tools" / "build_jar.py")


def test_the_jar_is_what_its_sources_give() -> None:
    assert SPEC is not None and SPEC.loader is not None
    build_jar = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(build_jar)
    javac = build_jar.find_javac()
    if javac is None:
        pytest.skip("no javac 17 here: the jar cannot be compiled again to compare it")
    assert build_jar.build(javac) == jar_path().read_bytes(), "run ./run jar"


def test_the_jar_is_small_and_holds_the_catalog() -> None:
    assert jar_path().stat().st_size < 200_000
    with zipfile.ZipFile(jar_path()) as jar:
        assert f"{CATALOG.replace('.', '/')}.class" in jar.namelist()
        assert {entry.date_time for entry in jar.infolist()} == {(2026, 1, 1, 0, 0, 0)}


def test_settings_of_catalogs() -> None:
    given: Catalogs = {"lake": "/lake", "gold": {"root": "s3://b/g", "storage.aws_region": "x"}}
    assert catalog_settings(given, f"{SUPPORTED}.0") == {
        "spark.jars": str(jar_path()),
        "spark.sql.catalog.lake": CATALOG,
        "spark.sql.catalog.lake.root": "/lake",
        "spark.sql.catalog.gold": CATALOG,
        "spark.sql.catalog.gold.root": "s3://b/g",
        "spark.sql.catalog.gold.storage.aws_region": "x",
    }
    assert catalog_settings({}, "4.1.0") == {}
    here = catalog_settings({"lake": "lake"}, f"{SUPPORTED}.0")
    assert here["spark.sql.catalog.lake.root"] == str(Path("lake").absolute())


def test_another_spark_gets_a_warning_and_no_jar() -> None:
    with pytest.warns(UserWarning, match=f"need Spark {SUPPORTED}"):
        assert catalog_settings({"lake": "/lake"}, "4.2.1") == {}


@pytest.mark.parametrize(
    "catalogs", [{"a.b": "/x"}, {"lake": {}}, {"lake": {"root": "/x", "rot": "y"}}]
)
def test_a_malformed_catalog_is_refused(catalogs: dict[str, dict[str, str]]) -> None:
    with pytest.raises(InvalidInputError):
        catalog_settings(catalogs, f"{SUPPORTED}.0")
