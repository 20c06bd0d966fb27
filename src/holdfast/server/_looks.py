"""What was last seen of the tables: looked at now and then, never for each view.

A look reads; it writes, fences and deletes nothing. Whoever shows one shows its age.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from holdfast import Table, VersionInfo
from holdfast._clock import Clock
from holdfast.commits import Namespace, translate_errors
from holdfast.errors import HoldfastError, NotFoundError, StaleHandleError
from holdfast.server._metrics import Metrics
from holdfast.server._settings import ServerSettings
from holdfast.server._tables import CURRENT, OpenTables
from holdfast.upkeep import Diagnosis, Status, VacuumResult, doctor

log = logging.getLogger("holdfast.server")

Id = tuple[str, ...]
Kind = TypeVar("Kind")
_LAST_COMMITS = 5
MOST_TABLES = 1000
_DEEPEST = 8
_CHECKS_KEPT_FOR = timedelta(minutes=10)
_BUSY_SECONDS = 2.0  # a table that is committed to all the time is looked at so often at most
_RETRY_SECONDS = 2.0  # after a store gave no answer
_RESTS = 9  # it rests so many times as long as it looked: at most a tenth of a processor


@dataclass(frozen=True, slots=True)
class Look(Generic[Kind]):
    """Something that was read, and when; or why it could not be."""

    at: float
    seen: Kind | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One table at a glance.

    Attributes:
        status: how it is doing: what `holdfast status` shows.
        fragment_sizes: the bytes of each fragment of its newest version.
        commits: its newest versions.
        problem: why its newest version cannot be opened; there is the status alone then.
    """

    status: Status
    fragment_sizes: tuple[int, ...] = ()
    commits: tuple[VersionInfo, ...] = ()
    problem: str | None = None

    @property
    def size(self) -> int:
        """Return the bytes of its data files."""
        return sum(self.fragment_sizes)

    @property
    def lag(self) -> int:
        """Return how many log entries are not flushed."""
        return sum(shard.lag_entries for shard in self.status.shards)

    @property
    def generations(self) -> int:
        """Return how many generations are not drained."""
        return sum(shard.generations for shard in self.status.shards)

    @property
    def last(self) -> datetime | None:
        """Return when the newest version was made."""
        return self.commits[0].time if self.commits else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What doctor found, and what vacuum would take."""

    diagnosis: Diagnosis
    plan: VacuumResult


class Looks:
    """Looks at all tables now and then; the newest look of each is kept."""

    def __init__(
        self,
        settings: ServerSettings,
        namespace: Namespace,
        tables: OpenTables,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._namespace = namespace
        self._tables = tables
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()  # guards the dicts and _checking
        self._summaries: dict[Id, Look[Summary]] = {}
        self._checks: dict[Id, Look[Check]] = {}
        self._checking: set[Id] = set()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="holdfast-checks")
        self.unreachable: str | None = None  # why the tables could not be listed the last time
        self._ended = threading.Event()
        self._pause = settings.look.total_seconds()
        self._thread = threading.Thread(target=self._run, name="holdfast-looks", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking; a look that is under way is given up."""
        self._ended.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def summary(self, table_id: Id) -> Look[Summary]:
        """Return the newest look at a table; the first time it is taken now.

        Raises:
            NotFoundError: there is no such table.
        """
        with self._lock:
            look = self._summaries.get(table_id)
        return look if look is not None and self._is_fresh(table_id, look) else self._look(table_id)

    def _is_fresh(self, table_id: Id, look: Look[Summary]) -> bool:
        """Tell whether a look may be shown: it is not old, nor did this server commit since."""
        age = self._clock.now() - look.at
        committed = self._metrics.last_commit.get(".".join(table_id), 0.0)
        return age <= 2 * self._pause and (committed <= look.at or age < _BUSY_SECONDS)

    def check(self, table_id: Id) -> Look[Check] | None:
        """Return what doctor and vacuum last said, and ask them again if that is long ago.

        None until they have said something: they are asked in the background.
        """
        with self._lock:
            look = self._checks.get(table_id)
            old = look is None or self._clock.now() - look.at > _CHECKS_KEPT_FOR.total_seconds()
            if old and table_id not in self._checking and not self._ended.is_set():
                self._checking.add(table_id)
                self._pool.submit(self._check, table_id)
        return look

    def _run(self) -> None:
        while not self._ended.is_set():
            begun = self._clock.elapsed()
            try:
                self._look_at_all()
            except HoldfastError as error:
                self.unreachable = str(error)
                log.warning("tables could not be listed", extra={"reason": str(error)})
                self._ended.wait(_RETRY_SECONDS)
                continue
            took = self._clock.elapsed() - begun
            self._pause = max(self._settings.look.total_seconds(), _RESTS * took)
            self._ended.wait(self._pause)

    def _look_at_all(self) -> None:
        table_ids = find_tables(self._namespace)
        self.unreachable = None
        for table_id in table_ids:
            if self._ended.is_set():
                return
            try:
                self._look(table_id)
            except NotFoundError:
                continue
            except Exception:  # one table must not end the looks at the others
                log.exception("a look failed", extra={"table": ".".join(table_id)})
        with self._lock:
            gone = self._summaries.keys() - set(table_ids)
            for table_id in gone:
                del self._summaries[table_id]
                self._checks.pop(table_id, None)
        for table_id in gone:
            self._metrics.forget_table(".".join(table_id))

    def _look(self, table_id: Id) -> Look[Summary]:
        CURRENT.set(".".join(table_id))
        try:
            summary = self._again_if_stale(table_id, summarize)
        except NotFoundError:
            raise
        except HoldfastError as error:
            look: Look[Summary] = Look(self._clock.now(), problem=str(error))
        else:
            look = Look(self._clock.now(), seen=summary)
            self._metrics.show_table(".".join(table_id), _gauges(summary, look.at))
        with self._lock:
            self._summaries[table_id] = look
        return look

    def _check(self, table_id: Id) -> None:
        try:
            check = self._again_if_stale(table_id, self._ask)
            look: Look[Check] = Look(self._clock.now(), seen=check)
        except HoldfastError as error:
            look = Look(self._clock.now(), problem=str(error))
        except Exception:
            log.exception("a check failed")
            look = Look(self._clock.now(), problem="a defect; the log has the rest")
        finally:
            with self._lock:
                self._checking.discard(table_id)
        with self._lock:
            self._checks[table_id] = look

    def _ask(self, table: Table) -> Check:
        diagnosis = doctor(table.uri, self._settings.storage_options)
        return Check(diagnosis=diagnosis, plan=table.vacuum())

    def _again_if_stale(self, table_id: Id, work: Callable[[Table], Kind]) -> Kind:
        try:
            return work(self._tables.open(table_id))
        except StaleHandleError:
            self._tables.forget(table_id)
            return work(self._tables.open(table_id))


