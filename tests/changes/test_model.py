"""Any mix of work on a table: its change rows, applied in order, give the table, each once."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from changes.model import Busy, Model, rows_of
from holdfast.errors import CollectedError


class Follower:
    """Reads changes with a cursor, in parts of random size, and keeps a model up to date."""

    def __init__(self, table: holdfast.Table, freshness: str, seed: int, *, keyed: bool) -> None:
        self.table = table
        self.freshness = freshness
        self.random = Random(seed)
        self.keyed = keyed
        self.model = Model(keyed=keyed)
        self.cursor: str | None = None
        self.begun = 0

    def follow(self) -> None:
        """Read all there is; begin anew if something was collected."""
        try:
            while self._step():
                pass
        except CollectedError:
            self.model = Model(keyed=self.keyed)
            self.cursor = None
            while self._step():
                pass

    def _step(self) -> bool:
        limits: dict[str, Any] = self.random.choice(
            [{}, {}, {"max_files": 1}, {"max_entries": 1}, {"max_rows": 2}, {"max_files": 2}]
        )
        if self.cursor is None:
            self.begun += 1
            changes = self.table.changes(None, freshness=self.freshness, **limits)
        else:
            changes = self.table.changes(self.cursor, **limits)
        self.model.apply(changes.to_table())
        before, self.cursor = self.cursor, str(changes.cursor)
        return self.cursor != before

    def check(self) -> None:
        there = rows_of(self.table.to_table(freshness=self.freshness))  # type: ignore[arg-type]
        assert self.model.rows == there


@pytest.mark.requirement("S4")
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
@pytest.mark.parametrize("seed", range(2))
def test_changes_lead_to_the_table_at_every_cursor(tmp_path: Path, seed: int, keyed: bool) -> None:
    busy = Busy(tmp_path, seed, keyed=keyed)
    follow(busy, seed, steps=40)


def follow(busy: Busy, seed: int, steps: int) -> dict[str, Follower]:
    table, keyed = busy.table, busy.keyed
    close = Random(seed)
    names = {"eager": "latest", "base": "base", "slow": "latest", "slow base": "base"}
    followers = {
        name: Follower(table, freshness, seed, keyed=keyed) for name, freshness in names.items()
    }
    done: list[str] = []
    try:
        for _ in range(steps):
            done.append(busy.work())
            for name, follower in followers.items():
                if "slow" not in name or close.random() < 0.15:
                    follower.follow()
                    follower.check()
        for follower in followers.values():
            follower.follow()
            follower.check()
    except BaseException as error:
        error.add_note(f"seed {seed}: " + ", ".join(done))
        raise
    finally:
        busy.close_all()
    assert followers["eager"].begun == 1  # what it needs is never collected
    assert followers["base"].begun == 1
    return followers
