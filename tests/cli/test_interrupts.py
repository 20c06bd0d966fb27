"""Ctrl-C at any moment, of any command: one line, exit code 130, and a table that is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tools.cli_page import leaves

import holdfast
from cli.damaged import make_sample
from cli.test_damaged_tables import COMMANDS
from holdfast.cli._main import ROOT
from holdfast.upkeep import doctor

pytestmark = pytest.mark.requirement("C6", "O2")

# As the program that pip makes, but for a signal that comes when a module is looked for.
LOADING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from holdfast.cli import main

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
sys.exit(main())
"""
SWALLOWING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from holdfast.cli import _status, main

class Swallows:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def show(target, **given):
    Swallows()
    while True:
        pass

_status.run = show
sys.exit(main())
"""
ENDING = (
    "import atexit, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "atexit.register(signal.raise_signal, signal.SIGINT); "
    "from holdfast.cli import main; sys.exit(main())"
)
# One command after the other; a signal comes at the store call that is asked for.
WORKING = """
import contextlib, io, json, signal, sys
from holdfast.cli import main
from holdfast.storage import LocalStore

signal.signal(signal.SIGINT, signal.default_int_handler)
left = 0

def watch(name):
    real = getattr(LocalStore, name)
    def call(*given, **named):
        global left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGINT)
        return real(*given, **named)
    setattr(LocalStore, name, call)

for name in ("get", "head", "list", "put", "put_if_absent"):
    watch(name)
for line in sys.stdin:
    words, left = json.loads(line)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = main(words)
    print(json.dumps([code, left <= 0, shown.getvalue()]), flush=True)
"""


def run(program: str, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("loaded") / "t.lance"
    holdfast.create_table(place, pa.schema([pa.field("id", pa.int64())])).close()
    return str(place)


@pytest.mark.parametrize(
    "module",
    [
        "click",
        "holdfast.cli._table_commands",
        "holdfast.cli._status",
        "holdfast.arbiter",
        "obstore",
        "pyarrow",
        "lance",
    ],
)
def test_while_it_is_loaded(uri: str, module: str) -> None:
    code, out, err = run(LOADING, module, "status", uri)
    assert (code, out, err) == (130, "", "holdfast: interrupted\n")


def test_where_python_swallows_it(uri: str) -> None:
    """In a destructor nothing can be raised: it is raised right after."""
    code, out, err = run(SWALLOWING, "status", uri)
    assert (code, out, err) == (130, "", "holdfast: interrupted\n")


def test_while_python_ends() -> None:
    """The command is done: its exit code stays, and nothing is said."""
    code, out, err = run(ENDING, "--version")
    assert (code, out, err) == (0, f"holdfast {holdfast.__version__}\n", "")
    code, out, err = run(ENDING, "status", "/nonexistent")
    assert (code, out, err.count("\n")) == (3, "", 1)


def work(calls: Sequence[tuple[Sequence[str], int]]) -> list[Any]:
    given = "".join(json.dumps(call) + "\n" for call in calls)
    done = subprocess.run(
        [sys.executable, "-c", WORKING],
        input=given,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("commit_store", [None, "sqlite"], ids=["put", "sqlite"])
def test_while_a_command_is_at_work(tmp_path: Path, commit_store: str | None) -> None:
    """Every command that touches a table, interrupted at several of its store calls."""
    sample = make_sample(tmp_path, commit_store)
    rows = tmp_path / "rows.csv"
    rows.write_text("id,text\n" + "".join(f"{n},word {n}\n" for n in range(200, 300)))
    stored = [] if commit_store is None else ["--commit-store", commit_store]
    places = {"uri": sample.uri, "shard": sample.shard, "folder": str(tmp_path)}
    commands = {
        **COMMANDS,
        "doctor": ("doctor", "{uri}"),
        "probe": ("probe", "{folder}/p"),
        "create": ("create", "{folder}/new{at}", "id:int64", *stored),
        "ingest": ("ingest", "{uri}", str(rows), "--batch-rows", "20"),
        "index refresh": ("index", "refresh", "{uri}", "text_idx"),
        "index create": ("index", "create", "{uri}", "text", "--name", "other{at}"),
        "copy": ("copy", "{uri}", "--to", "{folder}/copy{at}", "--confirm", *stored),
        "vacuum": ("vacuum", "{uri}", "--confirm"),
        "maintain": ("maintain", "{uri}", "--confirm", "--set", "generations=1"),
        "repair": ("repair", "{uri}", "--confirm"),
    }
    without = {"store init", "store check", "serve", "spark-jar", "completion", "index finalize"}
    assert {*commands} | without == {" ".join(path) for path, _ in leaves(ROOT)}
    calls = [
        ([word.format(**places, at=at) for word in words], at)
        for words in commands.values()
        if words[0] != "release" and words[:2] != ("store", "move")
        for at in (1, 2, 5, 11, 25)
    ]
    interrupted = 0
    for (words, at), (code, came, shown) in zip(calls, work(calls), strict=True):
        assert "Traceback" not in shown, (words, at, shown)
        assert "a defect" not in shown, (words, at, shown)
        if came:
            interrupted += 1
            assert (code, shown.endswith("holdfast: interrupted\n")) == (130, True), (words, shown)
        if came and words[0] == "ingest" and at > 5:
            assert "rows are durable" in shown
    assert interrupted > len(calls) / 2
    assert doctor(sample.uri).healthy
    with holdfast.open_table(sample.uri).claim_writer("unsharded") as writer:
        writer.put([{"id": 9_000, "text": "after"}])
