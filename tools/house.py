"""Measure the house: sizes of modules and functions, doors, powers, names, comments.

    .venv/bin/python -m tools.house

Prints one table. CONTRIBUTING.md keeps the figures of the last time.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "holdfast"
CONCRETE = {"LocalStore", "RemoteStore", "MemoryStore", "RecordedDecisions", "ConditionalPut"}
# Participles that do not end with -ed, and words with that end that are none.
IRREGULAR = re.compile(
    "begun|bound|built|caught|chosen|done|drawn|driven|forgotten|found|frozen|given|gone|grown|held"
    "|hidden|kept|known|laid|lent|lost|made|met|paid|said|seen|sent|shown|spent|taken|told|torn"
    "|understood|won|worn|written"
)
NO_PARTICIPLES = re.compile(
    "bring|embed|everything|exceed|feed|meaning|need|nothing|proceed|ring|seed|setting|shed|speed"
    "|string|succeed|thing"
)
KNOWN_TO_USERS = re.compile(
    "applied|elapsed|fired|given|redacted|started|subscribed|unsharded|watched"
)


def main() -> None:
    """Print the table."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    lines = [len(path.read_text().splitlines()) for path in trees]
    functions = [
        node.end_lineno - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    ]
    classes = Counter(
        node.name
        for path, tree in trees.items()
        if _package(path) != "testing"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    rows = {
        "modules": len(trees),
        "lines": sum(lines),
        "median lines of a module": statistics.median(lines),
        "modules above 400 lines": sum(size > 400 for size in lines),  # noqa: PLR2004
        "median lines of a function": statistics.median(functions),
        "90th percentile": statistics.quantiles(functions, n=10)[-1],
        "functions above 60 lines": sum(size > 60 for size in functions),  # noqa: PLR2004
        "imports into another package's module": sum(starmap(count_doors, trees.items())),
        "`isinstance` on a concrete store or arbiter": sum(starmap(count_powers, trees.items())),
        "class names that exist twice": sum(count > 1 for count in classes.values()),
        "functions named by a bare participle": sum(
            len(list(find_participles(tree))) for tree in trees.values()
        ),
        "lines that are comments, %": round(100 * sum(map(count_comments, trees)) / sum(lines), 1),
    }
    print("| what | figure |\n|---|---:|")
    for what, figure in rows.items():
        print(f"| {what} | {figure:g} |")


def count_doors(path: Path, tree: ast.Module) -> int:
    """Return how many imports of a module reach past another package's door."""
    package = _package(path)
    return (
        0
        if package == "testing"
        else sum(_is_past_a_door(node, package) for node in _imports(tree))
    )


def _is_past_a_door(node: ast.ImportFrom, package: str) -> bool:
    parts = (node.module or "").split(".")
    return parts[0] == "holdfast" and len(parts) > 2 and parts[1] != package and parts[2][0] == "_"  # noqa: PLR2004


def count_powers(path: Path, tree: ast.Module) -> int:
    """Return how often a module asks for a concrete class instead of a power."""
    if _package(path) in {"storage", "arbiter", "testing"}:
        return 0
    return sum(
        isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "isinstance"
        and bool(CONCRETE & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)})
        for node in ast.walk(tree)
    )


def find_participles(tree: ast.Module) -> Iterator[str]:
    """Yield functions and methods whose whole name is a participle; properties may be."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    homes: list[ast.Module | ast.ClassDef] = [tree, *classes]
    for node in (node for home in homes for node in home.body):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = " ".join(ast.unparse(one) for one in node.decorator_list)
        if _is_participle(node.name.strip("_")) and "property" not in decorators:
            yield node.name


def _is_participle(name: str) -> bool:
    if "_" in name or KNOWN_TO_USERS.fullmatch(name) or NO_PARTICIPLES.fullmatch(name):
        return False
    return name.endswith(("ed", "ing")) or IRREGULAR.fullmatch(name) is not None


def count_comments(path: Path) -> int:
    """Return how many lines hold a comment that is no order to a tool."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    comments = (token.string for token in tokens if token.type == tokenize.COMMENT)
    return sum(not text.startswith(("# noqa", "# type:")) for text in comments)


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))


def _package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0]


if __name__ == "__main__":
    main()
