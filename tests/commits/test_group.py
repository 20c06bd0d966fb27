"""Group commit: waiting appends become one version, each with its own outcome."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lance.fragment import FragmentMetadata, write_fragments

from commits.table_worker import Place, rows
from holdfast.commits._appends import Append, Appender, AppendPlan, AppendRequest
from holdfast.commits._group import GroupCommit
from holdfast.errors import CommitUnknownError, ConflictError, InvalidInputError, UnavailableError

WAIT_SECONDS = 60


@pytest.fixture(params=[None, "sqlite"], ids=["conditional put", "commit store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(uri=str(tmp_path / "t.lance"), commit_store=request.param)


@pytest.mark.requirement("C1")
def test_threads_share_versions_and_get_their_own_results(place: Place) -> None:
    table = place.create()

    def append_ten(first: int) -> list[int]:
        versions = []
        for number in range(first, first + 10):
            result = table.append(rows(number), txn=f"t{number}" if number % 2 else None)
            assert (result.rows, result.applied) == (1, True)
            assert number in place.ids(result.version)  # it holds what it says
            versions.append(result.version)
        return versions

    with ThreadPoolExecutor(16) as threads:
        versions = [v for each in threads.map(append_ten, range(0, 160, 10)) for v in each]
    assert place.ids() == list(range(160))
    assert len(set(versions)) < 160
    assert max(versions) == place.stock().version


class Held:
    """Holds the first commit of a table until as many appends as wanted wait behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, behind: int) -> None:
        self.groups: list[int] = []
        self._behind = behind
        self._queued = threading.Semaphore(0)
        commit, submit = Appender._commit_once, GroupCommit.submit
        held = self

        def wait_for_the_others(appender: Appender, waiting: Sequence[AppendRequest]) -> int:
            held.groups.append(len(waiting))
            if len(held.groups) == 1:
                for _ in range(held._behind + 1):
                    assert held._queued.acquire(timeout=WAIT_SECONDS)
            return commit(appender, waiting)

        def count(group: GroupCommit, item: Any) -> Any:
            held._queued.release()
            return submit(group, item)

        monkeypatch.setattr(Appender, "_commit_once", wait_for_the_others)
        monkeypatch.setattr(GroupCommit, "submit", count)


def test_one_bad_append_fails_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = place.create()
    parts = write_fragments(rows(99), place.uri, mode="append")
    described = parts[0].to_json()
    described["files"][0]["fields"] = [17, 18]
    strange = FragmentMetadata.from_json(json.dumps(described))
    Held(monkeypatch, behind=5)
    with ThreadPoolExecutor(6) as threads:
        good = [threads.submit(table.append, rows(n), txn=(f"job {n}", n)) for n in range(5)]
        bad = threads.submit(table.commit, [strange], txn="bad")
        assert all(one.result().applied for one in good)
        with pytest.raises(InvalidInputError, match="columns"):
            bad.result()
    assert place.ids() == list(range(5))
    assert table.applied(["bad"]) == [False]


def test_repeats_within_a_group(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = place.create()
    table.append(rows(0), txn="old")
    parts = write_fragments(rows(0), place.uri, mode="append")
    held = Held(monkeypatch, behind=7)
    with ThreadPoolExecutor(8) as threads:
        one = [threads.submit(table.append, rows(1), txn="one") for _ in range(4)]
        two = [threads.submit(table.append, rows(2), txn=("job", 1)) for _ in range(3)]
        old = threads.submit(table.commit, parts, txn="old")
        assert sum(each.result().applied for each in one) == 1
        assert sum(each.result().applied for each in two) == 1
        assert not old.result().applied
    assert place.ids() == [0, 1, 2]
    assert max(held.groups) > 1


def test_what_meets_all_is_told_to_all_and_tried_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = place.create()
    tries = []
    for error in (CommitUnknownError("no answer"), UnavailableError("down")):

        def fail(
            _self: Appender, waiting: Sequence[AppendRequest], error: Exception = error
        ) -> int:
            tries.append(len(waiting))
            raise error

        monkeypatch.setattr(Appender, "_commit_once", fail)
        requests = [
            AppendRequest(Append(fragments=write_fragments(rows(n), place.uri)), lambda: None)
            for n in range(3)
        ]
        table.writes.appender._commit_group(requests)
        assert [request.error for request in requests] == [error] * 3
    assert tries == [3, 3]


def test_an_append_outlasts_lances_patience(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = place.create()
    fragments = write_fragments(rows(1), table.dataset(), mode="append")
    tries = []
    attempt = AppendPlan.attempt

    def lose_twice(plan: AppendPlan) -> Any:
        tries.append(len(plan._appends))
        if len(tries) % 3:
            raise ConflictError("other writers were faster")
        return attempt(plan)

    monkeypatch.setattr(AppendPlan, "attempt", lose_twice)
    assert table.commit(fragments).applied
    assert tries == [1, 1, 1]
    assert place.ids() == [1]


def test_alone_nobody_waits(place: Place) -> None:
    table = place.create()
    deadline = time.monotonic() + WAIT_SECONDS
    quickest, count = 60.0, 0
    while count < 6 or (quickest >= 0.5 and time.monotonic() < deadline):
        quickest = min(quickest, table.append(rows(count)).elapsed)
        count += 1
    assert quickest < 0.5
    assert place.stock().version == count + 1
