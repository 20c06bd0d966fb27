"""`SqliteCommitStore`: names decided in one SQLite file, for tables on the same machine.

A verb that returned is on disk: the file is in WAL mode and every commit is fsynced
(`synchronous=FULL`) before another connection can see it. Any number of threads and processes
of one machine may use it at once; each waits for the others up to `BUSY_TIMEOUT`.

The URL is `sqlite:///relative.db` or, with four slashes, `sqlite:////absolute/path.db`.

Warning:
    Keep the file on a local disk. SQLite in WAL mode needs memory shared between all users
    of the file and working file locks: on NFS, SMB and other network filesystems two
    machines can both decide a name. Two hosts with a file each decide twice as well, which
    is why the option `single_host=true` must be given before a table on a remote object
    store accepts this commit store.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    CorruptError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsafeStoreError,
)

BUSY_TIMEOUT = timedelta(seconds=30)
"""How long a verb waits for other processes before it raises `UnavailableError`."""

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS holdfast_records (
        series TEXT NOT NULL, number INTEGER NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (series, number))""",
    """CREATE TABLE IF NOT EXISTS holdfast_boundaries (
        series TEXT NOT NULL PRIMARY KEY, upto INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS holdfast_meta (
        name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)""",
)
_INSERT = """INSERT INTO holdfast_records (series, number, value) SELECT :series, :number, :value
    WHERE NOT EXISTS (
        SELECT 1 FROM holdfast_boundaries WHERE series = :series AND upto >= :number)
    ON CONFLICT DO NOTHING"""
_LOOK = """SELECT
    (SELECT value FROM holdfast_records WHERE series = :series AND number = :number),
    (SELECT upto FROM holdfast_boundaries WHERE series = :series)"""
_REPLACE = """UPDATE holdfast_records SET value = :value
    WHERE series = :series AND number = :number AND value = :expected"""
_RAISE = """INSERT INTO holdfast_boundaries (series, upto) VALUES (:series, :through)
    ON CONFLICT (series) DO UPDATE SET upto = max(upto, excluded.upto)"""
_REMOVE = "DELETE FROM holdfast_records WHERE series = :series AND number <= :through"


