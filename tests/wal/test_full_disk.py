"""A log on a disk that is full, or read-only: no half entry, and nothing acknowledged lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.arbiter import (
    Arbiter,
    ConditionalPut,
    RecordedDecisions,
    RetryPolicy,
    SupportsSetUp,
    Verdict,
    connect_commit_store,
    create_arbiter,
)
from holdfast.core import TableCore
from holdfast.errors import HoldfastError, PermissionDeniedError, PoisonedError, UnavailableError
from holdfast.formats._wal_names import position_of
from holdfast.storage import FullDiskError, LocalStore, ObjectStore
from holdfast.wal import Entry, WalAppender, WalTailer
from storage.mounts import mounted, remount

SHARD = "c86481e0-7f0b-47f8-aead-d10d7a62c5b2"
RETRY = RetryPolicy(attempts=2, first_wait=timedelta(milliseconds=1))
LIMITS = {"bytes": ["size=1m"], "names": ["size=64m", "nr_inodes=160"]}
PAGE = 4096
ROWS = 1500  # an entry of three pages


def rows(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number] * ROWS})


@contextlib.contextmanager
def deciding(uri: Path, commit_store: str | None) -> Iterator[tuple[ObjectStore, Arbiter]]:
    store = LocalStore(uri)
    made = create_arbiter(uri, commit_store=commit_store)
    if isinstance(made, RecordedDecisions):
        yield store, RecordedDecisions(store, made._commit_store, made.pin, retry=RETRY)
    else:
        yield store, ConditionalPut(store, Verdict.ENFORCED, retry=RETRY)
    made.close()


class Ballast:
    """Files that leave exactly so many pages, or names, of a small disk free."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def leave(self, free: int) -> None:
        self.remove()
        with contextlib.suppress(OSError):
            for number in range(10_000):
                file = self._folder / f"ballast-{number:05d}"
                file.touch()
                file.write_bytes(b"x" * PAGE)
        for file in sorted(self._folder.glob("ballast-*"))[:free]:
            file.unlink()

    def remove(self) -> None:
        for file in self._folder.glob("ballast-*"):
            file.unlink()


@pytest.mark.requirement("L7", "L10")
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("commit_store", [None, "sqlite"])
def test_a_full_disk_loses_nothing_that_was_acknowledged(
    tmp_path: Path, commit_store: str | None, limit: str
) -> None:
    """Append with 0, 1, 2 ... pages or names free, so that each step is the one that fails."""
    with (
        mounted(tmp_path / "small", *LIMITS[limit]) as folder,
        deciding(folder / "t", commit_store) as (store, arbiter),
    ):
        ballast, acknowledged, refused = Ballast(folder), list[int](), list[int]()
        for free in range(12):
            appender = WalAppender.claim(TableCore(store, arbiter), SHARD)
            assert is_whole(found(appender.replay()), acknowledged, refused, commit_store)
            ballast.leave(free)
            try:
                appender.append(rows(free))
            except HoldfastError as error:
                refused.append(free)
                check_refused(appender, rows(free), error)
            else:
                acknowledged.append(free)
            with contextlib.suppress(HoldfastError):  # nor does a claim on a full disk harm
                WalAppender.claim(TableCore(store, arbiter), SHARD)
            assert not list((folder / "t/_holdfast/temporary").glob("*"))
            check_files(store, arbiter)
            ballast.remove()
            log = found(WalTailer(TableCore(store, arbiter), SHARD).entries())
            assert is_whole(log, acknowledged, refused, commit_store)
        print(f"{limit}: refused with {refused} free, done with {acknowledged}")
        # The file of a commit store may have room of its own for the first of them.
        assert refused and min(refused) <= 1
        assert 11 in acknowledged


