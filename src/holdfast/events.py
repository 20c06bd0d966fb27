"""One hook for everything that happens: subscribe to see decisions, probes and retries.

`emit` hands an `Event` to every subscriber in the calling thread and then logs it. A
subscriber that raises is logged and skipped: watching never changes an outcome. Without
subscribers the events still reach `logging`, under the logger `holdfast`.

    with holdfast.events.subscribed(print):
        arbiter.decide(name, body, token)

`METRICS` names every event kind with its fields; the reference page is generated from it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

log = logging.getLogger("holdfast")


class EventKind(StrEnum):
    """What happened. Append-only: the strings are stable."""

    DECIDED = "decided"
    FINISHED = "finished"
    RETRIED = "retried"
    UNKNOWN = "unknown"
    PROBED = "probed"
    PINNED = "pinned"
    COLLECTED = "collected"
    LEFT_BEHIND = "left_behind"
    VACUUMED = "vacuumed"
    BUILT = "built"
    FINALIZED = "finalized"
    CLAIMED = "claimed"
    APPENDED = "appended"
    FENCED = "fenced"
    POISONED = "poisoned"
    FLUSHED = "flushed"
    MERGED = "merged"
    BACKPRESSURE = "backpressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the metrics table: what an event counts and which fields it carries."""

    name: str
    meaning: str
    fields: tuple[str, ...]
    level: int = logging.DEBUG


METRICS: Mapping[EventKind, Metric] = {
    EventKind.DECIDED: Metric(
        name="holdfast.arbiter.decisions",
        meaning="A name was decided, or found decided; `outcome` is `won` or `lost`.",
        fields=("name", "arbiter", "outcome", "attempts", "elapsed"),
    ),
    EventKind.FINISHED: Metric(
        name="holdfast.arbiter.finished",
        meaning="A decision that somebody left unfinished was completed.",
        fields=("name",),
        level=logging.INFO,
    ),
    EventKind.RETRIED: Metric(
        name="holdfast.arbiter.retries",
        meaning="A request gave no usable answer and is sent again.",
        fields=("name", "step", "attempt", "reason"),
        level=logging.INFO,
    ),
    EventKind.UNKNOWN: Metric(
        name="holdfast.arbiter.unknown",
        meaning="The outcome of a decision could not be learnt; nothing was deleted.",
        fields=("name", "attempts", "reason"),
        level=logging.WARNING,
    ),
    EventKind.PROBED: Metric(
        name="holdfast.probe.runs",
        meaning="A store was probed for put-if-absent.",
        fields=("store", "verdict", "requests", "elapsed"),
        level=logging.INFO,
    ),
    EventKind.PINNED: Metric(
        name="holdfast.arbiter.pins",
        meaning="A table was tied to its arbiter.",
        fields=("location", "arbiter", "table_id"),
        level=logging.INFO,
    ),
    EventKind.COLLECTED: Metric(
        name="holdfast.arbiter.collected",
        meaning="Records of old decisions were removed behind a boundary.",
        fields=("series", "through", "records"),
        level=logging.INFO,
    ),
    EventKind.LEFT_BEHIND: Metric(
        name="holdfast.storage.left_behind",
        meaning="A temporary object could not be removed; harmless, `vacuum` takes it later.",
        fields=("path", "reason"),
        level=logging.WARNING,
    ),
    EventKind.VACUUMED: Metric(
        name="holdfast.upkeep.vacuumed",
        meaning="Leftovers of one kind were deleted.",
        fields=("location", "what", "objects", "size"),
        level=logging.INFO,
    ),
    EventKind.CLAIMED: Metric(
        name="holdfast.wal.claims",
        meaning="A writer claimed a shard and fenced its predecessors.",
        fields=("shard_id", "epoch", "position", "elapsed"),
        level=logging.INFO,
    ),
    EventKind.APPENDED: Metric(
        name="holdfast.wal.appends",
        meaning="A log entry was acknowledged.",
        fields=("shard_id", "position", "rows", "size", "elapsed"),
    ),
    EventKind.FENCED: Metric(
        name="holdfast.wal.fenced",
        meaning="A writer learnt that another one owns its shard, and stopped.",
        fields=("shard_id", "epoch", "stored_epoch"),
        level=logging.WARNING,
    ),
    EventKind.POISONED: Metric(
        name="holdfast.wal.poisoned",
        meaning="A writer could not learn the outcome of a log write, and stopped.",
        fields=("shard_id", "epoch", "position"),
        level=logging.WARNING,
    ),
    EventKind.BUILT: Metric(
        name="holdfast.index.tasks",
        meaning="A task of an index build was built, and counts.",
        fields=("build", "task", "parts", "documents", "elapsed"),
        level=logging.INFO,
    ),
    EventKind.FINALIZED: Metric(
        name="holdfast.index.finalized",
        meaning="A complete index is in the table; not `applied` when it was there already.",
        fields=("build", "index", "parts", "version", "applied"),
        level=logging.INFO,
    ),
    EventKind.MERGED: Metric(
        name="holdfast.upkeep.merged",
        meaning="Generations of a shard were merged into the base table, or drained.",
        fields=("shard_id", "generation", "rows", "replaced", "drained"),
        level=logging.INFO,
    ),
    EventKind.FLUSHED: Metric(
        name="holdfast.shard.flushes",
        meaning="A generation of a shard's rows became an SSTable.",
        fields=("shard_id", "generation", "rows", "size", "position", "elapsed"),
        level=logging.INFO,
    ),
    EventKind.BACKPRESSURE: Metric(
        name="holdfast.shard.backpressure",
        meaning="A writer's buffer is full: puts wait until there is room.",
        fields=("shard_id", "used", "limit", "wanted"),
        level=logging.WARNING,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; `fields` are those that `METRICS` lists for its kind."""

    kind: EventKind
    fields: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return `kind key=value ...`, fit for a log line."""
        return " ".join([self.kind.value, *(f"{k}={v}" for k, v in self.fields.items())])


Subscriber = Callable[[Event], None]

_lock = threading.Lock()  # guards replacing _subscriptions; the dict itself never changes
_subscriptions: dict[object, Subscriber] = {}


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call `subscriber` with every event from now on.

    Returns:
        A function that ends this subscription; calling it again does nothing.
    """
    global _subscriptions  # noqa: PLW0603 - one process-wide dict, replaced whole under the lock
    ticket = object()
    with _lock:
        _subscriptions = {**_subscriptions, ticket: subscriber}

    def unsubscribe() -> None:
        global _subscriptions  # noqa: PLW0603
        with _lock:
            _subscriptions = {t: s for t, s in _subscriptions.items() if t is not ticket}

    return unsubscribe


@contextlib.contextmanager
def subscribed(subscriber: Subscriber) -> Iterator[None]:
    """Subscribe for the length of a `with` block."""
    unsubscribe = subscribe(subscriber)
    try:
        yield
    finally:
        unsubscribe()


def emit(kind: EventKind, **fields: object) -> None:
    """Tell every subscriber, then the log. Never raises."""
    level = METRICS[kind].level
    if not _subscriptions and not log.isEnabledFor(level):
        return
    event = Event(kind=kind, fields=fields)
    for subscriber in _subscriptions.values():
        try:
            subscriber(event)
        except Exception:
            log.exception("an event subscriber failed")
    log.log(level, "%s", event)
