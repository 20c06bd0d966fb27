"""The part that SQL commit stores share: a few statements over SQLAlchemy Core.

A record is a row, and its primary key decides: `put_if_absent` is one `INSERT` that is sent
and committed in one round trip; only when it stored nothing follows a read. Connections are
in autocommit mode, pooled per process, and neither pinged nor reset between uses.

The insert also looks at the boundary of its series, and `collect` raises it. What keeps
these two apart differs by database and is told in `postgres` and `mysql`. A retired scope is
a boundary above all numbers, under a name that no series can have: so `retire` and a racing
insert are kept apart in the same way.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from holdfast._ids import Ids, RandomIds
from holdfast.arbiter._commit_store import Key, Replacement, StoredEntry
from holdfast.arbiter.stores._base import (
    MAX_NUMBER,
    BaseStore,
    StoreUrl,
    check_changes,
    check_key,
    check_limit,
    check_number,
    check_scope,
    check_series,
    check_value,
    clip_after,
    retired_name,
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
_RETIRED = "(SELECT 1 FROM holdfast_boundaries WHERE series = %(scope)s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """What a database is sent; parameters are `%(series)s`, `%(number)s`, `%(value)s`, ..."""

    insert: str
    put_identity: str
    raise_boundary: str
    get_identity: str = "SELECT value FROM holdfast_meta WHERE name = 'identity'"
    replace: str
    is_retired: str
    look: str = f"""SELECT
        (SELECT value FROM holdfast_records WHERE series = %(series)s AND number = %(number)s),
        (SELECT upto FROM holdfast_boundaries WHERE series = %(series)s), {_RETIRED}"""
    get: str = f"""SELECT
        (SELECT value FROM holdfast_records WHERE series = %(series)s AND number = %(number)s),
        {_RETIRED}"""
    scan: str = f"""SELECT number, value, {_RETIRED} FROM holdfast_records
        WHERE series = %(series)s AND number > %(after)s ORDER BY number LIMIT %(limit)s"""
    scan_back: str = f"""SELECT number, value, {_RETIRED} FROM holdfast_records
        WHERE series = %(series)s AND number > %(after)s ORDER BY number DESC LIMIT %(limit)s"""
    boundary: str = f"""SELECT
        (SELECT upto FROM holdfast_boundaries WHERE series = %(series)s), {_RETIRED}"""
    remove: str = """DELETE FROM holdfast_records
        WHERE series = %(series)s AND number <= %(through)s"""


_WITHOUT_ONE = (
    ". The URL has no password: put one with credentials into HOLDFAST_COMMIT_STORE_URL, or give "
    "it with --commit-store env:NAME"
)


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

        Safe to call again, and by many concurrently. Needs the right to create tables only when
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
                # Autocommit: the statement returned, so its commit is on disk.
                self._note_durable(key.series, key.number, value)
                return None
            # A second statement, so it may see a later state: what it finds is true all the same,
            # and finding neither record nor boundary is "ask again", never "lost".
            ((existing, upto, retired),) = self._read(connection, self.statements.look, values)
        if retired:
            raise self._retired_error(key.series)
        if existing is not None:
            return bytes(existing)
        if upto is not None and upto >= key.number:
            raise CollectedError(
                "this number was decided and its record collected", **key._asdict(), boundary=upto
            )
        raise UnavailableError("neither stored nor found; ask again", store=self.url)

    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        """Return the value, or None; with `retired`, of a retired scope as well."""
        values = self._key(key)
        with self._use() as connection:
            ((value, is_retired),) = self._read(connection, self.statements.get, values)
        if is_retired and not retired:
            raise self._retired_error(key.series)
        return None if value is None else bytes(value)

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`; return whether `expected` was there."""
        values = {**self._key(key), "expected": expected, "value": check_value(value)}
        with self._use() as connection:
            replaced = self._run(connection, self.statements.replace, values) == 1
            if replaced:
                self._note_durable(key.series, key.number, value)
            else:
                # Also when nothing was replaced: the caller learns that its value is not there, and
                # acts on it.
                self._await_durable(connection)
                self._refuse_retired(connection, key.series)
        return replaced

    def replace_many(self, series: str, changes: Sequence[Replacement]) -> int:
        """Do for each change what `compare_and_set` does, by one statement."""
        check_changes(series, changes)
        if not changes:
            return 0
        values: dict[str, str | int | bytes] = {**self._names(series)}
        for place, change in enumerate(changes):
            values[f"number{place}"] = change.number
            values[f"expected{place}"] = change.expected
            values[f"value{place}"] = change.value
        statement = replace_many_statement(
            len(changes), lambda name: f"%({name})s", self.statements.is_retired
        )
        with self._use() as connection:
            replaced = self._run(connection, statement, values)
            if replaced == len(changes):
                for change in changes:
                    self._note_durable(series, change.number, change.value)
            else:
                self._await_durable(connection)
                self._refuse_retired(connection, series)
        return replaced

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        """Return up to `limit` records with numbers above `after`, in order of number."""
        statement = self.statements.scan_back if newest_first else self.statements.scan
        values = {
            **self._names(series),
            "after": clip_after(after),
            "limit": check_limit(limit),
        }
        with self._use() as connection:
            rows = connection.exec_driver_sql(statement, values).fetchall()
            entries = [StoredEntry(number, bytes(value)) for number, value, _ in rows]
            retired = not rows or rows[0][2]
            # What was only seen in memory of a database could be taken back by a crash, after we
            # acted on it.
            if entries and (retired or not self._are_durable(series, entries)):
                self._await_durable(connection)
                for entry in entries:
                    self._note_durable(series, entry.number, entry.value)
            if retired:
                self._refuse_retired(connection, series)
        return entries

    def boundary(self, series: str, *, retired: bool = False) -> int:
        """Return the boundary of a series, -1 if it never had one; `retired` as for `get`."""
        with self._use() as connection:
            ((upto, is_retired),) = self._read(
                connection, self.statements.boundary, self._names(series)
            )
        if is_retired and not retired:
            raise self._retired_error(series)
        return -1 if upto is None else int(upto)

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary to `through` and remove the records up to it, in one transaction."""
        values = {**self._names(series), "through": through}
        if check_number(through, lowest=-1) < 0:
            self.boundary(series)  # refuses a retired scope
            return 0
        with self._use() as connection, transaction(connection):
            # First of all in the transaction: an insert that read the old boundary must be
            # committed, and so collected, or must wait and read the new one.
            self._keep_inserts_out(connection)
            self._run(connection, self.statements.raise_boundary, values)
            self._refuse_retired(connection, series)  # raises, and the pool rolls back
            return self._run(connection, self.statements.remove, values)

    def retire(self, scope: str) -> None:
        """Refuse every verb on the series of a scope from now on; durable when this returns."""
        values = {"series": self._names(check_scope(scope))["scope"], "through": MAX_NUMBER}
        with self._use() as connection, transaction(connection):
            self._keep_inserts_out(connection)
            self._run(connection, self.statements.raise_boundary, values)

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

    def _text(self, name: str) -> str | bytes:
        """Return a name as its column holds it."""
        return name

    def _insert(self, connection: Connection, values: Values) -> bool:
        """Run the deciding insert; tell whether it stored the row."""
        return self._run(connection, self.statements.insert, values) == 1

    def _keep_inserts_out(self, connection: Connection) -> None:
        """Hold back racing inserts for the rest of `collect`'s transaction, if need be."""

    def _await_durable(self, connection: Connection) -> None:
        """Wait until everything this connection has seen is on disk, if that can differ."""

    def _note_durable(self, series: str, number: int, value: bytes) -> None:
        """Remember a record that is on disk, if `_await_durable` costs anything."""

    def _are_durable(self, series: str, entries: Sequence[StoredEntry]) -> bool:
        """Tell whether all of these records are known to be on disk as they are."""
        del series, entries
        return False

    # Plumbing.

    def _key(self, key: Key) -> dict[str, str | int | bytes]:
        check_key(key)
        return {**self._names(key.series), "number": key.number}

    def _names(self, series: str) -> dict[str, str | bytes]:
        return {
            "series": self._text(check_series(series)),
            "scope": self._text(retired_name(series)),
        }

    def _refuse_retired(self, connection: Connection, series: str) -> None:
        if self._read(connection, self.statements.is_retired, self._names(series)):
            raise self._retired_error(series)

    def _run(self, connection: Connection, statement: str, values: Values) -> int:
        return connection.exec_driver_sql(statement, dict(values)).rowcount

    # Any: what the columns hold is in the statement.
    def _read(
        self, connection: Connection, statement: str, values: Values
    ) -> Sequence[tuple[Any, ...]]:
        rows = connection.exec_driver_sql(statement, dict(values)).fetchall()
        if any(value is not None for row in rows for value in row):
            self._await_durable(connection)
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
                # A pool of SQLAlchemy's would hand a parent's sockets to a forked child, and two
                # processes would read each other's answers.
                poolclass=NullPool,  # `Pool` is in front: it knows forks
                pool_reset_on_return=None,
                # One statement is one transaction: no BEGIN and COMMIT of their own, two round
                # trips fewer.
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
                connect_args=self._connect_args,
            )
        return self._engines[pid]

    def _error(self, meaning: type[HoldfastError], reason: str) -> HoldfastError:
        message = {
            NotFoundError: "no commit store there; create the database if it is missing, then "
            f"run `holdfast store init {self.url}`",
            PermissionDeniedError: "the database refused: check user, password and rights"
            + ("" if self._password else _WITHOUT_ONE),
        }.get(meaning, "the database gave no usable answer")
        return meaning(message, store=self.url, reason=reason)

    def _clean(self, error: BaseException) -> str:
        """Return the first line of a driver's text, without the password."""
        text = " ".join(str(error).split("\n")[0].split())
        for secret in (self._password, quote(self._password, safe="")):
            text = text.replace(secret, "***") if secret else text
        return text


def replace_many_statement(count: int, named: Callable[[str], str], is_retired: str) -> str:
    """Return the statement that replaces `count` values; `named` writes a parameter."""
    places = range(count)
    numbers = ", ".join(named(f"number{place}") for place in places)
    values = " ".join(f"WHEN {named(f'number{n}')} THEN {named(f'value{n}')}" for n in places)
    matches = " OR ".join(
        f"(number = {named(f'number{n}')} AND value = {named(f'expected{n}')})" for n in places
    )
    return f"""UPDATE holdfast_records SET value = CASE number {values} END
        WHERE series = {named("series")} AND number IN ({numbers}) AND ({matches})
            AND NOT EXISTS ({is_retired})"""


@contextlib.contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run the block in one transaction; after an error the pool drops the connection."""
    connection.exec_driver_sql("BEGIN")
    yield
    connection.exec_driver_sql("COMMIT")


def _hang_up(connection: Connection) -> None:
    # A clean goodbye would wait for a server that does not answer.
    connection.invalidate()  # closes the driver's connection whatever state it is in
    connection.close()
