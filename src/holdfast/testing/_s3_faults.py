"""Rules that break chosen requests, and the log of all requests.

>>> lost_answer = Fault(kind="drop_after", method="PUT", conditional=True, nth=2)
>>> faults = Faults(seed=1)
>>> faults.add(lost_answer)

The second conditional PUT is applied and its connection closed without an answer. Counting is
per rule and over the requests that the rule matches, in the order in which they arrive.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.errors import InvalidInputError
from holdfast.testing._s3_http import Request

FaultKind = Literal[
    "drop_before",
    "drop_after",
    "status_before",
    "status_after",
    "delay_before",
    "delay_after",
    "truncate",
]
_KEPT_REQUESTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, and for which requests.

    Attributes:
        kind: `before` means that the request is not applied (a delay: not yet), `after` that
            it is. `drop` closes the connection, `status` answers with an error, `truncate`
            cuts the answer's body.
        method: an HTTP method, or None for all.
        path_regex: searched for in `/bucket/key`.
        conditional: only writes with (True) or without (False) a condition; None for both.
        nth: the first matching request that is hit, from 1.
        times: how many requests are hit in all; None for no end.
        probability: the chance of each matching request from the nth on.
        status: for `status_*`, the HTTP status.
        seconds: for `delay_*`, how long.
        length: for `truncate`, how many bytes of the body are sent.
    """

    kind: FaultKind
    method: str | None = None
    path_regex: str = ""
    conditional: bool | None = None
    nth: int = 1
    times: int | None = 1
    probability: float = 1.0
    status: int = 503
    seconds: float = 0.0
    length: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(FaultKind):
            raise InvalidInputError(
                f"unknown kind of fault; choose one of {', '.join(get_args(FaultKind))}",
                fault=self.kind,
            )
        if self.nth < 1 or (self.times is not None and self.times < 1):
            raise InvalidInputError("nth and times count from 1", nth=self.nth, times=self.times)
        if not 0 <= self.probability <= 1:
            raise InvalidInputError("a probability is between 0 and 1", value=self.probability)
        try:
            re.compile(self.path_regex)
        except re.error as error:
            raise InvalidInputError(f"not a regular expression: {error}") from error

    @property
    def label(self) -> str:
        """Return the kind, with the status where there is one."""
        return f"{self.kind}({self.status})" if self.kind.startswith("status") else self.kind

    def matches(self, request: Request) -> bool:
        """Say whether this rule is about such a request; counts are kept by `Faults`."""
        return (
            (self.method is None or self.method == request.method)
            and (self.conditional is None or self.conditional == request.conditional)
            and re.search(self.path_regex, request.path) is not None
        )


@dataclass(slots=True)
class _Rule:
    fault: Fault
    seen: int = 0
    fired: int = 0

    def strikes(self, request: Request, chance: random.Random) -> bool:
        if not self.fault.matches(request):
            return False
        self.seen += 1
        if self.seen < self.fault.nth:
            return False
        if self.fault.times is not None and self.fired >= self.fault.times:
            return False
        if self.fault.probability < 1 and chance.random() >= self.fault.probability:
            return False
        self.fired += 1
        return True


class Faults:
    """The rules in force. Safe to change while requests come in."""

    def __init__(self, *, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._rules: list[_Rule] = []
        self._fired: Counter[str] = Counter()

    def add(self, fault: Fault) -> None:
        """Add a rule; it counts requests from now on."""
        with self._lock:
            self._rules.append(_Rule(fault))

    def clear(self) -> None:
        """Remove all rules; what fired stays counted."""
        with self._lock:
            self._rules.clear()

    def strike(self, request: Request) -> list[Fault]:
        """Count the request on every rule that matches it; return those that hit it."""
        if not self._rules:
            return []
        with self._lock:
            struck = [rule.fault for rule in self._rules if rule.strikes(request, self._random)]
            self._fired.update(fault.label for fault in struck)
        return struck

    @property
    def fired(self) -> Counter[str]:
        """Return how often each kind of fault hit a request."""
        with self._lock:
            return Counter(self._fired)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request in the log. `status` is 0 when no answer was sent."""

    operation: str
    method: str
    bucket: str
    key: str
    conditional: bool
    status: int
    faults: tuple[str, ...]
    received_bytes: int
    sent_bytes: int


@dataclass(slots=True)
class Total:
    """Requests and body bytes of one operation."""

    requests: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


class Requests:
    """The log: totals per operation since the last `clear`, and the newest 100,000 requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: deque[Seen] = deque(maxlen=_KEPT_REQUESTS)
        self._totals: dict[str, Total] = {}

    def add(self, seen: Seen) -> None:
        """Append a request."""
        with self._lock:
            self._seen.append(seen)
            total = self._totals.setdefault(seen.operation, Total())
            total.requests += 1
            total.received_bytes += seen.received_bytes
            total.sent_bytes += seen.sent_bytes

    def clear(self) -> None:
        """Forget all requests and start the totals at zero."""
        with self._lock:
            self._seen.clear()
            self._totals.clear()

    def all(self) -> list[Seen]:
        """Return the requests in the order in which they were answered."""
        with self._lock:
            return list(self._seen)

    def totals(self) -> dict[str, Total]:
        """Return requests and bytes per operation (`put`, `get`, `list`, `copy`, ...)."""
        with self._lock:
            return {
                name: Total(total.requests, total.received_bytes, total.sent_bytes)
                for name, total in sorted(self._totals.items())
            }

    def count(self, operation: str | None = None) -> int:
        """Return the number of requests, of one operation or of all."""
        totals = self.totals()
        if operation is not None:
            return totals.get(operation, Total()).requests
        return sum(total.requests for total in totals.values())
