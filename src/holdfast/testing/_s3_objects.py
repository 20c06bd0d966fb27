"""The faulty server's objects in memory, and every way a store can treat a condition.

| mode               | a put with a condition ...                                              |
|--------------------|-------------------------------------------------------------------------|
| `honest`           | is applied if and only if the condition holds, atomically               |
| `ignoring`         | is applied as if it had no condition                                    |
| `after_versioning` | honest until versioning was ever enabled on the bucket, then ignoring   |
| `racy`             | is checked, and written a moment later: simultaneous creates all win    |
| `sometimes`        | ignoring with a probability, else honest                                |
| `unsupported`      | is refused with 501, whether or not it holds                            |
| `inverted`         | is applied if and only if the condition does not hold                   |
| `lossy`            | is refused when it does not hold, and overwrites all the same           |
"""

from __future__ import annotations

import hashlib
import random
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast._clock import Clock
from holdfast.errors import InvalidInputError

ConditionMode = Literal[
    "honest",
    "ignoring",
    "after_versioning",
    "racy",
    "sometimes",
    "unsupported",
    "inverted",
    "lossy",
]
_LAST = chr(0x10FFFF)
_OUTCOMES = {
    # (mode, the condition holds) -> (write, refuse)
    ("honest", True): (True, False),
    ("honest", False): (False, True),
    ("ignoring", True): (True, False),
    ("ignoring", False): (True, False),
    ("inverted", True): (False, True),
    ("inverted", False): (True, False),
    ("lossy", True): (True, False),
    ("lossy", False): (True, True),
}


class RefusedError(Exception):
    """The server answers with an error: an HTTP status and S3's code for it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How conditions are treated.

    Attributes:
        mode: see the module's table.
        probability: for `sometimes`, how often a condition is ignored.
        seed: for `sometimes`, makes the choices repeat.
        window_seconds: for `racy`, the time between the check and the write.
    """

    mode: ConditionMode = "honest"
    probability: float = 0.5
    seed: int = 0
    window_seconds: float = 0.02

    def __post_init__(self) -> None:
        if self.mode not in get_args(ConditionMode):
            raise InvalidInputError(
                f"unknown condition mode; choose one of {', '.join(get_args(ConditionMode))}",
                mode=self.mode,
            )
        if not 0 <= self.probability <= 1:
            raise InvalidInputError("a probability is between 0 and 1", value=self.probability)

    @classmethod
    def parse(cls, text: str) -> Conditions:
        """Return what `text` says: a mode, `sometimes:P:SEED` or `racy:WINDOW_SECONDS`.

        Raises:
            InvalidInputError: it is none of these.
        """
        mode, *numbers = text.split(":")
        try:
            match mode, numbers:
                case "sometimes", [probability, seed]:
                    return cls(mode="sometimes", probability=float(probability), seed=int(seed))
                case "racy", [window]:
                    return cls(mode="racy", window_seconds=float(window))
                case _, []:
                    return cls(mode=mode)  # type: ignore[arg-type] # checked at construction
        except ValueError as error:
            if isinstance(error, InvalidInputError):
                raise
        raise InvalidInputError(
            "unknown conditions; write a mode, sometimes:P:SEED or racy:WINDOW_SECONDS", text=text
        )

    def __str__(self) -> str:
        match self.mode:
            case "sometimes":
                return f"sometimes:{self.probability}:{self.seed}"
            case "racy":
                return f"racy:{self.window_seconds}"
            case _:
                return self.mode


def sometimes(probability: float, seed: int) -> Conditions:
    """Return conditions that are ignored with this probability, the same way for each seed."""
    return Conditions(mode="sometimes", probability=probability, seed=seed)


@dataclass(frozen=True, slots=True)
class Stored:
    """One object."""

    body: bytes
    etag: str
    modified: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a write asks for: nothing there (`etag` is None), or exactly this ETag."""

    etag: str | None = None

    def holds(self, current: Stored | None) -> bool:
        """Say whether the object that is there now fulfils this."""
        if self.etag is None:
            return current is None
        return current is not None and self.etag in ("*", current.etag)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a listing: after a key, or after everything below a common prefix."""

    last: str = ""
    is_prefix: bool = False


@dataclass(slots=True)
class Page:
    """One page of a listing; `resume` says where the next one starts, None at the end."""

    objects: list[tuple[str, Stored]]
    prefixes: list[str]
    resume: Cursor | None


