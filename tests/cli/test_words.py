"""The command line itself: what loads, help, completion, logging, names of shards, input."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import lance
import pyarrow as pa
import pytest

import holdfast
from command_line import Cli
from holdfast.arbiter import connect_commit_store
from holdfast.cli import Exit, _create, _ingest, main
from holdfast.cli._declare import Argument, Verb
from holdfast.cli._main import COMPLETE_VARIABLE, ROOT
from holdfast.cli._table_commands import FORMATS, LEFTOVERS, SETTINGS, TYPES
from holdfast.server import Role
from holdfast.shard import Sharding
from holdfast.upkeep import LeftoverKind, Policy
from storage.mounts import mounted

pytestmark = pytest.mark.requirement("C6", "O2")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
SCRIPT = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from holdfast.cli import main; sys.exit(main(sys.argv[1:]))"
)


def run(cli: Cli, *words: str) -> tuple[int, Any, str]:
    code = cli(*words, "--json")
    return code, cli.shown(), cli.err


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    table = holdfast.create_table(tmp_path / "t.lance", SCHEMA, primary_key=["id"])
    table.close()
    return str(tmp_path / "t.lance")


def leaves(command: click.Command = ROOT, *path: str) -> Iterator[tuple[tuple[str, ...], Verb]]:
    """Yield every command that does something, with its words."""
    if isinstance(command, Verb):
        yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, *path, name)


LEAVES = dict(leaves())


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_the_work_of_a_command_takes_what_it_declares(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    declared = {one.name for one in command.params if one.expose_value} - {"json"}
    declared |= {"place" if path == ("repair",) else "how"} if _has(command, "--moved") else set()
    declared |= {"waiting"} if _has(command, "--discard") else set()
    if "uri" in declared:
        declared = declared - {"uri", "option", "commit_store"} | {"target"}
    parameters = inspect.signature(command.load()).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):  # the server's settings
        assert set(parameters) - declared == {"given"}
    else:
        assert set(parameters) == declared


def _has(command: Verb, name: str) -> bool:
    return any(name in one.opts for one in command.params)


def test_what_help_lists_is_what_there_is() -> None:
    assert set(TYPES) == {*_create._SIMPLE, "vector[N]"}
    assert tuple(LeftoverKind) == LEFTOVERS
    assert tuple(one.name for one in fields(Policy)) == SETTINGS
    assert set(FORMATS) == set(_ingest._FORMATS.values())
    (role,) = (one for one in LEAVES["serve",].params if one.name == "new_token")
    assert isinstance(role.type, click.Choice)
    assert set(role.type.choices) == {one.name.lower() for one in Role}


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["store", "--help"],
        ["help", "vacuum"],
        ["status"],
        ["completion", "zsh"],
    ],
)
def test_little_is_loaded_for_little(words: list[str]) -> None:
    program = (
        "import sys\nfrom holdfast.cli import main\n"
        f"main({words!r})\n"
        "assert not {'lance', 'pyarrow', 'numpy', 'rich', 'argparse'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240, capture_output=True)


def test_help_of_a_command(cli: Cli) -> None:
    for words in (["help", "vacuum"], ["help", "wal", "ls"]):
        assert " ".join(["usage: holdfast", *words[1:]]) in cli.text(*words)
    shown = cli.text("help")
    assert all(f"  {name} " in shown for name in ROOT.commands)


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_has_help_for_all_that_it_takes(cli: Cli, path: tuple[str, ...]) -> None:
    shown = cli.text(*path, "--help")
    for one in LEAVES[path].params:
        assert isinstance(one, Argument | click.Option)
        assert one.text if isinstance(one, Argument) else one.help
        assert str(one.metavar if isinstance(one, Argument) else one.opts[0]) in shown


def test_wrong_usage_is_an_error_in_json_too(cli: Cli) -> None:
    error = cli.json("status", "x", "--wat", code=Exit.USAGE)["error"]
    assert error["kind"] == "invalid_input"
    assert "--watch" in error["message"]
    assert "holdfast help status" in error["message"]
    assert cli.json("--timeout", "0", "status", "x", code=Exit.USAGE)["error"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(cli: Cli, shell: str) -> None:
    script = cli.json("completion", shell)["script"]
    assert COMPLETE_VARIABLE in script
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=60)


@pytest.fixture
def complete(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Ask as bash does: each answer is a kind and a word."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(["holdfast", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
        assert main([]) == 0
        return capfd.readouterr().out.split()

    return ask


def test_completions(complete: Callable[..., list[str]]) -> None:
    assert complete("va") == ["plain,vacuum"]
    assert complete("wal", "re") == ["plain,repair", "plain,reset"]
    assert complete("status", "x", "--co") == ["plain,--commit-store"]
    assert "plain,--position" not in complete("status", "x", "--")
    assert complete("status", "ev") == ["file,ev"]
    assert complete("ingest", "x", "--format", "p") == ["plain,parquet"]
    assert set(complete("completion", "")) == {"plain,bash", "plain,zsh", "plain,fish"}


def test_events_are_told_only_when_asked_for(uri: str) -> None:
    rows = '{"id": 1, "text": "a"}\n'

    def ingest(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words, "ingest", uri, "-", "--format", "jsonl"],
            input=rows,
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        )
        return done.stderr

    assert ingest() == ""
    assert "claimed" in ingest("-v")
    lines = [json.loads(line) for line in ingest("-v", "--log-format", "json").splitlines()]
    assert any("claimed" in line["message"] for line in lines)
    assert {line["level"] for line in lines} <= {"info", "warning"}


def test_shards_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    uri = str(tmp_path / "b.lance")
    table = holdfast.create_table(uri, SCHEMA, primary_key=["id"])
    table.prepare_writers(sharding=Sharding.bucket("id", 4))
    shard, rows = next(iter(table.router().split(pa.table({"id": [1], "text": ["a"]}))))
    with table.claim_writer(shard) as writer:
        writer.put(rows)
    number = next(n for n in range(4) if run(cli, "shard", "show", uri, f"bucket-{n}")[0] == 0)
    for words in (["wal", "ls"], ["shard", "show"], ["wal", "repair"], ["shard", "repair"]):
        code, shown, _ = run(cli, *words, uri, f"bucket-{number}")
        assert code == 0
        assert shown.get("shard", shown.get("shard_id")) == shard.shard_id
        assert run(cli, *words, uri, shard.shard_id)[0] == 0
        for unknown in ("unsharded", "bucket-9", "11111111-2222-4333-8444-555555555555"):
            assert run(cli, *words, uri, unknown)[0] == 3, unknown
        assert run(cli, *words, uri, "nonsense")[0] == 2
    assert run(cli, "ingest", uri, "-", "--format", "csv", "--shard", "unsharded")[0] == 2


def test_a_shard_that_does_not_fit_the_table_is_refused(cli: Cli, uri: str) -> None:
    words = ["ingest", uri, "-", "--format", "csv", "--shard", "bucket-3"]
    error = cli.json(*words, code=Exit.USAGE)["error"]
    assert "does not divide its rows" in error["message"]
    for words in (["wal", "tail"], ["wal", "show"]):
        more = ["1"] if words[1] == "show" else []
        assert cli(*words, uri, "bucket-3", *more) == Exit.NOT_FOUND


def test_a_root_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    for words in (["tables"], ["status", "--all"], ["doctor", "--all"], ["maintain", "--all"]):
        assert cli(words[0], str(tmp_path / "none"), *words[1:]) == Exit.NOT_FOUND, words
        assert cli.json("tables", str(tmp_path))["tables"] == []


def test_times_that_are_none_are_named(cli: Cli, uri: str) -> None:
    for words in (["maintain", uri, "--every", "0s"], ["status", uri, "--watch", "soon"]):
        assert cli(*words) == Exit.USAGE
        assert f"{words[-2]} is a time such as 30s" in cli.err


@pytest.mark.requirement("L7", "O4")
@pytest.mark.parametrize("words", [[], ["--no-flush"]], ids=["flush", "no flush"])
@pytest.mark.parametrize("commit_store", [[], ["--commit-store", "sqlite"]], ids=["put", "sqlite"])
def test_a_full_disk_is_named(
    cli: Cli, tmp_path: Path, commit_store: list[str], words: list[str]
) -> None:
    """What is said to be durable is; with room again, the same command writes the rest once."""
    rows, noise = tmp_path / "rows.jsonl", random.Random(1)
    texts = [f"{noise.getrandbits(400):0100x}" for _ in range(30_000)]
    rows.write_text("".join(f'{{"id": {n}, "text": "{text}"}}\n' for n, text in enumerate(texts)))
    with mounted(tmp_path / "small", "size=24m") as folder:
        uri = str(folder / "t")
        assert cli("create", uri, "id:int64", "text:string", *commit_store) == 0
        (folder / "ballast").write_bytes(b"x" * ((24 << 20) - (1200 << 10)))
        command = ["-q", "ingest", uri, str(rows), "--txn", "load", *words]
        code = cli(*command)
        # By put-if-absent it is known that the entry was not stored; a record may have been.
        assert code in ({Exit.UNAVAILABLE, Exit.UNKNOWN} if commit_store else {Exit.UNAVAILABLE})
        assert "is full" in cli.err
        durable = int(re.findall(r"durable_rows=([0-9]+)", cli.err)[0])
        assert 0 < durable < len(texts)
        (folder / "ballast").unlink()
        with contextlib.closing(holdfast.open_table(uri)) as table:
            there = table.to_table()["id"].to_pylist()
        assert there[:durable] == list(range(durable))
        assert len(there) == durable or commit_store
        assert cli.json(*command)["repeated"] == len(there)
        with contextlib.closing(holdfast.open_table(uri)) as table:
            assert sorted(table.to_table()["id"].to_pylist()) == list(range(len(texts)))


def ingest_csv(cli: Cli, uri: str, folder: Path, text: str, *words: str) -> tuple[int, Any, str]:
    file = folder / "rows.csv"
    file.write_text(text)
    return run(cli, "ingest", uri, str(file), *words)


def test_only_an_empty_field_without_quotes_is_null(uri: str, tmp_path: Path, cli: Cli) -> None:
    text = 'id,text\n1,NA\n2,""\n3,\n4,"null"\n5,NULL\n6,"two\nlines"\n7,"a ""word"""\n'
    assert ingest_csv(cli, uri, tmp_path, text)[0] == 0
    table = holdfast.open_table(uri)
    found = {row["id"]: row["text"] for row in table.to_table().to_pylist()}
    assert found == {
        1: "NA",
        2: "",
        3: None,
        4: "null",
        5: "NULL",
        6: "two\nlines",
        7: 'a "word"',
    }
    assert ingest_csv(cli, uri, tmp_path, text, "--null", "NA", "--null", "NULL")[0] == 0
    found = {row["id"]: row["text"] for row in table.to_table().to_pylist()}
    assert (found[1], found[5], found[4]) == (None, None, "null")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('id,text\n1,a\n2,"b\n3,c\n4,d\n', "quote is never closed"),
        ("id,text\n1,a\n2\n", "Expected 2 columns"),
        ("id,text\n1,a,b\n", "Expected 2 columns"),
        ("id,text\nx,a\n", "cannot be read as csv"),
        ("id,other\n1,a\n", "columns that the table has not"),
    ],
)
def test_malformed_csv_is_an_error(
    uri: str, tmp_path: Path, cli: Cli, text: str, says: str
) -> None:
    code, shown, err = ingest_csv(cli, uri, tmp_path, text)
    assert code == 2
    assert says in shown["error"]["message"]
    assert "rows.csv" in err
    assert holdfast.open_table(uri).count() == 0


