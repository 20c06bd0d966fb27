"""The public API as a user writes it; only type-checked, never run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import lance
import pyarrow as pa

import holdfast
from holdfast.arbiter import (
    Arbiter,
    CommitStore,
    Key,
    StoredEntry,
    connect_commit_store,
    register_commit_store,
)
from holdfast.commits import Namespace
from holdfast.errors import CommitUnknownError, ErrorKind
from holdfast.events import Event, subscribe
from holdfast.formats import Name
from holdfast.upkeep import MaintainResult, Policy


def probes() -> bool:
    report: holdfast.ProbeReport = holdfast.probe("s3://bucket/table", {"aws_region": "eu"})
    return report.verdict is holdfast.Verdict.ENFORCED


def decides(body: bytes, token: str) -> bytes:
    arbiter: Arbiter = holdfast.create_arbiter("/data/table", commit_store="sqlite")
    try:
        match arbiter.decide(Name.single("plan.json"), body, token):
            case holdfast.Won():
                return body
            case holdfast.Lost(body=theirs):
                return theirs
    except CommitUnknownError as error:
        kind: ErrorKind = error.kind
        raise RuntimeError(kind.value) from error


def watches() -> None:
    def hear(event: Event) -> None:
        print(event.kind.value, event.fields)

    unsubscribe = subscribe(hear)
    unsubscribe()


class OwnStore:
    """A user's own commit store needs no base class."""

    @property
    def url(self) -> str:
        return "own://here"

    def identity(self) -> str:
        return "id"

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        return None

    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        return None

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        return False

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        return []

    def boundary(self, series: str, *, retired: bool = False) -> int:
        return -1

    def collect(self, series: str, through: int) -> int:
        return 0

    def retire(self, scope: str) -> None: ...

    def close(self) -> None: ...


def registers() -> CommitStore:
    register_commit_store("own", lambda _url: OwnStore())
    return connect_commit_store("own://here")


def writes_by_namespace(rows: pa.Table) -> None:
    tables = holdfast.Namespace("s3://bucket/lake")
    lance.write_dataset(rows, namespace_client=tables, table_id=["events"], mode="append")


def namespaces() -> str:
    return Namespace("s3://bucket/lake", commit_store="env:LAKE_URL").namespace_id()


def full_text(table: holdfast.Table) -> list[object]:
    """Index, refresh and search a column."""
    made: holdfast.IndexResult = table.create_index("text", "fts", tasks=4, with_position=True)
    table.refresh_index(made.name, memory_mb=256, progress=lambda progress: print(progress.stage))
    infos: list[holdfast.IndexInfo] = table.indexes()
    builds: list[holdfast.BuildInfo] = table.index_builds()
    found = table.search("text", "storm AND harbour", 10, columns=["id"], filter="id > 3")
    return [*infos, *builds, found.num_rows]


def fenced_log(table: holdfast.Table, batch: pa.RecordBatch) -> list[int]:
    """Claim a shard's log, append, and follow it."""
    shard = table.shards()[0]
    with table.claim_appender(shard) as appender:
        done: holdfast.Appended = appender.append([batch], tags={"txn": "a-1"})
        appender.check_fenced()
    tailer: holdfast.WalTailer = table.tailer(shard)
    return [done.position, *(entry.rows for entry in tailer.entries(after=done.position))]


def shard_writer(table: holdfast.Table, batch: pa.RecordBatch) -> list[int]:
    """Prepare a table, claim shards, put, read, flush."""
    table.prepare_writers(sharding=holdfast.Sharding.bucket("id", 4))
    config = holdfast.ShardWriterConfig(max_memtable_rows=1_000)
    router: holdfast.Router = table.router()
    for shard, rows in router.split(batch):
        with table.claim_writer(shard, config=config) as writer:
            done: holdfast.PutResult = writer.put(rows)
            later = writer.put_nowait([{"id": 1}])
            writer.delete_keys([2])
            found: pa.RecordBatchReader = writer.scan(["id"], "id > 1", limit=3)
            held: pa.Table = writer.to_table(["id"], "id > 1", limit=3)
            writer.flush()
    with holdfast.ShardWriter.open(table, "bucket-1") as other:
        near = other.nearest("vec", [0.5, 1.5], k=2, metric="l2")
    return [
        done.rows,
        later.result().rows,
        found.read_all().num_rows,
        held.num_rows,
        near.num_rows,
        other.stats().puts,
    ]


def fresh_reads(table: holdfast.Table) -> list[int]:
    """Read all levels; keep one moment."""
    rows = sum(batch.num_rows for batch in table.scan(["id"], "id > 1", limit=5))
    near = table.nearest("vec", [0.5, 1.5], 3, metric="l2", freshness="flushed", nprobes=4)
    with table.snapshot(pinned=True) as snapshot:
        kept: holdfast.TableSnapshot = snapshot
        found = kept.lookup([1, 2], ["id"])
    return [rows, near.num_rows, found.num_rows, table.count(freshness="base")]


def maintains(table: holdfast.Table) -> list[str]:
    policy = Policy(generations=2, log_age=timedelta(minutes=1))
    done: MaintainResult = table.maintain(policy, dry_run=True)
    merged: int = table.compact_lsm(rows_at_once=10_000).rows
    flushed: tuple[int, ...] = table.flush_log("unsharded").generations
    return [*map(str, done.steps), str(merged + len(flushed))]
