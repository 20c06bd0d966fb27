"""`--upkeep`: every table of the root is maintained now and then, by one server at a time."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Protocol

from holdfast._clock import Clock
from holdfast._ids import Ids
from holdfast.commits import Namespace
from holdfast.errors import HoldfastError
from holdfast.server._looks import Id, find_tables
from holdfast.server._metrics import Metrics
from holdfast.server._settings import ServerSettings
from holdfast.server._tables import CURRENT, OpenTables
from holdfast.storage import open_store
from holdfast.upkeep import Schedule, take_lease

log = logging.getLogger("holdfast.server")

_SHORTEST_LEASE = timedelta(seconds=30)


class UpkeepContext(Protocol):
    """What upkeep works with."""

    settings: ServerSettings
    namespace: Namespace
    tables: OpenTables
    metrics: Metrics
    clock: Clock
    ids: Ids


class ServerUpkeep:
    """Looks after the tables; not at all without an interval."""

    def __init__(self, here: UpkeepContext) -> None:
        self._here = here
        self._settings = here.settings
        self._holder = here.ids.token()
        interval = self._settings.upkeep or timedelta(days=1)
        self._lasts = max(3 * interval, _SHORTEST_LEASE)
        self._schedule = Schedule(interval, self._run, here.clock)
        self._thread = threading.Thread(
            target=self._schedule.run, name="holdfast-upkeep", daemon=True
        )

    def start(self) -> None:
        """Begin, if there is an interval."""
        if self._settings.upkeep is not None:
            self._thread.start()

    def close(self) -> None:
        """Begin nothing more; a step that runs may be cut off, and is done by the next run."""
        self._schedule.end()

    def _run(self) -> None:
        """Maintain every table, while the lease is ours."""
        try:
            for table_id in find_tables(self._here.namespace) if self._ours() else ():
                if self._schedule.ended or not self._ours():
                    return
                self._maintain(table_id)
        except HoldfastError as error:
            log.warning("upkeep waits", extra={"reason": str(error)})
        except Exception:
            log.exception("upkeep failed; it goes on with its next run")

    def _ours(self) -> bool:
        store = open_store(self._settings.root, self._settings.storage_options)
        return take_lease(store, self._holder, self._lasts, self._here.clock)

    def _maintain(self, table_id: Id) -> None:
        name = ".".join(table_id)
        CURRENT.set(name)
        try:
            table = self._here.tables.open(table_id)
            done = table.maintain(self._settings.policy, confirm=self._settings.confirm)
        except HoldfastError as error:  # also one that was dropped meanwhile
            self._here.tables.forget(table_id)
            log.warning("upkeep failed", extra={"table": name, "reason": str(error)})
            return
        for step in done.steps:
            self._here.metrics.count_step(step.kind.value, step.state.value)
            log.info(
                "upkeep",
                extra={
                    "table": name,
                    "step": step.kind.value,
                    "target": step.target,
                    "reason": step.reason,
                    "state": step.state.value,
                    "outcome": step.outcome,
                },
            )
