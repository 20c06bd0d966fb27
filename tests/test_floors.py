"""The package is a house of floors: a module imports from its own floor or from below, never up.

The checker reads the sources without importing them, so it also sees imports inside functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import house

SOURCES = Path(__file__).resolve().parent.parent / "src"

# From the ground up; what stands on one line shares a floor.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "options", "txn", "events", "_clock", "_ids", "_lazy", "_version", "_wakeup"),
    ("storage", "formats"),
    ("arbiter",),
    ("core",),
    ("commits",),
    ("wal",),
    ("memtable",),
    ("shard",),
    ("read",),
    ("changes",),
    ("index",),
    ("upkeep",),
    ("edit",),
    ("table",),
    ("lifecycle",),
    ("holdfast",),  # the package itself: its __init__ gives out what lies below
    ("spark", "server"),
    ("cli",),
    ("__main__",),
)
HEIGHT = {part: height for height, floor in enumerate(FLOORS) for part in floor}
DATA_LIBRARIES = {"lance", "lance_namespace", "pyarrow"}

# What a part must not import although its height would allow it.
FORBIDDEN = {"formats": {"holdfast.storage", "obstore", "socket", "subprocess", "tempfile"}}
# Who alone may import something. `testing` may import anything.
RESERVED = {
    "pyspark": {"spark", "pyspark_holdfast"},
    "argparse": {"testing"},  # the command line is made with click
    "click": {"cli"},
    "rich": {"cli"},
    "asyncio": {"server", "storage"},  # storage: one listing of a client that knows no other way
    "jinja2": {"server"},
    "prometheus_client": {"server"},
    "starlette": {"server"},
    "uvicorn": {"server"},
}

# Who may hold a store and an arbiter together besides `TableCore`: those that make them.
HOLDS_BOTH = {"core", "storage", "arbiter", "testing"}
EDGES = {"spark", "server", "cli"}

PUBLIC = {
    "holdfast.arbiter.stores",
    "holdfast.testing.faulty_s3",
}
PUBLIC_FOLDERS = {"holdfast.arbiter.stores"}


def violations(sources: Path) -> list[str]:
    """Return one line for each broken rule in the packages below `sources`."""
    found = []
    for path in sorted(sources.rglob("*.py")):
        module = module_name(path, sources)
        tree = ast.parse(path.read_text())
        found += [f"{module}: {problem}" for problem in module_problems(module, tree)]
        is_package = path.name == "__init__.py"
        for target in imports(tree, module, is_package=is_package):
            problem = import_problem(part_of(module), target)
            if problem:
                found.append(f"{module} imports {target}: {problem}")
    return found


def module_name(path: Path, sources: Path) -> str:
    parts = path.relative_to(sources).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """Return the part of the house: `holdfast.wal._x` is in `wal`."""
    names = module.split(".")
    return names[1] if names[0] == "holdfast" and len(names) > 1 else names[0]


def module_problems(module: str, tree: ast.Module) -> Iterator[str]:
    if not ast.get_docstring(tree):
        yield "has no docstring"
    part = part_of(module)
    if part not in HEIGHT and part not in {"testing", "pyspark_holdfast"}:
        yield f"{part} is on no floor; give it one in tests/test_floors.py"
    folder, _, name = module.rpartition(".")
    nested = folder.count(".") > 0
    if nested and not (name[0] == "_" or module in PUBLIC or folder in PUBLIC_FOLDERS):
        yield "is not one of the public modules, so its name starts with _"
    if part not in HOLDS_BOTH:
        yield from bundle_problems(tree)
    if part in EDGES:
        yield from private_problems(tree)


def bundle_problems(tree: ast.Module) -> Iterator[str]:
    """Yield classes and functions that have a store and an arbiter side by side."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            held = {name.lstrip("_") for name in attributes_of(node)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            held = {argument.arg.lstrip("_") for argument in arguments_of(node)}
        else:
            continue
        if {"store", "arbiter"} <= held:
            yield f"{node.name} has a store and an arbiter: only TableCore holds both"


def attributes_of(node: ast.ClassDef) -> Iterator[str]:
    """Yield what a class declares in its body, as a method, or by assigning to `self`."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id
        elif isinstance(part, ast.FunctionDef):
            yield part.name
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr


def arguments_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def private_problems(tree: ast.Module) -> Iterator[str]:
    """Yield what reaches into a table: `table._x`, `self._table._x`, `run.table._x`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
            continue
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name.lstrip("_") == "table":
            yield f"{ast.unparse(node)} is private to the table: use its public names or its core"


