"""Ctrl-C anywhere inside an append: nobody else waits for it, and nothing is lost or doubled."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from commits.table_worker import Place, rows
from holdfast.commits._appends import Append, Appender, AppendRequest
from holdfast.errors import CommitUnknownError
from holdfast.formats import QUEUE_PATH
from interrupts import Interrupt, each_step

LONG = "HOLDFAST_EXPLORE" in os.environ
WAIT_SECONDS = 60
# Every step of everything, Python's own library too; else of what threads have in common.
SHARED = (
    "commits/_group.py",
    "commits/_appends.py",
    "commits/_loop.py",
    "commits/_syncing.py",
    "commits/_queue.py",
)
FILES = (".py",) if LONG else (*SHARED, "contextlib.py")


@pytest.fixture(params=[None, "sqlite"], ids=["conditional put", "commit store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(uri=str(tmp_path / "t.lance"), commit_store=request.param)


# A file that was opened and not yet used is closed by Python itself, which says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.requirement("C1", "C8", "P4")
def test_an_append_that_is_interrupted_anywhere(place: Place) -> None:
    table = place.create()
    table.append(rows(-1))
    expected = [-1]

    def attempt(interrupt: Interrupt) -> None:
        ours, theirs = len(expected), len(expected) + 1
        with suppress(KeyboardInterrupt), interrupt.armed():
            table.append(rows(ours), txn=f"t{ours}")
        assert is_free(Path(place.uri) / QUEUE_PATH), f"the turn is kept since {interrupt.at}"
        in_thread(lambda: table.append(rows(theirs)), interrupt)
        table.append(rows(ours), txn=f"t{ours}")
        expected.extend((ours, theirs))

    tried = each_step(FILES, attempt, 1 if LONG else 2)
    assert tried > 20
    assert place.ids() == expected


def is_free(line: Path) -> bool:
    """Tell whether nobody has the turn of a table on local disk."""
    with line.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def in_thread(call: Any, interrupt: Interrupt) -> None:
    """Make a call in a thread of its own; it must end, and well."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive(), f"an append hangs after an interrupt at {interrupt.at}"
    assert not errors, f"{errors} after an interrupt at {interrupt.at}"


@pytest.mark.requirement("C1")
def test_an_append_that_is_interrupted_while_it_waits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its rows back, and those behind it go on."""
    table = place.create()
    # A program that was started in the background may be told to ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun, gate = threading.Event(), threading.Event()
    commit = Appender._commit_once

    def held(appender: Appender, waiting: Sequence[AppendRequest]) -> int:
        begun.set()
        assert gate.wait(WAIT_SECONDS)
        return commit(appender, waiting)

    def interrupt_and_go_on() -> None:
        wait_until(lambda: table.writes.appender._group.length == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        wait_until(lambda: not table.writes.appender._group.length)
        followers.append(start(lambda: table.append(rows(3))))
        wait_until(lambda: table.writes.appender._group.length == 1)
        gate.set()

    monkeypatch.setattr(Appender, "_commit_once", held)
    followers: list[threading.Thread] = []
    leader = start(lambda: table.append(rows(1)))
    assert begun.wait(WAIT_SECONDS)
    other = start(interrupt_and_go_on)
    try:
        with pytest.raises(KeyboardInterrupt):
            table.append(rows(2))
    finally:
        signal.signal(signal.SIGINT, before)
    other.join(WAIT_SECONDS)
    for thread in (leader, *followers):
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert place.ids() == [1, 3]
    assert table.append(rows(4)).applied


def start(call: Any) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def wait_until(holds: Any) -> None:
    for _ in range(WAIT_SECONDS * 1000):
        if holds():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came so far")


@pytest.mark.requirement("C8")
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit], ids=lambda one: one.__name__)
def test_a_leader_s_interrupt_is_an_unknown_outcome_to_others(
    place: Place, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    table = place.create()
    appender = table.writes.appender
    begun, gate = threading.Event(), threading.Event()

    def commit(_: Appender, requests: Sequence[AppendRequest]) -> int:
        begun.set()
        assert gate.wait(WAIT_SECONDS)
        if len(requests) > 1:
            raise interrupt
        return 7

    monkeypatch.setattr(Appender, "_commit_once", commit)
    outcomes: dict[str, object] = {}

    def submit(name: str) -> None:
        try:
            outcomes[name] = appender.append(Append(fragments=[])).version
        except BaseException as error:  # noqa: BLE001 - looked at below
            outcomes[name] = error

    threads = [start(lambda: submit("first"))]
    assert begun.wait(WAIT_SECONDS)
    for number, name in enumerate(("leads", "follows", "behind")):
        threads.append(start(lambda name=name: submit(name)))
        wait_until(lambda number=number: appender._group.length == number + 1)
    gate.set()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert outcomes["first"] == 7
    assert type(outcomes["leads"]) is interrupt
    for name in ("follows", "behind"):
        error = outcomes[name]
        assert isinstance(error, CommitUnknownError)
        assert error.reason == interrupt.__name__
    submit("later")
    assert outcomes["later"] == 7
    assert not appender._group.busy
