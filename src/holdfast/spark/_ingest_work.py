"""What a task of `ingest` is told, as plain data, and the answer that comes back.

The driver puts it into an option of the write; the tasks get it with their rows. It holds places
in logs, never a live handle; secrets travel as `env:NAME` if they were given so.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.shard import Base, base_of_rows
from holdfast.txn import AppTxn, Txn
from holdfast.wal import Slot

WORK = "secretIngest"  # Spark hides the values of options whose names speak of secrets
SHARD = "__holdfast_shard"
DELETED = "__holdfast_deleted"
PART = "__holdfast_part"
ORDER = "__holdfast_order_"
MOST_PARTS = 64
"""How many entries of one shard a batch may be divided into."""


def whole_txn(app: str, batch: int) -> AppTxn:
    """Return the id of all rows of one shard and batch.

    In order: Spark begins a batch when the one before is done. Shards without rows of a batch
    get no entry.
    """
    return AppTxn(app, batch, in_order=True)


def part_txn(app: str, batch: int, part: int, parts: int) -> AppTxn:
    """Return the id of one of several entries that a shard's rows of a batch are divided into."""
    return AppTxn(f"{app}#{part}/{parts}", batch, in_order=True)


@dataclass(frozen=True, slots=True)
class WrittenEntries:
    """One entry that is in the log: its position, which part of its shard's rows, and if the last.

    The last part says that the batch is whole. Its rows and bytes are for Spark's progress.
    """

    position: int
    part: int
    last: bool
    rows: int = 0
    size: int = 0

    def txns(self, app: str, batch: int, parts: int) -> list[Txn]:
        """Return the ids that the entry has."""
        return entry_txns(app, batch, self.part, parts, last=self.last)


def entry_txns(app: str, batch: int, part: int, parts: int, *, last: bool) -> list[Txn]:
    """Return the ids of one entry."""
    whole = whole_txn(app, batch)
    if parts == 1:
        return [whole]
    own = part_txn(app, batch, part, parts)
    return [own, whole] if last else [own]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestTarget:
    """One shard's place for a batch.

    Attributes:
        slot: where its next entry goes.
        done: parts of the batch that are in the log already.
    """

    slot: Slot
    done: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestWork:
    """What the tasks need to know.

    Attributes:
        uri: where the table is.
        options: its storage options, as the user gave them.
        commit_store: the address of its commit store, if the user gave one.
        pin: what ties the table to its arbiter, as bytes in text.
        verdict: what the driver knows of the store; None where a commit store decides.
        columns: the table's columns, encoded.
        log_columns: those of its log, encoded.
        keys: the primary key.
        column: the column that rows are divided by; None for one shard.
        buckets: how many shards.
        app: under which name batches are counted.
        batch: which batch.
        parts: into how many entries a shard's rows are divided.
        limit: how many bytes of rows one entry may have.
        ordered: how many columns order the rows of a key.
        targets: the shards that still need rows, by number.
        answer: a file on the driver's machine, for what the tasks have done.
    """

    uri: str
    options: Mapping[str, str] = field(repr=False)
    commit_store: str | None = field(repr=False)
    pin: str
    verdict: str | None
    columns: str
    log_columns: str
    keys: tuple[str, ...]
    column: str | None
    buckets: int
    app: str
    batch: int
    parts: int
    limit: int
    ordered: int
    targets: Mapping[int, IngestTarget]
    answer: str

    def encode(self) -> str:
        """Return it as the value of an option."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> IngestWork:
        """Return what `encode` was given."""
        given: dict[str, Any] = json.loads(text)
        targets = {
            int(number): IngestTarget(slot=Slot(**one["slot"]), done=tuple(one["done"]))
            for number, one in given.pop("targets").items()
        }
        return cls(**{**given, "keys": tuple(given["keys"]), "targets": targets})

    def base(self) -> Base:
        """Return the table's columns, as far as rows need them."""
        return base_of_rows(
            decode_columns(self.columns), decode_columns(self.log_columns), self.keys
        )


def encode_columns(schema: pa.Schema) -> str:
    """Return columns as text."""
    return base64.b64encode(schema.serialize()).decode()


def decode_columns(text: str) -> pa.Schema:
    """Return what `encode_columns` was given."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
