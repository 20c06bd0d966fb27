"""A shard's log in memory, with a clock that a test moves and requests that are counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from holdfast.arbiter import ConditionalPut, RetryPolicy, Verdict
from holdfast.core import TableCore
from holdfast.errors import HoldfastError
from holdfast.formats._entry import draft_entry, draft_fence
from holdfast.formats._wal_names import entry_name
from holdfast.storage import MemoryStore, ObjectInfo
from holdfast.wal import SsTable, WalAppender, WalTailer, collect_log

SHARD = "c86481e0-7f0b-47f8-aead-d10d7a62c5b2"
TOKEN = "hf-" + "d" * 32
_counter = itertools.count()


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"id": list(numbers)})


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def elapsed(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class CountingStore(MemoryStore):
    """Counts requests, stamps objects by a clock, and fails on demand."""

    def __init__(self) -> None:
        super().__init__(f"memory://log-{next(_counter)}")
        self.clock = Clock()
        self.requests: list[str] = []
        self.failing: Callable[[str, str], HoldfastError | None] = lambda _verb, _path: None
        self._stamps: dict[str, float] = {}

    def _ask(self, verb: str, path: str) -> None:
        self.requests.append(verb)
        error = self.failing(verb, path)
        if error is not None:
            raise error

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._ask("get", path)
        return super().get(path, start=start, end=end)

    def put(self, path: str, body: bytes) -> None:
        self._ask("put", path)
        self._stamps[path] = self.clock.time
        super().put(path, body)

    def put_if_absent(self, path: str, body: bytes) -> None:
        self._ask("put_if_absent", path)
        self._stamps.setdefault(path, self.clock.time)
        super().put_if_absent(path, body)

    def head(self, path: str) -> ObjectInfo:
        return replace(super().head(path), modified=self._stamps.get(path, 0.0))

    def list(self, prefix: str = "", *, after: str = "") -> Sequence[ObjectInfo]:
        self._ask("list", prefix)
        found = super().list(prefix, after=after)
        return [replace(info, modified=self._stamps.get(info.path, 0.0)) for info in found]


class World:
    def __init__(self) -> None:
        self.store = CountingStore()
        self.clock = self.store.clock
        self.arbiter = ConditionalPut(
            self.store, Verdict.ENFORCED, clock=self.clock, retry=RetryPolicy(attempts=3)
        )

    def claim(self) -> WalAppender:
        return WalAppender.claim(TableCore(self.store, self.arbiter, clock=self.clock), SHARD)

    def tailer(self) -> WalTailer:
        return WalTailer(TableCore(self.store, self.arbiter, clock=self.clock), SHARD)

    def flush(self, appender: WalAppender) -> None:
        through = appender.next_position - 1
        table = SsTable(generation=1, path="aaaaaaaa_gen_1")
        appender.manifests.update(
            appender.epoch, lambda m: replace(m, replay_after=through, sstables=(table,))
        )

    def collect(self) -> int:
        collected = collect_log(TableCore(self.store, self.arbiter), SHARD, confirm=True)
        return len(collected.paths)

    def put_entry(self, position: int, *, epoch: int, fence: bool = False) -> None:
        """Put an entry there as some other writer would have."""
        settings = {"shard_id": SHARD, "epoch": epoch, "writer": "ee" * 16}
        draft = draft_fence(**settings) if fence else draft_entry([batch(9)], **settings)  # type: ignore[arg-type]
        body = draft.stamp(position=position, sequence=1, token=TOKEN)
        self.store.put_if_absent(entry_name(SHARD, position).path, body)

    def remove(self, position: int) -> None:
        self.store.delete([entry_name(SHARD, position).path])


def ids(entries: Iterator[object]) -> list[int]:
    return [n for e in entries for b in e.batches for n in b.column("id").to_pylist()]  # type: ignore[attr-defined]
