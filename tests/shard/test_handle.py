"""Closing, aborting and other ends of a writer."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import (
    FencedError,
    HoldfastError,
    InvalidInputError,
    PoisonedError,
)
from holdfast.events import Event, EventKind, subscribed
from holdfast.formats._wal_names import entry_name
from holdfast.wal import WalAppender
from shard.levels import (
    newest,
    stock_rows,
    tables_of,
)
from shard.writing import rows


def test_closing_without_a_flush_leaves_the_rows_in_the_log(table: holdfast.Table) -> None:
    writer = table.claim_writer("unsharded")
    writer.put(rows(1))
    writer.close(flush=False)
    writer.close()
    assert tables_of(table, writer.shard_id) == ()
    for call in (lambda: writer.put(rows(2)), writer.scan, writer.flush):
        with pytest.raises(InvalidInputError, match="closed"):
            call()
    with table.claim_writer("unsharded") as again:
        assert again.lookup([1]).num_rows == 1


def test_closing_writes_what_waits(table: holdfast.Table) -> None:
    writer = table.claim_writer("unsharded")
    futures = [writer.put_nowait(rows(key)) for key in range(50)]
    writer.close()
    assert all(future.done() and future.result().rows for future in futures)
    assert len(stock_rows(table, writer.shard_id)) == 50


def test_aborting_fails_what_waits(table: holdfast.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = table.claim_writer("unsharded")
    held, go = threading.Event(), threading.Event()
    append = WalAppender.append

    def slow(self: WalAppender, *given: Any, **more: Any) -> Any:
        held.set()
        go.wait(60)
        return append(self, *given, **more)

    monkeypatch.setattr(WalAppender, "append", slow)
    first = writer.put_nowait(rows(1))
    held.wait(60)
    second = writer.put_nowait(rows(2))
    aborting = threading.Thread(target=writer.abort)
    aborting.start()
    with pytest.raises(InvalidInputError, match="aborted"):
        second.result(60)
    go.set()
    aborting.join()
    assert first.result(60).rows == 1
    monkeypatch.undo()
    with table.claim_writer("unsharded") as again:
        assert newest(again.to_table().to_pylist()) == {1: "x"}


def test_an_error_in_the_block_is_not_hidden_by_closing(table: holdfast.Table) -> None:
    def block() -> None:
        with table.claim_writer("unsharded") as old:
            table.claim_writer("unsharded").abort()
            with pytest.raises(FencedError):
                old.put(rows(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()


def test_a_writer_does_not_travel(table: holdfast.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with table.claim_writer("unsharded") as writer:
        with pytest.raises(TypeError, match="does not travel"):
            pickle.dumps(writer)
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: -1)
            for call in (lambda: writer.put(rows(1)), writer.scan):
                with pytest.raises(InvalidInputError, match="fork"):
                    call()


def test_flushes_are_events(table: holdfast.Table) -> None:
    seen: list[Event] = []
    with subscribed(seen.append), table.claim_writer("unsharded") as writer:
        writer.put(rows(1, 1))
    (event,) = [one for one in seen if one.kind is EventKind.FLUSHED]
    assert event.fields["rows"] == 1
    assert event.fields["generation"] == 1


def test_a_damaged_entry_stops_the_opening(table: holdfast.Table) -> None:
    writer = table.claim_writer("unsharded")
    position = writer.put(rows(1)).position
    writer.abort()
    path = Path(table.uri) / entry_name(writer.shard_id, position or 0).path
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(HoldfastError) as caught:
        table.claim_writer("unsharded")
    assert caught.value.kind.value in {"corrupt", "wal_gap"}


@pytest.mark.requirement("L7", "L12")
def test_a_put_that_slept_until_vacuum_took_its_file_is_fenced(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between writing its bytes and naming them, for longer than vacuum's grace."""
    writer = table.claim_writer("unsharded")
    writer.put(rows(1))
    link = os.link

    def sleep(source: str, target: str) -> None:
        monkeypatch.undo()
        if Path(source).exists():
            with table.claim_writer("unsharded") as other:
                other.put(rows(2))
            Path(source).unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", sleep)
    with pytest.raises(FencedError) as caught:
        writer.put(rows(3))
    assert (caught.value.epoch, caught.value.stored_epoch) == (1, 2)
    lost: Any = caught.value.details["unacknowledged"]
    assert lost[0].column("k").to_pylist() == [3]
    assert sorted(table.to_table()["k"].to_pylist()) == [1, 2]


@pytest.mark.requirement("L11")
def test_an_owner_whose_file_was_taken_stops_as_unknown(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = table.claim_writer("unsharded")
    link = os.link

    def take(source: str, target: str) -> None:
        monkeypatch.undo()
        Path(source).unlink(missing_ok=True)
        link(source, target)

    monkeypatch.setattr(os, "link", take)
    with pytest.raises(PoisonedError):
        writer.put(rows(1))
    with table.claim_writer("unsharded") as again:
        again.put(rows(2))
    assert table.to_table()["k"].to_pylist() == [2]
