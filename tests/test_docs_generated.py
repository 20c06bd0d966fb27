"""The generated pages are current, and their generator sees what it must see."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import holdfast

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        yield importlib.import_module("tools.generate_docs")


@pytest.mark.parametrize("name", ["requirements", "events", "errors", "api"])
def test_a_generated_page_is_current(generator: ModuleType, name: str) -> None:
    path = f"docs/reference/{name}.md"
    assert generator.is_current(path, generator.PAGES[path]()), "run ./run docs"


def test_marks_and_declarations_agree(generator: ModuleType) -> None:
    assert generator.contradictions(generator.tests_by_requirement(ROOT / "tests")) == []


def test_every_requirement_is_listed_once(generator: ModuleType) -> None:
    names = [name for rows in generator.REQUIREMENTS.values() for name in rows]
    lasts = {"C": 9, "F": 12, "L": 12, "W": 15, "N": 3, "S": 4, "O": 4, "P": 5}
    wanted = [f"{letter}{n}" for letter, last in lasts.items() for n in range(1, last + 1)]
    assert names == wanted


def test_marks_are_found_on_functions_classes_and_modules(
    generator: ModuleType, tmp_path: Path
) -> None:
    source = """
        import pytest

        pytestmark = [pytest.mark.requirement("C1"), pytest.mark.slow]

        @pytest.mark.requirement("C2", "C3")
        def test_one(): ...

        def test_bare(): ...

        @pytest.mark.requirement("C4")
        class TestStore(Suite):
            @pytest.mark.parametrize("x", [1])
            @pytest.mark.requirement("C2")
            def test_two(self, x): ...
    """
    folder = tmp_path / "tests" / "deep"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(textwrap.dedent(source))
    file = "tests/deep/test_it.py"
    assert generator.tests_by_requirement(tmp_path / "tests") == {
        "C1": [file],
        "C2": [f"{file}::test_one", f"{file}::TestStore::test_two"],
        "C3": [f"{file}::test_one"],
        "C4": [f"{file}::TestStore"],
    }


def test_a_built_requirement_without_a_test_is_a_problem(generator: ModuleType) -> None:
    tests = {name: ["tests/test_it.py::test_one"] for name in generator.BUILT}
    assert generator.contradictions(tests) == []
    del tests["C3"]
    assert generator.contradictions(tests) == [
        "requirement C3 is declared built, but no test shows it"
    ]


def test_an_unknown_requirement_is_a_problem(generator: ModuleType) -> None:
    tests = {name: ["tests/test_it.py::test_one"] for name in (*generator.BUILT, "C77")}
    assert generator.contradictions(tests) == [
        "tests/test_it.py::test_one: there is no requirement C77"
    ]


def test_the_api_page_has_every_public_verb_of_a_table() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    verbs = [name for name in dir(holdfast.Table) if not name.startswith("_")]
    assert [name for name in verbs if f"`Table.{name}" not in page] == []
