from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.arbiter._commit_store import Key
from holdfast.arbiter.stores.sqlite import SqliteCommitStore
from holdfast.errors import (
    BusyError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    StaleHandleError,
    UnavailableError,
)

pytestmark = pytest.mark.requirement("C5")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteCommitStore]:
    store = SqliteCommitStore(f"sqlite:///{tmp_path}/c.db", busy_timeout=timedelta(milliseconds=50))
    store.set_up()
    yield store
    store.close()


def test_three_slashes_are_relative_and_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert SqliteCommitStore("sqlite:///sub/c.db").path == tmp_path / "sub" / "c.db"
    assert SqliteCommitStore("sqlite:////a/c.db").path == Path("/a/c.db")
    assert SqliteCommitStore("sqlite:///c.db").url == f"sqlite:///{tmp_path}/c.db"


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://c.db", "sqlite:///d/"]
)
def test_a_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="sqlite:///relative"):
        SqliteCommitStore(url)


def test_options() -> None:
    assert SqliteCommitStore("sqlite:///c.db").single_host is False
    store = SqliteCommitStore("sqlite:////c.db?single_host=true")
    assert store.single_host is True
    assert store.url == "sqlite:////c.db?single_host=true"
    assert store.local_only
    with pytest.raises(InvalidInputError, match="did you mean 'single_host'"):
        SqliteCommitStore("sqlite:///c.db?singlehost=true")
    with pytest.raises(InvalidInputError, match="true or false"):
        SqliteCommitStore("sqlite:///c.db?single_host=yes")


def test_odd_file_names(tmp_path: Path) -> None:
    store = SqliteCommitStore(f"sqlite:///{tmp_path}/a%20b%3Fmode=memory%25.db")
    store.set_up()
    store.close()
    assert (tmp_path / "a b?mode=memory%.db").exists()
    again = SqliteCommitStore(store.url)
    assert again.identity() == store.identity()
    again.close()


def test_not_set_up(tmp_path: Path) -> None:
    store = SqliteCommitStore(f"sqlite:///{tmp_path}/c.db")
    for call in (store.identity, lambda: store.get(Key("s", 0)), store.check):
        with pytest.raises(NotFoundError, match="holdfast store init sqlite:///"):
            call()
    assert list(tmp_path.iterdir()) == [], "a read created something"
    sqlite3.connect(tmp_path / "c.db").close()
    with pytest.raises(NotFoundError, match="holdfast store init"):
        store.identity()
    store.close()


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="folder"):
        SqliteCommitStore(f"sqlite:///{tmp_path}/no/c.db").set_up()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="not in a folder"):
        SqliteCommitStore(f"sqlite:///{tmp_path}/file/c.db").set_up()


def test_what_is_no_file_or_no_database(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"not a database" * 100)
    store = SqliteCommitStore(f"sqlite:///{tmp_path}/c.db")
    with pytest.raises(CorruptError):
        store.identity()
    with pytest.raises(CorruptError):
        store.set_up()
    store.close()
    with pytest.raises(PermissionDeniedError):
        SqliteCommitStore(f"sqlite:///{tmp_path}").identity()


def test_set_up_fsyncs_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    store = SqliteCommitStore(f"sqlite:///{tmp_path}/c.db")
    store.set_up()
    store.close()
    assert synced == [tmp_path, tmp_path]


def test_sessions_are_durable(store: SqliteCommitStore) -> None:
    with store._use() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store.check() == []


def test_check_sees_another_journal(store: SqliteCommitStore) -> None:
    store.close()
    other = sqlite3.connect(store.path)
    other.execute("PRAGMA journal_mode=DELETE")
    other.close()
    fresh = SqliteCommitStore(store.url)
    assert ["journal_mode is delete" in problem for problem in fresh.check()] == [True]
    fresh.close()


def test_a_lock_that_lasts_is_unavailable(store: SqliteCommitStore) -> None:
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BusyError, match=f"process {os.getpid()} "):
        store.put_if_absent(Key("s", 0), b"x")
    with pytest.raises(BusyError, match="holds"):
        store.collect("s", 0)
    other.execute("ROLLBACK")
    other.close()
    assert store.put_if_absent(Key("s", 0), b"x") is None


_HOLD = """
import fcntl, os, signal, sqlite3, sys
if sys.argv[2] == "file":
    other = sqlite3.connect(sys.argv[1], isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
else:
    folder = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
print("held", flush=True)
signal.pause()
"""


