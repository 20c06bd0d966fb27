"""`SqliteCommitStore`: names decided in one SQLite file, for tables on the same machine.

A verb that returned is on disk: the file is in WAL mode and every commit is fsynced
(`synchronous=FULL`) before another connection can see it. Any number of threads and processes
of one machine may use it concurrently and take turns. One that was stopped inside its turn holds
up the others for seconds only: they get a `BusyError` that says who it is.

The file may be removed and made anew under a handle, with the table around it. A handle looks
at the file before each use, so it never decides in a file that has no name any more: it gets
`StaleHandleError`, or, where an older copy of the same store came into the file's place, goes
on with that.

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

from holdfast._clock import SystemClock
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
from holdfast.arbiter.stores._holder import LONGEST_WAIT, LOOK_EVERY, Holder, LockWatch
from holdfast.arbiter.stores._pool import Pool
from holdfast.errors import (
    BusyError,
    CollectedError,
    CorruptError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StaleHandleError,
    UnavailableError,
    UnsafeStoreError,
)
from holdfast.storage import FullDiskError

_CLOCK = SystemClock()  # only bounds waiting
_POLL_SECONDS = 0.02
_WRITE_LOCK = 120  # the byte of the `-shm` file that a writer locks, by SQLite's file format
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS holdfast_records (
        series TEXT NOT NULL, number INTEGER NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (series, number))""",
    """CREATE TABLE IF NOT EXISTS holdfast_boundaries (
        series TEXT NOT NULL PRIMARY KEY, upto INTEGER NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS holdfast_meta (
        name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)""",
)
# A retired scope is a boundary above all numbers, under a name that no series can have.
_INSERT = """INSERT INTO holdfast_records (series, number, value) SELECT :series, :number, :value
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_boundaries
        WHERE series IN (:series, :scope) AND upto >= :number)
    ON CONFLICT DO NOTHING"""
_RETIRED = "(SELECT 1 FROM holdfast_boundaries WHERE series = :scope)"
_LOOK = f"""SELECT
    (SELECT value FROM holdfast_records WHERE series = :series AND number = :number),
    (SELECT upto FROM holdfast_boundaries WHERE series = :series), {_RETIRED}"""
_BOUNDARY = f"""SELECT
    (SELECT upto FROM holdfast_boundaries WHERE series = :series), {_RETIRED}"""
