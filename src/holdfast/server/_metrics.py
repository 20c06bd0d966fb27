"""Metrics for Prometheus: every event that Holdfast knows, requests, and tables as last seen.

A counter per event of `holdfast.events.METRICS`, under its name with underscores; what is
counted here is what this server did. Gauges of a table are as old as
`holdfast_table_seen_timestamp_seconds` says: they are never read anew for a scrape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from holdfast._clock import Clock
from holdfast.events import METRICS, Event, EventKind
from holdfast.server._answers import Answer
from holdfast.server._tables import CURRENT

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_VERSIONS = "_versions/"
_KEPT = 2000  # commits that the charts show at most

GAUGES: Mapping[str, str] = {
    "version": "The newest version.",
    "rows": "Rows that the newest version shows.",
    "bytes": "Bytes of its data files.",
    "fragments": "Fragments of the newest version.",
    "unfinished_decisions": "Versions that are decided, but not yet in place.",
    "foreign_versions": "Versions that nobody decided.",
    "staged_bytes": "Bytes that wait for a decision, or were left behind.",
    "log_lag_entries": "Log entries that are not flushed yet.",
    "generations_waiting": "Flushed generations that are not merged yet.",
    "alerts": "Alerts of `holdfast status`: what needs a person.",
    "seen_timestamp_seconds": "When these gauges were read.",
}


@dataclass(frozen=True, slots=True)
class Commit:
    """One version that this server decided, for the charts."""

    table: str
    at: float
    seconds: float


class Metrics:
    """The metrics of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._events = {kind: self._event_counter(kind) for kind in EventKind}
        self._commits = Histogram(
            "holdfast_commit_seconds",
            "How long it took to decide a version.",
            ["table"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._conflicts = Counter(
            "holdfast_commit_conflicts",
            "Versions that another writer got first.",
            ["table"],
            registry=self.registry,
        )
        self._requests = Histogram(
            "holdfast_request_seconds",
            "How long requests took.",
            ["operation", "status"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._refused = Counter(
            "holdfast_requests_refused",
            "Requests that found no room: `lane` says where.",
            ["lane"],
            registry=self.registry,
        )
        self._steps = Counter(
            "holdfast_upkeep_steps",
            "Steps of upkeep that were due: what, and what became of it.",
            ["kind", "state"],
            registry=self.registry,
        )
        self._gauges = {
            name: Gauge(f"holdfast_table_{name}", text, ["table"], registry=self.registry)
            for name, text in GAUGES.items()
        }
        self.commits: deque[Commit] = deque(maxlen=_KEPT)
        self.last_commit: dict[str, float] = {}  # of each table, when this server decided one

    def _event_counter(self, kind: EventKind) -> Counter:
        metric = METRICS[kind]
        labels = ["table", "outcome"] if kind is EventKind.DECIDED else ["table"]
        return Counter(
            metric.name.replace(".", "_"), metric.meaning, labels, registry=self.registry
        )

    def watch(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """Show a number that is read when metrics are asked for."""
        Gauge(f"holdfast_{name}", meaning, registry=self.registry).set_function(read)

    def take(self, event: Event) -> None:
        """Count an event."""
        table = CURRENT.get()
        counter = self._events[event.kind]
        if event.kind is not EventKind.DECIDED:
            counter.labels(table).inc()
            return
        outcome = str(event.fields.get("outcome"))
        counter.labels(table, outcome).inc()
        if not str(event.fields.get("name")).startswith(_VERSIONS):
            return
        if outcome != "won":
            self._conflicts.labels(table).inc()
            return
        seconds = float(str(event.fields.get("elapsed", 0.0)))
        self._commits.labels(table).observe(seconds)
        now = self._clock.now()
        self.commits.append(Commit(table, now, seconds))
        self.last_commit[table] = now

    def observe_request(self, operation: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(operation, str(status)).observe(seconds)

    def count_refused(self, lane: str) -> None:
        """Count a request that found no room."""
        self._refused.labels(lane).inc()

    def count_step(self, kind: str, state: str) -> None:
        """Count a step of upkeep."""
        self._steps.labels(kind, state).inc()

    def show_table(self, table: str, values: Mapping[str, float]) -> None:
        """Keep what was last seen of a table."""
        for name, value in values.items():
            self._gauges[name].labels(table).set(value)

    def forget_table(self, table: str) -> None:
        """Show nothing any more of a table that is gone."""
        self.last_commit.pop(table, None)
        for gauge in self._gauges.values():
            gauge.remove_by_labels({"table": table})

    def answer(self) -> Answer:
        """Return all metrics, as Prometheus reads them."""
        return Answer(
            body=generate_latest(self.registry),
            content_type="text/plain; version=0.0.4; charset=utf-8",
        )
