"""A repair that is cut off anywhere is finished by the same call: one test per row of RFC 0011."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.arbiter import RecordedDecisions, connect_commit_store, read_pin
from holdfast.arbiter import _lost_store as lost_store
from holdfast.errors import HoldfastError
from holdfast.upkeep import _repair as repairing
from holdfast.upkeep import repair
from holdfast.upkeep._repair_tie import open_or_mend
from upkeep.test_repair import (
    Place,
    check_goes_on,
    kept_identity,
    make_table,
    place,
    rows,
    write_more,
)

__all__ = ["kept_identity", "place"]  # fixtures
pytestmark = [pytest.mark.requirement("O1", "P1", "P2")]
WRITES = {
    *("put", "put_if_absent", "copy", "delete"),
    *("compare_and_set", "collect", "retire", "set_up"),
}


class CutOffError(BaseException):
    """As a process that is killed."""


class Cut:
    """Ends the process before or after its n-th call that writes, in either store."""

    def __init__(self, number: int, *, after: bool) -> None:
        self._left = number
        self._after = after
        self.fired = False

    def wrap(self, target: Any) -> Any:
        for name in WRITES:
            function = getattr(target, name, None)
            if function is not None:
                setattr(target, name, partial(self.call, function))
        return target

    def call(self, function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self.fired = True
            if self._after:
                function(*args, **settings)
            raise CutOffError
        if self._left < 0:
            raise CutOffError  # a dead process does nothing more
        return function(*args, **settings)


def _no_writer_gets_through(one: Place) -> None:
    """A table that is half repaired refuses, or takes the write and keeps it."""
    try:
        table = one.open()
        result = table.append(rows(1), txn="one")
    except HoldfastError:
        return
    assert not result.applied


@pytest.mark.parametrize(
    ("place", "after"),
    [("local sqlite", False), ("local sqlite", True), ("s3 postgres", True)],
    indirect=["place"],
)
def test_a_rebuild_of_records_that_is_cut_off(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    make_table(place)
    backup = place.take_backup()
    write_more(place)
    number, cuts = 0, 0
    while True:
        place.restore_backup(backup)
        number += 1
        cut = Cut(number, after=after)
        with monkeypatch.context() as patch:
            patch.setattr(repairing, "open_or_mend", _wrapping(cut, open_or_mend))
            try:
                repair(place.uri, place.options, confirm=True)
            except CutOffError:
                cuts += 1
        if not cut.fired:
            break
        _no_writer_gets_through(place)
        done = repair(place.uri, place.options, confirm=True)
        assert done.whole
    assert cuts == 3  # one boundary each: versions, the shard's manifests, its log
    check_goes_on(place)


def _wrapping(cut: Cut, make: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(given: Any) -> Any:
        given.store = cut.wrap(given.store)
        found = make(given)
        if isinstance(found, RecordedDecisions):
            commit_store = cut.wrap(found._commit_store)
            return RecordedDecisions(given.store, commit_store, found.pin)
        return found

    return wrapped


@pytest.mark.usefixtures("kept_identity")
@pytest.mark.parametrize(
    ("place", "after"),
    [("local sqlite", False), ("local sqlite", True), ("s3 postgres", True)],
    indirect=["place"],
)
def test_a_replacement_of_the_commit_store_that_is_cut_off(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, after: bool
) -> None:
    make_table(place)
    write_more(place)
    place.lose_commit_store()
    old = place.store.get("_holdfast/pin.json")
    number, ids = 0, set[str]()
    while True:
        _forget_new_store(place, tmp_path, number)
        place.store.put("_holdfast/pin.json", old)
        number += 1
        cut = Cut(number, after=after)
        with monkeypatch.context() as patch:
            for name in ("open_store", "connect_store"):
                patch.setattr(lost_store, name, _connecting(cut, getattr(lost_store, name)))
            with contextlib.suppress(CutOffError):
                repair(place.uri, place.options, new_commit_store=place.spare, confirm=True)
        if not cut.fired:
            break
        done = repair(place.uri, place.options, new_commit_store=place.spare, confirm=True)
        assert done.whole, (number, done.left)
        pin = read_pin(place.store)
        assert pin is not None
        ids.add(pin.table_id)
    assert number > 6  # next pin, three series or more, marker, pin, address, place
    assert len(ids) == number - 1
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    check_goes_on(place)


def _connecting(cut: Cut, connect: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **settings: cut.wrap(connect(*args, **settings))


def _forget_new_store(one: Place, folder: Path, number: int) -> None:
    """Begin each round with a new commit store that nobody used."""
    if one.spare == "sqlite":
        for file in Path(one.uri, "_holdfast").glob("commits.db*"):
            file.unlink()
        return
    one.spare = f"sqlite:///{folder}/new-{number}.db?single_host=true"
    store: Any = connect_commit_store(one.spare)
    store.set_up()
    store.close()


@pytest.mark.parametrize("place", ["local sqlite"], indirect=True)
def test_a_stale_handle_is_refused_after_the_replacement(place: Place) -> None:
    make_table(place)
    stale = place.open()
    write_more(place)
    place.lose_commit_store()
    assert repair(place.uri, new_commit_store="sqlite", confirm=True).whole
    with pytest.raises(HoldfastError):
        stale.append(rows(77))
    assert 77 not in holdfast.open_table(place.uri).to_table()["id"].to_pylist()
