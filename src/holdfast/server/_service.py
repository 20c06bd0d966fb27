"""Everything that one server holds while it runs, and what it lets go of at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from holdfast import events
from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.commits import Namespace
from holdfast.server._answers import UNAVAILABLE, Answer, json_answer, problem
from holdfast.server._inserts import Inserts
from holdfast.server._lanes import Afterwards, Buffers, Lane
from holdfast.server._looks import Looks
from holdfast.server._metrics import Metrics
from holdfast.server._pages import Pages
from holdfast.server._settings import ServerSettings
from holdfast.server._tables import OpenTables
from holdfast.server._upkeep import ServerUpkeep
from holdfast.server._writers import ShardWriters

_QUERY_THREADS = 8
_PAGE_THREADS = 4


class Service:
    """One server's parts. Handles and counters only: nothing that another server lacks."""

    def __init__(
        self, settings: ServerSettings, *, clock: Clock | None = None, ids: Ids | None = None
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.ids = ids or RandomIds()
        self.namespace = Namespace(
            settings.root, settings.storage_options, commit_store=settings.commit_store
        )
        self._after = Afterwards()
        self.namespace.run_later(self._after.run)
        self.tables = OpenTables(settings, self.namespace)
        self.buffers = Buffers(settings.max_buffered_bytes)
        self.outgoing = Buffers(settings.max_buffered_bytes, what="answers")
        self.metrics = Metrics(self.clock)
        self.lanes: Mapping[str, Lane] = {
            name: Lane(name, threads, settings.max_waiting)
            for name, threads in (
                ("catalog", settings.catalog_threads),
                ("rows", settings.row_threads),
                ("queries", _QUERY_THREADS),
                ("pages", _PAGE_THREADS),
            )
        }
        self.inserts = Inserts(self.lanes["rows"], self.tables.append)
        self.started = self.clock.now()
        self.looks = Looks(settings, self.namespace, self.tables, self.metrics, self.clock)
        self.pages = Pages(self)
        self.upkeep = ServerUpkeep(self)
        self.writers = ShardWriters(self)
        self.public: Mapping[tuple[str, bytes], Callable[[], Answer]] = {
            (method, path): show
            for path, show in ((b"/health", self._health), (b"/ready", self._ready))
            for method in ("GET", "HEAD")
        }
        self._stopping = threading.Event()
        self._unsubscribe: Callable[[], None] = _nothing
        for lane in self.lanes.values():
            self.metrics.watch(
                f"requests_{lane.name}", "Requests of this kind that run or wait.", _reader(lane)
            )
        self.metrics.watch(
            "buffered_bytes", "Bytes of requests in memory.", lambda: float(self.buffers.used)
        )
        self.metrics.watch(
            "unsent_bytes", "Bytes of answers in memory.", lambda: float(self.outgoing.used)
        )

    def start(self) -> None:
        """Begin: count events, and look at the tables, from now on."""
        self._unsubscribe = events.subscribe(self.metrics.take)
        self.looks.start()
        self.upkeep.start()
        self.writers.start()

    def drain(self) -> None:
        """Tell balancers that this server is about to end."""
        self._stopping.set()

    def close(self) -> None:
        """End: what runs is brought to its end first."""
        self._stopping.set()
        self.upkeep.close()
        self.looks.close()
        for lane in self.lanes.values():
            lane.close()
        self._after.close()
        self.writers.close()
        self.tables.close()
        self._unsubscribe()

    def _health(self) -> Answer:
        return json_answer({"status": "ok"})

    def _ready(self) -> Answer:
        if self._stopping.is_set():
            return problem(UNAVAILABLE, "this server is about to end", kind="unavailable")
        if self.looks.unreachable is not None:
            # Whoever asks needs no token, so the reason stays in the log.
            return problem(
                UNAVAILABLE, "the store of the tables gave no answer", kind="unavailable"
            )
        return json_answer({"status": "ready"})


def _nothing() -> None:
    pass


def _reader(lane: Lane) -> Callable[[], float]:
    return lambda: float(lane.inside)