def imports(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the full name of everything imported; of `from a import b`, `a.b`."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            base = above[: len(above) - node.level + 1] if node.level else []
            start = ".".join([*base, node.module] if node.module else base)
            yield from (f"{start}.{alias.name}" for alias in node.names)


def import_problem(part: str, target: str) -> str | None:
    if part == "testing":
        return None
    library = target.split(".", maxsplit=1)[0]
    inside = house_problem(part, target) if library == "holdfast" else None
    if inside:
        return inside
    if any(f"{target}.".startswith(f"{name}.") for name in FORBIDDEN.get(part, ())):
        return f"not for {part}"
    if library in RESERVED and part not in RESERVED[library]:
        return f"only {' and '.join(sorted(RESERVED[library]))} may"
    arrow_bytes = library == "pyarrow" and part == "formats"  # log entries, key indexes
    low = HEIGHT.get(part, 99) < HEIGHT["commits"]
    if library in DATA_LIBRARIES and low and not arrow_bytes:
        return "Lance and Arrow start at commits"
    return None


def house_problem(part: str, target: str) -> str | None:
    if is_past_a_door(part, target):
        return "another package is entered by its door, its __init__"
    return upward_problem(part, target)


def is_past_a_door(part: str, target: str) -> bool:
    """Return whether a target is a private module of another package, or something in one."""
    names = target.split(".")
    return (
        names[0] == "holdfast"
        and len(names) > 2
        and names[1] != part
        and names[2].startswith("_")
        and not names[1].startswith("_")
    )


def upward_problem(part: str, target: str) -> str | None:
    wanted = part_of(target)
    if wanted == "testing":
        return "only tests need holdfast.testing"
    if wanted not in HEIGHT:  # a name such as `holdfast.open_table`, not a module
        wanted = "holdfast"
    if HEIGHT.get(part, 99) < HEIGHT[wanted]:
        return f"{wanted} is above {part}"
    return None


def test_nothing_imports_upwards() -> None:
    assert violations(SOURCES) == []


def test_every_floor_of_the_sources_is_seen() -> None:
    parts = {part_of(module_name(path, SOURCES)) for path in SOURCES.rglob("*.py")}
    assert {"holdfast", "errors", "storage", "arbiter", "cli", "testing"} <= parts


# The checker itself: one broken rule at a time, in a made-up tree.


def tree(folder: Path, module: str, source: str, *, docstring: str = '"""Doc."""\n') -> Path:
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True)
    path.write_text(docstring + source)
    return folder


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.arbiter._x", "import holdfast.commits._y"),
        ("holdfast.arbiter._x", "from holdfast.commits._y import z"),
        ("holdfast.arbiter._x", "from holdfast import commits"),
        ("holdfast.arbiter._x", "from holdfast import open_table"),
        ("holdfast.arbiter._x", "import holdfast"),
        ("holdfast.arbiter._x", "def f():\n    from holdfast.table import Table"),
        ("holdfast.arbiter._x", "from ..commits import y"),
        ("holdfast.table", "from holdfast.upkeep._vacuum import vacuum"),
        ("holdfast.table", "from holdfast.upkeep import _vacuum"),
        ("holdfast.spark._x", "def f():\n    from holdfast.read._view import View"),
        ("holdfast.wal._x", "import holdfast.storage._local"),
        ("holdfast.errors", "from holdfast.storage import _port"),
        ("holdfast.errors", "from .storage import _port"),
        ("holdfast.table", "from holdfast.spark import write"),
        ("holdfast.formats._x", "from holdfast.storage import _port"),
        ("holdfast.formats._x", "import obstore"),
        ("holdfast.formats._x", "from obstore.store import S3Store"),
        ("holdfast.storage._x", "import pyarrow as pa"),
        ("holdfast.arbiter._x", "from lance import dataset"),
        ("holdfast.table", "import pyspark.sql"),
        ("holdfast.cli._x", "from pyspark.sql import SparkSession"),
        ("holdfast.spark._x", "import argparse"),
        ("holdfast.cli._x", "import argparse"),
        ("holdfast.server._x", "import click"),
        ("holdfast.upkeep._x", "from rich.table import Table"),
        ("holdfast.commits._x", "import asyncio"),
        ("holdfast.cli._x", "from starlette.requests import Request"),
        ("holdfast.cli._x", "from holdfast.testing import faulty_s3"),
        ("holdfast.cli._x", "import holdfast.testing.faulty_s3"),
        ("holdfast.attic._x", ""),
        ("holdfast.storage.local", ""),
        ("holdfast.testing.world", ""),
        ("holdfast.core", "import holdfast.commits"),
        ("holdfast.core", "import lance"),
        ("holdfast.table", "from holdfast.lifecycle import create_table"),
        ("holdfast.wal._x", "class Log:\n    store: ObjectStore\n    arbiter: Arbiter"),
        ("holdfast.read._x", "class Reader:\n    _store: ObjectStore\n    _arbiter: Arbiter"),
        ("holdfast.wal._x", "def find(store, arbiter, shard_id): ..."),
        ("holdfast.wal._x", "class Log:\n    def __init__(self, store, *, arbiter): ..."),
        (
            "holdfast.index._x",
            "class Builds:\n    def __init__(self):\n        self._store, self._arbiter = both",
        ),
        (
            "holdfast.upkeep._x",
            "class Log:\n    def store(self): ...\n    def arbiter(self): ...",
        ),
        ("holdfast.spark._x", "table._store.list()"),
        ("holdfast.cli._x", "self._table._versions"),
        ("holdfast.server._x", "run.table._commit()"),
    ],
)
def test_the_checker_notices(tmp_path: Path, module: str, source: str) -> None:
    (found,) = violations(tree(tmp_path, module, source))
    assert found.startswith(module)


