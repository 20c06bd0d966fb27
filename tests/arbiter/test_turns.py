"""Turns of those who lost a decision: first come, first served, and never in anybody's way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast._clock import SystemClock
from holdfast._ids import RandomIds
from holdfast.arbiter import Key, RecordedDecisions, Won
from holdfast.arbiter._turns import Turn, Turns
from holdfast.arbiter.stores.sqlite import SqliteCommitStore, connect
from holdfast.errors import UnavailableError
from holdfast.formats import PIN_PATH, ArbiterKind, Name, Pin, encode_pin
from holdfast.storage import open_store

KEY = Key("hf-table/versions/turns", 0)
FIRST = Name("_versions/1", "versions", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteCommitStore]:
    made = connect(f"sqlite:///{tmp_path}/decisions.db")
    made.set_up()
    yield made
    made.close()


def line(store: SqliteCommitStore) -> Turns:
    return Turns(store, KEY, SystemClock(), RandomIds())


@pytest.mark.requirement("C7")
def test_those_who_wait_go_one_after_the_other(store: SqliteCommitStore) -> None:
    inside: list[int] = []
    order: list[int] = []

    def work(number: int) -> None:
        turn = line(store).take()
        inside.append(number)
        order.append(len(inside))
        inside.remove(number)
        turn.end()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(12)))
    assert len(order) == 12
    assert store.get(KEY) == b"[]"


def test_one_that_never_leaves_is_dropped(store: SqliteCommitStore) -> None:
    dead = line(store).take()
    turn = line(store).take()
    value = store.get(KEY) or b""
    assert dead.token.encode() not in value
    assert turn.token.encode() in value
    dead.end()  # it only slept: nobody is in its way
    turn.end()
    turn.end()
    assert store.get(KEY) == b"[]"


@pytest.mark.requirement("C7")
def test_one_leaves_however_many_come_meanwhile(
    store: SqliteCommitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold up all behind it for a second."""
    turn = line(store).take()
    compare_and_set = store.compare_and_set
    came: list[str] = []

    def late(key: Key, old: bytes, new: bytes) -> bool:
        if len(came) < 60:
            came.append(f"one-{len(came)}")
            now = store.get(key) or b""
            assert compare_and_set(key, now, json.dumps([*json.loads(now), came[-1]]).encode())
        return compare_and_set(key, old, new)

    monkeypatch.setattr(store, "compare_and_set", late)
    turn.end()
    assert json.loads(store.get(KEY) or b"") == came


def test_a_store_without_an_answer_gives_a_turn_to_everybody(
    store: SqliteCommitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_args: object, **_options: object) -> bytes:
        raise UnavailableError("no answer")

    monkeypatch.setattr(store, "get", silent)
    turn: Turn = line(store).take()
    turn.end()


@pytest.mark.parametrize("value", [b"", b"{}", b"[1", b"7"])
def test_a_line_that_cannot_be_read_is_begun_anew(store: SqliteCommitStore, value: bytes) -> None:
    store.put_if_absent(KEY, value)
    turn = line(store).take()
    assert turn.token.encode() in (store.get(KEY) or b"")
    turn.end()


@pytest.mark.requirement("C2")
def test_a_turn_ends_at_the_decision_before_the_copy(
    store: SqliteCommitStore, tmp_path: Path
) -> None:
    pin = Pin(
        table_id="hf-table",
        arbiter=ArbiterKind.COMMIT_STORE,
        location=str(tmp_path),
        store_id=store.identity(),
        store_url=store.url,
    )
    table = open_store(str(tmp_path / "t"), {})
    table.put(PIN_PATH, encode_pin(pin))
    arbiter = RecordedDecisions(table, store, pin)
    token = RandomIds().token()
    noted: list[tuple[bool, int]] = []

    def decided() -> None:
        there = [info.path for info in table.list("_versions")]
        noted.append((arbiter.newest("versions") == 1, len(there)))

    assert arbiter.decide_next(FIRST, token.encode(), token, decided) == Won()
    assert noted == [(True, 0)]
    assert arbiter.peek_newest("versions") == token.encode()
