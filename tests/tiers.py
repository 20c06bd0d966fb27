"""Which tier a test belongs to: it is derived.

A test needs what its module reaches: the names in the module, and in the tests' own modules
behind those names. Nobody keeps a list by hand, so nobody forgets to.

| marker    | the test                                                                    |
|-----------|-----------------------------------------------------------------------------|
| `spark`   | starts Spark, or runs in the folder of Spark's tests                        |
| `server`  | talks to a database or to an S3 server of another program                   |
| `process` | starts a process of its own                                                 |
| `explore` | explores interleavings in the simulated world                               |

`./run test --fast` leaves all four out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).resolve().parent
TIERS = ("spark", "server", "process", "explore")
# About how many plain tests take as long as one of a tier.
_WEIGHTS = {"spark": 10, "explore": 10, "process": 8, "server": 4}

_SERVER_FIXTURES = {"postgres", "mariadb", "redis_server", "ministack", "rclone_s3"}
_SERVER_WORDS = ("postgres", "mariadb", "mysql", "redis", "ministack", "rclone")
_TIER_OF_MODULE = {
    "pyspark": "spark",
    "holdfast.spark": "spark",
    "servers": "server",
    "s3_servers": "server",
    "subprocess": "process",
    "multiprocessing": "process",
    "forks": "process",
    "holdfast.testing._faulty_s3_process": "process",
    "holdfast.testing._explorer": "explore",
}


def group_of(path: str) -> str:
    """Return what a file of tests must share a process with: itself, or all that share one Spark.

    Java keeps the environment it was started with, so in one process the tests of Spark come
    first and the pages, which take whatever Spark is there, come after them.
    """
    return "spark" if path.startswith("tests/spark/") or path == "tests/test_docs.py" else path


def put_long_groups_first(items: list[pytest.Item]) -> None:
    """Sort groups by how long they take, about, for processes that share the work.

    By the number of their tests alone the files with few tests, which are the longest ones, would
    come last, and one process would wait for the other. Inside a group the order stays.
    """
    weights: dict[str, int] = {}
    for item in items:
        markers = {one.name for one in item.iter_markers()}
        weights[_group_of(item)] = weights.get(_group_of(item), 0) + weight_of(markers)
    items.sort(key=lambda item: (-weights[_group_of(item)], _group_of(item)))


def _group_of(item: pytest.Item) -> str:
    return group_of(item.nodeid.split("::", 1)[0])


def weight_of(markers: set[str]) -> int:
    """Return about how long a test takes, by its heaviest tier; a plain one takes 1."""
    return max((_WEIGHTS[tier] for tier in _WEIGHTS.keys() & markers), default=1)


def add_markers(items: list[pytest.Item]) -> None:
    """Give every test the markers of its tiers."""
    tiers_of: dict[Path, set[str]] = {}
    for item in items:
        path = item.path
        if path not in tiers_of:
            tiers_of[path] = set(_tiers_of_module(getattr(item, "module", None)))
            if TESTS / "spark" in path.parents:
                tiers_of[path].add("spark")
        tiers = tiers_of[path] | _tiers_of_fixtures(getattr(item, "fixturenames", ()))
        if any(word in item.name.partition("[")[2] for word in _SERVER_WORDS):
            tiers.add("server")  # a parameter that a fixture asks the server of
        for tier in sorted(tiers):
            item.add_marker(getattr(pytest.mark, tier))


def _tiers_of_fixtures(names: object) -> set[str]:
    assert isinstance(names, list | tuple)
    tiers = {"server"} if _SERVER_FIXTURES & set(names) else set()
    if "faulty_s3_process" in names:
        tiers.add("process")
    return tiers


def _tiers_of_module(module: ModuleType | None) -> Iterator[str]:
    for name in _reached(module) if module is not None else ():
        parts = name.split(".")
        above = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        yield from (_TIER_OF_MODULE[one] for one in above & _TIER_OF_MODULE.keys())


def _reached(module: ModuleType) -> set[str]:
    """Return the names of the modules behind the names in a module of the tests."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for value in list(vars(waiting.pop()).values()):
            name = value.__name__ if isinstance(value, ModuleType) else _home_of(value)
            if name is None or name in seen:
                continue
            seen.add(name)
            home = None if name in _TIER_OF_MODULE else sys.modules.get(name)
            file = getattr(home, "__file__", None)
            if home is not None and file and TESTS in Path(file).parents:
                waiting.append(home)
    return seen


def _home_of(value: object) -> str | None:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else None
