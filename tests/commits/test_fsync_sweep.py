"""Each fsync of each verb that acknowledges fails in turn: nothing is acknowledged upon it.

A failed fsync of a temporary file decides nothing: the bytes are written again under another
name, and that may be acknowledged. Any other failure ends in an error of ours.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import HoldfastError
from lsm.tables import SCHEMA

pytestmark = pytest.mark.requirement("P1")
SHARD = "11111111-2222-4333-8444-555555555555"
Verb = Callable[[], object]
Begin = Callable[[Path, str | None], Verb]


def made(place: Path, commit_store: str | None) -> holdfast.Table:
    table = holdfast.create_table(place, SCHEMA, primary_key=["k"], commit_store=commit_store)
    table.append([{"k": 1, "v": "a"}])
    return table


def append(place: Path, commit_store: str | None) -> Verb:
    table = made(place, commit_store)
    return lambda: table.append([{"k": 2, "v": "b"}], txn="x")


def put(place: Path, commit_store: str | None) -> Verb:
    writer = made(place, commit_store).claim_writer(SHARD)
    return lambda: writer.put([{"k": 2, "v": "b"}])


def claim(place: Path, commit_store: str | None) -> Verb:
    table = made(place, commit_store)
    return lambda: table.claim_appender(SHARD)


def create(place: Path, commit_store: str | None) -> Verb:
    return lambda: holdfast.create_table(place, SCHEMA, commit_store=commit_store)


def adopt(place: Path, commit_store: str | None) -> Verb:
    lance.write_dataset(pa.table({"k": [1], "v": ["a"]}, schema=SCHEMA), place)
    return lambda: holdfast.adopt_table(place, commit_store=commit_store)


def delete(place: Path, commit_store: str | None) -> Verb:
    dataset: Any = made(place, commit_store).dataset()
    return lambda: dataset.delete("k = 1")


class Disk:
    """Counts fsyncs, and lets one of them fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.failing, self.synced, self._fsync = 0, list[str](), os.fsync
        patch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        self.synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().as_posix())
        if len(self.synced) == self.failing:
            raise OSError(errno.EIO, "injected")
        self._fsync(descriptor)

    def run(self, verb: Verb, failing: int) -> bool:
        """Tell whether a verb was acknowledged although this fsync of it failed."""
        self.failing = failing
        self.synced.clear()
        try:
            verb()
        except HoldfastError:
            return False
        finally:
            self.failing = 0
        return True


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("commit_store", [None, "sqlite"], ids=["conditional-put", "commit-store"])
@pytest.mark.parametrize(
    "begin", [append, put, claim, create, adopt, delete], ids=lambda one: one.__name__
)
def test_a_failed_fsync_is_never_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Begin, commit_store: str | None
) -> None:
    disk = Disk(monkeypatch)
    assert disk.run(begin(tmp_path / "whole", commit_store), 0)
    count = len(disk.synced)
    assert count
    for number in range(1, count + 1):
        verb = begin(tmp_path / str(number), commit_store)
        if disk.run(verb, number):
            assert "/_holdfast/temporary/" in disk.synced[number - 1], disk.synced