def test_the_checker_notices_a_missing_docstring(tmp_path: Path) -> None:
    found = violations(tree(tmp_path, "holdfast.errors", "x = 1\n", docstring=""))
    assert found == ["holdfast.errors: has no docstring"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("holdfast.storage._x", "from holdfast.formats import version_name"),
        ("holdfast.storage._x", "import obstore"),
        ("holdfast.storage._x", "from ._port import Store"),
        ("holdfast.formats._x", "import pyarrow as pa"),
        ("holdfast.commits._x", "import lance, pyarrow"),
        ("holdfast.arbiter.stores.postgres", "from holdfast.errors import ConflictError"),
        ("holdfast.table", "from holdfast.upkeep import vacuum"),
        ("holdfast.cli._x", "from holdfast._version import __version__"),
        ("holdfast.cli._x", "table.core.store.list()"),
        ("holdfast.core", "class TableCore:\n    store: ObjectStore\n    arbiter: Arbiter"),
        ("holdfast.wal._x", "class Log:\n    core: TableCore\n    store: ObjectStore"),
        ("holdfast.lifecycle", "from holdfast.table import Table"),
        ("holdfast.__init__", "from holdfast.table import open_table"),
        ("holdfast.cli._x", "import click, rich\nfrom holdfast import open_table"),
        ("holdfast.spark._x", "from pyspark.sql import SparkSession"),
        ("holdfast.server._x", "import asyncio, uvicorn"),
        ("holdfast.testing.faulty_s3", "import argparse, pyspark\nimport holdfast.cli"),
        ("pyspark_holdfast.__init__", "import pyspark\nfrom holdfast.spark import DefaultSource"),
    ],
)
def test_the_checker_lets_pass(tmp_path: Path, module: str, source: str) -> None:
    assert violations(tree(tmp_path, module, source)) == []


# A class name exists once, and nobody outside asks a store or an arbiter for its class.

CONCRETE = {"ConditionalPut", "LocalStore", "MemoryStore", "RecordedDecisions", "RemoteStore"}
THEIR_FOLDERS = {"storage", "arbiter", "testing"}


def repeated_classes(sources: Path) -> list[str]:
    """Return the class names that several modules define."""
    homes: dict[str, list[str]] = {}
    for path in sorted(sources.rglob("*.py")):
        module = module_name(path, sources)
        if part_of(module) == "testing":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    return [f"{name}: {', '.join(found)}" for name, found in homes.items() if len(found) > 1]


def concrete_questions(sources: Path) -> list[str]:
    """Return where `isinstance` names a concrete store or arbiter outside its folder."""
    return [
        f"{module_name(path, sources)}: {ast.unparse(node)}"
        for path in sorted(sources.rglob("*.py"))
        if part_of(module_name(path, sources)) not in THEIR_FOLDERS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "isinstance"
        and CONCRETE & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    ]


def participles(sources: Path) -> list[str]:
    """Return the functions whose whole name is a participle: `opened` instead of `open_table`."""
    return [
        f"{module_name(path, sources)}.{name}"
        for path in sorted(sources.rglob("*.py"))
        for name in house.find_participles(ast.parse(path.read_text()))
    ]


def test_a_function_is_named_by_a_verb_or_a_noun() -> None:
    assert participles(SOURCES) == []


def test_a_participle_is_noticed(tmp_path: Path) -> None:
    names = "opened _found needed waiting need applied open_table sorted_rows"
    plain = "".join(f"def {name}(): ...\n" for name in names.split(" "))
    inside = "class Log:\n    def flushed(self): ...\n    @property\n    def closed(self): ...\n"
    tree(tmp_path, "holdfast.wal._x", plain + inside)
    found = [name.rpartition(".")[2] for name in participles(tmp_path)]
    assert found == ["opened", "_found", "needed", "waiting", "flushed"]


def test_a_class_name_exists_once() -> None:
    assert repeated_classes(SOURCES) == []


def test_a_store_is_asked_for_a_power_not_for_its_class() -> None:
    assert concrete_questions(SOURCES) == []


def test_a_repeated_class_name_is_noticed(tmp_path: Path) -> None:
    tree(tmp_path, "holdfast.wal._x", "class Log: ...\n")
    tree(tmp_path, "holdfast.read._x", "class Log: ...\n")
    assert repeated_classes(tmp_path) == ["Log: holdfast.read._x, holdfast.wal._x"]


def test_a_question_for_a_class_is_noticed(tmp_path: Path) -> None:
    tree(tmp_path, "holdfast.wal._x", "isinstance(store, LocalStore | int)\n")
    tree(tmp_path, "holdfast.storage._x", "isinstance(store, LocalStore)\n")
    assert concrete_questions(tmp_path) == ["holdfast.wal._x: isinstance(store, LocalStore | int)"]