@contextlib.contextmanager
def stopped_holder(path: Path, what: str) -> Iterator[int]:
    """A process that is stopped while it holds the write lock, or the folder's."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path), what], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.requirement("P4")
def test_a_process_stopped_inside_its_turn_is_named(tmp_path: Path) -> None:
    store = SqliteCommitStore(f"sqlite:///{tmp_path}/c.db")
    store.set_up()
    with stopped_holder(store.path, "file") as pid:
        for call in (
            lambda: store.put_if_absent(Key("s", 0), b"x"),
            lambda: store.collect("s", 0),
            lambda: store.retire("s"),
        ):
            with pytest.raises(BusyError, match="stopped") as caught:
                call()
            assert caught.value.holder.pid == pid  # type: ignore[attr-defined]
        assert store.get(Key("s", 0)) is None  # readers do not wait
    assert store.put_if_absent(Key("s", 0), b"x") is None
    store.close()


@pytest.mark.requirement("P4")
def test_a_process_stopped_in_a_table_s_creation_is_named(tmp_path: Path) -> None:
    made = SqliteCommitStore(f"sqlite:///{tmp_path}/made.db")
    made.set_up()
    with stopped_holder(tmp_path / "c.db", "folder") as pid:
        with pytest.raises(BusyError, match="folder") as caught:
            SqliteCommitStore(f"sqlite:///{tmp_path}/c.db").set_up()
        assert caught.value.holder.pid == pid  # type: ignore[attr-defined]
        # What was set up before is opened without that lock.
        assert SqliteCommitStore(f"sqlite:///{tmp_path}/made.db").set_up() == made.identity()


@pytest.mark.requirement("O3", "P2")
def test_a_reader_without_the_right_to_write_sees_every_decision(
    store: SqliteCommitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the file is whole or commits wait in the log beside it."""
    store.put_if_absent(Key("s", 0), b"closed")
    store.close()  # all of it is in the file now, and no log beside it
    reader = SqliteCommitStore(store.url)
    monkeypatch.setattr(reader, "_is_writable", lambda: False)
    assert reader.get(Key("s", 0)) == b"closed"
    writer = SqliteCommitStore(store.url)
    writer.put_if_absent(Key("s", 1), b"in the log")
    assert reader.get(Key("s", 1)) == b"in the log"
    late = SqliteCommitStore(store.url)
    monkeypatch.setattr(late, "_is_writable", lambda: False)
    assert late.get(Key("s", 1)) == b"in the log"
    late.close()
    writer.close()
    again = SqliteCommitStore(store.url)
    again.put_if_absent(Key("s", 2), b"later")
    again.close()
    assert reader.get(Key("s", 2)) == b"later"
    reader.close()


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_fsync_of_a_new_file_is_told_and_not_built_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    path = tmp_path / "c.db"
    calls: list[int | None] = []
    fsync = os.fsync

    def fail_once(descriptor: int) -> None:
        calls.append(path.stat().st_ino if path.exists() else None)
        if len(calls) == failing:
            raise OSError(errno.EIO, "injected")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    store = SqliteCommitStore(f"sqlite:///{path}")
    with pytest.raises(UnavailableError, match="check the disk"):
        store.set_up()
    if failing == 1:  # its name may not be durable, and no later fsync would tell
        assert not list(tmp_path.glob("c.db*"))
    assert store.set_up() == store.identity()
    assert store.put_if_absent(Key("s", 0), b"x") is None
    store.close()


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew"])
def test_a_file_that_was_removed_under_a_handle(store: SqliteCommitStore, again: bool) -> None:
    store.put_if_absent(Key("s", 0), b"x")
    for file in store.path.parent.glob("c.db*"):
        file.unlink()
    if again:
        SqliteCommitStore(store.url).set_up()
    for _ in range(2):
        with pytest.raises(StaleHandleError, match="open the table again"):
            store.put_if_absent(Key("s", 1), b"y")
        with pytest.raises(StaleHandleError):
            store.get(Key("s", 0))


def test_an_older_copy_of_the_same_store_is_gone_on_with(store: SqliteCommitStore) -> None:
    store.put_if_absent(Key("s", 0), b"x")
    with store._use() as connection:
        connection.execute("VACUUM INTO ?", (f"{store.path}.old",))
    store.put_if_absent(Key("s", 1), b"y")
    Path(f"{store.path}.old").replace(store.path)
    for end in ("-wal", "-shm"):
        Path(f"{store.path}{end}").unlink()
    with store._use() as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    assert store.get(Key("s", 1)) is None  # what it forgot, the object store tells
    assert store.get(Key("s", 0)) == b"x"


def test_identity_is_read_once(store: SqliteCommitStore, tmp_path: Path) -> None:
    identity = store.identity()
    store.close()
    store.path.unlink()
    assert store.identity() == identity


def test_a_killed_process_loses_nothing_it_acknowledged(store: SqliteCommitStore) -> None:
    code = """
import sys
from holdfast.arbiter._commit_store import Key
from holdfast.arbiter.stores.sqlite import SqliteCommitStore
store = SqliteCommitStore(sys.argv[1])
number = 0
while True:
    store.put_if_absent(Key("s", number), b"x")
    print(number, flush=True)
    number += 1
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, store.url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout if line.endswith("\n")]
    found = [entry.number for entry in store.scan("s", limit=100_000)]
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) - len(acknowledged) in {0, 1}
