"""The part that SQL commit stores share: seven statements over SQLAlchemy Core.

A record is a row, and its primary key decides: `put_if_absent` is one `INSERT` that is sent
and committed in one round trip; only when it stored nothing follows a read. Connections are
in autocommit mode, pooled per process, and neither pinged nor reset between uses.

The insert also looks at the boundary of its series, and `collect` raises it. What keeps
these two apart differs by database and is told in `postgres` and `mysql`.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from holdfast._ids import Ids, RandomIds
from holdfast.arbiter._commit_store import Entry, Key
from holdfast.arbiter.stores._base import (
    BaseStore,
    StoreUrl,
    check_key,
    check_limit,
    check_number,
    check_series,
    check_value,
    clip_after,
)
from holdfast.arbiter.stores._pool import Pool
from holdfast.errors import (
    CollectedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)

Values = Mapping[str, str | int | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """What a database is sent; parameters are `%(series)s`, `%(number)s`, `%(value)s`, ..."""

    insert: str
    put_identity: str
    raise_boundary: str
    get_identity: str = "SELECT value FROM holdfast_meta WHERE name = 'identity'"
    look: str = """SELECT
        (SELECT value FROM holdfast_records WHERE series = %(series)s AND number = %(number)s),
        (SELECT upto FROM holdfast_boundaries WHERE series = %(series)s)"""
    get: str = """SELECT value FROM holdfast_records
        WHERE series = %(series)s AND number = %(number)s"""
    replace: str = """UPDATE holdfast_records SET value = %(value)s
        WHERE series = %(series)s AND number = %(number)s AND value = %(expected)s"""
    scan: str = """SELECT number, value FROM holdfast_records
        WHERE series = %(series)s AND number > %(after)s ORDER BY number LIMIT %(limit)s"""
    scan_back: str = """SELECT number, value FROM holdfast_records
        WHERE series = %(series)s AND number > %(after)s ORDER BY number DESC LIMIT %(limit)s"""
    boundary: str = "SELECT upto FROM holdfast_boundaries WHERE series = %(series)s"
    remove: str = """DELETE FROM holdfast_records
        WHERE series = %(series)s AND number <= %(through)s"""


class SqlCommitStore(BaseStore):
    """A commit store in tables of a SQL database."""

    statements: Statements

    def __init__(
        self,
        url: StoreUrl,
        driver: str,
        connect_args: Mapping[str, object],
        *,
        ids: Ids | None = None,
    ) -> None:
        """Keep how to connect; the server is contacted at the first use.

        Raises:
            InvalidInputError: the URL names no database.
        """
        super().__init__(url)
        if not url.path.strip("/"):
            raise InvalidInputError(
                f"the commit store's URL needs a database: {url.scheme}://host/database"
            )
        self._address = sqlalchemy.URL.create(
            driver,
            username=url.username,
            password=url.password,
            host=url.host.strip("[]") or None,
            port=url.port,
            database=url.path.removeprefix("/"),
        )
        self._password = url.password or ""
        self._connect_args = dict(connect_args)
        self._ids = ids or RandomIds()
        self._engines: dict[int, Engine] = {}
        self._pool = Pool(self._open, _hang_up)

    def set_up(self) -> str:
        """Create the tables unless they are there, and return the identity.

        Safe to call again, and by many at once. Needs the right to create tables only when
        one is missing.

        Raises:
            NotFoundError: no such database on the server.
            PermissionDeniedError: the user may not create tables.
            UnavailableError: no usable answer; call again.
        """
        with contextlib.suppress(NotFoundError):
            return self.identity()
        with self._use() as connection:
            self._create(connection)
        return self.identity()

    @abstractmethod
    def check(self) -> Sequence[str]:
        """Return what makes this server unfit to decide names; empty when it is fit."""

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        """Keep `value` unless a value is there; durable when this returns.

        Raises:
            CollectedError: the number is not above the boundary.
            UnavailableError: no usable answer; it may or may not be stored.
        """
        values = self._key(key)
        with self._use() as connection:
            if self._insert(connection, {**values, "value": check_value(value)}):
                return None
            ((existing, upto),) = self._read(connection, self.statements.look, values)
        if existing is not None:
            return bytes(existing)
        if upto is not None and upto >= key.number:
            raise CollectedError(
                "this number was decided and its record collected", **key._asdict(), boundary=upto
            )
        raise UnavailableError("neither stored nor found; ask again", store=self.url)

    def get(self, key: Key) -> bytes | None:
        """Return the value, or None."""
        values = self._key(key)
        with self._use() as connection:
            rows = self._read(connection, self.statements.get, values)
        return bytes(rows[0][0]) if rows else None

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`; return whether `expected` was there."""
        values = {**self._key(key), "expected": expected, "value": check_value(value)}
        with self._use() as connection:
            replaced = self._run(connection, self.statements.replace, values) == 1
            if not replaced:
                self._settle(connection)
        return replaced

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[Entry]:
        """Return up to `limit` records with numbers above `after`, in order of number."""
        statement = self.statements.scan_back if newest_first else self.statements.scan
        values = {
            "series": self._series(series),
            "after": clip_after(after),
            "limit": check_limit(limit),
        }
        with self._use() as connection:
            rows = self._read(connection, statement, values)
        return [Entry(number, bytes(value)) for number, value in rows]

    def boundary(self, series: str) -> int:
        """Return the boundary of a series; -1 when it never had one."""
        values = {"series": self._series(series)}
        with self._use() as connection:
            rows = self._read(connection, self.statements.boundary, values)
        return int(rows[0][0]) if rows else -1

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary to `through` and remove the records up to it, in one transaction."""
        values = {"series": self._series(series), "through": through}
        if check_number(through, lowest=-1) < 0:
            return 0
        with self._use() as connection, transaction(connection):
            self._keep_inserts_out(connection)
            self._run(connection, self.statements.raise_boundary, values)
            return self._run(connection, self.statements.remove, values)

    def close(self) -> None:
        """Close the connections of this process."""
        self._pool.close()

    # What a database does in its own way.

    @abstractmethod
    def _begin_session(self, connection: Connection) -> None:
        """Set everything that verbs rely on; server defaults are never trusted."""

    @abstractmethod
    def _create(self, connection: Connection) -> None:
        """Create tables and identity unless they are there."""

    @abstractmethod
    def _code(self, error: BaseException) -> str | int | None:
        """Return the database's own code for an error."""

    @abstractmethod
    def _meaning(self, code: str | int | None, reason: str) -> type[HoldfastError]:
        """Return the class of error that a code stands for."""

    def _series(self, series: str) -> str | bytes:
        return check_series(series)

    def _insert(self, connection: Connection, values: Values) -> bool:
        """Run the deciding insert; tell whether it stored the row."""
        return self._run(connection, self.statements.insert, values) == 1

    def _keep_inserts_out(self, connection: Connection) -> None:
        """Hold back racing inserts for the rest of `collect`'s transaction, if need be."""

    def _settle(self, connection: Connection) -> None:
        """Wait until everything this connection has seen is on disk, if that can differ."""

    # Plumbing.

    def _key(self, key: Key) -> dict[str, str | int | bytes]:
        check_key(key)
        return {"series": self._series(key.series), "number": key.number}

    def _run(self, connection: Connection, statement: str, values: Values) -> int:
        return connection.exec_driver_sql(statement, dict(values)).rowcount

    # Any: what the columns hold is in the statement.
    def _read(
        self, connection: Connection, statement: str, values: Values
    ) -> Sequence[tuple[Any, ...]]:
        rows = connection.exec_driver_sql(statement, dict(values)).fetchall()
        if rows:
            self._settle(connection)
        return [tuple(row) for row in rows]

    def _read_identity(self) -> str:
        with self._use() as connection:
            rows = self._read(connection, self.statements.get_identity, {})
        if not rows:
            raise self._error(NotFoundError, "no identity")
        return str(rows[0][0])

    @contextlib.contextmanager
    def _use(self) -> Iterator[Connection]:
        try:
            with self._pool.connection() as connection:
                yield connection
        except DBAPIError as exc:
            code, reason = self._code(exc.orig or exc), self._clean(exc.orig or exc)
            # Not `from exc`: the driver's error carries the address it connected to.
            raise self._error(self._meaning(code, reason), reason) from None
        except SQLAlchemyError as exc:
            raise self._error(UnavailableError, self._clean(exc)) from None

    def _open(self) -> Connection:
        connection = self._engine().connect()
        try:
            self._begin_session(connection)
        except BaseException:
            _hang_up(connection)
            raise
        return connection

    def _engine(self) -> Engine:
        pid = os.getpid()
        if pid not in self._engines:
            self._engines[pid] = sqlalchemy.create_engine(
                self._address,
                poolclass=NullPool,  # `Pool` is in front: it knows forks
                pool_reset_on_return=None,
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
                connect_args=self._connect_args,
            )
        return self._engines[pid]

    def _error(self, meaning: type[HoldfastError], reason: str) -> HoldfastError:
        message = {
            NotFoundError: "no commit store there; create the database if it is missing, then "
            f"run `holdfast store init {self.url}`",
            PermissionDeniedError: "the database refused: check user, password and rights",
        }.get(meaning, "the database gave no usable answer")
        return meaning(message, store=self.url, reason=reason)

    def _clean(self, error: BaseException) -> str:
        """Return the first line of a driver's text, without the password."""
        text = " ".join(str(error).split("\n")[0].split())
        for secret in (self._password, quote(self._password, safe="")):
            text = text.replace(secret, "***") if secret else text
        return text


@contextlib.contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run the block in one transaction; after an error the pool drops the connection."""
    connection.exec_driver_sql("BEGIN")
    yield
    connection.exec_driver_sql("COMMIT")


def _hang_up(connection: Connection) -> None:
    connection.invalidate()  # closes the driver's connection whatever state it is in
    connection.close()