class SqliteCommitStore(BaseStore):
    """A commit store in one local file.

    Attributes:
        path: the absolute path of the file.
        single_host: the user promised that one machine alone writes.
        local_only: always true: other machines cannot reach this store.
    """

    local_only = True

    def __init__(
        self, url: str, *, ids: Ids | None = None, busy_timeout: timedelta = BUSY_TIMEOUT
    ) -> None:
        """Read the URL; the file is opened at the first use.

        Raises:
            InvalidInputError: no path in the URL, or an unknown option.
        """
        parsed = StoreUrl.parse(url)
        parsed.allow({"single_host"})
        self.single_host = parsed.flag("single_host")
        self.path = _path_of(parsed)
        super().__init__(
            StoreUrl(scheme="sqlite", path=f"/{self.path}", options=dict(parsed.options))
        )
        self._ids = ids or RandomIds()
        self._busy_timeout = busy_timeout
        self._pool = Pool(self._open, lambda connection: connection.close())

    def set_up(self) -> str:
        """Create file and tables unless they are there, and return the identity.

        Durable when this returns, the file's directory entry included. Safe to call again,
        and by many at once.

        Raises:
            NotFoundError: the directory does not exist.
            PermissionDeniedError: it cannot be written to.
            UnavailableError: another process holds the file for too long.
            UnsafeStoreError: the filesystem cannot carry a write-ahead log.
        """
        with self._translated(), _locked_folder(self.path.parent) as folder:
            connection = self._connect(create=True)
            try:
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
                if mode != "wal":
                    raise UnsafeStoreError(
                        "SQLite cannot use a write-ahead log there; use a local disk", mode=mode
                    )
                with _transaction(connection):
                    for statement in _SCHEMA:
                        connection.execute(statement)
                    connection.execute(
                        "INSERT OR IGNORE INTO holdfast_meta VALUES ('identity', ?)",
                        (self._ids.token(),),
                    )
            finally:
                connection.close()
            os.fsync(folder)
        return self.identity()

    def check(self) -> Sequence[str]:
        """Return what makes this file unfit to decide names; empty when it is fit."""
        self.identity()
        with self._use() as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        found = []
        if mode != "wal":
            found.append(f"journal_mode is {mode}, not wal: run `holdfast store init` on it")
        if health != "ok":
            found.append(f"the file is damaged: {health}")
        return found

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        """Keep `value` unless a value is there; durable when this returns.

        Raises:
            CollectedError: the number is not above the boundary.
            UnavailableError: the file stayed locked.
        """
        check_key(key)
        values = {**key._asdict(), "value": check_value(value)}
        with self._use() as connection:
            if connection.execute(_INSERT, values).rowcount == 1:
                return None
            existing, upto = connection.execute(_LOOK, key._asdict()).fetchone()
        if existing is not None:
            return bytes(existing)
        if upto is not None and upto >= key.number:
            raise CollectedError(
                "this number was decided and its record collected", **key._asdict(), boundary=upto
            )
        raise UnavailableError("neither stored nor found; ask again", store=self.url)

    def get(self, key: Key) -> bytes | None:
        """Return the value, or None."""
        row = self._one(_LOOK, **check_key(key)._asdict())
        return None if row is None or row[0] is None else bytes(row[0])

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`; return whether `expected` was there."""
        check_key(key)
        values = {**key._asdict(), "expected": expected, "value": check_value(value)}
        with self._use() as connection:
            return connection.execute(_REPLACE, values).rowcount == 1

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[Entry]:
        """Return up to `limit` records with numbers above `after`, in order of number."""
        statement = f"""SELECT number, value FROM holdfast_records
            WHERE series = ? AND number > ? ORDER BY number {"DESC" if newest_first else "ASC"}
            LIMIT ?"""
        values = (check_series(series), clip_after(after), check_limit(limit))
        with self._use() as connection:
            rows = connection.execute(statement, values).fetchall()
        return [Entry(number, value) for number, value in rows]

    def boundary(self, series: str) -> int:
        """Return the boundary of a series; -1 when it never had one."""
        row = self._one(
            "SELECT upto FROM holdfast_boundaries WHERE series = :series",
            series=check_series(series),
        )
        return -1 if row is None else int(row[0])

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary to `through` and remove the records up to it, in one transaction."""
        values = {"series": check_series(series), "through": through}
        if check_number(through, lowest=-1) < 0:
            return 0
        with self._use() as connection, _transaction(connection):
            connection.execute(_RAISE, values)
            return connection.execute(_REMOVE, values).rowcount

    def close(self) -> None:
        """Close the connections of this process."""
        self._pool.close()

    def _read_identity(self) -> str:
        row = self._one("SELECT value FROM holdfast_meta WHERE name = 'identity'")
        if row is None:
            raise self._not_set_up()
        return str(row[0])

    # Any: what the columns hold is in the statement.
    def _one(self, statement: str, **values: str | int) -> tuple[Any, ...] | None:
        with self._use() as connection:
            row: tuple[Any, ...] | None = connection.execute(statement, values).fetchone()
        return row

    @contextlib.contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with self._translated(), self._pool.connection() as connection:
            yield connection

    def _open(self) -> sqlite3.Connection:
        if not self.path.exists():  # mode=rw reports every trouble with the same words
            raise self._not_set_up()
        return self._connect(create=False)

    def _connect(self, *, create: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={'rwc' if create else 'rw'}",
            uri=True,
            timeout=self._busy_timeout.total_seconds(),
            isolation_level=None,
            check_same_thread=False,  # the pool lends a connection to one thread at a time
        )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: else fsync leaves it in the drive
        return connection

    def _not_set_up(self) -> NotFoundError:
        return NotFoundError(
            f"no commit store there; create it with `holdfast store init {self.url}`",
            store=self.url,
        )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise self._meaning(exc) from exc

    def _meaning(self, exc: sqlite3.Error) -> HoldfastError:
        # The extended code has the cause in its lowest byte; a misuse has no code at all.
        code = getattr(exc, "sqlite_errorcode", -1) & 0xFF
        reason = str(exc)
        if "no such table" in reason:
            return self._not_set_up()
        if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN}:
            return PermissionDeniedError(
                "the commit store's file or folder cannot be opened for writing",
                store=self.url,
                reason=reason,
            )
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return CorruptError(
                "the commit store's file is damaged or no SQLite file",
                store=self.url,
                reason=reason,
            )
        return UnavailableError("SQLite gave no usable answer", store=self.url, reason=reason)


def connect(url: str) -> SqliteCommitStore:
    """Return the commit store at a `sqlite:` URL."""
    return SqliteCommitStore(url)


def _path_of(url: StoreUrl) -> Path:
    name = url.path.removeprefix("/")
    if url.host or name in {"", ":memory:"} or name.endswith("/") or "\0" in name:
        raise InvalidInputError(
            "a SQLite commit store is a file: sqlite:///relative.db or sqlite:////absolute.db"
        )
    return Path(name).absolute()


@contextlib.contextmanager
def _locked_folder(folder: Path) -> Iterator[int]:
    """Let one set-up at a time into a folder; yields its descriptor, for fsync.

    Switching a new file to WAL does not wait for others as ordinary statements do.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError as exc:
        raise NotFoundError("the folder for the commit store's file is missing") from exc
    except PermissionError as exc:
        raise PermissionDeniedError("the commit store's folder cannot be opened") from exc
    except OSError as exc:
        raise InvalidInputError("the commit store's file is not in a folder") from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one write transaction; after an error the pool drops the connection."""
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")
