"""A linearizability checker for short histories of commit store calls.

Linearizable: the calls can be put in one order that a simple map would have answered in the
same way, and a call that returned before another began comes first. `check_linearizable`
searches for such an order (Wing and Gong's search with Lowe's memory of visited states) and
returns None, or a `Counterexample` that shows the shortest part without one.

A call that raised `UnavailableError` has an unknown outcome: it may take effect at any time
after it began, also after later calls of its client, or never.

    history = History()
    store = history.watched(store, client=1)
    ...                                  # call it from several threads, one watcher each
    problem = check_linearizable(history)
    assert problem is None, problem
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, TypeVar, cast

from holdfast.arbiter._commit_store import CommitStore, Key, scope_of
from holdfast.errors import CollectedError, StaleHandleError

R = TypeVar("R")
Verb = Literal["put_if_absent", "get", "compare_and_set", "scan", "boundary", "collect", "retire"]
Records = tuple[tuple[int, bytes], ...]
Result = bytes | bool | int | Records | Literal["collected", "retired"] | None

_PER_KEY = frozenset({"put_if_absent", "get", "compare_and_set"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call: what was asked, what was answered, and between which times.

    Attributes:
        number: the key's number; `through` of a collect, `after` of a scan.
        value: the new value of a put or a compare-and-set.
        expected: the old value of a compare-and-set.
        invoked: when it began, by a clock that all clients share.
        returned: when it was answered; None when the outcome is unknown.
        result: the answer; `"collected"` for `CollectedError`, `"retired"` for
            `StaleHandleError`.
    """

    client: int
    verb: Verb
    series: str
    number: int = -1
    value: bytes = b""
    expected: bytes = b""
    invoked: int
    returned: int | None
    result: Result = None

    def __str__(self) -> str:
        arguments: list[object] = [self.number]
        if self.verb == "compare_and_set":
            arguments.append(_short(self.expected))
        if self.verb in {"put_if_absent", "compare_and_set"}:
            arguments.append(_short(self.value))
        if self.verb in {"boundary", "retire"}:
            arguments = []
        answer = "?" if self.returned is None else _short(self.result)
        return f"{self.verb}({', '.join(map(str, arguments))}) -> {answer}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]}...{text[-1]}"


@dataclass(frozen=True, slots=True)
class State:
    """The simple map: the boundary, the records above it in order of number, is it retired?"""

    boundary: int = -1
    records: Records = ()
    retired: bool = False

    def get(self, number: int) -> bytes | None:
        """Return the value of a number, or None."""
        return next((value for n, value in self.records if n == number), None)

    def put(self, number: int, value: bytes) -> State:
        """Return the state with this record in it."""
        others = [record for record in self.records if record[0] != number]
        return replace(self, records=tuple(sorted([*others, (number, value)])))

    def collect(self, through: int) -> State:
        """Return the state with a boundary that is not below `through`."""
        kept = tuple(record for record in self.records if record[0] > through)
        return State(max(self.boundary, through), kept)


def apply(state: State, operation: Operation) -> tuple[State, Result]:
    """Return what the simple map would do: its next state and its answer."""
    if operation.verb == "retire":
        return replace(state, retired=True), None
    return (state, "retired") if state.retired else _apply_in_use(state, operation)


def _apply_in_use(state: State, operation: Operation) -> tuple[State, Result]:
    match operation.verb:
        case "put_if_absent":
            return _put_if_absent(state, operation)
        case "get":
            return state, state.get(operation.number)
        case "compare_and_set":
            swapped = state.get(operation.number) == operation.expected
            return (state.put(operation.number, operation.value) if swapped else state), swapped
        case "scan":
            return state, tuple(r for r in state.records if r[0] > operation.number)
        case "boundary":
            return state, state.boundary
        case _:
            after = state.collect(operation.number)
            return after, len(state.records) - len(after.records)


