"""What a commit store keeps after many decisions, and what it is asked to be rid of the rest."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import sqlalchemy
from redis import Redis

from holdfast.arbiter import (
    CommitStore,
    RecordedDecisions,
    SupportsReplaceMany,
    Won,
    connect_commit_store,
    new_token,
)
from holdfast.arbiter import _shedding as shedding
from holdfast.arbiter._shedding import EVERY, LEAST, MOST
from holdfast.arbiter.stores import sqlite
from holdfast.arbiter.stores.dynamodb import DynamoCommitStore
from holdfast.formats import (
    PIN_PATH,
    ArbiterKind,
    Pin,
    RecordState,
    decode_record,
    encode_pin,
    version_name,
)
from holdfast.storage import MemoryStore

ROUNDS = 5 * EVERY + 3
BODY_BYTES = 20_000
NO_BODY_BYTES = 1024
MOST_REQUESTS = 0.25
MOST_BY_DYNAMODB = 0.5  # its scan is two requests, and a first look at a series four


def check_stays_small(url: str, driver: tuple[type, str] | None = None) -> None:
    """Decide many bodies, large and small; then count bodies, bytes and requests.

    `driver` is the method by which the store's driver sends, unless it is known here.
    """
    store = MemoryStore(f"memory://{new_token()}")
    with contextlib.closing(connect_commit_store(url)) as commit_store:
        pin = Pin(
            table_id=new_token(),
            arbiter=ArbiterKind.COMMIT_STORE,
            location=store.location,
            store_id=commit_store.identity(),
            store_url=commit_store.url,
        )
        store.put(PIN_PATH, encode_pin(pin))
        series = f"{pin.table_id}/versions"
        arbiter = RecordedDecisions(store, commit_store, pin)
        with counted_shedding(url, driver) as requests:
            for number in range(1, ROUNDS + 1):
                token = new_token()
                size = BODY_BYTES if number % 2 else 10
                body = token.encode() + random.Random(number).randbytes(size)
                assert arbiter.decide(version_name(number), body, token) == Won()
        check_bodies(commit_store, series)
        assert isinstance(commit_store, SupportsReplaceMany)
    most = MOST_BY_DYNAMODB if url.startswith("dynamodb") else MOST_REQUESTS
    assert 0 < requests[0] / ROUNDS <= most, "it costs too many requests to be rid of bodies"


def check_bodies(commit_store: CommitStore, series: str) -> None:
    """Check that all but the newest 16 bodies of a series have left."""
    entries = commit_store.scan(series)
    records = [decode_record(entry.value) for entry in entries]
    inline = [record.state is RecordState.INLINE for record in records]
    assert len(inline) == ROUNDS
    assert MOST == 16
    assert not any(inline[:-MOST]), "an old body is kept"
    assert all(inline[-LEAST:]), "a body that may be needed is gone"
    sizes = [len(entry.value) for entry in entries]
    assert max(sizes[:-MOST]) < NO_BODY_BYTES
    assert sum(sizes) < MOST * (BODY_BYTES + NO_BODY_BYTES) + ROUNDS * NO_BODY_BYTES


@contextlib.contextmanager
def counted_shedding(url: str, driver: tuple[type, str] | None) -> Iterator[list[int]]:
    """Count what is sent to a commit store while bodies are taken out, by its own driver."""
    counter, total = itertools.count(), [0]
    shed = shedding.shed_bodies

    def counting_shed(*arguments: Any) -> None:
        before = next(counter)
        shed(*arguments)
        total[0] += next(counter) - before - 1

    with (
        _counting(url.partition(":")[0], driver, counter),
        mock.patch("holdfast.arbiter._recorded.shed_bodies", counting_shed),
    ):
        yield total


@contextlib.contextmanager
def _counting(
    scheme: str, driver: tuple[type, str] | None, counter: Iterator[int]
) -> Iterator[None]:
    if scheme in {"postgresql", "mysql"}:
        event = (sqlalchemy.Engine, "before_cursor_execute", lambda *_: next(counter))
        sqlalchemy.event.listen(*event)
        try:
            yield
        finally:
            sqlalchemy.event.remove(*event)
        return
    owner, name = driver or _PLACES[scheme]
    send: Callable[..., Any] = getattr(owner, name)

    def counted(self: object, *arguments: Any, **named: Any) -> Any:
        next(counter)
        return send(self, *arguments, **named)

    setattr(owner, name, counted)
    try:
        yield
    finally:
        setattr(owner, name, send)


_PLACES: dict[str, tuple[type, str]] = {
    "sqlite": (sqlite.SqliteCommitStore, "_use"),  # a transaction
    "redis": (Redis, "execute_command"),
    "dynamodb": (DynamoCommitStore, "_call"),
}
