"""The commands that look at a table, take it over and bring lost appends back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from pathlib import Path

import lance
import pytest

import holdfast
from command_line import Cli
from holdfast.cli import Exit
from holdfast.cli._upkeep import ReadingProgress
from holdfast.testing import FaultyS3
from holdfast.upkeep import ShardStatus
from upkeep.stock import append, ids_in, lose, rows

ROOT = Path(__file__).resolve().parents[2]
NEW = ("status", "history", "adopt", "release", "doctor", "repair", "rescue")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)


@pytest.fixture
def plain(tmp_path: Path) -> str:
    uri = str(tmp_path / "t.lance")
    append(uri, None, 0, mode="create")
    return uri


@pytest.fixture
def tied(tmp_path: Path) -> str:
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, rows(0).schema, commit_store="sqlite")
    table.append(rows(1, 2), txn=("job", 7))
    table.close()
    return uri


# Help, usage and errors are the same for all


@pytest.mark.parametrize("verb", NEW)
def test_every_command_has_help(cli: Cli, verb: str) -> None:
    assert cli(verb, "--help") == Exit.OK
    for word in ("URI", "--json", "KEY=VALUE"):
        assert word in cli.out
    assert cli("--help") == Exit.OK
    assert f"  {verb}" in cli.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("history", "x", "--limit", "many"),
        ("adopt", "x", "--accept", "all"),
        ("rescue", "x"),
        ("rescue", "x", "--all", "--id", "5c1e"),
        ("release", "x", "y"),
    ],
)
def test_wrong_usage(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli(*arguments) == Exit.USAGE
    assert cli.err.startswith("usage: holdfast")


@pytest.mark.parametrize("verb", NEW)
def test_where_no_table_is(cli: Cli, tmp_path: Path, verb: str) -> None:
    more = ("--all",) if verb == "rescue" else ()
    uri = str(tmp_path / "none")
    error = cli.json(verb, uri, *more, code=Exit.NOT_FOUND)["error"]
    assert error["kind"] == "not_found"
    assert cli(verb, uri, *more) == Exit.NOT_FOUND
    assert cli.out == ""
    assert cli.err.startswith("holdfast: ")


@pytest.mark.parametrize("verb", ["status", "history", "release"])
def test_a_plain_table_is_not_ours(cli: Cli, plain: str, verb: str) -> None:
    assert cli(verb, plain) == Exit.NOT_FOUND
    assert "no Holdfast table" in cli.err


@pytest.mark.parametrize("verb", ["adopt", "doctor"])
def test_old_manifest_names(cli: Cli, tmp_path: Path, verb: str) -> None:
    uri = str(tmp_path / "old.lance")
    lance.write_dataset(rows(1), uri, enable_v2_manifest_paths=False)
    assert cli(verb, uri) == Exit.USAGE
    assert "migrate_manifest_paths_v2" in cli.err


# Status and history


def test_status(cli: Cli, tied: str) -> None:
    found = cli.json("status", tied)
    added = ("versions", "versions_bytes", "old_versions", "manifest_bytes", "small_fragments")
    for name in (*added, "shards", "indexes", "wants", "alerts", "ok"):
        found.pop(name)
    assert found == {
        "uri": tied,
        "version": 2,
        "rows": 2,
        "fragments": 1,
        "arbiter": "commit-store",
        "commit_store": f"sqlite:///{tied}/_holdfast/commits.db",
        "commit_store_id": found["commit_store_id"],
        "table_id": found["table_id"],
        "newest_recorded": 2,
        "newest_in_store": 2,
        "unfinished": [],
        "staged_objects": 0,
        "staged_bytes": 0,
        "foreign": [],
    }
    assert cli("status", tied) == Exit.OK
    lines = cli.out.splitlines()
    assert lines[0] == tied
    assert lines[1].startswith("  version     2; 2 kept, ")
    assert lines[2] == "  rows        2 in 1 fragments"
    append(tied, None, 9)
    assert cli.json("status", tied)["foreign"] == [3]
    assert cli("status", tied) == Exit.OK
    assert "foreign     3: see `holdfast doctor`" in cli.out


def test_history(cli: Cli, tied: str) -> None:
    newest, oldest = cli.json("history", tied)["versions"]
    assert datetime.fromisoformat(newest.pop("time")).utcoffset() is not None
    assert newest == {
        "version": 2,
        "operation": "Append",
        "txns": ["job:7"],
        "rows": 2,
        "fragments": 1,
        "decided_by": f"sqlite:///{tied}/_holdfast/commits.db",
        "foreign": False,
    }
    assert oldest["operation"] == "Overwrite"
    assert [v["version"] for v in cli.json("history", tied, "-n", "1")["versions"]] == [2]
    assert cli.json("history", tied, "--limit", "0", code=Exit.USAGE)["error"]
    assert cli("history", tied) == Exit.OK
    head, first, second = cli.out.splitlines()
    assert head.index("operation") == first.index("Append") == second.index("Overwrite")
    assert first.endswith("job:7")
    append(tied, None, 9)
    assert cli("history", tied) == Exit.OK
    assert "FOREIGN" in cli.out


# Adopt and release


def test_adopt_and_release(cli: Cli, plain: str) -> None:
    plan = cli.json("adopt", plain, "--commit-store", "sqlite")
    assert plan == {
        "done": False,
        "uri": plain,
        "version": 1,
        "accept": None,
        "arbiter": "commit-store",
        "commit_store": "sqlite",
        "table_id": None,
    }
    assert cli("adopt", plain, "--commit-store", "sqlite") == Exit.OK
    assert cli.out.startswith("plan: let sqlite decide what comes after version 1")
    assert not Path(plain, "_holdfast").exists()
    done = cli.json("adopt", plain, "--commit-store", "sqlite", "--confirm")
    assert done["done"]
    assert done["table_id"].startswith("hf-")
    assert cli("adopt", plain, "--confirm") == Exit.OK  # again: it knows its commit store
    assert cli.out.startswith("adopted: ")
    holdfast.open_table(plain).append(rows(1))
    plan = cli.json("release", plain)
    assert (plan["done"], plan["version"], plan["arbiter"]) == (False, 2, "commit-store")
    assert cli("release", plain) == Exit.OK
    assert cli.out.startswith("plan: ")
    assert cli("status", plain) == Exit.OK
    assert cli.json("release", plain, "--confirm")["done"]
    assert cli("status", plain) == Exit.NOT_FOUND
    append(plain, None, 2)
    assert ids_in(plain) == [0, 1, 2]


def test_adopt_by_the_stores_own_condition(cli: Cli, plain: str) -> None:
    assert cli("adopt", plain) == Exit.OK
    assert "the store's own put-if-absent" in cli.out
    assert cli.json("adopt", plain, "--confirm")["arbiter"] == "conditional-put"
    assert cli("release", plain, "--confirm") == Exit.OK
    assert cli.out == "released: a plain Lance table, version 1\n"


def test_accepting_foreign_versions(cli: Cli, tied: str) -> None:
    append(tied, None, 9)
    assert cli("doctor", tied) == Exit.UNFIT
    assert cli("adopt", tied, "--accept", "2", "--confirm") == Exit.USAGE
    assert "accept the newest" in cli.err
    assert not cli.json("adopt", tied, "--accept", "3")["done"]
    assert cli("doctor", tied) == Exit.UNFIT
    assert cli("adopt", tied, "--accept", "3", "--confirm") == Exit.OK
    assert cli("doctor", tied) == Exit.OK
    holdfast.open_table(tied).append(rows(10))
    assert ids_in(tied) == [1, 2, 9, 10]


def test_no_secret_is_shown(cli: Cli, plain: str) -> None:
    url = "postgresql://user:CANARY@127.0.0.1:1/lake"
    for more in ((), ("--json",), ("--confirm",), ("--confirm", "--json")):
        cli("adopt", plain, "--commit-store", url, *more)
        assert "CANARY" not in cli.out + cli.err


# Doctor and rescue


def test_doctor_of_a_healthy_table(cli: Cli, tied: str) -> None:
    found = cli.json("doctor", tied)
    assert found.pop("elapsed_seconds") >= 0
    assert found == {
        "uri": tied,
        "arbiter": "commit-store",
        "version": 2,
        "versions_read": 2,
        "transactions_read": 2,
        "healthy": True,
        "findings": [],
    }
    assert cli("doctor", tied) == Exit.OK
    assert cli.out.splitlines()[-1] == "healthy: nothing found"
    assert cli.err == ""


@pytest.mark.requirement("C1")
def test_from_the_loss_to_the_rescue(cli: Cli, plain: str) -> None:
    lose(plain, 1, 2)
    append(plain, None, 3)
    lose(plain, 3)
    found = cli.json("doctor", plain, code=Exit.UNFIT)
    assert not found["healthy"]
    sure, unsure = found["findings"]
    assert set(sure) == {
        "kind",
        "severity",
        "what",
        "advice",
        "command",
        "since",
        "path",
        "version",
        "shard",
        "candidate",
    }
    assert (sure["kind"], sure["severity"]) == ("lost_append", "warning")
    assert set(sure["candidate"]) == {
        "id",
        "rows",
        "bytes",
        "files",
        "read_version",
        "time",
        "seen_in",
        "doubt",
        "maybe_retried",
        "known",
    }
    assert (sure["candidate"]["rows"], sure["candidate"]["doubt"]) == (2, None)
    assert (unsure["severity"], unsure["candidate"]["doubt"]) == ("note", "repeated")
    name = sure["candidate"]["id"]
    assert cli("doctor", plain) == Exit.UNFIT
    assert name in cli.out
    assert cli.out.splitlines()[-1] == "somebody should look: 1 warning, 1 note"

    assert cli("rescue", plain, "--all", "--confirm") == Exit.USAGE
    assert "holdfast adopt" in cli.err
    assert cli("adopt", plain, "--commit-store", "sqlite", "--confirm") == Exit.OK
    plan = cli.json("rescue", plain, "--all")
    assert (plan["done"], plan["rescued"], plan["rows"]) == (False, [], 0)
    assert [one["id"] for one in plan["planned"]] == [name]
    assert [one["doubt"] for one in plan["skipped"]] == ["repeated"]
    assert cli("rescue", plain, "--id", name) == Exit.OK
    assert "plan: bring back 1 append, 2 rows; add --confirm to do it" in cli.out
    assert ids_in(plain) == [0, 3]
    done = cli.json("rescue", plain, "--all", "--confirm")
    assert done["done"]
    assert done["rescued"] == [{"id": name, "rows": 2, "version": 3, "applied": True}]
    assert ids_in(plain) == [0, 1, 2, 3]
    assert cli("rescue", plain, "--all", "--confirm") == Exit.OK
    assert "rescued 0 appends, 0 rows" in cli.out
    assert cli("rescue", plain, "--id", name, "--confirm") == Exit.OK
    assert f"is there  {name}" in cli.out
    assert cli("doctor", plain) == Exit.OK
    assert cli("rescue", plain, "--id", "5c1e", "--confirm") == Exit.NOT_FOUND


def test_on_a_server_with_options(cli: Cli, faulty_s3: Callable[..., FaultyS3]) -> None:
    s3 = faulty_s3()
    options = s3.storage_options()
    given = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
    uri = s3.url("lake", "t.lance")
    append(uri, options, 1, mode="create")
    assert cli("doctor", uri, *given) == Exit.OK
    assert "plain Lance table" in cli.out
    assert cli("adopt", uri, "--confirm", *given) == Exit.OK
    assert cli.json("status", uri, *given)["arbiter"] == "conditional-put"
    assert cli.json("history", uri, *given)["versions"][0]["rows"] == 1
    s3.stop()
    assert cli("doctor", uri, *given, "-o", "client_max_retries=0") == Exit.UNAVAILABLE


def test_doctor_tells_that_it_is_busy(capsys: pytest.CaptureFixture[str]) -> None:
    for total, lines in ((199, 0), (2500, 3)):
        progress = ReadingProgress()
        for done in range(1, total + 1):
            progress(done, total)
        progress.close()
        assert len(capsys.readouterr().err.splitlines()) == lines


def test_the_commands_start_without_lance() -> None:
    program = "import sys; from holdfast.cli import main; assert 'lance' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


# The reference page


def test_the_page_names_every_command() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    for verb in NEW:
        assert f"## `holdfast {verb} URI" in page


def test_the_page_shows_the_shapes_as_they_are(cli: Cli, plain: str) -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    shapes = {}
    for verb in NEW:
        section = page.partition(f"## `holdfast {verb} URI")[2]
        shapes[verb] = json.loads(section.partition("```json\n")[2].partition("```")[0])
    lose(plain, 1)
    found = cli.json("doctor", plain, code=Exit.UNFIT)
    assert set(shapes["doctor"]) == set(found)
    assert set(shapes["doctor"]["findings"][0]) == set(found["findings"][0])
    candidate = found["findings"][0]["candidate"]
    assert set(shapes["doctor"]["findings"][0]["candidate"]) == set(candidate)
    assert set(shapes["adopt"]) == set(cli.json("adopt", plain, "--commit-store", "sqlite"))
    assert cli("adopt", plain, "--commit-store", "sqlite", "--confirm") == Exit.OK
    done = cli.json("rescue", plain, "--all", "--confirm")
    assert set(shapes["rescue"]) == set(done)
    assert set(shapes["rescue"]["rescued"][0]) == set(done["rescued"][0])
    status = cli.json("status", plain)
    assert set(shapes["status"]) == set(status)
    assert set(shapes["status"]["shards"][0]) == {one.name for one in fields(ShardStatus)}
    repaired = cli.json("repair", plain)
    assert set(shapes["repair"]) == set(repaired)
    versions = cli.json("history", plain)["versions"]
    assert set(shapes["history"]["versions"][0]) == set(versions[0])
    assert set(shapes["release"]) == set(cli.json("release", plain))
