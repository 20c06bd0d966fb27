"""`MysqlCommitStore`: names decided by the primary key of an InnoDB table (MySQL, MariaDB).

The URL is `mysql://user:password@host/database` or `mariadb://...`. Options: `ssl_ca` (with it
the server's certificate and name are verified), `ssl_cert`, `ssl_key`, `unix_socket`. Series are
kept as bytes (`VARBINARY`): text columns would take `a`, `A` and `a ` for one key.

Collecting against a racing insert: at REPEATABLE READ, which is set, the insert reads the
boundary under a shared lock on its row, or on the gap where it would be, and keeps that
lock until it is committed. `collect` and `retire` write the boundary first, so one of them
waits for the other. A deadlock or a lock that takes too long means not applied and raises
`UnavailableError`.

Seen is durable: InnoDB shows a commit to others a moment *before* it is on disk, unless
there is a binary log. Without one, a crash could take back what a reader has acted upon; so
each verb that returns something found first commits a row of its own, which brings
everything before it to disk as well. A scan whose records this process put itself, or brought to
disk before, needs no such row: a record changes only forward, so as it was it is on disk. That
spares a decision its second write.

One server decides. On Galera or multi-primary clusters the locks of one node do not bind
the others (`check` says so); replicas are refused by their `read_only`.

Least rights: `SELECT, INSERT, UPDATE, DELETE` on the four `holdfast_` tables; `CREATE` for
`holdfast store init`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from holdfast._ids import Ids
from holdfast.arbiter._commit_store import StoredEntry
from holdfast.arbiter.stores._base import StandbyError, StoreUrl, extra
from holdfast.errors import (
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)

with extra("mysql"):
    import pymysql  # noqa: F401 - SQLAlchemy needs it; missing is best told now
    from sqlalchemy import Connection
    from sqlalchemy.exc import IntegrityError

    from holdfast.arbiter.stores._sql import SqlCommitStore, Statements, Values

_OPTIONS = frozenset({"ssl_ca", "ssl_cert", "ssl_key", "unix_socket"})
_CONNECT_ARGS = {"connect_timeout": 10, "read_timeout": 30, "write_timeout": 30}
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES', SESSION innodb_lock_wait_timeout = 20",
)
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS holdfast_records (
        series VARBINARY(400) NOT NULL, number BIGINT NOT NULL, value MEDIUMBLOB NOT NULL,
        PRIMARY KEY (series, number)) ENGINE=InnoDB""",
    """CREATE TABLE IF NOT EXISTS holdfast_boundaries (
        series VARBINARY(400) NOT NULL PRIMARY KEY, upto BIGINT NOT NULL) ENGINE=InnoDB""",
    """CREATE TABLE IF NOT EXISTS holdfast_meta (
        name VARBINARY(40) NOT NULL PRIMARY KEY, value VARCHAR(100) NOT NULL
        ) ENGINE=InnoDB CHARACTER SET ascii COLLATE ascii_bin""",
    """CREATE TABLE IF NOT EXISTS holdfast_settled (
        slot BIGINT NOT NULL PRIMARY KEY, times BIGINT NOT NULL) ENGINE=InnoDB""",
)
# Few rows, yet enough that sessions seldom wait for each other's.
_SETTLE = """INSERT INTO holdfast_settled VALUES (connection_id() %% 64, 1)
    ON DUPLICATE KEY UPDATE times = times + 1"""
_REMEMBERED = 64  # records of up to 256 KiB each
_DUPLICATE = 1062
_REFUSED = frozenset({1044, 1045, 1142, 1143, 1227, 1290, 1698, 1836, 3118})
_MISSING = frozenset({1049, 1146})