_REPLACE = f"""UPDATE holdfast_records SET value = :value
    WHERE series = :series AND number = :number AND value = :expected AND {_RETIRED} IS NULL"""
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
        self, url: str, *, ids: Ids | None = None, busy_timeout: timedelta = LONGEST_WAIT
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
        self._pool = Pool(self._open, lambda connection: connection.close(), usable=self._is_here)

    def set_up(self) -> str:
        """Create file and tables unless they are there, and return the identity.

        Durable when this returns, the file's directory entry included. Safe to call again,
        and by many concurrently.

        Raises:
            NotFoundError: the directory does not exist.
            PermissionDeniedError: it cannot be written to.
            BusyError: another process holds the file or its folder.
            UnsafeStoreError: the filesystem cannot carry a write-ahead log.
            UnavailableError: the disk failed to make it durable.
        """
        # Most set-ups find everything there, and then need no lock and no right to write.
        with contextlib.suppress(NotFoundError):
            identity = self.identity()
            self._use_log()
            return identity
        with (
            self._translate_errors(),
            _locked_folder(self.path.parent, self._busy_timeout) as folder,
        ):
            connection = self._connect(create=True)
            try:
                # SQLite answers with the mode that it has, not with an error, where shared memory
                # does not work.
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
                if mode != "wal":
                    raise UnsafeStoreError(
                        "SQLite cannot use a write-ahead log there; use a local disk", mode=mode
                    )
                # Before the identity is written: who reads an identity may pin a table to this
                # file, and the file must survive a power cut from then on.
                self._sync_name(folder, connection)
                with _transaction(connection):
                    for statement in _SCHEMA:
                        connection.execute(statement)
                    connection.execute(
                        "INSERT OR IGNORE INTO holdfast_meta VALUES ('identity', ?)",
                        (self._ids.token(),),
                    )
            finally:
                connection.close()
            _sync(folder)
        return self.identity()

    def _use_log(self) -> None:
        """Let a file that somebody changed keep a write-ahead log again."""
        with self._use() as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal" and not getattr(connection, "frozen", False):
                connection.execute("PRAGMA journal_mode=WAL")

    def _sync_name(self, folder: int, connection: sqlite3.Connection) -> None:
        """Make the file's name durable: whoever finds the identity in it relies on that.

        A second fsync of the same name that succeeds proves nothing, so a file whose name may
        not be durable is taken away: nobody has decided anything in one without an identity.
        """
        try:
            _sync(folder)
        except UnavailableError:
            connection.close()
            for suffix in ("", "-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            raise

    def check(self) -> Sequence[str]:
        """Return what makes this file unfit to decide names; empty when it is fit."""
        self.identity()
        with self._use() as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            # Opened as a file that nobody changes, SQLite does not tell how it is written.
            frozen = getattr(connection, "frozen", False)
        problems = []
        if mode != "wal" and not frozen:
            problems.append(f"journal_mode is {mode}, not wal: run `holdfast store init` on it")
        if health != "ok":
            problems.append(f"the file is damaged: {health}")
        return problems

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        """Keep `value` unless a value is there; durable when this returns.

        Raises:
            CollectedError: the number is not above the boundary.
            BusyError: the file stayed locked; nothing was stored.
        """
        values = {**_values(key), "value": check_value(value)}
        with self._use() as connection:
            # One statement looks at the boundary and inserts. SQLite has one writer at a time, so
            # nobody collects in between.
            if connection.execute(_INSERT, values).rowcount == 1:
                return None
            existing, upto, retired = connection.execute(_LOOK, _values(key)).fetchone()
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
        value, _, is_retired = self._one(_LOOK, **_values(key))
        if is_retired and not retired:
            raise self._retired_error(key.series)
        return None if value is None else bytes(value)

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`; return whether `expected` was there."""
        values = {**_values(key), "expected": expected, "value": check_value(value)}
        with self._use() as connection:
            if connection.execute(_REPLACE, values).rowcount == 1:
                return True
            self._refuse_retired(connection, key.series)
        return False

    def replace_many(self, series: str, changes: Sequence[Replacement]) -> int:
        """Do for each change what `compare_and_set` does, in one transaction."""
        check_changes(series, changes)
        if not changes:
            return 0
        with self._use() as connection, _transaction(connection):
            self._refuse_retired(connection, series)
            return sum(
                connection.execute(_REPLACE, {**_of(series), **change._asdict()}).rowcount
                for change in changes
            )

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        """Return up to `limit` records with numbers above `after`, in order of number."""
        statement = f"""SELECT number, value, {_RETIRED} FROM holdfast_records
            WHERE series = :series AND number > :after
            ORDER BY number {"DESC" if newest_first else "ASC"} LIMIT :limit"""
        values = {**_of(series), "after": clip_after(after), "limit": check_limit(limit)}
        with self._use() as connection:
            rows = connection.execute(statement, values).fetchall()
            if not rows or rows[0][2]:
                self._refuse_retired(connection, series)
        return [StoredEntry(number, value) for number, value, _ in rows]

    def boundary(self, series: str, *, retired: bool = False) -> int:
        """Return the boundary of a series, -1 if it never had one; `retired` as for `get`."""
        upto, is_retired = self._one(_BOUNDARY, **_of(series))
        if is_retired and not retired:
            raise self._retired_error(series)
        return -1 if upto is None else int(upto)

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary to `through` and remove the records up to it, in one transaction."""
        values = {**_of(series), "through": through}
        if check_number(through, lowest=-1) < 0:
            self.boundary(series)  # refuses a retired scope
            return 0
        with self._use() as connection, _transaction(connection):
            self._refuse_retired(connection, series)
            # The boundary and the deletion are one transaction: a record that is gone below a
            # boundary that was not raised could be decided again.
            connection.execute(_RAISE, values)
            return connection.execute(_REMOVE, values).rowcount

    def retire(self, scope: str) -> None:
        """Refuse every verb on the series of a scope from now on; durable when this returns."""
        values = {"series": _of(check_scope(scope))["scope"], "through": MAX_NUMBER}
        with self._use() as connection:
            connection.execute(_RAISE, values)

    def close(self) -> None:
        """Close the connections of this process."""
        self._pool.close()

    def _read_identity(self) -> str:
        (identity,) = self._one("SELECT (SELECT value FROM holdfast_meta WHERE name = 'identity')")
        if identity is None:
            raise self._not_set_up()
        return str(identity)

    def _refuse_retired(self, connection: sqlite3.Connection, series: str) -> None:
        (retired,) = connection.execute(f"SELECT {_RETIRED}", _of(series)).fetchone()
        if retired:
            raise self._retired_error(series)

    # Any: what the columns hold is in the statement.
    def _one(self, statement: str, **values: str | int) -> tuple[Any, ...]:
        with self._use() as connection:
            row: tuple[Any, ...] = connection.execute(statement, values).fetchone()
        return row

    @contextlib.contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with self._translate_errors(), self._pool.connection() as connection:
            yield connection

    def _open(self) -> _Connection:
        file = self._file()
        if file is None:  # mode=rw reports every trouble with the same words
            raise self._not_set_up() if self._identity is None else self._replaced_error()
        connection = self._connect(create=False)
        connection.file = file
        # The file may have been replaced by another store's while we opened it, or before.
        query = "SELECT value FROM holdfast_meta WHERE name = 'identity'"
        # A connection is bound to the file that it opened, not to the name. After the name was
        # given to another file it would go on deciding in one that nobody else can see.
        known = self._identity
        if known is not None and connection.execute(query).fetchone() != (known,):
            connection.close()
            raise self._replaced_error()
        return connection

    def _is_here(self, connection: _Connection) -> bool:
        """Tell whether a connection is to the file that has our path now, as it is now."""
        return connection.file == self._file() and not connection.frozen

    def _file(self) -> tuple[int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

    def _connect(self, *, create: bool) -> _Connection:
        wait = min(self._busy_timeout, LOOK_EVERY)
        frozen = False
        mode = "rwc" if create else "rw"
        if not create and not self._is_writable():
            frozen = not self._has_log()
            mode = "ro&immutable=1" if frozen else "ro"
        connection = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={mode}",
            uri=True,
            timeout=wait.total_seconds(),
            isolation_level=None,
            check_same_thread=False,  # the pool lends a connection to one thread at a time
            factory=_Connection,
        )
        connection.shared = self.path.with_name(f"{self.path.name}-shm")
        connection.longest = self._busy_timeout
        connection.frozen = frozen
        # With NORMAL, which SQLite recommends for WAL, a power cut can take back commits that were
        # acknowledged.
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: else fsync leaves it in the drive
        return connection

    def _is_writable(self) -> bool:
        return os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)

    def _has_log(self) -> bool:
        """Tell whether commits may be outside the file: then nobody reads it as if it were whole.

        A file that others closed has no log beside it. SQLite then wants to make one even for
        a reader, who may have no right to, unless it is told that nobody writes. Such a
        connection is used once: the next use looks again.

        Raises:
            PermissionDeniedError: the log cannot be read without the right to write.
        """
        log, shared = (self.path.with_name(f"{self.path.name}{end}") for end in ("-wal", "-shm"))
        if shared.exists():
            return True
        if log.exists() and log.stat().st_size:
            raise PermissionDeniedError(
                "the commit store's file was not closed by its last writer, and reading it then "
                "needs the right to write: open the table once where you have it",
                store=self.url,
            )
        return False

    def _replaced_error(self) -> StaleHandleError:
        return StaleHandleError(
            "the commit store's file was removed or replaced since this handle was opened: open "
            "the table again",
            store=self.url,
        )

    def _not_set_up(self) -> NotFoundError:
        return NotFoundError(
            f"no commit store there; create it with `holdfast store init {self.url}`",
            store=self.url,
        )

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except _LockedError as exc:
            raise BusyError(
                "another process holds the commit store's file: let it go on, or end it",
                store=self.url,
                holder=exc.holder,
            ) from exc
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
        if code == sqlite3.SQLITE_FULL:  # the transaction was undone: nothing of it is there
            return FullDiskError(
                "the disk of the commit store's file is full: make room, then do it again",
                store=self.url,
                reason=reason,
            )
        return UnavailableError("SQLite gave no usable answer", store=self.url, reason=reason)


class _LockedError(sqlite3.OperationalError):
    """The file stayed locked; `holder` says by whom."""

    holder: Holder | None = None


class _Connection(sqlite3.Connection):
    """A connection that waits for its turn, but not for a process that was stopped in its own.

    A statement that found the file locked did nothing, so it can be sent again.
    """

    file: tuple[int, int] | None = None
    frozen = False  # for reading, by somebody who may not write; used once
    shared: Path
    longest: timedelta

    # Any: what a statement takes, as the base class has it.
    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:  # noqa: ANN401
        watch: LockWatch | None = None
        while True:
            try:
                return super().execute(statement, values)
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", -1) & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                watch = watch or LockWatch(self.shared, _WRITE_LOCK, self.longest)
                if not watch.waits_on():
                    locked = _LockedError(*error.args)
                    locked.holder = watch.holder
                    raise locked from error


def _of(series: str) -> dict[str, str]:
    """Return a series and the name under which its scope is retired."""
    return {"series": check_series(series), "scope": retired_name(series)}


def _values(key: Key) -> dict[str, str | int]:
    return {**_of(check_key(key).series), "number": key.number}


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
def _locked_folder(folder: Path, longest: timedelta) -> Iterator[int]:
    """Let one set-up at a time into a folder; yields its descriptor, for fsync.

    Switching a new file to WAL does not wait for others as ordinary statements do.

    Raises:
        BusyError: another process stays in it.
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
        # An flock on the folder, not on the file: closing any descriptor of a file drops all POSIX
        # locks that this process has on it, SQLite's among them.
        _lock(descriptor, folder, longest)
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(folder: int) -> None:
    """Make the names in a folder durable.

    Raises:
        UnavailableError: the disk failed to.
    """
    try:
        os.fsync(folder)
    except OSError as error:
        raise UnavailableError(
            "the disk failed to make the commit store's file durable: check the disk, then try "
            "again",
            reason=error.strerror,
        ) from error


def _lock(descriptor: int, folder: Path, longest: timedelta) -> None:
    watch = LockWatch(folder, 0, longest)
    while True:
        looks_at = _CLOCK.elapsed() + LOOK_EVERY.total_seconds()
        while _CLOCK.elapsed() < looks_at:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            _CLOCK.sleep(_POLL_SECONDS)
        if not watch.waits_on():
            raise BusyError(
                "another process holds the commit store's folder: let it go on, or end it",
                folder=folder,
                holder=watch.holder,
            )


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one write transaction; after an error the pool drops the connection."""
    # Takes the write lock at the start. A transaction that begins with a read and then writes can
    # fail halfway with "busy", and waiting does not help it.
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")
