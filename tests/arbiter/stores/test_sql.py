"""PostgreSQL and MariaDB: what the suite cannot see from outside."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from sqlalchemy import event

import servers
from holdfast.arbiter import new_token
from holdfast.arbiter._commit_store import Key
from holdfast.arbiter.stores import mysql
from holdfast.arbiter.stores._registry import connect_commit_store
from holdfast.arbiter.stores._sql import SqlCommitStore, transaction
from holdfast.arbiter.stores.mysql import MysqlCommitStore
from holdfast.arbiter.stores.postgres import PostgresCommitStore
from holdfast.errors import (
    CollectedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)

pytestmark = pytest.mark.requirement("C5")

BOTH = pytest.mark.parametrize("kind", ["postgres", "mariadb"])
Open = Callable[[str], SqlCommitStore]


@pytest.fixture
def connect() -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def connect(url: str) -> SqlCommitStore:
            store = cast("SqlCommitStore", connect_commit_store(url))
            stack.callback(store.close)
            return store

        yield connect


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> servers.Server:
    return cast("servers.Server", request.getfixturevalue(kind))


@pytest.fixture
def store(server: servers.Server, connect: Open) -> SqlCommitStore:
    store = connect(server.url)
    store.set_up()
    return store


def sql(store: SqlCommitStore, *statements: str) -> list[Any]:
    with store._use() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
        return [tuple(row) for row in result] if result.returns_rows else []


def database(server: servers.Server, connect: Open, name: str) -> str:
    sql(connect(server.admin_url), f"CREATE DATABASE {name}")
    return f"{server.admin_url.rpartition('/')[0]}/{name}"


def everything_said(error: BaseException) -> str:
    return f"{error!r} {error} {''.join(traceback.format_exception(error))}"


@BOTH
def test_not_set_up(server: servers.Server, connect: Open) -> None:
    url = database(server, connect, "empty_one")
    store = connect(url)
    for call in (store.identity, lambda: store.put_if_absent(Key("s", 0), b"x")):
        with pytest.raises(NotFoundError, match="holdfast store init") as caught:
            call()
        assert servers.PASSWORD not in everything_said(caught.value)
    store.set_up()
    assert store.put_if_absent(Key("s", 0), b"x") is None


@BOTH
def test_unknown_database(server: servers.Server, connect: Open) -> None:
    store = connect(f"{server.admin_url.rpartition('/')[0]}/nowhere")
    with pytest.raises(NotFoundError, match="create the database"):
        store.identity()
    with pytest.raises(NotFoundError):
        store.set_up()


@BOTH
def test_wrong_password(server: servers.Server, connect: Open) -> None:
    store = connect(server.url.replace(servers.QUOTED_PASSWORD, "wr%40ng-s3cret"))
    for call in (store.identity, store.set_up):
        with pytest.raises(PermissionDeniedError) as caught:
            call()
        said = everything_said(caught.value)
        assert "wr@ng" not in said and "s3cret" not in said
        assert "has no password" not in said


@pytest.mark.requirement("C8")
@BOTH
def test_a_missing_password_says_where_to_give_one(server: servers.Server, connect: Open) -> None:
    store = connect(server.url.replace(f":{servers.QUOTED_PASSWORD}@", "@"))
    for call in (store.identity, store.set_up):
        with pytest.raises(PermissionDeniedError, match="The URL has no password") as caught:
            call()
        assert "HOLDFAST_COMMIT_STORE_URL" in caught.value.message
        assert "--commit-store env:NAME" in caught.value.message


@BOTH
def test_a_server_that_is_down_and_comes_back(
    server: servers.Server, store: SqlCommitStore
) -> None:
    store.get(Key("s", 0))
    server.kill()
    try:
        for _ in range(2):  # first a connection that broke, then none at all
            with pytest.raises(UnavailableError) as caught:
                store.put_if_absent(Key("down", 0), b"x")
            said = everything_said(caught.value)
            assert servers.PASSWORD not in said and servers.QUOTED_PASSWORD not in said
    finally:
        server.restart()
    assert store.put_if_absent(Key("down", 0), b"y") is None


@BOTH
def test_read_rights_are_not_enough(
    kind: str, server: servers.Server, connect: Open, store: SqlCommitStore
) -> None:
    user = "reader" if kind == "postgres" else "'reader'@'127.0.0.1'"
    password = "PASSWORD" if kind == "postgres" else "IDENTIFIED BY"
    sql(
        connect(server.admin_url),
        f"CREATE USER {user} {password} 'read-only'",
        f"GRANT SELECT ON holdfast_records TO {user}",
    )
    reader = connect(
        f"{store.url.partition('//')[0]}//reader:read-only@127.0.0.1:{server.port}/"
        f"{server.url.rpartition('/')[2]}"
    )
    with pytest.raises(PermissionDeniedError):
        reader.put_if_absent(Key("s", 0), b"x")


@BOTH
def test_an_insert_is_one_statement(server: servers.Server, store: SqlCommitStore) -> None:
    store.put_if_absent(Key("warm", 1), b"x")
    seen: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_more: object) -> None:
        seen.append(statement)

    event.listen(store._engine(), "before_cursor_execute", note)
    store.put_if_absent(Key("one-statement", 1), b"x")
    assert seen == [store.statements.insert]


def test_an_insert_is_one_round_trip(mariadb: servers.Server, connect: Open) -> None:
    store = connect(mariadb.url)
    store.set_up()
    questions = "SHOW SESSION STATUS LIKE 'Questions'"
    [(_, before)] = sql(store, questions)
    for number in range(10):
        store.put_if_absent(Key("round-trips", number), b"x")
    [(_, after)] = sql(store, questions)
    assert int(after) - int(before) == 11  # the ten, and the question itself


WAITING = {
    "postgres": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "mariadb": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}


def wait_until_blocked(kind: str, admin: SqlCommitStore, thread: threading.Thread) -> bool:
    """Return whether the thread waits for a lock; False when it went through."""
    while thread.is_alive():  # neither server lets anybody wait for longer than half a minute
        if sql(admin, WAITING[kind])[0][0]:
            return True
        time.sleep(0.15)  # InnoDB tells old news to whoever asks again within a tenth of a second
    return False


def collect_while_an_insert_is_open(
    kind: str, server: servers.Server, connect: Open, store: SqlCommitStore
) -> tuple[bool, int, list[int]]:
    """Collect while a decider sits between its insert and its commit."""
    key = Key(f"open-insert-{time.monotonic_ns()}", 5)
    removed: list[int] = []
    collector = threading.Thread(target=lambda: removed.append(store.collect(key.series, 5)))
    decider = connect(server.url)
    with decider._use() as connection, transaction(connection):
        assert decider._insert(connection, {**decider._key(key), "value": b"late"})
        collector.start()
        blocked = wait_until_blocked(kind, connect(server.admin_url), collector)
    collector.join(60)
    return blocked, removed[0], [entry.number for entry in store.scan(key.series)]


@BOTH
def test_collect_waits_for_an_insert_that_is_not_committed(
    kind: str, server: servers.Server, connect: Open, store: SqlCommitStore
) -> None:
    assert collect_while_an_insert_is_open(kind, server, connect, store) == (True, 1, [])


@pytest.mark.mutant
def test_without_the_table_lock_a_record_survives_below_the_boundary(
    postgres: servers.Server, connect: Open
) -> None:
    class Mutant(PostgresCommitStore):
        def _keep_inserts_out(self, connection: object) -> None:
            pass

    store = Mutant(postgres.url)
    store.set_up()
    with contextlib.closing(store):
        assert collect_while_an_insert_is_open("postgres", postgres, connect, store) == (
            False,
            0,
            [5],
        )


@BOTH
def test_an_insert_waits_for_a_collection_and_sees_its_boundary(
    kind: str, server: servers.Server, connect: Open, store: SqlCommitStore
) -> None:
    key = Key(f"open-collect-{time.monotonic_ns()}", 5)
    outcome: list[object] = []

    def put() -> None:
        try:
            outcome.append(store.put_if_absent(key, b"late"))
        except CollectedError as exc:
            outcome.append(exc)

    for number in range(20):  # until the insert is prepared and its plan is kept
        store.put_if_absent(Key(key.series, 100 + number), b"warm")
    decider = threading.Thread(target=put)
    collector = connect(server.url)
    values = {**collector._names(key.series), "through": 5}
    with collector._use() as connection, transaction(connection):
        collector._keep_inserts_out(connection)
        collector._run(connection, collector.statements.raise_boundary, values)
        collector._run(connection, collector.statements.remove, values)
        decider.start()
        assert wait_until_blocked(kind, connect(server.admin_url), decider)
    decider.join(60)
    assert isinstance(outcome[0], CollectedError)
    assert store.scan(key.series, limit=1)[0].number == 100


@pytest.mark.mutant
def test_at_read_committed_innodb_would_let_the_insert_through(
    mariadb: servers.Server, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    monkeypatch.setattr(mysql, "_SESSION", (weak,))
    unlocked = MysqlCommitStore.statements.insert.replace(" LOCK IN SHARE MODE", "")
    monkeypatch.setattr(
        MysqlCommitStore, "statements", replace(MysqlCommitStore.statements, insert=unlocked)
    )
    store = connect(mariadb.url)
    store.set_up()
    blocked, _, left = collect_while_an_insert_is_open("mariadb", mariadb, connect, store)
    # The delete waits for the row, but the boundary was read without a lock.
    key = Key(f"mutant-{time.monotonic_ns()}", 5)
    values = {"series": store._text(key.series), "through": 5}
    with store._use() as connection, transaction(connection):
        store._run(connection, store.statements.raise_boundary, values)
        store._run(connection, store.statements.remove, values)
        assert connect(mariadb.url).put_if_absent(key, b"late") is None
    assert [entry.number for entry in store.scan(key.series)] == [5]
    assert (blocked, left) == (True, [])


def test_postgres_sessions_do_not_trust_defaults(postgres: servers.Server, connect: Open) -> None:
    url = database(postgres, connect, "weak_defaults")
    sql(
        connect(postgres.admin_url),
        "ALTER DATABASE weak_defaults SET default_transaction_isolation = 'serializable'",
        "ALTER DATABASE weak_defaults SET synchronous_commit = 'off'",
        "ALTER DATABASE weak_defaults SET default_transaction_read_only = 'on'",
    )
    store = connect(url)
    store.set_up()
    assert sql(store, "SHOW transaction_isolation") == [("read committed",)]
    assert sql(store, "SHOW synchronous_commit") == [("on",)]
    assert sql(store, "SHOW statement_timeout") == [("30s",)]
    assert [p.partition(":")[0] for p in store.check()] == ["synchronous_commit is off"]


def test_postgres_check_and_standby(connect: Open) -> None:
    with servers.running("postgres", "fsync=off", "synchronous_commit=off") as server:
        store = connect(server.url)
        store.set_up()
        assert [p.partition(":")[0] for p in store.check()] == [
            "fsync is off",
            "synchronous_commit is off",
        ]
        server.shut_down()
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        standby = connect(server.url)
        assert ["standby" in problem for problem in standby.check()] == [True]
        with pytest.raises(UnavailableError, match="primary"):
            standby.get(Key("s", 0))


def test_mysql_sessions_do_not_trust_defaults(mariadb: servers.Server, connect: Open) -> None:
    admin = connect(mariadb.admin_url)
    sql(admin, "SET GLOBAL tx_isolation = 'READ-COMMITTED'", "SET GLOBAL sql_mode = ''")
    try:
        store = connect(mariadb.url)
        assert sql(store, "SELECT @@tx_isolation, @@autocommit, @@sql_mode") == [
            ("REPEATABLE-READ", 1, "STRICT_ALL_TABLES")
        ]
    finally:
        sql(admin, "SET GLOBAL tx_isolation = DEFAULT", "SET GLOBAL sql_mode = DEFAULT")


def test_mysql_check(mariadb: servers.Server, connect: Open) -> None:
    url = database(mariadb, connect, "old_engine")
    admin = connect(mariadb.admin_url)
    store = connect(url)
    store.set_up()
    assert store.check() == []
    sql(store, "ALTER TABLE holdfast_records ENGINE=MyISAM")
    sql(admin, "SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        assert [p.split(":")[0] for p in store.check()] == [
            "innodb_flush_log_at_trx_commit is not 1",
            "table holdfast_records is MyISAM, not InnoDB",
        ]
    finally:
        sql(admin, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_mysql_read_only(mariadb: servers.Server, connect: Open) -> None:
    store = connect(mariadb.url)
    store.set_up()
    admin = connect(mariadb.admin_url)
    sql(admin, "SET GLOBAL read_only = 1")
    try:
        with pytest.raises(PermissionDeniedError, match="read-only"):
            store.put_if_absent(Key("s", 77), b"x")
        late = connect(mariadb.url)
        assert ["read-only" in problem for problem in late.check()] == [True]
        with pytest.raises(UnavailableError, match="replica"):
            late.get(Key("s", 77))
    finally:
        sql(admin, "SET GLOBAL read_only = 0")


def test_mysql_writes_nothing_to_scan_what_is_on_disk(
    mariadb: servers.Server, connect: Open
) -> None:
    times = "SELECT coalesce(sum(times), 0) FROM holdfast_settled"
    store, other = connect(mariadb.url), connect(mariadb.url)
    store.set_up()
    mine = Key(f"own-{new_token()}", 1)
    second = Key(mine.series, 2)
    assert store.put_if_absent(mine, b"x") is None
    assert store.compare_and_set(mine, b"x", b"y")

    def settled(scanning: SqlCommitStore) -> int:
        [(before,)] = sql(store, times)
        assert scanning.scan(mine.series)
        [(after,)] = sql(store, times)
        return int(after - before)

    assert settled(store) == 0, "its own records are on disk"
    assert settled(other) == 1, "another's may not be"
    assert settled(other) == 0, "now they are"
    assert other.put_if_absent(second, b"z") is None
    assert settled(store) == 1, "one of these is new to it"
    assert other.compare_and_set(second, b"z", b"final")
    assert settled(store) == 1, "one of these changed since"


def test_mysql_makes_durable_what_it_saw_unless_there_is_a_binary_log(
    mariadb: servers.Server, connect: Open
) -> None:
    times = "SELECT coalesce(sum(times), 0) FROM holdfast_settled"
    key = Key("settled", 1)
    for server, settles in ((mariadb, True), (None, False)):
        with contextlib.ExitStack() as stack:
            running = server or stack.enter_context(
                servers.running("mariadb", "--log-bin", "--sync-binlog=0")
            )
            store = connect(running.url)
            store.set_up()
            store.put_if_absent(key, b"x")
            [(before,)] = sql(store, times)
            store.get(key)
            store.put_if_absent(key, b"y")
            connect(running.url).scan(key.series)  # of another process: the row is new to it
            store.compare_and_set(key, b"no", b"z")
            store.get(Key("settled", 2))
            [(after,)] = sql(store, times)
            assert after - before == (4 if settles else 0)
            assert [p.split(":")[0] for p in store.check()] == (
                [] if settles else ["sync_binlog is not 1"]
            )
            store.close()


def test_galera_is_unfit() -> None:
    found = {"innodb_flush_log_at_trx_commit": "1", "log_bin": "OFF", "wsrep_on": "ON"}
    assert ["Galera" in problem for problem in mysql._weaknesses(found)] == [True]


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb"])
def test_urls(scheme: str, connect: Open) -> None:
    driver = {"postgresql": "postgresql+psycopg"}.get(scheme, "mysql+pymysql")
    store = connect(f"{scheme}://u:p%40@h:1/d")
    assert store._address.drivername == driver
    assert store._address.password == "p@"
    assert store.url == f"{scheme}://h:1/d"
    with pytest.raises(InvalidInputError, match="needs a database"):
        connect_commit_store(f"{scheme}://u:p@h")
    with pytest.raises(InvalidInputError, match="unknown option") as caught:
        connect_commit_store(f"{scheme}://u:p@h/d?sssl=1")
    assert "did you mean" in str(caught.value) or "known are" in str(caught.value)


def test_postgres_over_a_unix_socket(postgres: servers.Server, connect: Open) -> None:
    store = connect(
        f"postgresql://holdfast:{servers.QUOTED_PASSWORD}@:{postgres.port}/postgres"
        f"?host={postgres.folder}"
    )
    store.set_up()
    assert store.url == f"postgresql://:{postgres.port}/postgres?host={postgres.folder}"


def test_a_password_in_a_drivers_words_is_hidden(connect: Open) -> None:
    store = connect("postgresql://u:s3cret%2F@h/d")
    assert store._clean(ValueError("no s3cret/ nor s3cret%2F\nmore")) == "no *** nor ***"


@pytest.mark.parametrize(
    ("code", "reason", "meaning"),
    [
        ("42P01", "", NotFoundError),
        ("3D000", "", NotFoundError),
        ("28P01", "", PermissionDeniedError),
        ("42501", "", PermissionDeniedError),
        ("25006", "", PermissionDeniedError),
        ("57014", "", UnavailableError),
        ("40001", "", UnavailableError),
        (None, 'FATAL: role "x" does not exist', PermissionDeniedError),
        (None, "FATAL: no pg_hba.conf entry for host", PermissionDeniedError),
        (None, "FATAL: the database system is starting up", UnavailableError),
        (None, "timeout expired", UnavailableError),
    ],
)
def test_postgres_codes(
    code: str | None, reason: str, meaning: type[HoldfastError], connect: Open
) -> None:
    assert connect("postgresql://h/d")._meaning(code, reason) is meaning


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (1045, PermissionDeniedError),
        (1142, PermissionDeniedError),
        (1290, PermissionDeniedError),
        (1049, NotFoundError),
        (1146, NotFoundError),
        (1205, UnavailableError),
        (1213, UnavailableError),
        (2013, UnavailableError),
        (None, UnavailableError),
    ],
)
def test_mysql_codes(code: int | None, meaning: type[HoldfastError], connect: Open) -> None:
    assert connect("mysql://h/d")._meaning(code, "") is meaning