@pytest.mark.requirement("L10")
def test_a_full_commit_store_has_stored_nothing(tmp_path: Path) -> None:
    """SQLite undoes what finds no room, so the outcome is known, and the writer goes on."""
    with (
        mounted(tmp_path / "small", "size=1m") as folder,
        deciding(folder / "t", "sqlite") as (store, arbiter),
    ):
        appender = WalAppender.claim(TableCore(store, arbiter), SHARD)
        ballast = Ballast(folder)
        ballast.leave(0)
        for number in range(100):  # until the room inside its file is used up
            try:
                appender.append(rows(number))
            except FullDiskError as error:
                refused, told = number, error
                break
            except HoldfastError:  # decided, and no room to copy it
                appender = WalAppender.claim(TableCore(store, arbiter), SHARD)
        assert "disk of the commit store's file is full" in str(told)
        ballast.remove()
        appender.append(rows(refused))
        assert found(WalTailer(TableCore(store, arbiter), SHARD).entries()).count(refused) == 1


def found(entries: Iterable[Entry]) -> list[int]:
    """Return which appends are there; each must be whole."""
    numbers = []
    for entry in entries:
        (batch,) = entry.batches
        assert batch.num_rows == ROWS
        (number,) = batch.column("n").unique().to_pylist()
        numbers.append(number)
    return numbers


def is_whole(
    log: list[int], acknowledged: list[int], refused: list[int], commit_store: str | None
) -> bool:
    """Tell whether a log holds what was acknowledged, in order, and nothing made up.

    A commit store may have decided what was refused later, while it was copied to its name:
    the writer was told that nobody knows.
    """
    if commit_store is None:
        return log == acknowledged
    return set(acknowledged) <= set(log) <= {*acknowledged, *refused} and log == sorted(set(log))


def check_refused(appender: WalAppender, given: pa.RecordBatch, error: HoldfastError) -> None:
    """An error that is final is raised again without I/O, and carries what was not kept."""
    if isinstance(error, UnavailableError):
        return  # nothing was sent: the caller may append again
    assert isinstance(error, PoisonedError)
    assert "full" in str(error.details["reason"]), "what to do is to make room"
    assert error.unacknowledged == (given,)
    with pytest.raises(PoisonedError) as caught:
        appender.append(rows(-1))
    assert caught.value.unacknowledged == (rows(-1),)


def check_files(store: ObjectStore, arbiter: Arbiter) -> None:
    """Every file in the log's folder is a whole entry."""
    tailer = WalTailer(TableCore(store, arbiter), SHARD)
    for info in store.list(f"_mem_wal/{SHARD}/wal"):
        position = position_of(info.path)
        assert position is not None, info.path
        assert tailer.read(position) is not None


@pytest.mark.requirement("L7")
@pytest.mark.parametrize("commit_store", [None, "sqlite"])
def test_a_read_only_folder_is_refused_and_read(tmp_path: Path, commit_store: str | None) -> None:
    elsewhere = None
    if commit_store is not None:
        elsewhere = f"sqlite:///{tmp_path}/commits.db"
        with contextlib.closing(connect_commit_store(elsewhere)) as connected:
            assert isinstance(connected, SupportsSetUp)
            connected.set_up()
    with (
        mounted(tmp_path / "fixed", "size=8m") as folder,
        deciding(folder / "t", elsewhere) as (store, arbiter),
    ):
        appender = WalAppender.claim(TableCore(store, arbiter), SHARD)
        appender.append(rows(1))
        remount(folder, "ro")
        with pytest.raises(PermissionDeniedError if elsewhere is None else PoisonedError):
            appender.append(rows(2))
        check_files(store, arbiter)
        with pytest.raises(HoldfastError):
            WalAppender.claim(TableCore(store, arbiter), SHARD)
        remount(folder, "rw")
        again = WalAppender.claim(TableCore(store, arbiter), SHARD)
        again.append(rows(3))
        log = found(WalTailer(TableCore(store, arbiter), SHARD).entries())
        assert is_whole(log, [1, 3], [2], commit_store)
