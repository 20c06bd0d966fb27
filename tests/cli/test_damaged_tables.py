"""Every command that looks, on tables damaged in every way: its exit code, its JSON, no write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cli.damaged import DAMAGES, Damage, Sample, damaged, make_sample, saved
from holdfast.cli import main

COMMANDS = {
    "status": ("status", "{uri}"),
    "history": ("history", "{uri}"),
    "shard ls": ("shard", "ls", "{uri}"),
    "shard stats": ("shard", "stats", "{uri}"),
    "wal ls": ("wal", "ls", "{uri}", "{shard}"),
    "vacuum": ("vacuum", "{uri}"),
    "maintain": ("maintain", "{uri}", "--dry-run"),
    "index ls": ("index", "ls", "{uri}"),
}
INSPECT = ("status", "history", "doctor", "shard ls", "shard stats", "wal ls")
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


def run(capsys: pytest.CaptureFixture[str], sample: Sample, *command: str) -> tuple[int, Any, str]:
    words = [word.format(uri=sample.uri, shard=sample.shard) for word in command]
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert "a defect" not in err
    return code, json.loads(out), err


@pytest.mark.requirement("O1")
@pytest.mark.parametrize(("name", "on"), CASES, ids=[f"{name} ({on})" for name, on in CASES])
def test_commands_on_a_damaged_table(
    samples: dict[str, Sample], capsys: pytest.CaptureFixture[str], name: str, on: str
) -> None:
    sample, damage = samples[on], DAMAGES[name]
    with damaged(sample, damage.do) as before:
        code, found, _ = run(capsys, sample, "doctor", "{uri}")
        check_findings(damage, code, found, sample.uri)
        assert saved(sample.uri) == before
        for verb, command in COMMANDS.items():
            code, shown, err = run(capsys, sample, *command)
            assert code == damage.exits.get(verb, 0), (verb, err)
            if code > 1:
                assert shown["error"]["message"] in err
            if verb in INSPECT or not damage.heals:
                assert saved(sample.uri) == before, verb


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
        assert one["since"] is None or datetime.fromisoformat(one["since"]).tzinfo is not None
        assert one["command"] is None or uri in one["command"]


def test_the_sample_goes_on_after_all_that(samples: dict[str, Sample]) -> None:
    """What puts damages back leaves the table as it was, so each case begins with a whole one."""
    for sample in samples.values():
        assert Path(sample.uri).exists()
