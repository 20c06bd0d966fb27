"""The command line: what it prints, how it ends, and that it never shows a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from command_line import Cli
from holdfast import __version__, errors
from holdfast.arbiter import Won, create_arbiter, open_arbiter
from holdfast.cli import Exit, _probe, _start
from holdfast.cli._output import _EXITS, MEANINGS
from holdfast.errors import ErrorKind, PinMismatchError
from holdfast.formats import version_name
from holdfast.testing import Fault, FaultyS3

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., FaultyS3]
PROBE_EXITS = {
    "enforced": Exit.OK,
    "ignored": Exit.UNFIT,
    "racy": Exit.UNFIT,
    "unsupported": Exit.UNFIT,
    "inconclusive": Exit.UNAVAILABLE,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    return tmp_path / "cache"


def options(s3: FaultyS3, **more: str) -> list[str]:
    given = {**s3.storage_options(), "client_max_retries": "0", **more}
    return [part for key, value in given.items() for part in ("-o", f"{key}={value}")]


def run(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **settings,
    )


def remembered(cache: Path) -> list[Path]:
    return list(cache.rglob("*.json"))


# Help and usage


def test_help_lists_commands_and_exit_codes(cli: Cli) -> None:
    assert cli("--help") == Exit.OK
    for command in ("probe", "store", "pin"):
        assert command in cli.out
    for code, meaning in MEANINGS.items():
        assert f"{code.value:>2}  {meaning}" in cli.out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("probe",), ("URI", "--json", "KEY=VALUE", "env:NAME")),
        (("store",), ("init", "check", "move")),
        (("store", "init"), ("URL", "--json", "safe to repeat")),
        (("store", "check"), ("URL", "--json")),
        (("pin",), ("--moved", "--copied", "--confirm", "--json")),
    ],
)
def test_every_command_has_help(cli: Cli, command: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert cli(*command, "--help") == Exit.OK
    for word in words:
        assert word in cli.out


def test_version(cli: Cli) -> None:
    assert cli("--version") == Exit.OK
    assert cli.out == f"holdfast {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("probe",),
        ("probe", "--jso", "x"),
        ("probe", "x", "y"),
        ("store",),
        ("store", "drop", "sqlite:///x.db"),
        ("store", "init"),
        ("pin", "x", "--moved", "--copied"),
        ("probe", "x", "-o"),
    ],
)
def test_wrong_usage(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli(*arguments) == Exit.USAGE
    assert cli.out == ""
    assert cli.err.startswith("usage: holdfast")


def test_misplaced_secrets_are_not_repeated(cli: Cli) -> None:
    for arguments in (
        ("probe", "s3://b", "aws_secret_access_key=CANARY"),
        ("store", "postgresql://u:CANARY@host/db"),
        ("store", "init", "sqlite:///x.db", "postgresql://u:CANARY@host/db"),
        ("probe", "s3://key:CANARY@b/t"),
        ("probe", "s3://b/t?sig=CANARY"),
        ("probe", "s3://b/t", "-o", "CANARY"),
        ("probe", "s3://b/t", "-o", "aws_secret_access_key:CANARY"),
    ):
        assert cli(*arguments) == Exit.USAGE
        assert "CANARY" not in cli.out + cli.err


def test_every_kind_of_error_has_an_exit_code_and_every_code_a_meaning() -> None:
    assert set(_EXITS) == set(ErrorKind)
    assert set(MEANINGS) == set(Exit)
    assert [code.value for code in Exit] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 70]


# Probe


@pytest.mark.requirement("C3")
def test_probe_of_a_folder(cli: Cli, tmp_path: Path, cache: Path) -> None:
    assert cli("probe", str(tmp_path / "t")) == Exit.OK
    assert cli.out.startswith(f"ENFORCED  file://{tmp_path}/t\n")
    assert "requests" in cli.out
    assert cli.err == f"probing file://{tmp_path}/t ...\n"
    assert len(remembered(cache)) == 1
    left = [p for p in (tmp_path / "t").rglob("*") if p.is_file()]
    assert left == []


@pytest.mark.requirement("C3")
@pytest.mark.parametrize(
    ("conditions", "verdict"),
    [
        ("honest", "enforced"),
        ("ignoring", "ignored"),
        ("racy", "racy"),
        ("unsupported", "unsupported"),
        ("inverted", "inconclusive"),
        ("lossy", "ignored"),
    ],
)
def test_probe_tells_stores_apart(
    cli: Cli, faulty_s3: Start, cache: Path, conditions: str, verdict: str
) -> None:
    code = PROBE_EXITS[verdict]
    s3 = faulty_s3(conditions=conditions)
    assert cli("probe", s3.url("b", "t"), "--json", *options(s3)) == code
    report = cli.shown()
    assert report["verdict"] == verdict
    assert set(report) == {
        "location",
        "verdict",
        "evidence",
        "requests",
        "elapsed_seconds",
        "left_behind",
    }
    assert report["location"] == "s3://b/t"
    assert report["evidence"] and all(isinstance(line, str) for line in report["evidence"])
    assert report["requests"] > 0
    assert report["left_behind"] == []
    assert cli.err == ""
    assert len(remembered(cache)) == (verdict == "enforced")
    assert cli("probe", s3.url("b", "t"), *options(s3)) == code
    assert cli.out.startswith(verdict.upper())
    assert next(text for v, text in _probe._ADVICE.items() if v.value == verdict) in cli.out


@pytest.mark.requirement("C3")
def test_probe_of_a_server_that_is_down(cli: Cli, faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.stop()
    assert cli("probe", s3.url("b", "t"), "--json", *options(s3)) == Exit.UNAVAILABLE
    assert cli.shown()["verdict"] == "inconclusive"
    assert any("no usable answer" in line for line in cli.shown()["evidence"])


@pytest.mark.requirement("C3")
def test_probe_with_wrong_credentials(cli: Cli, faulty_s3: Start) -> None:
    s3 = faulty_s3(access_key="right", secret_key="right")
    arguments = ("probe", s3.url("b", "t"), *options(s3, aws_access_key_id="wrong"))
    assert cli(*arguments) == Exit.PERMISSION
    assert "refused these credentials" in cli.err
    assert cli.out == ""
    assert cli(*arguments, "--json") == Exit.PERMISSION
    assert cli.shown()["error"]["kind"] == "permission_denied"
    assert set(cli.shown()["error"]) == {"kind", "message", "details"}


@pytest.mark.requirement("C3")
def test_probe_of_a_read_only_store(cli: Cli, faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="status_before", method="PUT", status=403, times=None))
    assert cli("probe", s3.url("b", "t"), *options(s3)) == Exit.PERMISSION


@pytest.mark.requirement("C3")
def test_probe_with_a_role_that_may_not_delete(cli: Cli, faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="status_before", method="POST", status=403, times=None))
    assert cli("probe", s3.url("b", "t"), *options(s3)) == Exit.OK
    assert "Could not be removed (no delete rights?): _holdfast/probe/" in cli.out
    assert cli("probe", s3.url("b", "t"), "--json", *options(s3)) == Exit.OK
    assert len(cli.shown()["left_behind"]) == 9


@pytest.mark.requirement("C3")
def test_probe_of_a_missing_bucket(cli: Cli, faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="status_before", status=404, times=None))
    assert cli("probe", s3.url("b", "t"), *options(s3)) == Exit.NOT_FOUND
    assert "no such bucket" in cli.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("hdfs://x/y",), "unknown store scheme 'hdfs'"),
        (("s33://x/y",), "did you mean 's3'?"),
        (("s3://b/t", "-o", "aws_acess_key_id=CANARY"), "did you mean 'aws_access_key_id'?"),
        (("s3://b/t", "-o", "novalue"), "KEY=VALUE"),
        (("s3://b/t", "-o", "=CANARY"), "KEY=VALUE"),
        (("s3://b/t", "-o", "region=a", "-o", "region=b"), "given twice"),
        (("s3://b/t", "-o", "region=a", "-o", "aws_region=b"), "two spellings"),
        (("s3://b/t", "-o", "endpoint=http://example.com"), "allow_http=true"),
        (("s3://b/t", "-o", "aws_secret_access_key=env:HOLDFAST_NOT_SET"), "HOLDFAST_NOT_SET"),
        (("s3://b/t", "-o", "timeout=5"), "30s"),
        (("s3://b/../t",), "an object path"),
        (("s3://b%2f/t",), "a bucket's name"),
        (("file:///a%00b",), "names a folder"),
        (("",), "a path or a URL"),
    ],
)
def test_bad_input(cli: Cli, arguments: tuple[str, ...], words: str) -> None:
    assert cli("probe", *arguments) == Exit.USAGE
    assert words in cli.err
    assert cli.err.startswith("holdfast: ")
    assert cli.err.count("\n") == 1
    assert cli.out == ""
    assert cli("probe", *arguments, "--json") == Exit.USAGE
    error = cli.shown()["error"]
    assert error["kind"] == "invalid_input"
    assert "CANARY" not in cli.out + cli.err


def test_values_may_come_from_the_environment(
    cli: Cli, faulty_s3: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = faulty_s3(access_key="right", secret_key="right")
    monkeypatch.setenv("HOLDFAST_TEST_KEY", "right")
    given = options(s3, aws_access_key_id="env:HOLDFAST_TEST_KEY")
    assert cli("probe", s3.url("b", "t"), *given) == Exit.OK


# Commit stores


def test_store_init_and_check(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/commits.db"
    assert cli("store", "check", url) == Exit.NOT_FOUND
    assert f"holdfast store init {url}" in cli.err
    assert cli("store", "init", url, "--json") == Exit.OK
    first = cli.shown()
    assert set(first) == {"store", "identity"}
    assert cli("store", "init", url, "--json") == Exit.OK
    assert cli.shown() == first
    assert cli("store", "init", url) == Exit.OK
    assert cli.out == f"ready: {first['store']}\nidentity {first['identity']}\n"
    assert cli("store", "check", url, "--json") == Exit.OK
    report = cli.shown()
    assert report.items() >= {**first, "problems": [], "races": 20}.items()
    assert set(report["privileges"].values()) == {True}
    assert report["decide_ms"] > 0
    assert report["read_ms"] > 0
    assert cli("store", "check", url) == Exit.OK
    assert cli.out.startswith("fit: ")


def test_store_url_from_the_environment(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_STORE", f"sqlite:///{tmp_path}/commits.db")
    assert cli("store", "init", "env:HOLDFAST_TEST_STORE") == Exit.OK
    assert (tmp_path / "commits.db").exists()
    assert cli("store", "init", "env:HOLDFAST_NOT_SET") == Exit.USAGE


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("nosuch://x", Exit.USAGE),
        ("sqllite:///x.db", Exit.USAGE),
        ("x.db", Exit.USAGE),
        ("", Exit.USAGE),
        ("sqlite://", Exit.USAGE),
        ("sqlite:///x.db?what=1", Exit.USAGE),
        ("sqlite:////no/such/folder/x.db", Exit.NOT_FOUND),
    ],
)
@pytest.mark.parametrize("verb", ["init", "check"])
def test_store_with_a_bad_url(cli: Cli, verb: str, url: str, code: Exit) -> None:
    assert cli("store", verb, url) == code
    assert cli.out == ""
    assert cli("store", verb, url, "--json") == code
    assert cli.shown()["error"]["kind"] in {"invalid_input", "not_found"}
    assert "None" not in cli.shown()["error"]["details"].values()


def test_store_check_of_a_file_that_is_no_database(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database, but long enough to look like one" * 100)
    assert cli("store", "check", f"sqlite:///{tmp_path}/x.db") == Exit.OPERATOR


def test_store_check_finds_an_unfit_file(cli: Cli, tmp_path: Path) -> None:
    import sqlite3

    url = f"sqlite:///{tmp_path}/commits.db"
    assert cli("store", "init", url) == Exit.OK
    connection = sqlite3.connect(tmp_path / "commits.db")
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    assert cli("store", "check", url, "--json") == Exit.UNFIT
    assert "journal_mode" in cli.shown()["problems"][0]
    assert cli("store", "check", url) == Exit.UNFIT
    assert cli.out.startswith("unfit: ")


# Pins


@pytest.fixture
def table(tmp_path: Path) -> Path:
    arbiter = create_arbiter(tmp_path / "table", commit_store="sqlite")
    token = "hf-" + "0" * 32
    assert arbiter.decide(version_name(1), f"first {token}".encode(), token) == Won()
    return tmp_path / "table"


def test_pin_shows_what_a_table_is_tied_to(cli: Cli, table: Path) -> None:
    assert cli("pin", str(table), "--json") == Exit.OK
    shown = cli.shown()
    assert set(shown) == {
        "done",
        "here",
        "address",
        "table_id",
        "arbiter",
        "location",
        "store_id",
        "store_url",
    }
    assert shown["here"] == shown["location"] == f"file://{table}"
    assert (shown["arbiter"], shown["store_url"], shown["done"]) == (
        "commit-store",
        "sqlite",
        False,
    )
    assert cli("pin", str(table)) == Exit.OK
    assert f"table_id: {shown['table_id']}\n" in cli.out


def test_pin_lets_the_same_files_be_opened_by_another_way(
    cli: Cli, table: Path, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    shutil.move(table, mount)
    assert cli("pin", str(mount), "--alias") == Exit.OK
    assert "from here as well" in cli.out
    assert cli("pin", str(mount), "--alias", "--confirm", "--json") == Exit.OK
    assert cli.shown()["done"] is True
    open_arbiter(mount).close()
    shutil.move(mount, table)
    open_arbiter(table).close()


@pytest.mark.requirement("O2")
@pytest.mark.parametrize("how", ["--moved", "--copied"])
def test_pin_tells_what_a_copy_left_behind(cli: Cli, tmp_path: Path, how: str) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    table = holdfast.create_table(here, pa.schema([("id", pa.int64())]), commit_store="sqlite")
    for number in range(3):
        table.append([{"id": number}])
    table.close()
    shutil.copytree(here, there)
    lost = sorted((there / "data").iterdir())[1]
    lost.unlink()
    assert cli("pin", str(there), how, "--confirm") == Exit.UNFIT
    assert lost.name in cli.out
    shutil.copy(here / "data" / lost.name, lost)
    assert cli("pin", str(there), how, "--confirm", "--json") == Exit.OK
    assert cli.shown()["missing"] == []
    assert holdfast.open_table(there).scan().read_all().num_rows == 3


@pytest.mark.parametrize("how", ["--moved", "--copied"])
def test_pin_after_a_move_or_a_copy(cli: Cli, table: Path, tmp_path: Path, how: str) -> None:
    there = tmp_path / "elsewhere"
    if how == "--moved":
        shutil.move(table, there)
    else:
        shutil.copytree(table, there)
    with pytest.raises(PinMismatchError, match="holdfast pin"):
        open_arbiter(there)
    assert cli("pin", str(there), "--json") == Exit.OK
    before = cli.shown()
    assert (before["location"], before["here"]) == (f"file://{table}", f"file://{there}")

    assert cli("pin", str(there), how) == Exit.OK
    assert "add --confirm to do it" in cli.out
    with pytest.raises(PinMismatchError):
        open_arbiter(there)

    assert cli("pin", str(there), how, "--confirm", "--json") == Exit.OK
    after = cli.shown()
    assert (after["done"], after["location"]) == (True, f"file://{there}")
    assert (after["table_id"] == before["table_id"]) is (how == "--moved")
    arbiter = open_arbiter(there)
    assert b"first" in (arbiter.read(version_name(1)) or b"")
    token = "hf-" + "1" * 32
    assert arbiter.decide(version_name(2), f"second {token}".encode(), token) == Won()
    if how == "--copied":
        assert open_arbiter(table).read(version_name(2)) is None


def test_pin_where_no_table_is(cli: Cli, tmp_path: Path) -> None:
    for more in ((), ("--moved",), ("--moved", "--confirm")):
        assert cli("pin", str(tmp_path / "nothing"), *more) == Exit.NOT_FOUND
        assert "no Holdfast table is here" in cli.err


def test_pin_of_a_table_that_needs_no_step(cli: Cli, tmp_path: Path) -> None:
    create_arbiter(tmp_path / "table")
    assert cli("pin", str(tmp_path / "table"), "--json") == Exit.OK
    assert cli.shown()["arbiter"] == "conditional-put"
    assert cli("pin", str(tmp_path / "table"), "--moved", "--confirm") == Exit.USAGE
    assert "may be moved freely" in cli.err


def test_pin_that_cannot_be_read(cli: Cli, table: Path) -> None:
    (table / "_holdfast/pin.json").write_text("{}")
    assert cli("pin", str(table)) == Exit.OPERATOR


# How it ends


def test_a_defect_ends_without_a_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("CANARY")

    monkeypatch.setattr(_probe, "probe", broken)
    assert cli("probe", "/tmp/x", "--json") == Exit.INTERNAL
    assert cli.shown()["error"]["kind"] == "internal"
    assert "KeyError at test_cli.py:" in cli.err
    assert "CANARY" not in cli.out + cli.err


def test_an_interrupt_ends_quietly(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_probe, "probe", interrupted)
    assert cli("probe", "/tmp/x") == _start.INTERRUPTED == 130
    assert cli.err.endswith("holdfast: interrupted\n")


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_each_kind_of_error_ends_with_its_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: ErrorKind
) -> None:
    known = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
    (cls,) = (found for found in known if found.kind is kind)

    def failing(*_: object) -> None:
        raise cls("it failed", path="x", nothing=None)

    monkeypatch.setattr(_probe, "probe", failing)
    assert cli("probe", "/tmp/x", "--json") == _EXITS[kind]
    assert cli.shown() == {
        "error": {"kind": kind.value, "message": "it failed", "details": {"path": "x"}}
    }
    assert cli.err == "holdfast: it failed (path=x)\n"


# As a process


def test_as_a_module(tmp_path: Path) -> None:
    done = run("probe", str(tmp_path / "t"), "--json")
    assert done.returncode == Exit.OK
    assert json.loads(done.stdout)["verdict"] == "enforced"
    assert done.stderr == ""


def test_as_a_script(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("holdfast")
    done = subprocess.run(
        [script, "probe", "hdfs://x"], capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.USAGE
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("holdfast: unknown store scheme")


@pytest.mark.parametrize(
    "arguments", [("--help",), ("probe", "TABLE"), ("probe", "TABLE", "--json")]
)
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [a.replace("TABLE", str(tmp_path / "t")) for a in arguments]
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *command],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode == Exit.OK
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


# The reference page


def test_the_page_has_the_exit_codes() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    rows = [
        line.strip("| ").split(" | ")
        for line in page.partition("## Exit codes")[2].splitlines()
        if line.startswith("| ") and line[2].isdigit()
    ]
    assert {int(code): meaning for code, meaning in rows} == {
        **{code.value: meaning for code, meaning in MEANINGS.items()},
        _start.INTERRUPTED: "interrupted with Ctrl-C",
    }


def test_the_page_names_every_command() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    for command in ("probe URI", "store init URL", "store check URL", "pin URI"):
        assert f"holdfast {command}" in page
