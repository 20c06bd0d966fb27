"""Rules for the repository as a whole: portable files, pinned packages, an honest ./run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import generate_docs

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted((ROOT / "locks").glob("*.txt"))

# In two halves, so that this file does not contain them.
REGISTRIES = [
    "".join(halves)
    for halves in (
        ("pypi", ".org"),
        ("files.python", "hosted"),
        ("registry.", "npmjs"),
        ("deb.", "debian"),
    )
]
# Places where many people keep things: their names prove nothing.
COMMON_PLACES = {"/", "/home", "/mnt", "/opt", "/root", "/srv", "/tmp", "/usr/src", "/var/tmp"}


def tracked_files() -> list[Path]:
    """Return what git tracks; in an unpacked archive, every file that is not hidden or built."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        walked = (Path(top) / name for top, _, names in os.walk(ROOT) for name in names)
        return [
            p
            for p in walked
            if not re.search(r"/(\.|__pycache__)", str(p.relative_to(ROOT.parent)))
        ]
    paths = (ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


def machine_paths() -> Iterator[str]:
    yield f"{ROOT}/"
    if str(ROOT.parent) not in COMMON_PLACES:
        yield f"{ROOT.parent}/"
    yield f"{Path.home()}/."


def test_no_tracked_file_names_a_machine_path_or_a_package_registry() -> None:
    needles = [*REGISTRIES, *machine_paths()]
    found = [
        f"{path.relative_to(ROOT)}: {needle}"
        for path in tracked_files()
        for needle in needles
        if needle.encode() in path.read_bytes()
    ]
    assert found == []


def long_lines(page: str) -> Iterator[int]:
    """Yield the numbers of lines of prose beyond 100 columns; tables, code and pictures may be."""
    is_code = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif len(line) > 100 and not is_code and not line.lstrip().startswith(("|", "![")):
            yield number


def test_lines_of_pages_are_within_100_columns() -> None:
    pages = [path for path in tracked_files() if path.suffix == ".md"]
    written = [path for path in pages if str(path.relative_to(ROOT)) not in generate_docs.PAGES]
    assert len(written) > 40
    assert [f"{path}:{n}" for path in written for n in long_lines(path.read_text())] == []


def test_a_long_line_is_noticed() -> None:
    long = "word " * 21
    page = f"{long}\n| {long} |\n```\n{long}\n```\n![{long}](x.svg)\n- {long}\n"
    assert list(long_lines(page)) == [1, 7]


def test_the_changelog_dates_its_releases() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    assert heads[1:]
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", one) for one in heads[1:])


def test_pre_commit_runs_what_check_runs() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    for tool in ("ruff check", "ruff format --check", "mypy", "tools.generate_docs --check"):
        assert tool in hooks
        assert f"-m {tool.removeprefix('-m ')}" in (ROOT / "run").read_text()


def requirements(lock: Path) -> dict[str, str]:
    """Return name -> the whole entry with its hashes."""
    entries = re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.MULTILINE)
    return {entry.split("==")[0]: entry for entry in entries if entry.strip()}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_package_has_hashes_and_no_url(lock: Path) -> None:
    entries = requirements(lock)
    assert entries
    for entry in entries.values():
        assert re.match(r"[a-z0-9.-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", entry), entry
    assert "://" not in lock.read_text()
    assert not re.search(r"^-", lock.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("lock", ["build.txt", "demo.txt"])
def test_what_is_installed_first_is_a_part_of_all_packages(lock: str) -> None:
    everything = requirements(ROOT / "locks" / "all.txt")
    for name, entry in requirements(ROOT / "locks" / lock).items():
        assert entry.split()[0] == everything[name].split()[0]


def run(*arguments: str, cwd: Path = ROOT, script: Path = ROOT / "run") -> tuple[int, str]:
    done = subprocess.run(
        [script, *arguments],
        cwd=cwd,
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
    )
    return done.returncode, done.stdout


def listed_recipes(text: str) -> list[str]:
    return re.findall(r"^  (\w+)", text, flags=re.MULTILINE)


def test_run_lists_every_recipe_it_has() -> None:
    written = re.findall(r"^recipe_(\w+)\(\)", (ROOT / "run").read_text(), flags=re.MULTILINE)
    assert {"bench", "check", "clean", "demo", "explore", "lock", "setup", "test"} <= set(written)
    for arguments in ((), ("help",)):
        code, text = run(*arguments)
        assert code == 0
        assert listed_recipes(text) == written


def test_run_refuses_an_unknown_recipe_and_lists_the_others() -> None:
    code, text = run("nonsense")
    assert code == 2
    assert "no recipe named nonsense" in text
    assert "demo" in listed_recipes(text)


def test_run_works_from_elsewhere_and_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "linked"
    link.symlink_to(ROOT / "run")
    assert run(cwd=tmp_path, script=link) == run()


# Ways to run what was read as code.
RISKY_MODULES = {"dill", "cloudpickle", "marshal", "pickle", "shelve"}
RISKY_CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load"}


EXEMPT = {
    # Runs the package's own source with a safeguard taken out, never anything from storage.
    ("src/holdfast/testing/_mutants.py", "exec"),
    # Only dumps, to see that handles refuse it.
    ("src/holdfast/testing/_commit_store_suite.py", "import pickle"),
    ("src/holdfast/testing/_object_store_suite.py", "import pickle"),
}


def risks(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in RISKY_CALLS:
            yield ast.unparse(node.func)
            continue
        else:
            continue
        for name in names:
            if name.split(".")[0] in RISKY_MODULES:
                yield f"import {name}"


def test_no_source_turns_data_into_code() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), risk)
        for path in (ROOT / "src").rglob("*.py")
        for risk in risks(ast.parse(path.read_text()))
    }
    assert found - EXEMPT == set()


@pytest.mark.parametrize(
    "source", ["import pickle", "from pickle import loads", "eval(x)", "exec(x)", "yaml.load(x)"]
)
def test_turning_data_into_code_is_noticed(source: str) -> None:
    assert list(risks(ast.parse(source)))
