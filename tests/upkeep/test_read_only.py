"""Readers need no right to write: a read-only folder, bucket and SQLite file."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import connect_commit_store
from holdfast.errors import PermissionDeniedError
from holdfast.testing import Fault, FaultyS3

pytestmark = pytest.mark.requirement("C3", "O1")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
# Runs commands, and reads, in one process: what it prints is one JSON object.
READER = """
import contextlib, io, json, os, sys
import holdfast
from holdfast.cli import main
given = json.load(sys.stdin)

def look(uri, shard):
    options = given["options"]
    pairs = [word for k, v in options.items() for word in ("-o", f"{k}={v}")]
    answers = {}
    for text in given["commands"]:
        words = [word.format(uri=uri, shard=shard) for word in text.split()]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main([*words, *pairs, "--json"])
        answers[text] = [code, json.loads(out.getvalue())]
    table = holdfast.open_table(uri, options)
    answers["rows"] = sorted(table.to_table()["id"].to_pylist())
    answers["base"] = table.count(freshness="base")
    answers["dataset"] = table.dataset().count_rows()
    if not given["append"]:
        return answers
    try:
        table.append([{"id": 1000, "text": "x"}])
        answers["append"] = None
    except holdfast.errors.HoldfastError as error:
        answers["append"] = error.kind.value
    return answers

if given["uid"]:
    look(given["warm"], given["shard"])  # loads what that user may not read: Python itself
    os.setgroups([]); os.setgid(given["uid"]); os.setuid(given["uid"])
print(json.dumps(look(given["uri"], given["shard"])))
"""
NOBODY = pwd.getpwnam("nobody").pw_uid
COMMANDS = (
    *("status {uri}", "history {uri}", "doctor {uri}", "shard ls {uri}", "shard stats {uri}"),
    *("shard show {uri} {shard}", "wal ls {uri} {shard}", "index ls {uri}", "repair {uri}"),
    "pin {uri}",
)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "text": [f"w{n}" for n in ids]}, schema=SCHEMA)


def make(uri: str, options: dict[str, str], commit_store: str | None) -> str:
    """Make a table with all that a table has; return the id of its shard."""
    table = holdfast.create_table(
        uri, SCHEMA, primary_key=["id"], commit_store=commit_store, storage_options=options
    )
    table.append(rows(1, 2, 3), txn="one")
    table.dataset().create_scalar_index("id", "BTREE")
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(4))
    (shard,) = table.shards()
    with table.claim_appender(shard) as appender:
        appender.append(rows(5).to_batches()[0])
    table.close()
    return str(shard)


def read(
    uri: str, options: dict[str, str], shard: str, *, uid: int = 0, warm: str = ""
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "uri": uri,
        "options": options,
        "shard": shard,
        "uid": uid,
        "warm": warm,
    }
    given |= {"commands": COMMANDS, "append": bool(uid)}
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "XDG_CACHE_HOME": "/nonexistent/cache", "HOME": "/nonexistent"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_all_read(found: dict[str, Any]) -> None:
    assert found.pop("rows") == [1, 2, 3, 4, 5]
    assert found.pop("base") == 3
    assert found.pop("dataset") == 3
    for command, (code, shown) in found.items():
        assert code == 0, (command, shown)
    assert found["status {uri}"][1]["ok"]
    assert found["doctor {uri}"][1]["healthy"]


def make_read_only(folder: Path) -> None:
    """Take all rights to write from everybody, and let everybody read."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def give_rights_back(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that everybody may enter; pytest's own are for its user only."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("commit_store", [None, "sqlite"])
def test_a_read_only_folder(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch, commit_store: str | None
) -> None:
    """Also with a SQLite file in it that nobody may write."""
    if os.geteuid() != 0:
        pytest.skip("a process must take its own rights away: run as root")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = open_folder / "t.lance"
    shard = make(str(folder), {}, commit_store)
    warm = tmp_path / "warm.lance"
    make(str(warm), {}, commit_store)
    make_read_only(folder)
    before = everything(folder)
    try:
        found = read(str(folder), {}, shard, uid=NOBODY, warm=str(warm))
    finally:
        give_rights_back(folder)
    assert found.pop("append") == "permission_denied"
    check_all_read(found)
    assert everything(folder) == before


@pytest.mark.parametrize("by_sqlite", [False, True], ids=["condition", "sqlite"])
def test_a_bucket_that_refuses_every_put(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faulty_s3: Callable[..., FaultyS3],
    *,
    by_sqlite: bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = faulty_s3(**({"conditions": "ignoring"} if by_sqlite else {}))
    options = dict(server.storage_options())
    commit_store = f"sqlite:///{tmp_path}/c.db?single_host=true" if by_sqlite else None
    if commit_store is not None:
        store: Any = connect_commit_store(commit_store)
        store.set_up()
        store.close()
    uri = server.url("bucket", "t.lance")
    shard = make(uri, options, commit_store)
    for method in ("PUT", "POST", "DELETE"):
        server.faults.add(Fault(kind="status_before", method=method, status=403, times=None))
    server.requests.clear()
    found = read(uri, options, shard)
    check_all_read(found)
    assert {one.method for one in server.requests.all()} <= {"GET", "HEAD"}
    with pytest.raises(PermissionDeniedError):
        holdfast.open_table(uri, options).append(rows(9))
