"""A table under random work, and a model that change rows are applied to."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import holdfast
from holdfast.errors import HoldfastError

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("tags", pa.list_(pa.string()))])
SHARDS = [str(uuid.UUID(int=number + 1)) for number in range(2)]
KEYS = 14
Row = tuple[Any, ...]


def plain(row: dict[str, Any]) -> Row:
    return (row["k"], row["v"], tuple(row["tags"]) if row["tags"] is not None else None)


def rows_of(table: pa.Table) -> Counter[Row]:
    return Counter(plain(row) for row in table.to_pylist())


class Model:
    """The rows that change rows lead to. It refuses a change that does not fit."""

    def __init__(self, *, keyed: bool) -> None:
        self.keyed = keyed
        self.rows: Counter[Row] = Counter()
        self.changes: Counter[str] = Counter()
        self.last_version = 0
        self.positions: dict[int, int] = {}

    def apply(self, changes: pa.Table) -> None:
        waiting: Row | None = None
        for row in changes.to_pylist():
            kind, values = row["_change_type"], plain(row)
            self.changes[kind] += 1
            self._check_order(row)
            if kind in {"delete", "update_preimage"}:
                assert self.rows[values] > 0, f"{kind} of a row that is not there: {row}"
                self.rows[values] -= 1
            if kind == "update_preimage":
                assert self.keyed
                assert waiting is None
                waiting = values
            elif kind == "update_postimage":
                assert waiting is not None
                assert waiting[0] == values[0]
                assert waiting != values
                waiting = None
                self.rows[values] += 1
            elif kind == "insert":
                assert not self.keyed or not self.has_key(values[0]), f"insert over a row: {row}"
                self.rows[values] += 1
        assert waiting is None
        self.rows += Counter()  # drops what is 0

    def has_key(self, key: Any) -> bool:
        return any(count > 0 and row[0] == key for row, count in self.rows.items())

    def _check_order(self, row: dict[str, Any]) -> None:
        assert row["_commit_timestamp"] is not None
        assert row["_commit_version"] >= self.last_version
        self.last_version = row["_commit_version"]
        if row["_log_position"] is not None:
            shard = row["k"] % len(SHARDS)
            assert row["_log_position"] >= self.positions.get(shard, 0)
            self.positions[shard] = row["_log_position"]


class Busy:
    """A table that random work is done to."""

    def __init__(
        self, folder: Path, seed: int, *, keyed: bool, commit_store: str | None = None
    ) -> None:
        key = ["k"] if keyed else []
        self.table = holdfast.create_table(
            folder / "t.lance", SCHEMA, primary_key=key, commit_store=commit_store
        )
        self.keyed = keyed
        self.random = Random(seed)
        self.number = 0
        self.writers: dict[int, holdfast.ShardWriter] = {}
        self.left_out: set[str] = set()

    def work(self) -> str:
        """Do one thing; return what it was."""
        verbs = [
            "append", "put", "put", "put", "flush", "compact_lsm", "merge_log", "delete_base",
            "overwrite", "restore", "compact", "index", "vacuum", "touch",
        ]  # fmt: skip
        if self.keyed:
            verbs += ["delete", "delete", "update", "merge_into", "over_log", "over_log"]
        else:
            verbs += ["update"]
        verb = self.random.choice([one for one in verbs if one not in self.left_out])
        try:
            getattr(self, verb)()
        except HoldfastError as error:
            return f"{verb}: {type(error).__name__}"
        return verb

    def fresh(self, key: int | None = None) -> dict[str, Any]:
        self.number += 1
        tags = self.random.choice([None, [], ["a"], ["a", "b"]])
        chosen = self.random.randrange(KEYS) if key is None else key
        return {"k": chosen, "v": self.random.choice([1, 2, self.number]), "tags": tags}

    def append(self) -> None:
        rows = [self.fresh() for _ in range(self.random.randrange(1, 6))]
        if self.keyed:  # a key that is there would be there twice
            there = set(self.table.to_table(["k"])["k"].to_pylist())
            rows = [row for k, row in {row["k"]: row for row in rows}.items() if k not in there]
        if rows:
            self.table.append(rows)

    def writer(self, shard: int) -> holdfast.ShardWriter:
        if shard not in self.writers:
            self.writers[shard] = self.table.claim_writer(SHARDS[shard])
        return self.writers[shard]

    def put(self) -> None:
        rows = [self.fresh() for _ in range(self.random.randrange(1, 5))]
        self._write(rows, "put")

    def delete(self) -> None:
        keys = [self.random.randrange(KEYS) for _ in range(self.random.randrange(1, 3))]
        self._write([{"k": key} for key in keys], "delete_keys")

    def _write(self, rows: list[dict[str, Any]], verb: str) -> None:
        for shard in range(len(SHARDS)):
            mine = [row for row in rows if row["k"] % len(SHARDS) == shard]
            if not mine:
                continue
            given = mine if verb == "put" else [row["k"] for row in mine]
            try:
                getattr(self.writer(shard), verb)(given)
            except HoldfastError:
                self.close(shard)  # an overwrite locked it out, or vacuum was faster
                getattr(self.writer(shard), verb)(given)

    def flush(self) -> None:
        shard = self.random.randrange(len(SHARDS))
        if shard in self.writers:
            self.writers[shard].flush()

    def compact_lsm(self) -> None:
        self.table.compact_lsm()

    def merge_log(self) -> None:
        self.table.merge_log()

    def touch(self) -> None:
        self.table.dataset().update_config({"note": str(self.number)})

    def delete_base(self) -> None:
        self._before_base()
        self.table.dataset().delete(f"k % 5 = {self.random.randrange(5)}")

    def update(self) -> None:
        self._before_base()
        where = f"k % 4 = {self.random.randrange(4)}"
        self.table.dataset().update({"v": "v + 1"}, where=where)

    def over_log(self) -> None:
        """Change the base under rows that wait, and win over it."""
        where = f"k % 3 = {self.random.randrange(3)}"
        if self.random.random() < 0.5:
            self.table.dataset(over_log=True).update({"v": "v + 1"}, where=where)
        else:
            self.table.dataset(over_log=True).delete(where)

    def merge_into(self) -> None:
        self._before_base()
        rows = {key: self.fresh(key) for key in self.random.sample(range(KEYS), 3)}
        merge = self.table.dataset().merge_insert(["k"]).when_matched_update_all()
        given = pa.Table.from_pylist(list(rows.values()), schema=self.table.schema)
        merge.when_not_matched_insert_all().execute(given)

    def _before_base(self) -> None:
        if self.writers and self.keyed:
            self.table.merge_log()

    def overwrite(self) -> None:
        keys = self.random.sample(range(KEYS), self.random.randrange(1, 6))
        rows = [self.fresh(key) for key in keys]
        data = pa.Table.from_pylist(rows, schema=SCHEMA)
        holdfast.write_table(data, self.table.uri, mode="overwrite")

    def restore(self) -> None:
        newest = self.table.dataset().version
        old: Any = self.table.dataset(self.random.randrange(1, newest + 1))
        old.restore()

    def compact(self) -> None:
        self.table.dataset().optimize.compact_files()

    def index(self) -> None:
        self.table.dataset().create_scalar_index("k", "BTREE", replace=True)

    def vacuum(self) -> None:
        """Let everything be old, and take away what nobody needs; versions stay."""
        for path in Path(self.table.uri).rglob("*"):
            if path.is_file():
                os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 200_000))
        self.table.vacuum(grace=timedelta(hours=2), confirm=True)

    def close(self, shard: int) -> None:
        writer = self.writers.pop(shard, None)
        if writer is not None:
            with contextlib.suppress(HoldfastError):
                writer.close()

    def close_all(self) -> None:
        for shard in list(self.writers):
            self.close(shard)
        self.table.close()
