"""`PostgresCommitStore`: names decided by the primary key of a PostgreSQL table.

The URL is `postgresql://user:password@host/database`; what is left out comes from libpq's
own places (`PGUSER`, `PGPASSWORD`, a password file). Options: `sslmode`, `sslrootcert`,
`sslcert`, `sslkey`, `target_session_attrs`, and `host` for a folder of Unix sockets.

A verb that returned is on disk, and on the synchronous standbys if there are any:
`synchronous_commit` is switched on for each session. Standbys that follow asynchronously
may lack the newest decisions: after a failover to one, Holdfast stops with
`CommitStoreRegressedError` where the table shows more than the database remembers. A wait for a
synchronous standby that is cancelled (by an administrator, or after 30 s) commits on the primary
alone, and PostgreSQL only warns: here that is `UnavailableError`, an unknown outcome.

Collecting against a racing insert: `collect` and `retire` lock the table of records against writes
before anything else. An insert takes its own table lock before its snapshot, so one that had
to wait sees the new boundary and stores nothing. This needs READ COMMITTED, which is set.

Least rights: `SELECT, INSERT, UPDATE, DELETE` on the three `holdfast_` tables; `CREATE` on
the schema for `holdfast store init`.

Note:
    Behind a proxy that pools transactions (pgbouncer), neither session settings nor, in
    old versions, prepared statements stick: let it pool sessions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from holdfast._ids import Ids
from holdfast.arbiter.stores._base import StandbyError, StoreUrl, extra
from holdfast.errors import (
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)

with extra("postgres"):
    import psycopg
    from sqlalchemy import Connection

    from holdfast.arbiter.stores._sql import SqlCommitStore, Statements, transaction

_OPTIONS = frozenset(
    {"host", "sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs"}
)
_CONNECT_ARGS = {
    "connect_timeout": 10,
    "prepare_threshold": 2,  # planning again costs a quarter of an insert
    "application_name": "holdfast",
    # A peer that vanished is noticed after about 30 s, not after hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
_SESSION = """SELECT pg_is_in_recovery(),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('default_transaction_read_only', 'off', false),
    set_config('statement_timeout', '30s', false),
    set_config('idle_in_transaction_session_timeout', '60s', false)"""
_CANCELLED_WAITS = "holdfast: cancelled waits for a standby"
_SET_UP_LOCK = 0x686F6C6466617374  # "holdfast": the advisory lock of `set_up`
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS holdfast_records (
        series text COLLATE "C" NOT NULL, number bigint NOT NULL, value bytea NOT NULL,
        PRIMARY KEY (series, number))""",
    """CREATE TABLE IF NOT EXISTS holdfast_boundaries (
        series text COLLATE "C" PRIMARY KEY, upto bigint NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS holdfast_meta (
        name text COLLATE "C" PRIMARY KEY, value text NOT NULL)""",
)
# A failed connection has no code, only the server's words.
_NO_PASSWORD = "no password supplied"  # noqa: S105 - the server's words
_REFUSED = ("authentication failed", "pg_hba.conf", "role ")


