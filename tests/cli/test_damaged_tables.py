"""Every command that looks, on tables damaged in every way: its exit code, its JSON, no write."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tools.cli_page import leaves

import holdfast
from cli.damaged import DAMAGES, Damage, Sample, damaged, make_sample, rows, saved
from command_line import Cli
from holdfast.cli import Exit
from holdfast.cli._main import ROOT

COMMANDS = {
    "repair": ("repair", "{uri}"),  # first: some of the others heal what they read
    "status": ("status", "{uri}"),
    "history": ("history", "{uri}"),
    "shard ls": ("shard", "ls", "{uri}"),
    "shard stats": ("shard", "stats", "{uri}"),
    "wal ls": ("wal", "ls", "{uri}", "{shard}"),
    "pin": ("pin", "{uri}"),
    "tables": ("tables", "{uri}/.."),
    "shard show": ("shard", "show", "{uri}", "{shard}"),
    "wal show": ("wal", "show", "{uri}", "unsharded", "1"),
    "wal tail": ("wal", "tail", "{uri}", "unsharded", "--timeout", "0"),
    "wal repair": ("wal", "repair", "{uri}", "{shard}"),
    "vacuum": ("vacuum", "{uri}"),
    "maintain": ("maintain", "{uri}", "--dry-run"),
    "index ls": ("index", "ls", "{uri}"),
    "index show": ("index", "show", "{uri}", "id_idx"),
    "shard repair": ("shard", "repair", "{uri}", "unsharded"),
    "wal reset": ("wal", "reset", "{uri}", "--keep"),
    "rescue": ("rescue", "{uri}", "--all"),
    "adopt": ("adopt", "{uri}"),
    "release": ("release", "{uri}"),
    "store move": ("store", "move", "{uri}", "--to", "sqlite"),
    "index search": ("index", "search", "{uri}", "text", "word", "-n", "999"),  # all rows
    "copy": ("copy", "{uri}", "--to", "{uri}.copy"),
}
PLANS = ("vacuum", "maintain", "shard repair", "wal reset", "rescue", "adopt", "release", "copy")
READS = ("index ls", "index show", "index search")  # as readers do, who finish what is decided
INSPECT = {*COMMANDS} - {*PLANS, *READS, "store move"}
WRITES = {"create", "ingest", "index create", "index refresh", "index finalize"}
"""What has no plan: `test_writers_on_a_damaged_table` runs the one that people run every day."""
OF_NO_TABLE = {"store init", "store check", "probe", "serve", "spark-jar", "completion"}
HARMLESS = ("nothing", "there are unknown files")
MENDED = [(name, on) for name, damage in DAMAGES.items() for on in damage.mends]
CASES = [(name, on) for name, damage in DAMAGES.items() for on in damage.on]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Sample]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
        made = {"condition": None, "sqlite": "sqlite"}
        yield {
            name: make_sample(tmp_path_factory.mktemp(name), commit_store)
            for name, commit_store in made.items()
        }


def run(cli: Cli, sample: Sample, *command: str) -> tuple[int, Any, str]:
    words = [word.format(uri=sample.uri, shard=sample.shard) for word in command]
    code = cli(*words, "--json")
    assert code != Exit.INTERNAL
    shown = [json.loads(line) for line in cli.out.splitlines()]
    return code, shown[-1], cli.err


@pytest.mark.requirement("O1")
@pytest.mark.parametrize(("name", "on"), CASES, ids=[f"{name} ({on})" for name, on in CASES])
def test_commands_on_a_damaged_table(
    samples: dict[str, Sample], cli: Cli, name: str, on: str
) -> None:
    sample, damage = samples[on], DAMAGES[name]
    with damaged(sample, damage.do) as before:
        code, found, _ = run(cli, sample, "doctor", "{uri}")
        check_findings(damage, code, found, sample.uri)
        assert saved(sample.uri) == before
        for verb, command in COMMANDS.items():
            code, shown, err = run(cli, sample, *command)
            assert code == _expected(damage, verb, name, on), (verb, err)
            if code > 1:
                assert shown["error"]["message"] in err
            if verb in INSPECT or not damage.heals:
                assert saved(sample.uri) == before, verb
        for one in found["findings"]:
            if on == "condition":  # a commit store's file cannot be set back under its users
                assert follow(cli, sample, one) <= Exit.UNFIT, one


def test_every_command_is_in_the_matrix() -> None:
    commands = {" ".join(path) for path, _ in leaves(ROOT)}
    assert commands == {*COMMANDS, "doctor"} | WRITES | OF_NO_TABLE


def follow(cli: Cli, sample: Sample, finding: Any) -> int:
    """Run the command that a finding names, as it is; 0 if it names none."""
    if finding["command"] is None:
        return 0
    return run(cli, sample, *shlex.split(finding["command"])[1:])[0]


def ingest(cli: Cli, sample: Sample, damage: Damage, folder: Path) -> int:
    """Write a row: it is acknowledged and in the log, or nothing is durable."""
    (folder / "rows.csv").write_text("id,text\n900001,new\n")
    words = ("ingest", "{uri}", str(folder / "rows.csv"), "--no-flush")
    code, shown, err = run(cli, sample, *words)
    assert code == damage.exits.get("ingest", 0), err
    if code == 0:
        assert shown["rows"] == 1
        assert run(cli, sample, "wal", "ls", "{uri}", "{shard}")[1]["entries"][-1]["rows"] == 1
    else:
        assert shown["error"]["details"].get("durable_rows", "0") == "0"
    return code


@pytest.mark.requirement("O1")
@pytest.mark.parametrize("name", [name for name, on in CASES if on == "condition"])
def test_writers_on_a_damaged_table(
    samples: dict[str, Sample], cli: Cli, tmp_path: Path, name: str
) -> None:
    """With a commit store it is seen by `test_repair_puts_it_right`."""
    with damaged(samples["condition"], DAMAGES[name].do):
        ingest(cli, samples["condition"], DAMAGES[name], tmp_path)


def _expected(damage: Damage, verb: str, name: str, on: str) -> int:
    """Return a command's exit code; a plan of `repair` has 1 wherever something is wrong."""
    if verb == "repair":
        return int(name not in HARMLESS)
    refused = verb == "store move" and on == "condition"  # it has no commit store to leave
    return damage.exits.get(verb, 2 if refused else 0)


