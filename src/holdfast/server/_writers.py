"""`--log-writer`: rows into the shards' logs, by the one server that owns a table's writers.

A small object in the table says which server that is and until when. It is a lease that tells
others where to send rows; it decides nothing. Who writes is decided by the fence in each log:
an owner that slept while another took over finds the fence, and acknowledges nothing more.

Rows with a transaction id are there once: each shard's log remembers the ids of what it took, so
a repeat writes only what is missing, by whichever server owns the log by then.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import pyarrow as pa

from holdfast import Router, Shard, ShardWriter, ShardWriterConfig, Table
from holdfast._clock import Clock
from holdfast._ids import Ids
from holdfast.arbiter import read_pin
from holdfast.errors import (
    BackpressureError,
    CommitUnknownError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    StaleHandleError,
    UnavailableError,
)
from holdfast.formats import LOG_OWNER_PATH
from holdfast.server._settings import ServerSettings
from holdfast.server._tables import OpenTables, Rows
from holdfast.storage import ObjectStore, open_store
from holdfast.txn import TxnLike

_PATIENCE = timedelta(seconds=5)
_ONE_SHARD = Shard(shard_id="unsharded")
_URL = re.compile(r"[!-~]{1,2000}")
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


@dataclass(slots=True, eq=False)
class _Owned:
    """A table whose log this server writes: what was known of it when it was claimed."""

    table: Table
    schema: pa.Schema
    router: Router | None = None
    writers: dict[str, ShardWriter] = field(default_factory=dict)
    gate: threading.Lock = field(default_factory=threading.Lock)
    """Held while a shard is claimed, which fences: threads must not fence each other."""
    is_closed: bool = False

    @property
    def has_key(self) -> bool:
        """Tell whether rows replace each other by a key."""
        return any(is_key(column) for column in self.schema)


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """What one request added to the log.

    Attributes:
        rows: how many rows this request added; fewer than it brought if a part was there already.
        applied: False if all of them were there already.
    """

    rows: int
    applied: bool


class WriterContext(Protocol):
    """What writers work with."""

    settings: ServerSettings
    tables: OpenTables
    clock: Clock
    ids: Ids


class ShardWriters:
    """The writers that this server has claimed."""

    def __init__(self, here: WriterContext) -> None:
        self._here = here
        self._settings = here.settings
        self._holder = here.ids.token()
        self._lock = threading.Lock()  # guards _owned
        self._owned: dict[Id, _Owned] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="holdfast-owner", daemon=True)

    def start(self) -> None:
        """Begin to renew leases."""
        if self._settings.advertise is not None:
            self._thread.start()

    def put(self, table_id: Id, rows: Rows, txn: TxnLike | None) -> LoggedRows:
        """Put rows into the logs of a table; they are durable when this returns.

        Safe to repeat with the same rows: under a transaction id they are there once, and
        rows of a key replace each other.

        Raises:
            OwnedElsewhereError: another server writes this log; send them there.
            InvalidInputError: a table without a key and no transaction id, or rows that do not
                fit.
            BackpressureError: the log does not keep up.
            FencedError: another server took over meanwhile: send them again.
            PoisonedError, CommitUnknownError: the outcome is unknown: send them again.
            StaleHandleError: the table was made anew meanwhile: send them again.
            UnavailableError: no server writes this log now.
        """
        for is_last in (False, True):
            owned = self._own(table_id)
            try:
                done = self._put(owned, rows, txn)
            except BackpressureError:
                raise
            except InvalidInputError:
                # It may be closed by now, or know fewer columns than the table has.
                is_current = self._holds(table_id, owned) and owned.schema == owned.table.schema
                if is_current or is_last:
                    raise
                self._drop(table_id, owned)
            except HoldfastError:  # a writer has stopped for good, whatever the cause
                self._drop(table_id, owned)
                raise
            else:
                self._check_same_table(table_id, owned)
                return done
        raise AssertionError("unreachable")

    def owner(self, table_id: Id) -> Owner | None:
        """Return which server writes a table's log now; None for none, or if nobody can tell."""
        try:
            owner = self._read_owner(table_id)
        except HoldfastError:
            return None
        return owner if owner is not None and self._here.clock.now() < owner.until else None

    def forget(self, table_id: Sequence[str]) -> None:
        """Let go of the writers of a table that is no longer there, or is another one now."""
        with self._lock:
            owned = self._owned.pop(tuple(table_id), None)
        _close(owned)

    def close(self) -> None:
        """Let go of all writers, and say that the logs are free."""
        self._ended.set()
        with self._lock:
            everything, self._owned = self._owned, {}
        for table_id, owned in everything.items():
            _close(owned)
            self._write_owner(table_id, lasts=timedelta(0))

    def _put(self, owned: _Owned, rows: Rows, txn: TxnLike | None) -> LoggedRows:
        if txn is None and not owned.has_key:
            raise InvalidInputError(
                "this table has no key, so a repeat would double these rows in its log: send them "
                "with a transaction id (Holdfast-Txn), or insert them without durable=log"
            )
        added, applied = 0, False
        for shard, part in _split(owned, rows):
            done = _writer(owned, shard).put(part, txn=txn, timeout=_PATIENCE)
            if done.applied:
                added, applied = added + done.rows, True
        return LoggedRows(added, applied)

    def _check_same_table(self, table_id: Id, owned: _Owned) -> None:
        """Return if the rows went into the log of the table that is there now.

        Another server may drop the table and make it anew. A log has no look at the table's
        pin of its own; without this one, rows in a log that is gone would be acknowledged.
        """
        pin = owned.table.pin
        try:
            there = read_pin(open_store(owned.table.uri, self._settings.storage_options))
        except HoldfastError as error:
            raise CommitUnknownError(
                "the rows are in the log, but whether it is still this table's could not be "
                "learnt: send them again"
            ) from error
        if pin is None or there is None or there.table_id != pin.table_id:
            self._drop(table_id, owned)
            raise StaleHandleError(
                "the table was dropped or made anew meanwhile: send the rows again",
                table=".".join(table_id),
            )

    def _holds(self, table_id: Id, owned: _Owned) -> bool:
        with self._lock:
            return self._owned.get(table_id) is owned

    def _own(self, table_id: Id) -> _Owned:
        """Return the log if it is ours to write, taking it over once its owner's lease ran out."""
        with self._lock:
            owned = self._owned.get(table_id)
        if owned is not None:
            return owned
        owner = self._read_owner(table_id)
        fresh = owner is not None and self._here.clock.now() < owner.until
        if owner is not None and fresh and owner.holder != self._holder:
            raise OwnedElsewhereError(owner.url)
        if self._settings.advertise is None:
            raise UnavailableError(
                "no server writes this table's log: start one with --log-writer --advertise URL"
            )
        self._write_owner(table_id, lasts=self._settings.log_lease)
        table = self._here.tables.open(table_id)
        schema = table.schema  # before any claim: if in doubt it is the older one
        with self._lock:
            return self._owned.setdefault(table_id, _Owned(table, schema))

    def _drop(self, table_id: Id, owned: _Owned) -> None:
        """Use writers no more of which one has stopped; the next put looks who owns the log."""
        with self._lock:
            if self._owned.get(table_id) is owned:
                del self._owned[table_id]
        _close(owned)

    def _renew(self) -> None:
        while not self._ended.wait(self._settings.log_lease.total_seconds() / 3):
            for table_id in list(self._owned):
                try:
                    owner = self._read_owner(table_id)
                    if owner is None or owner.holder == self._holder:
                        self._write_owner(table_id, lasts=self._settings.log_lease)
                    else:
                        self.forget(table_id)
                except HoldfastError:
                    continue  # it runs out, and another may take over

    def _store(self, table_id: Id) -> ObjectStore:
        table = self._here.tables.open(table_id)
        return open_store(table.uri, self._settings.storage_options)

    def _read_owner(self, table_id: Id) -> Owner | None:
        try:
            fields = json.loads(self._store(table_id).get(LOG_OWNER_PATH))
            url = str(fields["url"])
            if not _URL.fullmatch(url):  # it goes into a header
                return None
            return Owner(holder=str(fields["holder"]), url=url, until=float(fields["until"]))
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


def _split(owned: _Owned, rows: Rows) -> Sequence[tuple[Shard, Rows]]:
    if owned.router is None:
        try:
            owned.router = owned.table.router()
        except InvalidInputError:
            return [(_ONE_SHARD, rows)]  # not prepared yet: the first claim does it
    return owned.router.split(rows)


def _writer(owned: _Owned, shard: Shard) -> ShardWriter:
    with owned.gate:
        if owned.is_closed:
            raise UnavailableError("this log changes hands: send the rows again")
        writer = owned.writers.get(shard.shard_id)
        if writer is None:
            target: Any = shard.shard_id if shard is _ONE_SHARD else shard
            config = ShardWriterConfig(enable_memtable=False)
            writer = owned.table.claim_writer(target, config=config)
            owned.writers[shard.shard_id] = writer
        return writer


def _close(owned: _Owned | None) -> None:
    """Close all writers; what they acknowledged is in the log, also if one stopped before."""
    if owned is None:
        return
    with owned.gate:
        owned.is_closed = True
    for writer in owned.writers.values():
        with suppress(HoldfastError):
            writer.close(flush=False)