class MysqlCommitStore(SqlCommitStore):
    """A commit store in a MySQL or MariaDB database."""

    statements = Statements(
        # A plain INSERT and its duplicate-key error: INSERT IGNORE would hide other errors.
        insert="""INSERT INTO holdfast_records (series, number, value)
            SELECT %(series)s, %(number)s, %(value)s FROM DUAL
            WHERE NOT EXISTS (SELECT 1 FROM holdfast_boundaries
                WHERE series IN (%(series)s, %(scope)s) AND upto >= %(number)s
                LOCK IN SHARE MODE)""",
        replace="""UPDATE holdfast_records SET value = %(value)s
            WHERE series = %(series)s AND number = %(number)s AND value = %(expected)s
                AND NOT EXISTS (SELECT 1 FROM holdfast_boundaries WHERE series = %(scope)s
                    LOCK IN SHARE MODE)""",
        is_retired="""SELECT 1 FROM holdfast_boundaries WHERE series = %(scope)s
            LOCK IN SHARE MODE""",
        put_identity="INSERT IGNORE INTO holdfast_meta VALUES ('identity', %(identity)s)",
        raise_boundary="""INSERT INTO holdfast_boundaries (series, upto)
            VALUES (%(series)s, %(through)s)
            ON DUPLICATE KEY UPDATE upto = greatest(upto, %(through)s)""",
    )

    def __init__(self, url: str, *, ids: Ids | None = None) -> None:
        """Read the URL; the server is contacted at the first use.

        Raises:
            InvalidInputError: no database in the URL, or an unknown option.
        """
        parsed = StoreUrl.parse(url)
        parsed.allow(_OPTIONS)
        # With an authority the driver would encrypt, and believe any certificate all the same.
        verify = {"ssl_verify_cert": True, "ssl_verify_identity": True}
        tls = verify if "ssl_ca" in parsed.options else {}
        arguments = {**_CONNECT_ARGS, **parsed.options, **tls}
        super().__init__(parsed, "mysql+pymysql", arguments, ids=ids)
        self._lock = threading.Lock()  # guards _durable
        self._durable: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def check(self) -> Sequence[str]:
        """Return what makes this server unfit to decide names; empty when it is fit."""
        try:
            self.identity()
        except StandbyError as error:
            return [error.message]
        names = "'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'wsrep_on'"
        tables = """SELECT table_name, engine FROM information_schema.tables
            WHERE table_schema = database() AND table_name LIKE 'holdfast\\_%%'"""
        with self._use() as connection:
            variables = self._read(
                connection, f"SHOW VARIABLES WHERE Variable_name IN ({names})", {}
            )
            engines = self._read(connection, tables, {})
        settings = {str(name): str(value) for name, value in variables}
        return [
            *_weaknesses(settings),
            *(
                f"table {name} is {engine}, not InnoDB: it has no transactions"
                for name, engine in engines
                if str(engine).lower() != "innodb"
            ),
        ]

    def _begin_session(self, connection: Connection) -> None:
        for statement in _SESSION:
            connection.exec_driver_sql(statement)
        read_only, log_bin = connection.exec_driver_sql(
            "SELECT @@global.read_only, @@global.log_bin"
        ).one()
        if read_only:
            raise StandbyError(
                "the server is read-only: a replica, whose records may be old, or a primary "
                "set aside; connect to the primary",
                store=self.url,
            )
        # With a binary log, commits become visible in the order in which they reach the disk.
        connection.info["must_settle"] = not log_bin

    def _create(self, connection: Connection) -> None:
        for statement in _SCHEMA:
            connection.exec_driver_sql(statement)
        self._run(connection, self.statements.put_identity, {"identity": self._ids.token()})

    def _text(self, name: str) -> bytes:
        return name.encode("ascii")

    def _insert(self, connection: Connection, values: Values) -> bool:
        try:
            return super()._insert(connection, values)
        except IntegrityError as exc:
            # Only the duplicate key is an answer. A deadlock or a lock that took too long stored
            # nothing, and is for the arbiter to repeat.
            if exc.orig is None or self._code(exc.orig) != _DUPLICATE:
                raise
            return False

    def _note_durable(self, series: str, number: int, value: bytes) -> None:
        with self._lock:
            self._durable[series, number] = value
            self._durable.move_to_end((series, number))
            while len(self._durable) > _REMEMBERED:
                self._durable.popitem(last=False)

    def _are_durable(self, series: str, entries: Sequence[StoredEntry]) -> bool:
        with self._lock:
            return all(self._durable.get((series, e.number)) == e.value for e in entries)

    def _await_durable(self, connection: Connection) -> None:
        if connection.info["must_settle"]:
            self._run(connection, _SETTLE, {})

    def _code(self, error: BaseException) -> int | None:
        code = error.args[0] if error.args else None
        return code if isinstance(code, int) else None

    def _meaning(self, code: str | int | None, reason: str) -> type[HoldfastError]:
        del reason
        if code in _REFUSED:
            return PermissionDeniedError
        return NotFoundError if code in _MISSING else UnavailableError


def _weaknesses(settings: dict[str, str]) -> list[str]:
    weak = []
    if settings.get("innodb_flush_log_at_trx_commit") != "1":
        weak.append(
            "innodb_flush_log_at_trx_commit is not 1: an acknowledged decision is lost when "
            "the machine stops"
        )
    if settings.get("log_bin") == "ON" and settings.get("sync_binlog") != "1":
        weak.append(
            "sync_binlog is not 1: recovery takes back decisions that the binary log misses"
        )
    if settings.get("wsrep_on") == "ON":
        weak.append(
            "this is a Galera cluster: its nodes do not see each other's locks; use a single server"
        )
    return weak


def connect(url: str) -> MysqlCommitStore:
    """Return the commit store at a `mysql:` or `mariadb:` URL."""
    return MysqlCommitStore(url)