def _put_if_absent(state: State, operation: Operation) -> tuple[State, Result]:
    if operation.number <= state.boundary:
        return state, "collected"
    value = state.get(operation.number)
    if value is not None:
        return state, value
    return state.put(operation.number, operation.value), None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A part of a history that no order explains.

    Attributes:
        operations: the shortest part from the start without an order.
        agreed: the longest order found for a part of it.
    """

    operations: Sequence[Operation]
    agreed: Sequence[Operation]

    def __str__(self) -> str:
        start = min(operation.invoked for operation in self.operations)
        lines = [f"not linearizable, series {self.operations[0].series!r}:"]
        for operation in sorted(self.operations, key=lambda o: o.invoked):
            end = "?" if operation.returned is None else f"{(operation.returned - start) / 1e3:.0f}"
            began = f"{(operation.invoked - start) / 1e3:.0f}"
            lines.append(f"  client {operation.client}  [{began:>6} .. {end:>6} us]  {operation}")
        lines.append("the longest order that a map agrees with:")
        lines += [f"  {place}. {op}" for place, op in enumerate(self.agreed, 1)] or ["  (none)"]
        stuck = [o for o in self.operations if o not in self.agreed and o.returned is not None]
        lines.append("left over, and none of it can come next:")
        lines += [f"  client {operation.client}: {operation}" for operation in stuck]
        return "\n".join(lines)


class History:
    """Records calls as they happen; safe to use from many threads."""

    def __init__(self, operations: Iterable[Operation] = ()) -> None:
        """Start with these operations."""
        self._lock = threading.Lock()  # guards _operations
        self._operations = list(operations)

    @property
    def operations(self) -> Sequence[Operation]:
        """Return what was recorded so far."""
        with self._lock:
            return tuple(self._operations)

    def add(self, operation: Operation) -> None:
        """Record one operation."""
        with self._lock:
            self._operations.append(operation)

    def watched(self, store: CommitStore, *, client: int) -> WatchedStore:
        """Return `store` with every call recorded here; one client makes one call at a time."""
        return WatchedStore(store, self, client)

    def to_dicts(self) -> list[dict[str, object]]:
        """Return plain dicts, to be sent to another process."""
        return [asdict(operation) for operation in self.operations]

    def merge(self, dicts: Iterable[Mapping[str, object]]) -> None:
        """Add the operations of another process on this machine (the clock is shared)."""
        for fields in dicts:
            self.add(Operation(**fields))  # type: ignore[arg-type]  # what to_dicts gave


class WatchedStore:
    """A commit store's verbs, each recorded with its times and its answer."""

    def __init__(self, store: CommitStore, history: History, client: int) -> None:
        """Record the calls to `store` in `history`."""
        self._store = store
        self._history = history
        self._client = client

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        """Record a put."""
        return self._record(
            lambda: self._store.put_if_absent(key, value), "put_if_absent", *key, value=value
        )

    def get(self, key: Key) -> bytes | None:
        """Record a get."""
        return self._record(lambda: self._store.get(key), "get", *key)

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Record a compare-and-set."""
        return self._record(
            lambda: self._store.compare_and_set(key, expected, value),
            "compare_and_set",
            *key,
            value=value,
            expected=expected,
        )

    def scan(self, series: str, *, after: int = -1) -> Records:
        """Record a scan of everything above `after`."""
        return self._record(
            lambda: tuple((e.number, e.value) for e in self._store.scan(series, after=after)),
            "scan",
            series,
            after,
        )

    def boundary(self, series: str) -> int:
        """Record a reading of the boundary."""
        return self._record(lambda: self._store.boundary(series), "boundary", series)

    def collect(self, series: str, through: int) -> int:
        """Record a collection."""
        return self._record(
            lambda: self._store.collect(series, through), "collect", series, through
        )

    def retire(self, series: str) -> None:
        """Record that the scope of a series is retired; the history has one series of it."""
        self._record(lambda: self._store.retire(scope_of(series)), "retire", series)

    def _record(
        self,
        call: Callable[[], R],
        verb: Verb,
        series: str,
        number: int = -1,
        *,
        value: bytes = b"",
        expected: bytes = b"",
    ) -> R:
        unknown = Operation(
            client=self._client,
            verb=verb,
            series=series,
            number=number,
            value=value,
            expected=expected,
            invoked=time.monotonic_ns(),
            returned=None,
        )
        try:
            result = call()
        except CollectedError:
            self._history.add(replace(unknown, returned=time.monotonic_ns(), result="collected"))
            raise
        except StaleHandleError:
            self._history.add(replace(unknown, returned=time.monotonic_ns(), result="retired"))
            raise
        except BaseException:
            self._history.add(unknown)
            raise
        # R is what the verb returns, and so a Result.
        answer = cast("Result", result)
        self._history.add(replace(unknown, returned=time.monotonic_ns(), result=answer))
        return result


def check_linearizable(history: History | Iterable[Operation]) -> Counterexample | None:
    """Search an order of the calls that a simple map agrees with.

    Series are independent, and so are the keys of a series unless a call spans them. Fit for
    some dozens of overlapping calls per part; the search grows with their overlap.

    Returns:
        None when there is an order, else the shortest part of the history without one.
    """
    operations = history.operations if isinstance(history, History) else tuple(history)
    for part in _parts(operations):
        if _search(part) is not None:
            return _shortest(part)
    return None


def _parts(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Split into parts that cannot influence each other."""
    for _, same in _group_by(operations, lambda o: o.series):
        if all(o.verb in _PER_KEY for o in same):
            yield from (part for _, part in _group_by(same, lambda o: str(o.number)))
        else:
            yield same


