"""The runbook's commands for databases, run against real servers: back up, restore, row rights."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest

import holdfast
import servers
from holdfast.arbiter import connect_commit_store
from holdfast.cli import main
from holdfast.errors import HoldfastError, PermissionDeniedError
from test_docs import DOCS, blocks_of, statements

pytestmark = pytest.mark.requirement("O4", "C8")
RUNBOOK = DOCS / "runbook.md"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell_blocks(title: str) -> list[str]:
    """Return the `sh` blocks below a smaller heading: back up, then restore."""
    text = RUNBOOK.read_text()
    part = text.partition(f"\n### {title}\n")[2].partition("\n##")[0]
    return [one.partition("```")[0] for one in part.split("```sh\n")[1:]]


def run_shell(script: str, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-ec", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def check_backup(title: str, uri: str, commit_store: str, environment: Mapping[str, str]) -> None:
    """Back up, go on, restore, repair, go on: what was acknowledged is there, once."""
    back_up, restore = shell_blocks(title)
    table = holdfast.create_table(uri, SCHEMA, primary_key=["id"], commit_store=commit_store)
    table.append([{"id": 1, "text": "a"}], txn="one")
    with table.claim_writer("unsharded") as writer:
        writer.put([{"id": 2, "text": "b"}])
    table.close()
    run_shell(back_up, environment)
    table = holdfast.open_table(uri)
    table.append([{"id": 3, "text": "c"}], txn="two")
    with table.claim_writer("unsharded") as writer:
        writer.put([{"id": 4, "text": "d"}])
    table.close()
    run_shell(restore, environment)
    with pytest.raises(HoldfastError):
        holdfast.open_table(uri).append([{"id": 9, "text": "x"}])
    assert main(["repair", uri, "--confirm"]) == 0
    table = holdfast.open_table(uri)
    assert sorted(table.to_table()["id"].to_pylist()) == [1, 2, 3, 4]
    assert not table.append([{"id": 3, "text": "c"}], txn="two").applied
    assert table.append([{"id": 5, "text": "e"}], txn="three").applied
    with table.claim_writer("unsharded") as writer:
        writer.put([{"id": 6, "text": "f"}])
    assert table.count() == 6
    table.close()
    assert main(["status", uri, "--check"]) == 0


def set_up(url: str) -> None:
    store: Any = connect_commit_store(url)
    store.set_up()
    store.close()


def test_back_up_sqlite(elsewhere: Path) -> None:
    uri = str(elsewhere / "t.lance")
    check_backup("SQLite", uri, "sqlite", {"TABLE": uri})


def test_back_up_postgresql(
    elsewhere: Path, postgres: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    url = f"{postgres.admin_url.rpartition('/')[0]}/runbook"
    with psycopg.connect(postgres.admin_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE runbook")
    try:
        set_up(url)
        monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", url)
        check_backup("PostgreSQL", str(elsewhere / "t.lance"), url, {"DATABASE_URL": url})
    finally:
        with psycopg.connect(postgres.admin_url, autocommit=True) as admin:
            admin.execute("DROP DATABASE runbook WITH (FORCE)")


def test_back_up_mariadb(
    elsewhere: Path, mariadb: servers.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pymysql

    admin = pymysql.connect(
        host="127.0.0.1", port=mariadb.port, user="admin", password=servers.PASSWORD
    )
    with contextlib.closing(admin), admin.cursor() as cursor:
        cursor.execute("CREATE DATABASE runbook")
        try:
            url = f"mysql://admin:{servers.QUOTED_PASSWORD}@127.0.0.1:{mariadb.port}/runbook"
            set_up(url)
            monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", url)
            environment = {
                "DB_HOST": "127.0.0.1",
                "DB_PORT": str(mariadb.port),
                "DB_USER": "admin",
                "DB_NAME": "runbook",
                "MYSQL_PWD": servers.PASSWORD,
            }
            uri = str(elsewhere / "t.lance")
            check_backup("MariaDB and MySQL", uri, url, environment)
        finally:
            cursor.execute("DROP DATABASE runbook")


def make_two(folder: Path, commit_store: str) -> tuple[holdfast.Table, holdfast.Table]:
    tables = []
    for name in ("mine", "other"):
        uri = folder / f"{name}.lance"
        table = holdfast.create_table(uri, SCHEMA, primary_key=["id"], commit_store=commit_store)
        table.append([{"id": 1, "text": "a"}])
        tables.append(table)
    return tables[0], tables[1]


def _append_to(uri: Path, url: str) -> None:
    holdfast.open_table(uri, commit_store=url).append([{"id": 2, "text": "b"}])


def check_one_table_only(folder: Path, url: str) -> None:
    """A role for one table writes to it in every way, and decides nothing for another."""
    mine = holdfast.open_table(folder / "mine.lance", commit_store=url)
    mine.append([{"id": 2, "text": "b"}], txn="x")
    with mine.claim_writer("unsharded") as writer:
        writer.put([{"id": 3, "text": "c"}])
    assert mine.count() == 3
    with pytest.raises(HoldfastError) as refused:
        _append_to(folder / "other.lance", url)
    assert isinstance(refused.value, PermissionDeniedError) or refused.value.kind.value in {
        "pin_mismatch",
        "commit_store_regressed",
    }


def test_rights_for_one_table_in_postgresql(elsewhere: Path, postgres: servers.Server) -> None:
    import psycopg

    url = f"{postgres.admin_url.rpartition('/')[0]}/rights"
    with psycopg.connect(postgres.admin_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE rights")
        admin.execute("CREATE ROLE holdfast_admin")
        admin.execute("CREATE ROLE one_table_writer LOGIN PASSWORD 'secret'")
    try:
        set_up(url)
        mine, _ = make_two(elsewhere, url)
        assert mine.pin is not None
        (block,) = [one for one in blocks_of(RUNBOOK) if one.tag == "sql"]
        with psycopg.connect(url, autocommit=True) as admin:
            for statement in statements(block):
                filled = statement.replace(":'table_id'", f"'{mine.pin.table_id}'")
                admin.execute(filled.encode())
        address = urlsplit(url)
        role = f"postgresql://one_table_writer:secret@127.0.0.1:{address.port}/rights"
        check_one_table_only(elsewhere, role)
        assert unquote(address.password or "") == servers.PASSWORD
    finally:
        with psycopg.connect(postgres.admin_url, autocommit=True) as admin:
            admin.execute("DROP DATABASE rights WITH (FORCE)")
            admin.execute("DROP ROLE one_table_writer")
            admin.execute("DROP ROLE holdfast_admin")


def test_rights_for_one_table_in_redis(elsewhere: Path, redis_server: servers.Server) -> None:
    import redis

    set_up(redis_server.url)
    mine, _ = make_two(elsewhere, redis_server.url)
    assert mine.pin is not None
    (block,) = [one for one in blocks_of(RUNBOOK) if one.tag == "text"]
    admin = redis.Redis(port=redis_server.port, password=servers.PASSWORD, protocol=2)
    with contextlib.closing(admin):
        line = block.text.strip().replace("TABLE_ID", mine.pin.table_id)
        admin.execute_command(*line.split())  # type: ignore[no-untyped-call]
        try:
            role = f"redis://one_table_writer:change-me@127.0.0.1:{redis_server.port}/0"
            check_one_table_only(elsewhere, role)
        finally:
            admin.execute_command("ACL", "DELUSER", "one_table_writer")  # type: ignore[no-untyped-call]
