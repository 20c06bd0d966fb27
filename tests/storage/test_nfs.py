"""What NFS does differently from a local disk, played by the system calls that `LocalStore` makes.

A client that gets no answer sends its request again, and the server then sees work that it did
already: `link` answers EEXIST, `rename` and `unlink` ENOENT. And a client answers from memory for
some seconds: a name that another client just made is not there yet, or one that was removed still
is. `link` itself is always asked of the server. So a decision by put-if-absent must hold under
all of this. A real server is in `tests/vendors/test_nfs.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import ConditionalPut, Lost, RetryPolicy, Verdict, Won, new_token
from holdfast.errors import HoldfastError
from holdfast.formats import Name
from holdfast.storage import LocalStore

pytestmark = pytest.mark.requirement("C1", "C2")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
NAME = Name.single("_versions/name")


def arbiter(folder: Path) -> ConditionalPut:
    return ConditionalPut(LocalStore(folder, fsync=False), Verdict.ENFORCED, retry=RetryPolicy())


def body(token: str) -> bytes:
    return b"by " + token.encode()


@pytest.fixture
def lose_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the server do what it is asked, and the client ask again, with some probability."""

    def lose(chance: float) -> None:
        dice = random.Random(5)

        def sent_twice(call: Callable[..., None], answer: int) -> Callable[..., None]:
            def sent(*arguments: Any) -> None:
                call(*arguments)
                if dice.random() < chance:
                    raise OSError(answer, os.strerror(answer), *arguments)

            return sent

        monkeypatch.setattr(os, "link", sent_twice(os.link, errno.EEXIST))
        monkeypatch.setattr(os, "replace", sent_twice(os.replace, errno.ENOENT))
        monkeypatch.setattr(os, "unlink", sent_twice(os.unlink, errno.ENOENT))

    return lose


def test_a_link_that_was_sent_twice_is_ours(
    tmp_path: Path, lose_answers: Callable[[float], None]
) -> None:
    lose_answers(1.0)
    token, other = new_token(), new_token()
    assert arbiter(tmp_path).decide(NAME, body(token), token) == Won()
    assert arbiter(tmp_path).decide(NAME, body(other), other) == Lost(body(token))
    assert arbiter(tmp_path).decide(NAME, body(token), token) == Won()


def test_appends_with_lost_answers_are_there_once(
    tmp_path: Path, lose_answers: Callable[[float], None]
) -> None:
    place = tmp_path / "table"
    holdfast.create_table(place, SCHEMA).close()
    lose_answers(0.3)

    def append(numbers: range) -> None:
        with contextlib.closing(holdfast.open_table(place)) as table:
            for number in numbers:
                for _ in range(20):  # an error is no acknowledgement: asked again by its txn
                    with contextlib.suppress(HoldfastError):
                        table.append([{"id": number}], txn=f"{number}")
                        break
                else:
                    pytest.fail(f"row {number} was never acknowledged")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(append, (range(first, first + 6) for first in range(0, 24, 6))))
    with contextlib.closing(holdfast.open_table(place)) as table:
        assert sorted(table.scan().read_all()["id"].to_pylist()) == list(range(24))


def test_a_name_that_is_not_seen_yet_is_not_given_away_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client remembers that the name was not there; the server knows better."""
    token, other = new_token(), new_token()
    assert arbiter(tmp_path).decide(NAME, body(token), token) == Won()
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    assert arbiter(tmp_path).decide(NAME, body(other), other) == Lost(body(token))


def test_a_name_that_is_seen_late_delays_and_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not see the winner's bytes for some time after it lost to them."""
    token, other = new_token(), new_token()
    assert arbiter(tmp_path).decide(NAME, body(token), token) == Won()
    real, unseen = LocalStore.get, iter(range(3))

    def get(self: LocalStore, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        late = real(self, "not/there" if next(unseen, None) is not None else path)
        return late[start:end]

    monkeypatch.setattr(LocalStore, "get", get)
    assert arbiter(tmp_path).decide(NAME, body(other), other) == Lost(body(token))


def test_a_name_that_was_removed_and_is_still_seen_is_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered = iter([True, True])
    monkeypatch.setattr(os.path, "lexists", lambda _: next(remembered, False))
    token = new_token()
    assert arbiter(tmp_path).decide(NAME, body(token), token) == Won()