def _group_by(
    operations: Iterable[Operation], key: Callable[[Operation], str]
) -> Iterator[tuple[str, list[Operation]]]:
    for name, group in itertools.groupby(sorted(operations, key=key), key=key):
        yield name, list(group)


def _search(operations: Sequence[Operation]) -> Sequence[Operation] | None:
    """Return None when an order exists, else the longest one found for a part."""
    ordered = sorted(operations, key=lambda o: o.invoked)
    everything = frozenset(range(len(ordered)))
    required = frozenset(i for i in everything if ordered[i].returned is not None)
    longest: tuple[int, ...] = ()
    seen: set[tuple[frozenset[int], State]] = set()
    stack: list[tuple[tuple[int, ...], State]] = [((), State())]
    while stack:
        order, state = stack.pop()
        done = frozenset(order)
        if required <= done:
            return None
        if (done, state) in seen:
            continue
        seen.add((done, state))
        longest = max(longest, order, key=len)
        for i in _next(ordered, everything - done):
            after, answer = apply(state, ordered[i])
            if ordered[i].returned is None or _same(answer, ordered[i].result):
                stack.append(((*order, i), after))
    return [ordered[i] for i in longest]


def _next(ordered: Sequence[Operation], pending: frozenset[int]) -> Iterator[int]:
    """Yield the calls that may come next: begun before every pending one was answered."""
    answered = [ordered[i].returned for i in pending]
    first = min((time for time in answered if time is not None), default=None)
    for i in sorted(pending):
        if first is None or ordered[i].invoked <= first:
            yield i


def _same(answer: Result, result: Result) -> bool:
    # True == 1, but a compare-and-set never answers with a count.
    return type(answer) is type(result) and answer == result


def _shortest(operations: Sequence[Operation]) -> Counterexample:
    """Return the shortest part from the start that already has no order."""
    for end in sorted(o.returned for o in operations if o.returned is not None):
        part = [
            o if o.returned is not None and o.returned <= end else replace(o, returned=None)
            for o in operations
            if o.invoked <= end
        ]
        agreed = _search(part)
        if agreed is not None:
            return Counterexample(operations=part, agreed=agreed)
    raise AssertionError("the whole history has an order")
