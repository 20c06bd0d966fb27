"""Turns: writers that lost a decision stand in line instead of colliding again and again.

For speed and fairness alone. What is right is decided by `decide`, turn or not: a turn may be
held by two, or by nobody, and every call here may fail without harm.

The line is one record in the commit store: the tokens of those who stand in it, the first of them
has the turn. It is changed by compare-and-set only. In front of them is how far the names were
finished when somebody last left: so not everybody who decides has to look.

| step                                          | left behind by a crash                      |
|-----------------------------------------------|---------------------------------------------|
| 1 stand in line, behind the last              | a token that others drop when it is first   |
| 2 look until ours is the first; a first that  | the same                                    |
|   stays for a second, by our own clock, is    |                                             |
|   dropped: it died, or sleeps                 |                                             |
| 3 read the newest, build on it, decide        | the same                                    |
| 4 leave the line, before the copy is made     | nothing                                     |

No lock of a database session: those break behind a connection pooler, and a stopped holder keeps
them. Who was dropped though it lives goes on without a turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast._clock import Clock
from holdfast._ids import Ids
from holdfast.arbiter._commit_store import CommitStore, Key
from holdfast.errors import HoldfastError

TAKEN_OVER_SECONDS = 1.0
"""How long the first in line may stay before the others go on without it."""
_LONGEST_WAIT_SECONDS = 10.0
_NAP_SECONDS = 0.006  # times the number of those before us
_LONGEST_NAP_SECONDS = 0.2
_TRIES_TO_JOIN = 8
_TRIES_TO_LEAVE = 200  # each that fails is a change by somebody else: the line moves meanwhile
_MOST_IN_LINE = 500  # beyond it the record would grow large: the rest race


class Turns:
    """The line in front of one series of names; nobody looks at it more than `looks` times."""

    def __init__(
        self,
        commit_store: CommitStore,
        key: Key,
        clock: Clock,
        ids: Ids,
        looks: int = 1000,
        *,
        finished: Callable[[], int] = lambda: -1,
    ) -> None:
        self.finished = -1  # how far the names are finished, by what the line says
        self._told = finished
        self._value: bytes | None = None  # the line as it was last seen
        self._commit_store = commit_store
        self._key = key
        self._clock = clock
        self._ids = ids
        self._looks = looks

    def take(self) -> Turn:
        """Wait for our turn, some seconds at most. Never raises: at worst there is no turn."""
        turn = Turn(self, self._ids.token())
        with suppress(HoldfastError):  # no answer: go on without
            if self._change(turn.token, joins=True):
                self._wait(turn.token)
        return turn

    def leave(self, token: str) -> None:
        """Take a token out of the line; best effort."""
        with suppress(HoldfastError):  # those who wait behind it drop it
            self._change(token, joins=False)

    def _wait(self, token: str) -> None:
        begun = seen_since = self._clock.elapsed()
        first = None
        for _ in range(self._looks):
            line = self._look()
            # Dropped by others because they took us for dead: go on without a turn. Two may then
            # decide at the same time, and one of them loses, which is what happened before there
            # were turns.
            if token not in line or line[0] == token:
                return
            now = self._clock.elapsed()
            if now - begun >= _LONGEST_WAIT_SECONDS:
                return
            # Measured by our own clock, from when we first saw it in front: clocks of other
            # machines do not matter, and a first that works moves on long before.
            if line[0] != first:
                first, seen_since = line[0], now
            elif now - seen_since >= TAKEN_OVER_SECONDS:
                self._replace(line[1:])
                continue
            # The farther behind, the longer until it is our turn: looks cost the commit store the
            # same as decisions do.
            nap = min(_NAP_SECONDS * line.index(token), _LONGEST_NAP_SECONDS)
            self._clock.sleep(nap * (0.75 + self._ids.jitter() / 2))

    def _change(self, token: str, *, joins: bool) -> bool:
        """Add a token at the end of the line, or take it out; tell whether that was done."""
        # Who does not stand in line races, and all goes on. Who does not leave it holds up all
        # behind it for `TAKEN_OVER_SECONDS`, though many may want to change the line just then.
        for number in range(_TRIES_TO_JOIN if joins else _TRIES_TO_LEAVE):
            # Who leaves saw the line a moment ago: nobody came since, or the store refuses.
            line = self._look() if joins or number else _line_of(self._value)
            if (token in line) is joins:
                return True
            # Every change rewrites the whole line. Beyond some kilobytes that costs more than a
            # collision.
            if joins and len(line) >= _MOST_IN_LINE:
                return False
            if self._replace([*line, token] if joins else [one for one in line if one != token]):
                return True
        return False

    def _look(self) -> list[str]:
        """Return the line, and keep what it says."""
        self._value = self._commit_store.get(self._key)
        self.finished = max(self.finished, _finished_of(self._value))
        return _line_of(self._value)

    def _replace(self, line: Sequence[str]) -> bool:
        # Only what is known to be finished: deciders use it to skip their look at the tail, and a
        # number too high would let more names wait for their copy than `MOST_UNFINISHED`.
        finished = max(self.finished, self._told())
        content = line if finished < 0 else [finished, *line]
        new = json.dumps(content, separators=(",", ":")).encode()
        if self._value is None:
            return self._commit_store.put_if_absent(self._key, new) is None
        return self._commit_store.compare_and_set(self._key, self._value, new)


class Turn:
    """A place in the line, until `end`."""

    def __init__(self, turns: Turns, token: str) -> None:
        self._turns: Turns | None = turns
        self.token = token

    def end(self) -> None:
        """Let the next one go on. Never raises, and may be repeated."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.leave(self.token)


def _line_of(value: bytes | None) -> list[str]:
    return [token for token in _content_of(value) if isinstance(token, str)]


def _finished_of(value: bytes | None) -> int:
    content = _content_of(value)
    return content[0] if content and isinstance(content[0], int) else -1


def _content_of(value: bytes | None) -> list[object]:
    if value is None:
        return []
    try:
        content = json.loads(value)
    except ValueError:
        return []
    return content if isinstance(content, list) else []
