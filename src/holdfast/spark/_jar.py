"""The jar in the wheel: tables by name, and queries that read only what they need.

It is small Java over our Python data source, and uses a class of Spark that is internal to it. So
it is made for one minor release of Spark; beside another one it stays out of the way.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import InvalidInputError

SUPPORTED = "4.3"
"""The minor release of Spark that the jar is made for."""

CATALOG = "org.holdfast.spark.HoldfastCatalog"
_JAR = Path(__file__).parent / "holdfast-spark.jar"
_SETTINGS = {"root", "commitStoreUrl", "allowDrop"}

Catalogs = Mapping[str, str | Mapping[str, str]]
"""Name -> its root, or its settings: `root`, `commitStoreUrl`, `allowDrop`, `storage.*`."""


def jar_path() -> Path:
    """Return where the jar is, for `spark-submit --jars`."""
    return _JAR


def catalog_settings(catalogs: Catalogs, spark_version: str) -> dict[str, str]:
    """Return the settings of a Spark session that has these catalogs.

    None, with a warning, on a Spark that the jar is not made for.

    Raises:
        InvalidInputError: a catalog's name, or one of its settings, is malformed.
    """
    if not catalogs:
        return {}
    settings = {"spark.jars": str(_JAR)}
    for name, given in catalogs.items():
        if not name.isidentifier():
            raise InvalidInputError("a catalog's name is a word such as lake", name=name)
        told = {"root": given} if isinstance(given, str) else dict(given)
        unknown = [key for key in told if key not in _SETTINGS and not key.startswith("storage.")]
        if unknown or "root" not in told:
            raise InvalidInputError(
                "a catalog has a root, and may have commitStoreUrl, allowDrop and storage.*",
                name=name,
                given=", ".join(sorted(told)),
            )
        if "://" not in told["root"]:  # Spark's processes may run in another folder
            told["root"] = str(Path(told["root"]).absolute())
        prefix = f"spark.sql.catalog.{name}"
        settings[prefix] = CATALOG
        settings |= {f"{prefix}.{key}": text for key, text in told.items()}
    if not spark_version.startswith(f"{SUPPORTED}."):
        warnings.warn(
            f"catalogs need Spark {SUPPORTED}, and this is {spark_version}: tables are read and "
            'written by their addresses, with format("holdfast")',
            stacklevel=4,
        )
        return {}
    return settings
