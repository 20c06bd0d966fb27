"""`holdfast index ...` from the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from index.corpus import make_table, rows
from index.test_races import built


def call(cli: Cli, *words: object, quiet: bool = False) -> tuple[int, Any, str]:
    """Run a command with `--json` and return its exit code, its answer and stderr."""
    before = ["-q"] if quiet else []
    code = cli(*before, "index", *map(str, words), "--json")
    return code, cli.shown(), cli.err


@pytest.mark.requirement("F11")
def test_create_list_show_refresh_and_search(tmp_path: Path, cli: Cli) -> None:
    uri = tmp_path / "t"
    table = make_table(uri, fragments=2)
    code, made, err = call(
        cli,
        "create",
        uri,
        "text",
        "--tasks",
        2,
        "-p",
        "with_position=true",
        "-p",
        "language=English",
    )
    assert (code, made["applied"], made["partitions"], made["name"]) == (0, True, 2, "text_idx")
    assert err.splitlines() == ["build   2/2", "copy    6/6", "commit  1/1", "clean   1/1"]
    table.append(rows(1000, 20))
    code, listed, _ = call(cli, "ls", uri)
    assert [(one["name"], one["uncovered"]) for one in listed["indexes"]] == [("text_idx", 1)]
    code, done, err = call(cli, "refresh", uri, "text_idx", quiet=True)
    assert (code, done["applied"], done["uncovered"], err) == (0, True, 0, "")
    _, shown, _ = call(cli, "show", uri, "text_idx")
    assert shown["parameters"]["with_position"] is True
    _, found, _ = call(cli, "search", uri, "text", "storm AND sea", "-n", 3, "--columns", "id")
    assert len(found["rows"]) == 3 and set(found["rows"][0]) == {"id", "_score"}
    assert "storm" in cli.text("index", "search", str(uri), "text", "storm")
    assert "text_idx" in cli.text("index", "show", str(uri), "text_idx")
    assert "text_idx" in cli.text("index", "ls", str(uri))


def test_finalize_a_build_that_was_left(tmp_path: Path, cli: Cli) -> None:
    table = make_table(tmp_path / "t", fragments=2)
    _, record = built(table)
    _, listed, _ = call(cli, "ls", tmp_path / "t")
    (build,) = listed["builds"]
    assert (build["build_id"], build["finished"]) == (record.build_id, build["tasks"])
    assert record.build_id in cli.text("index", "ls", str(tmp_path / "t"))
    code, done, _ = call(cli, "finalize", tmp_path / "t", record.build_id)
    assert (code, done["applied"], done["reused"]) == (0, True, build["tasks"])


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("create", "URI", "nothing"), 2, "invalid_input"),
        (("create", "URI", "text", "-p", "stem"), 2, "invalid_input"),
        (("create", "URI", "text", "-p", "stm=true"), 2, "invalid_input"),
        (("refresh", "URI", "nothing"), 3, "not_found"),
        (("show", "URI", "nothing"), 3, "not_found"),
        (("finalize", "URI", "nothing"), 2, "invalid_input"),
        (("search", "URI", "text", "storm AND"), 2, "invalid_input"),
        (("search", "URI", "text", "storm", "-n", "0"), 2, "invalid_input"),
    ],
)
def test_errors(tmp_path: Path, cli: Cli, arguments: tuple[str, ...], code: int, kind: str) -> None:
    uri = str(tmp_path / "t")
    make_table(uri, fragments=1)
    given = [uri if argument == "URI" else argument for argument in arguments]
    found, answer, _ = call(cli, *given)
    assert (found, answer["error"]["kind"]) == (code, kind)