@pytest.mark.requirement("O1")
@pytest.mark.parametrize(("name", "on"), MENDED, ids=[f"{name} ({on})" for name, on in MENDED])
def test_repair_puts_it_right(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Cli,
    name: str,
    on: str,
) -> None:
    """The command that doctor or the plan names; then every row is there, and writing goes on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    damage = DAMAGES[name]
    sample = make_sample(tmp_path, None if on == "condition" else on)
    damage.do(sample)
    words = damage.mends[on]
    findings = run(cli, sample, "doctor", "{uri}")[1]["findings"]
    named = {" ".join(one["command"].split()[:2]) for one in findings}
    assert named <= {"holdfast repair"}
    if "ingest" in damage.exits:
        ingest(cli, sample, damage, tmp_path)
    code, done, err = run(cli, sample, "repair", "{uri}", *words, "--confirm")
    assert (code, done["whole"]) == (0, True), (done, err)
    code, found, _ = run(cli, sample, "doctor", "{uri}")
    assert (code, found["healthy"]) == (0, True)
    table = holdfast.open_table(sample.uri)
    wanted = (set(range(60)) - {3} | {100, 101, 102, 103, 104}) - set(damage.lost)
    assert set(table.to_table()["id"].to_pylist()) == wanted
    assert not table.append(rows(1), txn="second").applied
    assert table.append(rows(500), txn="after the repair").applied
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(501))
    table.compact_lsm()
    assert set(table.to_table()["id"].to_pylist()) == wanted | {500, 501}
    table.close()


def check_findings(damage: Damage, code: int, found: Any, uri: str) -> None:
    findings = found["findings"]
    if damage.finds is None:
        assert (code, findings) == (0, [])
        return
    assert {one["kind"] for one in findings} == {damage.finds}
    worst = findings[0]
    assert damage.says in worst["what"]
    assert code == (0 if worst["severity"] == "note" else 1)
    for one in findings:
        assert one["advice"]
        assert one["path"] is not None
        assert datetime.fromisoformat(one["since"]).tzinfo is not None
        if one["command"] is None:
            assert "backup" in one["advice"] or "remove the file" in one["advice"], one
        else:
            assert uri in one["command"]


def test_the_sample_goes_on_after_all_that(samples: dict[str, Sample]) -> None:
    """What puts damages back leaves the table as it was, so each case begins with a whole one."""
    for sample in samples.values():
        assert Path(sample.uri).exists()
