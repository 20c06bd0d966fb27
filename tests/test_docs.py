"""The documentation is true: its code runs, its commands work, its links and names exist."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
import holdfast.arbiter
import holdfast.testing
import servers
from holdfast import errors
from holdfast.arbiter import CommitStore, Key, SupportsSetUp, connect_commit_store
from holdfast.errors import PermissionDeniedError
from holdfast.testing import CommitStoreSuite

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
RFC = DOCS / "rfcs" / "0001-decide.md"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
OWN_STORE = DOCS / "how-to" / "write-your-own-commit-store.md"
OWN_OBJECT_STORE = DOCS / "how-to" / "bring-your-own-object-store.md"
PRIVILEGES = DOCS / "how-to" / "least-privileges.md"
# A relative path means the folder in which Spark's Java was started: these start their own.
OWN_PROCESS = [
    ROOT / "README.md",
    *(
        DOCS / "how-to" / f"{name}.md"  # these need Holdfast's jar from the start of Spark's JVM
        for name in ("follow-changes", "spark-sql", "stream-into-the-log")
    ),
]
# Needs a Ray, which takes long to start: tests/commits/test_ray.py runs it.
RAY = DOCS / "how-to" / "ray.md"
OTHERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]

HOLDFAST = Path(sysconfig.get_path("scripts")) / "holdfast"
_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PRINTED = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)
_EXIT = re.compile(r"# exit (\d+)$")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block: its tag, its text and the line it begins at."""

    tag: str
    text: str
    line: int


def blocks_of(page: Path, *, below: str = "") -> list[Block]:
    """Return the fenced blocks of a page, or those below one of its headings."""
    text = page.read_text()
    start, end = 0, len(text)
    if below:
        start = text.index(f"\n## {below}\n") + 1
        end = text.find("\n## ", start)
    return [
        Block(match[1].strip(), match[2], text.count("\n", 0, match.start(2)))
        for match in _FENCE.finditer(text, start, end)
    ]


