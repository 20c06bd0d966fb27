"""`--log-writer`: rows into the shards' logs, by the one server that owns a table's writers.

A small object in the table says which server that is and until when. It is a lease that tells
others where to send rows; it decides nothing. Who writes is decided by the fence in each log:
an owner that slept while another took over finds the fence, and acknowledges nothing more.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import pyarrow as pa

from holdfast import Router, Shard, ShardWriter, ShardWriterConfig, Table
from holdfast._clock import Clock
from holdfast._ids import Ids
from holdfast.errors import (
    FencedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PoisonedError,
    UnavailableError,
)
from holdfast.formats import LOG_OWNER_PATH
from holdfast.server._settings import ServerSettings
from holdfast.server._tables import Tables
from holdfast.storage import ObjectStore, open_store

_PATIENCE = timedelta(seconds=5)
_ONE_SHARD = Shard(shard_id="unsharded")
Id = tuple[str, ...]


class OwnedElsewhereError(Exception):
    """Another server writes this table's log."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Which server writes a table's log, and until when (seconds since 1970)."""

    holder: str
    url: str
    until: float


class Here(Protocol):
    """What writers work with."""

    settings: ServerSettings
    tables: Tables
    clock: Clock
    ids: Ids


class Writers:
    """The writers that this server has claimed."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._settings = here.settings
        self._holder = here.ids.token()
        self._lock = threading.Lock()  # guards _writers and _claiming
        self._writers: dict[Id, dict[str, ShardWriter]] = {}
        self._claiming: dict[Id, threading.Lock] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="holdfast-owner", daemon=True)

    def start(self) -> None:
        """Begin to renew leases."""
        if self._settings.advertise is not None:
            self._thread.start()

    def put(self, table_id: Id, rows: pa.Table | list[dict[str, Any]]) -> int:
        """Put rows into the logs of a table with a key; they are durable when this returns.

        Returns:
            How many rows.

        Raises:
            OwnedElsewhereError: another server writes this log; send them there.
            InvalidInputError: the table has no key, or the rows do not fit.
            BackpressureError: the log does not keep up.
            FencedError: another server took over meanwhile: send them again.
            PoisonedError: the outcome is unknown: send them again.
            UnavailableError: no server writes this log now.
        """
        table = self._here.tables.open(table_id)
        if not any(is_key(field) for field in table.schema):
            raise InvalidInputError(
                "rows go into the log over HTTP by their key, so that a repeat does no harm; this "
                "table has none: insert them without durable=log"
            )
        self._own(table_id)
        count = 0
        for shard, part in _split(table, rows):
            writer = self._writer(table_id, table, shard)
            try:
                count += writer.put(part, timeout=_PATIENCE).rows
            except (FencedError, PoisonedError, UnavailableError):
                self._drop(table_id, writer)
                raise
        return count

    def close(self) -> None:
        """Let go of all writers, and say that the logs are free."""
        self._ended.set()
        with self._lock:
            owned, self._writers = self._writers, {}
        for table_id, writers in owned.items():
            for writer in writers.values():
                _close(writer)
            self._write_owner(table_id, lasts=timedelta(0))

    def _own(self, table_id: Id) -> None:
        """Return if the log is ours to write, taking it over once its owner's lease ran out."""
        if self._settings.advertise is not None and table_id in self._writers:
            return
        owner = self._read_owner(table_id)
        fresh = owner is not None and self._here.clock.now() < owner.until
        if owner is not None and fresh and owner.holder != self._holder:
            raise OwnedElsewhereError(owner.url)
        if self._settings.advertise is None:
            raise UnavailableError(
                "no server writes this table's log: start one with --log-writer --advertise URL"
            )
        self._write_owner(table_id, lasts=self._settings.log_lease)
        with self._lock:
            self._writers.setdefault(table_id, {})

    def _writer(self, table_id: Id, table: Table, shard: Shard) -> ShardWriter:
        with self._lock:
            gate = self._claiming.setdefault(table_id, threading.Lock())
        with gate:  # a claim fences: two threads of one server must not fence each other
            with self._lock:
                writer = self._writers.get(table_id, {}).get(shard.shard_id)
            if writer is not None:
                return writer
            target: Any = shard.shard_id if shard is _ONE_SHARD else shard
            config = ShardWriterConfig(enable_memtable=False)
            writer = table.claim_writer(target, config=config)
            with self._lock:
                self._writers.setdefault(table_id, {})[shard.shard_id] = writer
            return writer

    def _drop(self, table_id: Id, writer: ShardWriter) -> None:
        """Use a writer no more that has stopped for good; the next put looks who owns the log."""
        with self._lock:
            self._writers.pop(table_id, None)
        _close(writer)

    def _renew(self) -> None:
        while not self._ended.wait(self._settings.log_lease.total_seconds() / 3):
            for table_id in list(self._writers):
                try:
                    owner = self._read_owner(table_id)
                    if owner is None or owner.holder == self._holder:
                        self._write_owner(table_id, lasts=self._settings.log_lease)
                    else:
                        with self._lock:
                            writers = self._writers.pop(table_id, {})
                        for writer in writers.values():
                            _close(writer)
                except HoldfastError:
                    continue  # it runs out, and another may take over

    def _store(self, table_id: Id) -> ObjectStore:
        table = self._here.tables.open(table_id)
        return open_store(table.uri, self._settings.storage_options)

    def _read_owner(self, table_id: Id) -> Owner | None:
        try:
            fields = json.loads(self._store(table_id).get(LOG_OWNER_PATH))
            return Owner(
                holder=str(fields["holder"]), url=str(fields["url"]), until=float(fields["until"])
            )
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return None

    def _write_owner(self, table_id: Id, *, lasts: timedelta) -> None:
        owner = {
            "holder": self._holder,
            "url": self._settings.advertise,
            "until": self._here.clock.now() + lasts.total_seconds(),
        }
        self._store(table_id).put(LOG_OWNER_PATH, json.dumps(owner).encode())


def is_key(field: pa.Field) -> bool:
    """Tell whether a column is a part of its table's primary key."""
    return b"lance-schema:unenforced-primary-key" in (field.metadata or {})


def _split(
    table: Table, rows: pa.Table | list[dict[str, Any]]
) -> Sequence[tuple[Shard, pa.Table | list[dict[str, Any]]]]:
    try:
        router: Router = table.router()
    except InvalidInputError:
        return [(_ONE_SHARD, rows)]  # not prepared yet: the first claim does it
    return router.split(rows)


def _close(writer: ShardWriter) -> None:
    try:
        writer.close(flush=False)
    except HoldfastError:
        return  # it stopped before: what it acknowledged is in the log
