"""What a person sees: colours, tables and progress at a real terminal, and Ctrl-C."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from cli.terminals import Terminal, run

pytestmark = pytest.mark.requirement("C6", "O2")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MANY = 400_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("terminal")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(made / "cache"))
        table = holdfast.create_table(made / "t.lance", SCHEMA, primary_key=["id"])
        table.append(pa.table({"id": [1], "text": ["a"]}, schema=SCHEMA), txn="first")
        table.close()
    lines = (f'{n},"some text of number {n}"\n' for n in range(MANY))
    (made / "rows.csv").write_text("id,text\n" + "".join(lines))
    return made


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)


def test_tables_and_colours(folder: Path) -> None:
    uri = str(folder / "t.lance")
    code, shown = run("history", uri)
    assert code == 0
    assert "──────" in shown
    assert "\x1b[1mversion" in shown
    assert "first" in shown
    code, shown = run("doctor", uri)
    assert (code, "\x1b[32mhealthy\x1b[0m" in shown) == (0, True)
    code, shown = run("status", f"{uri}.none")
    assert (code, "\x1b[1;31mholdfast:\x1b[0m no Holdfast table" in shown) == (3, True)
    assert "\x1b[1marguments:\x1b[0m" in run("help", "status")[1]


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_colours_where_they_are_not_wanted(folder: Path, environment: dict[str, str]) -> None:
    uri = str(folder / "t.lance")
    for words in (["history", uri], ["status", f"{uri}.none"], ["help", "status"]):
        assert not COLOUR.search(run(*words, **environment)[1]), words


def test_json_is_the_same_at_a_terminal(folder: Path) -> None:
    code, shown = run("history", str(folder / "t.lance"), "--json")
    assert code == 0
    assert json.loads(shown)["versions"][0]["txns"] == ["first"]


def test_progress_moves_and_ends(folder: Path) -> None:
    code, shown = run("ingest", str(folder / "t.lance"), *[str(folder / "rows.csv")] * 4)
    assert code == 0
    parts = [int(found) for found in re.findall(r"([0-9]+)%", shown)]
    assert parts == sorted(parts)
    assert {0, 100} <= set(parts)
    assert len(set(parts)) > 3, "it moved within the files"
    assert f"{4 * MANY} rows" in shown
    assert shown.rstrip().endswith(f"wrote {4 * MANY} rows into 1 shard")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is back"
    code, shown = run("-q", "ingest", str(folder / "t.lance"), str(folder / "rows.csv"))
    assert (code, "%" in shown) == (0, False)


def test_ctrl_c_says_what_is_durable(folder: Path) -> None:
    words = ["holdfast", "ingest", str(folder / "t.lance"), *[str(folder / "rows.csv")] * 20]
    with Terminal(*words) as terminal:
        terminal.see(lambda shown: re.search(r"[1-9][0-9]*000 rows", shown) is not None)
        terminal.type("\x03")
        assert terminal.end() == 130
        shown = terminal.shown
    (durable,) = re.findall(r"holdfast: ([0-9]+) rows are durable", COLOUR.sub("", shown))
    assert 0 < int(durable) < 20 * MANY
    assert "--txn" in shown
    assert shown.rstrip().endswith("interrupted")
    assert "Traceback" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is back"


def test_a_silent_server_is_told_meanwhile() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        words = ["-o", f"aws_endpoint=http://127.0.0.1:{server.getsockname()[1]}"]
        for key in ("aws_access_key_id=x", "aws_secret_access_key=y", "aws_allow_http=true"):
            words += ["-o", key]
        with Terminal("holdfast", "--timeout", "3", "status", "s3://b/t", *words) as terminal:
            terminal.see("waiting for s3://b/t")
            assert terminal.end() == 5
            assert "no answer within 3 seconds" in terminal.shown


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(holdfast completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -Uz compinit; compinit -u; eval "$(holdfast completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "holdfast completion fish | source"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_at_the_prompt(folder: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here: apt-get install {shell}")
    (folder / "events.lance").mkdir(exist_ok=True)
    words, load = SHELLS[shell]
    with Terminal(*words, PS1="$ ", HOME=str(folder), fish_greeting="") as terminal:
        terminal.type(f'cd {folder}; {load}; echo rea""dy\n')
        terminal.see("ready")
        terminal.type("holdfast va\t")
        terminal.see("vacuum")
        terminal.type("ev\t")
        terminal.see("events.lance")
        terminal.type(" --keep\t")
        terminal.see("--keep-versions-for")