def prose_of(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def matches(shown: str, line: str) -> bool:
    """Compare a printed line with what a page shows; `...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in shown.rstrip().split("..."))
    return re.fullmatch(pattern, line.rstrip()) is not None


def assert_in_order(shown: Sequence[str], lines: Sequence[str]) -> None:
    left = iter(lines)
    for wanted in shown:
        assert any(matches(wanted, line) for line in left), f"not printed: {wanted!r} in {lines}"


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> None:
    """Run a block; what `print(...)  # this` shows must be what was printed."""
    printed = io.StringIO()
    # Newlines in front, so that a traceback has the page's own line numbers.
    code = compile("\n" * block.line + block.text, str(page), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    assert_in_order(_PRINTED.findall(block.text), printed.getvalue().splitlines())


def run_console(block: Block) -> None:
    """Run the `$ holdfast` lines of a block; the lines that follow each must be printed."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        words = shlex.split(command, comments=True)
        if words[0].removeprefix("./") != "holdfast":
            continue
        done = subprocess.run(
            [HOLDFAST, *words[1:]], capture_output=True, text=True, check=False, timeout=240
        )
        expected = _EXIT.search(command)
        assert done.returncode == int(expected[1] if expected else 0), (command, done.stderr)
        assert_in_order(shown, (done.stdout + done.stderr).splitlines())


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a page a folder, a cache and an environment of its own."""
    before = dict(os.environ)
    for variable in before:
        if variable.startswith("HOLDFAST_"):
            del os.environ[variable]
    os.environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path / "here"
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    page = ModuleType("docs_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)
    return page


def run_page(page: Path, namespace: dict[str, object]) -> None:
    for block in blocks_of(page):
        if block.tag.startswith("python"):
            assert block.tag == "python", f"every example runs: {name_of(page)}:{block.line}"
            run_python(block, page, namespace)
        elif block.tag == "console":
            run_console(block)


@pytest.mark.parametrize("page", [page for page in PAGES if page != RAY], ids=name_of)
def test_the_code_and_commands_of_a_page_run(
    page: Path, elsewhere: Path, module: ModuleType
) -> None:
    if page not in OWN_PROCESS:
        run_page(page, module.__dict__)
        return
    done = subprocess.run(
        [sys.executable, __file__, page],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ("python", "print(1 + 1)  # 3"),
        ("python", "raise ValueError"),
        ("console", "$ holdfast store check sqlite:///none.db"),
        ("console", "$ holdfast store check sqlite:///none.db  # exit 4"),
        ("console", "$ holdfast --version\nsomething else"),
    ],
)
def test_an_example_that_is_not_true_is_noticed(elsewhere: Path, tag: str, text: str) -> None:
    block = Block(tag, text, 1)
    with pytest.raises((AssertionError, ValueError)):
        run_python(block, Path("page.md"), {}) if tag == "python" else run_console(block)


@pytest.mark.requirement("C4")
def test_the_example_commit_store_passes_the_suite(elsewhere: Path) -> None:
    blocks = [block.text for block in blocks_of(OWN_STORE) if block.tag == "python"]
    (elsewhere / "test_folder_store.py").write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_folder_store.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    tests = [name for name in vars(CommitStoreSuite) if name.startswith("test_")]
    assert passed is not None
    assert int(passed[1]) >= len(tests) - 5, "only tests that need a server's URL are skipped"


def test_the_example_object_store_passes_the_suite(elsewhere: Path) -> None:
    blocks = [block.text for block in blocks_of(OWN_OBJECT_STORE) if block.tag == "python"]
    (elsewhere / "test_mounted_store.py").write_text("\n\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mounted_store.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 15  # type: ignore[index]


# Links, and what pages name.


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that a page's headings get."""
    heads = _HEADING.findall(prose_of(page))
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def links_of(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield (as written, file, anchor) of every link that stays inside the repository."""
    for link in _LINK.findall(prose_of(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        yield link, (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        link
        for link, target, anchor in links_of(page)
        if not target.exists() or (anchor and anchor not in anchors_of(target))
    ]
    assert broken == []


def test_every_page_is_reached_from_the_index() -> None:
    reached, todo = {INDEX}, [INDEX]
    while todo:
        for _, target, _ in links_of(todo.pop()):
            if target.suffix == ".md" and target.exists() and target not in reached:
                reached.add(target)
                todo.append(target)
    assert [name_of(page) for page in PAGES[1:] if page not in reached] == []


def test_every_error_has_a_way_out() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, flags=re.MULTILINE))
    classes = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    assert rows == {cls.__name__: cls.kind.value for cls in classes}
    assert set(rows.values()) == {kind.value for kind in errors.ErrorKind}


@pytest.mark.parametrize("public", [holdfast, holdfast.arbiter, holdfast.testing])
def test_every_public_name_is_in_the_reference(public: ModuleType) -> None:
    page = (DOCS / "reference" / "api.md").read_text()
    section = page.partition(f"\n## {public.__name__}\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)[`(]", section))
    assert sorted(set(public.__all__) - named) == []


_PLACE = re.compile(r"`([\w/]+\.py)`(?:: `(\w+)(?:\.(\w+))?`)?")


def test_the_walks_of_the_architecture_lead_somewhere() -> None:
    walks = re.findall(r"^\| .* \| (.*) \|$", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    places = [place for cell in walks for place in _PLACE.findall(cell)]
    assert len(places) > 15
    for file, outer, inner in places:
        path = ROOT / file if file.startswith("tests/") else ROOT / "src" / "holdfast" / file
        names = {
            node.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        assert {name for name in (outer, inner) if name} <= names, file


@functools.cache
def named_tests(file: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_the_rfcs_failure_table_names_real_tests() -> None:
    text = RFC.read_text()
    files = {
        letter: ROOT / path
        for path, letter in re.findall(r"`(tests/[\w/]+\.py)` \(([A-Z])\)", text)
    }
    assert sorted(files) == ["C", "K", "M", "R"]
    table = text.partition("\n## Failure table\n")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and "`test_" in row]
    assert len(rows) >= 30
    for letter, test in re.findall(r"([A-Z]) `(test_\w+)`", "\n".join(rows)):
        assert test in named_tests(files[letter]), test
    assert len(re.findall(r"[A-Z] `test_", table)) == len(re.findall(r"`test_", table))
    every_row = [row for row in table.splitlines() if row.startswith("| ")]
    assert [r for r in every_row if "`test_" not in r and "who repairs" not in r] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    known = {test for file in (ROOT / "tests").rglob("test_*.py") for test in named_tests(file)}
    known |= {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    assert sorted(set(re.findall(r"\btest_\w+", prose_of(page))) - known) == []


def test_the_rfc_lists_every_mutant() -> None:
    source = ast.parse((ROOT / "tests" / "model" / "test_mutants.py").read_text())
    mutants = {
        node.args[0].value
        for node in ast.walk(source)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Mutant"
        and isinstance(node.args[0], ast.Constant)
    }
    table = RFC.read_text().partition("\n## Mutants\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| ([^|]+) \|", table, flags=re.MULTILINE)) - {"mutant"}
    assert {str(mutant) for mutant in mutants} == {row.strip() for row in listed}


# The least privileges are enough, and no more than that.


def passwords_in(blocks: Sequence[Block]) -> dict[str, str]:
    text = "\n".join(block.text for block in blocks)
    return {role: f"change-me-{role}" for role in re.findall(r"change-me-(\w+)", text)}


def statements(block: Block) -> list[str]:
    return [part.strip() for part in block.text.split(";") if part.strip()]


@contextlib.contextmanager
def connected(url: str) -> Iterator[CommitStore]:
    store = connect_commit_store(url)
    try:
        yield store
    finally:
        store.close()


def set_up(url: str) -> None:
    with connected(url) as store:
        assert isinstance(store, SupportsSetUp)
        assert store.set_up() == store.set_up()


def try_roles(writer_url: str, collector_url: str) -> None:
    key = Key("tests/least-privileges", 1)
    with connected(writer_url) as writer, connected(collector_url) as collector:
        assert isinstance(writer, SupportsSetUp)
        assert writer.check() == []
        assert writer.identity() == collector.identity()
        assert writer.put_if_absent(key, b"first") is None
        assert writer.put_if_absent(key, b"second") == b"first"
        assert writer.compare_and_set(key, b"first", b"final")
        assert writer.get(key) == b"final"
        assert [entry.number for entry in writer.scan(key.series)] == [1]
        assert writer.boundary(key.series) == -1
        with pytest.raises(PermissionDeniedError):
            writer.collect(key.series, 1)
        with pytest.raises(PermissionDeniedError):
            collector.put_if_absent(Key(key.series, 2), b"x")
        assert collector.get(key) == b"final"
        assert collector.collect(key.series, 1) == 1
        assert writer.boundary(key.series) == 1


@pytest.mark.requirement("C5")
def test_least_privileges_in_postgresql(postgres: servers.Server) -> None:
    import psycopg

    blocks = blocks_of(PRIVILEGES, below="PostgreSQL")
    roles, schema, tables = blocks
    secret = passwords_in(blocks)
    lake = f"{postgres.admin_url.rpartition('/')[0]}/lake"

    def url(role: str) -> str:
        return f"postgresql://holdfast_{role}:{secret[role]}@127.0.0.1:{postgres.port}/lake"

    with psycopg.connect(postgres.admin_url, autocommit=True) as admin:
        for statement in statements(roles):
            admin.execute(statement.encode())
    try:
        with psycopg.connect(lake, autocommit=True) as admin:
            for statement in statements(schema):
                admin.execute(statement.encode())
            set_up(url("setup"))
            for statement in statements(tables):
                admin.execute(statement.encode())
        try_roles(url("writer"), url("collector"))
    finally:
        with psycopg.connect(postgres.admin_url, autocommit=True) as admin:
            admin.execute("DROP DATABASE lake WITH (FORCE)")
            admin.execute("DROP ROLE holdfast_setup, holdfast_writer, holdfast_collector")


@pytest.mark.requirement("C5")
def test_least_privileges_in_mariadb(mariadb: servers.Server) -> None:
    import pymysql

    blocks = blocks_of(PRIVILEGES, below="MySQL and MariaDB")
    before, after = blocks
    secret = passwords_in(blocks)

    def url(role: str) -> str:
        return f"mysql://holdfast_{role}:{secret[role]}@127.0.0.1:{mariadb.port}/lake"

    admin = pymysql.connect(
        host="127.0.0.1",
        port=mariadb.port,
        user="admin",
        password=servers.PASSWORD,
        autocommit=True,
    )
    with contextlib.closing(admin), admin.cursor() as cursor:
        for statement in statements(before):
            cursor.execute(statement)
        try:
            set_up(url("setup"))
            for statement in statements(after):
                cursor.execute(statement)
            try_roles(url("writer"), url("collector"))
        finally:
            cursor.execute("DROP DATABASE lake")
            cursor.execute("DROP USER holdfast_setup, holdfast_writer, holdfast_collector")


@pytest.mark.requirement("C5")
def test_least_privileges_in_redis(redis_server: servers.Server) -> None:
    import redis

    blocks = blocks_of(PRIVILEGES, below="Redis")
    secret = passwords_in(blocks)

    def url(role: str) -> str:
        return f"redis://holdfast_{role}:{secret[role]}@127.0.0.1:{redis_server.port}/0"

    admin = redis.Redis(port=redis_server.port, password=servers.PASSWORD, protocol=2)
    with contextlib.closing(admin):
        for line in blocks[0].text.splitlines():
            admin.execute_command(*line.split())  # type: ignore[no-untyped-call]
        set_up(url("setup"))
        try:
            try_roles(url("writer"), url("collector"))
        finally:
            admin.execute_command("ACL", "DELUSER", *(f"holdfast_{role}" for role in secret))  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), globals())