def test_a_long_quoted_text_is_no_error(uri: str, tmp_path: Path, cli: Cli) -> None:
    """Also across the blocks in which the file is read."""
    long = "\n".join(f'line {n} with ""quotes""' for n in range(10_000))
    text = f'id,text\n1,"{long}"\n2,b\n'
    assert ingest_csv(cli, uri, tmp_path, text)[0] == 0
    found = {row["id"]: row["text"] for row in holdfast.open_table(uri).to_table().to_pylist()}
    assert found == {1: long.replace('""', '"'), 2: "b"}


def test_json_lines_are_streamed(uri: str) -> None:
    """The first rows are in the log before the last line was sent."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "ingest", uri, "-", "--format", "jsonl"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    sent = 0
    pipe = io.BufferedWriter(process.stdin.raw)  # type: ignore[attr-defined]
    while sent < 400_000:
        block = "".join(
            f'{{"id": {n}, "text": "{"x" * 20}"}}\n' for n in range(sent, sent + 10_000)
        )
        pipe.write(block.encode())
        sent += 10_000
    pipe.flush()
    first = process.stderr.readline().decode()  # before the end of its input
    assert first.startswith("wrote ")
    process.send_signal(signal.SIGINT)
    pipe.detach()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    durable = int(err.decode().split(" rows are durable")[0].rsplit(" ", 1)[1])
    found = holdfast.open_table(uri).count()
    assert 0 < durable <= found <= sent


def test_the_loser_of_a_shard_is_told(uri: str) -> None:
    command = [sys.executable, "-c", SCRIPT, "ingest", uri, "-", "--format", "jsonl"]
    first = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert first.stdin is not None
    assert first.stderr is not None
    block = "".join(f'{{"id": {n}, "text": "x"}}\n' for n in range(150_000))
    first.stdin.write(block)
    first.stdin.flush()
    assert first.stderr.readline().startswith("wrote ")  # it owns the shard
    second = subprocess.run(
        command,
        input='{"id": 1, "text": "y"}\n',
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert second.returncode == 0, second.stderr
    first.stdin.write(block)
    _, err = first.communicate(timeout=240)
    assert first.returncode == 9, err
    assert "another process owns this shard" in err
    assert "durable_rows=" in err


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Yield a port on which connections are taken, and nothing is ever said."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield int(server.getsockname()[1])


def test_a_silent_object_store_is_told(cli: Cli, silent_port: int) -> None:
    options = {
        "aws_endpoint": f"http://127.0.0.1:{silent_port}",
        "aws_allow_http": "true",
        "aws_access_key_id": "x",
        "aws_secret_access_key": "y",
        "aws_region": "us-east-1",
    }
    pairs = [word for k, v in options.items() for word in ("-o", f"{k}={v}")]
    for verb in ("status", "doctor", "repair", "vacuum", "history"):
        code, shown, err = run(cli, "--timeout", "0.5", verb, "s3://bucket/t.lance", *pairs)
        assert code == 5
        assert "no answer within 0.5 seconds" in shown["error"]["message"]
        assert "s3://bucket/t.lance" in err


def test_a_silent_commit_store_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
    silent_port: int,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store: Any = connect_commit_store(f"sqlite:///{tmp_path}/c.db")
    store.set_up()
    store.close()
    uri = tmp_path / "t.lance"
    holdfast.create_table(uri, SCHEMA, commit_store=f"sqlite:///{tmp_path}/c.db").close()
    url = f"postgresql://me:secret-word@127.0.0.1:{silent_port}/db"
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", url)
    shown = cli.json("--timeout", "0.5", "status", str(uri), code=Exit.UNAVAILABLE)
    assert shown["error"]["details"]["place"] == f"postgresql://127.0.0.1:{silent_port}/db"
    assert "secret-word" not in cli.out + cli.err


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "redis"])
def test_a_silent_commit_store_on_the_line_is_told(
    cli: Cli, uri: str, silent_port: int, scheme: str
) -> None:
    url = f"{scheme}://me:secret-word@127.0.0.1:{silent_port}/0"
    for words in (
        ["store", "init", url],
        ["store", "check", url],
        ["store", "move", uri, "--to", url],
        ["repair", uri, "--new-commit-store", url],
        ["create", f"{uri}.new", "id:int64", "--commit-store", url],
    ):
        error = cli.json("--timeout", "0.3", *words, code=Exit.UNAVAILABLE)["error"]
        assert error["details"]["place"] == f"{scheme}://127.0.0.1:{silent_port}/0", words
        assert "secret-word" not in cli.out + cli.err


def test_plans_refuse_what_confirm_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, uri: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    none = f"sqlite:///{tmp_path}/none.db"
    recorded = str(tmp_path / "r.lance")
    holdfast.create_table(recorded, SCHEMA, commit_store="sqlite").close()
    plain = str(tmp_path / "p.lance")
    lance.write_dataset(pa.table({"id": [1]}), plain)
    cases = [
        ["pin", uri, "--copied"],
        ["pin", uri, "--moved"],
        ["adopt", plain, "--commit-store", none],
        ["adopt", uri, "--commit-store", "sqlite"],
        ["adopt", recorded, "--commit-store", none],
        ["adopt", plain, "--accept", "7"],
        ["release", plain],
        ["rescue", plain, "--all"],
        ["repair", recorded, "--new-commit-store", none],
        ["repair", uri, "--new-commit-store", none],
        ["repair", uri, "--moved"],
        ["vacuum", uri, "--older-than", "1m"],
        ["vacuum", uri, "--keep-versions-for", "1d"],
        ["store", "move", uri, "--to", none],
    ]
    for words in cases:
        planned, confirmed = run(cli, *words), run(cli, *words, "--confirm")
        assert planned[0] not in {0, 1}, words
        assert planned[0] == confirmed[0], words
        assert planned[1]["error"]["kind"] == confirmed[1]["error"]["kind"], words
    Path(recorded, "_holdfast/commits.db").unlink()
    planned, confirmed = (
        run(cli, "release", recorded),
        run(cli, "release", recorded, "--confirm"),
    )
    assert planned[0] == confirmed[0] == 3
