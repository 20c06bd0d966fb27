"""Inserts that are gathered on the event loop: who shares a group, and who learns what."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from holdfast.errors import CommitUnknownError, HoldfastError, InvalidInputError
from holdfast.server._inserts import Inserts
from holdfast.server._lanes import Lane

ID = ("t",)


class Table:
    """Stands for a table whose first commit takes as long as the test likes."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.error: HoldfastError | None = None

    def append(self, _: tuple[str, ...], inserts: Sequence[tuple[str, None]]) -> list[object]:
        self.groups.append([rows for rows, _ in inserts])
        if len(self.groups) == 1:
            self.begun.set()
            self.may_go_on.wait(60)
        elif self.error is not None:
            raise self.error
        return [InvalidInputError("bad") if rows == "bad" else rows for rows, _ in inserts]


async def run(table: Table, *later: str, gone: str = "") -> list[object]:
    """Insert `first`, the others while it is committed; the client of `gone` goes away."""
    lane = Lane("rows", 2, 10)
    inserts = Inserts(lane, table.append)  # type: ignore[arg-type]
    tasks = []
    for rows in ("first", *later):
        tasks.append(asyncio.create_task(inserts.add(ID, (rows, None))))
        await asyncio.to_thread(table.begun.wait, 60)
    await asyncio.sleep(0)
    for rows, task in zip(("first", *later), tasks, strict=True):
        if rows == gone:
            task.cancel()
    table.may_go_on.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*inserts._leading)
    assert inserts._waiting == {}
    lane.close()
    return list(outcomes)


@pytest.mark.requirement("C9")
def test_who_arrives_during_a_commit_shares_the_next_and_has_an_outcome_of_his_own() -> None:
    table = Table()
    first, a, bad, b = asyncio.run(run(table, "a", "bad", "b"))
    assert table.groups == [["first"], ["a", "bad", "b"]]
    assert (first, a, b) == ("first", "a", "b")
    assert isinstance(bad, InvalidInputError)


@pytest.mark.requirement("C9")
def test_an_unknown_outcome_reaches_all_members() -> None:
    table = Table()
    table.error = CommitUnknownError("no answer")
    first, *others = asyncio.run(run(table, "a", "b"))
    assert first == "first"
    assert [type(one) for one in others] == [CommitUnknownError, CommitUnknownError]


@pytest.mark.requirement("C9")
@pytest.mark.parametrize("gone", ["first", "a", "b"])
def test_a_client_that_goes_away_cancels_nothing(gone: str) -> None:
    table = Table()
    outcomes = asyncio.run(run(table, "a", "b", gone=gone))
    assert table.groups == [["first"], ["a", "b"]]
    for rows, outcome in zip(("first", "a", "b"), outcomes, strict=True):
        expected = asyncio.CancelledError if rows == gone else str
        assert isinstance(outcome, expected)