def summarize(table: Table) -> Summary:
    """Look at a table; of one whose newest version cannot be opened its status is kept."""
    status = table.status()
    try:
        dataset: Any = table.dataset()  # Any: pylance's stubs lack much of it
        with translate_errors(table.uri):
            sizes = tuple(
                sum(int(file.file_size_bytes or 0) for file in part.metadata.files)
                for part in dataset.get_fragments()
            )
        commits = tuple(table.history(_LAST_COMMITS))
    except StaleHandleError:
        raise
    except HoldfastError as error:
        return Summary(status=status, problem=str(error))
    return Summary(status=status, fragment_sizes=sizes, commits=commits)


def find_tables(namespace: Namespace, start: Sequence[str] = ()) -> list[Id]:
    """Return the ids of the tables below a namespace, those in folders included."""
    tables: list[Id] = []
    waiting: list[Id] = [tuple(start)]
    while waiting and len(tables) < MOST_TABLES:
        here = waiting.pop(0)
        request = {"id": list(here)}
        tables += [(*here, name) for name in namespace.list_tables(request)["tables"]]
        if len(here) < _DEEPEST:
            names = namespace.list_namespaces(request)["namespaces"]
            waiting += [(*here, name) for name in names]
    return tables[:MOST_TABLES]


def _gauges(summary: Summary, at: float) -> dict[str, float]:
    status = summary.status
    return {
        "version": status.version,
        "rows": status.rows,
        "bytes": summary.size,
        "fragments": status.fragments,
        "unfinished_decisions": len(status.unfinished),
        "foreign_versions": len(status.foreign),
        "staged_bytes": status.staged_bytes,
        "log_lag_entries": summary.lag,
        "generations_waiting": summary.generations,
        "alerts": len(status.alerts),
        "seen_timestamp_seconds": at,
    }