class PostgresCommitStore(SqlCommitStore):
    """A commit store in a PostgreSQL database."""

    statements = Statements(
        insert="""INSERT INTO holdfast_records (series, number, value)
            SELECT %(series)s::text, %(number)s::bigint, %(value)s::bytea
            WHERE NOT EXISTS (SELECT 1 FROM holdfast_boundaries
                WHERE series IN (%(series)s::text, %(scope)s::text)
                    AND upto >= %(number)s::bigint)
            ON CONFLICT DO NOTHING""",
        replace="""UPDATE holdfast_records SET value = %(value)s
            WHERE series = %(series)s AND number = %(number)s AND value = %(expected)s
                AND NOT EXISTS (SELECT 1 FROM holdfast_boundaries WHERE series = %(scope)s)""",
        is_retired="SELECT 1 FROM holdfast_boundaries WHERE series = %(scope)s",
        put_identity="""INSERT INTO holdfast_meta (name, value)
            VALUES ('identity', %(identity)s) ON CONFLICT DO NOTHING""",
        raise_boundary="""INSERT INTO holdfast_boundaries AS b (series, upto)
            VALUES (%(series)s, %(through)s)
            ON CONFLICT (series) DO UPDATE SET upto = greatest(b.upto, excluded.upto)""",
    )

    def __init__(self, url: str, *, ids: Ids | None = None) -> None:
        """Read the URL; the server is contacted at the first use.

        Raises:
            InvalidInputError: no database in the URL, or an unknown option.
        """
        parsed = StoreUrl.parse(url)
        parsed.allow(_OPTIONS)
        super().__init__(parsed, "postgresql+psycopg", {**_CONNECT_ARGS, **parsed.options}, ids=ids)

    def check(self) -> Sequence[str]:
        """Return what makes this server unfit to decide names; empty when it is fit."""
        try:
            self.identity()
        except StandbyError as error:
            return [error.message]
        statement = """SELECT name, CASE name WHEN 'synchronous_commit' THEN reset_val
            ELSE setting END FROM pg_settings
            WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')"""
        with self._use() as connection:
            rows = self._read(connection, statement, {})
        advice = {
            "fsync": "an acknowledged decision is lost when the machine stops",
            "full_page_writes": "the database may be damaged when the machine stops",
            "synchronous_commit": "Holdfast switches it on for its own sessions, but a proxy "
            "that pools transactions undoes that",
        }
        return [f"{name} is off: {advice[name]}" for name in advice if (name, "off") in rows]

    @contextlib.contextmanager
    def _use(self) -> Iterator[Connection]:
        with super()._use() as connection:
            connection.info[_CANCELLED_WAITS] = 0
            yield connection
            if connection.info[_CANCELLED_WAITS]:
                # The pool drops the connection; nothing else is to be learnt on it.
                raise self._error(
                    UnavailableError, "committed, but no standby confirmed it before the wait ended"
                )

    def _begin_session(self, connection: Connection) -> None:
        info, driver = connection.info, connection.connection.driver_connection
        info[_CANCELLED_WAITS] = 0

        def notice(diagnostic: psycopg.errors.Diagnostic) -> None:
            # By the function that warns: the text depends on the server's language.
            # Only a warning for PostgreSQL: the commit stands on the primary, and the standby that
            # may be promoted next lacks it.
            if diagnostic.source_function == "SyncRepWaitForLSN":
                info[_CANCELLED_WAITS] += 1

        if isinstance(driver, psycopg.Connection):
            driver.add_notice_handler(notice)
        if connection.exec_driver_sql(_SESSION).one()[0]:
            raise StandbyError(
                "the server is a standby: what it shows may be old; connect to the primary",
                store=self.url,
            )

    def _create(self, connection: Connection) -> None:
        # CREATE TABLE IF NOT EXISTS fails when two sessions run it concurrently.
        with transaction(connection):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SET_UP_LOCK})")
            for statement in _SCHEMA:
                connection.exec_driver_sql(statement)
            self._run(connection, self.statements.put_identity, {"identity": self._ids.token()})

    def _keep_inserts_out(self, connection: Connection) -> None:
        # Conflicts with every write and with itself, but lets readers pass. Row locks would not do:
        # the row of a racing insert is not there yet.
        connection.exec_driver_sql("LOCK TABLE holdfast_records IN SHARE ROW EXCLUSIVE MODE")

    def _code(self, error: BaseException) -> str | None:
        return error.sqlstate if isinstance(error, psycopg.Error) else None

    def _meaning(self, code: str | int | None, reason: str) -> type[HoldfastError]:
        code = str(code or "")
        if code.startswith("28") or code in {"42501", "25006"}:
            return PermissionDeniedError
        if code in {"42P01", "3D000", "3F000"}:
            return NotFoundError
        if not code and _NO_PASSWORD in reason:  # by the client: it asks the server nothing
            return PermissionDeniedError
        if not code and "FATAL" in reason:
            if any(words in reason for words in _REFUSED):
                return PermissionDeniedError
            if "does not exist" in reason:
                return NotFoundError
        return UnavailableError


def connect(url: str) -> PostgresCommitStore:
    """Return the commit store at a `postgresql:` URL."""
    return PostgresCommitStore(url)
