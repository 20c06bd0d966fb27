"""The reference page: the JSON of each command is documented as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tools.cli_page import leaves

from command_line import Cli
from holdfast.cli._main import ROOT

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/cli.md").read_text()
SECTIONS = {part.partition("`\n")[0]: part for part in re.split(r"(?m)^## `holdfast ", PAGE)[1:]}
COMMANDS = [" ".join(path) for path, _ in leaves(ROOT)]

# In this order: each finds what those before it left.
CALLS: dict[str, tuple[str, ...]] = {
    "create": ("{uri}", "id:int64", "text:string", "--key", "id", "--commit-store", "sqlite"),
    "tables": ("{root}",),
    "ingest": ("{uri}", "{rows}", "--no-flush"),
    "pin": ("{uri}",),
    "shard ls": ("{uri}",),
    "shard show": ("{uri}", "unsharded"),
    "shard stats": ("{uri}",),
    "shard repair": ("{uri}", "unsharded"),
    "wal ls": ("{uri}", "unsharded"),
    "wal show": ("{uri}", "unsharded", "2"),
    "wal tail": ("{uri}", "unsharded", "--timeout", "0", "--after", "1"),
    "wal repair": ("{uri}", "unsharded"),
    "wal reset": ("{uri}", "--keep"),
    "maintain": ("{uri}", "--set", "log_age=0m", "--set", "idle=0m"),
    "index create": ("{uri}", "text"),
    "index ls": ("{uri}",),
    "index show": ("{uri}", "text_idx"),
    "index search": ("{uri}", "text", "storm"),
    "vacuum": ("{uri}",),
    "copy": ("{uri}", "--to", "{root}/u.lance", "--confirm"),
    "store init": ("sqlite:///{root}/c.db",),
    "store check": ("sqlite:///{root}/c.db",),
    "store move": ("{uri}", "--to", "sqlite:///{root}/c.db"),
    "probe": ("{root}/p",),
    "spark-jar": (),
    "completion": ("bash",),
    "serve": ("--new-token", "read"),
}
ELSEWHERE = {"status", "history", "adopt", "release", "doctor", "repair", "rescue"}
"""Those of `test_table_cli.py`."""
FREE = {"parameters", "columns", "privileges", "tags"}  # whose fields are names of the user's
SAME_AS = {"index refresh", "index finalize"}


def section(command: str) -> str:
    return next(text for title, text in SECTIONS.items() if f"{title} ".startswith(f"{command} "))


def documented(command: str) -> Any:
    return json.loads(section(command).partition("```json\n")[2].partition("```")[0])


def shape(value: Any, path: str = "") -> set[str]:
    """Return the fields of a JSON value; of a list those of its first item."""
    if isinstance(value, list):
        return shape(value[0], path) if value else set()
    if not isinstance(value, dict) or path.rpartition(".")[2] in FREE:
        return set()
    inner = (shape(below, f"{path}.{key}") for key, below in value.items() if key != "shards")
    return {f"{path}.{key}" for key in value}.union(*inner)


def test_every_command_has_a_section_with_its_json() -> None:
    assert set(COMMANDS) == {*CALLS} | ELSEWHERE | SAME_AS
    for command in COMMANDS:
        if command in SAME_AS:
            assert "Its JSON is that of `index create`" in section(command)
        else:
            assert documented(command), command


def test_the_page_shows_the_shapes_as_they_are(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    (tmp_path / "lake").mkdir()
    (tmp_path / "rows.csv").write_text("id,text\n1,storm at sea\n2,calm\n")
    places = {
        "root": str(tmp_path / "lake"),
        "uri": str(tmp_path / "lake/t.lance"),
        "rows": str(tmp_path / "rows.csv"),
    }
    for command, words in CALLS.items():
        given = [word.format(**places) for word in words]
        shown = cli.json("-q", *command.split(), *given)
        wanted, got = shape(documented(command)), shape(shown)
        missing = {one for one in wanted - got if one.rpartition(".")[0] in {"", *got}}
        empty = {f".{key}" for key, value in shown.items() if value == []}
        assert got <= wanted, (command, got - wanted)
        assert {one for one in missing if one.rpartition(".")[0] not in empty} == set(), command