class Objects:
    """All buckets' objects. A bucket needs no creation. Safe to use from many threads."""

    def __init__(
        self,
        *,
        clock: Clock,
        wait: Callable[[float], None],
        conditions: Conditions | None = None,
    ) -> None:
        self._clock = clock
        self._wait = wait
        # The lock guards everything below it, and is never held while waiting.
        self._lock = threading.Lock()
        self._objects: dict[str, dict[str, Stored]] = {}
        self._sorted: dict[str, list[str]] = {}
        self._versioned: set[str] = set()
        self._conditions = conditions or Conditions()
        self._random = random.Random(self._conditions.seed)

    @property
    def conditions(self) -> Conditions:
        """Return how conditions are treated."""
        return self._conditions

    @conditions.setter
    def conditions(self, conditions: Conditions) -> None:
        with self._lock:
            self._conditions = conditions
            self._random = random.Random(conditions.seed)

    def get(self, bucket: str, key: str) -> Stored | None:
        """Return an object, or None."""
        with self._lock:
            return self._objects.get(bucket, {}).get(key)

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the sorted keys that start with `prefix`."""
        with self._lock:
            keys = self._sorted.get(bucket, [])
            return keys[bisect_left(keys, prefix) : bisect_right(keys, prefix + _LAST)]

    def put(
        self,
        bucket: str,
        key: str,
        body: bytes,
        *,
        condition: Condition | None = None,
        etag: str | None = None,
    ) -> Stored:
        """Store an object, treating a condition the way the current mode says.

        Raises:
            RefusedError: the condition was refused.
        """
        etag = etag or f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        stored = Stored(body, etag, self._clock.now())
        if condition is None:
            with self._lock:
                self._set(bucket, key, stored)
            return stored
        with self._lock:
            mode = self._mode_for(bucket)
            if mode == "unsupported":
                raise RefusedError(501, "NotImplemented")
            current = self._objects.get(bucket, {}).get(key)
            holds = condition.holds(current)
            if mode != "racy":
                write, refuse = _OUTCOMES[mode, holds]
                if write:
                    self._set(bucket, key, stored)
            else:
                write, refuse = holds, not holds
        if refuse:
            raise _refusal(condition, current)
        if mode == "racy":
            # Whoever checks in this gap also sees nothing there, and also wins.
            self._wait(self._conditions.window_seconds)
            with self._lock:
                self._set(bucket, key, stored)
        return stored

    def remove(self, bucket: str, key: str) -> None:
        """Remove an object if it is there."""
        with self._lock:
            if self._objects.get(bucket, {}).pop(key, None) is not None:
                keys = self._sorted[bucket]
                del keys[bisect_left(keys, key)]

    def set_versioning(self, bucket: str) -> None:
        """Remember for good that versioning was enabled on this bucket."""
        with self._lock:
            self._versioned.add(bucket)

    def page(
        self, bucket: str, *, prefix: str, delimiter: str, after: Cursor, max_keys: int
    ) -> Page:
        """List up to `max_keys` objects and common prefixes that sort after `after`."""
        page = Page([], [], None)
        with self._lock:
            objects, keys = self._objects.get(bucket, {}), self._sorted.get(bucket, [])
            skipped = after.last + _LAST if after.is_prefix else after.last
            at = max(bisect_left(keys, prefix), bisect_right(keys, skipped) if skipped else 0)
            while at < len(keys) and keys[at].startswith(prefix):
                if len(page.objects) + len(page.prefixes) >= max_keys:
                    page.resume = after
                    break
                key = keys[at]
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                if cut < 0:
                    page.objects.append((key, objects[key]))
                    after, at = Cursor(key), at + 1
                else:
                    after = Cursor(key[: cut + len(delimiter)], is_prefix=True)
                    page.prefixes.append(after.last)
                    at = bisect_right(keys, after.last + _LAST, lo=at)
        return page

    def _mode_for(self, bucket: str) -> ConditionMode:
        mode = self._conditions.mode
        if mode == "after_versioning":
            return "ignoring" if bucket in self._versioned else "honest"
        if mode == "sometimes":
            ignored = self._random.random() < self._conditions.probability
            return "ignoring" if ignored else "honest"
        return mode

    def _set(self, bucket: str, key: str, stored: Stored) -> None:
        objects = self._objects.setdefault(bucket, {})
        if key not in objects:
            insort(self._sorted.setdefault(bucket, []), key)
        objects[key] = stored


def _refusal(condition: Condition, current: Stored | None) -> RefusedError:
    # As AWS does: an If-Match on a missing object is a missing object, not a failed condition.
    if condition.etag is not None and current is None:
        return RefusedError(404, "NoSuchKey")
    return RefusedError(412, "PreconditionFailed")
