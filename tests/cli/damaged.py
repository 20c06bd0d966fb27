"""One table of damages: what each does to a table, and what the commands say of it."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import lance
import pyarrow as pa

import holdfast
from holdfast.formats import (
    BLOOM_FILE,
    KEY_INDEX_DATA,
    KEY_INDEX_LOOKUP,
    version_name,
)
from holdfast.formats._wal_names import entry_name

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "text": [f"word {n}" for n in ids]}, schema=SCHEMA)


@dataclass(frozen=True)
class Sample:
    """A table with all that a table has: versions, deletions, an index, SSTables, a log."""

    uri: str
    shard: str
    newest: int
    position: int

    def file(self, path: str) -> Path:
        return Path(self.uri, path)

    @property
    def sstable(self) -> Path:
        return next(Path(self.uri, "_mem_wal", self.shard).glob("*_gen_*"))


def make_sample(folder: Path, commit_store: str | None) -> Sample:
    uri = str(folder / "t.lance")
    table = holdfast.create_table(uri, SCHEMA, commit_store=commit_store, primary_key=["id"])
    table.append(rows(*range(40)), txn="first")
    table.append(rows(*range(40, 60)), txn="second")
    dataset = table.dataset()
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("text", "INVERTED")
    dataset.delete("id = 3")
    with table.claim_writer("unsharded") as writer:
        writer.put(rows(100, 101))
    (shard,) = table.shards()
    table.flush_log(shard)
    with table.claim_appender(shard) as appender:
        batches = [rows(number).to_batches()[0] for number in (102, 103, 104)]
        position = [appender.append(batch).position for batch in batches][1]
    newest = int(table.dataset().version)
    table.close()
    return Sample(uri=uri, shard=shard, newest=newest, position=position)


def saved(uri: str) -> dict[str, bytes]:
    """Return every file; what SQLite keeps beside its file only while it is open is left out."""
    found = (path for path in Path(uri).rglob("*") if path.is_file())
    return {str(p): p.read_bytes() for p in found if not p.name.endswith(("-wal", "-shm"))}


def await_closed(uri: str) -> None:
    """Return when this process has the table's SQLite file no longer open.

    A connection that loses the files beside it spoils all that are opened after it.
    """
    path = str(Path(uri, "_holdfast/commits.db"))
    for _ in range(3000):
        if not any(name.startswith(path) for name in open_files()):
            return
        gc.collect()
        time.sleep(0.01)
    raise AssertionError("a command left the commit store open")


def open_files() -> Iterator[str]:
    """Yield the paths of the files that this process has open."""
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            yield str(link.readlink())


def put_back(uri: str, files: dict[str, bytes]) -> None:
    """Undo every change; files that are there keep their identity."""
    await_closed(uri)
    for name in set(saved(uri)) - set(files):
        Path(name).unlink()
    for folder in sorted((path for path in Path(uri).rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    for end in ("-wal", "-shm"):
        Path(uri, f"_holdfast/commits.db{end}").unlink(missing_ok=True)
    for name, body in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != body:
            path.write_bytes(body)


@contextmanager
def damaged(sample: Sample, damage: Callable[[Sample], object]) -> Iterator[dict[str, bytes]]:
    before = saved(sample.uri)
    damage(sample)
    try:
        yield saved(sample.uri)
    finally:
        put_back(sample.uri, before)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def forget(sample: Sample, series: str, number: int) -> None:
    """Let the commit store forget the records of a series from a number on."""
    with sqlite3.connect(sample.file("_holdfast/commits.db")) as connection:
        connection.execute(
            "DELETE FROM holdfast_records WHERE series LIKE ? AND number >= ?",
            (f"%/{series}", number),
        )
    connection.close()


def change_journal(sample: Sample) -> None:
    """Let the commit store's file keep its changes in a way that is not safe for readers."""
    connection = sqlite3.connect(sample.file("_holdfast/commits.db"))
    assert connection.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    connection.close()


def write_foreign(sample: Sample) -> None:
    lance.write_dataset(rows(900), sample.uri, mode="append")


def damage_tag(sample: Sample) -> None:
    sample.file("_refs/tags").mkdir(parents=True, exist_ok=True)
    sample.file("_refs/tags/x.json").write_text("{")


def remove_first(sample: Sample, folder: str, pattern: str = "*") -> None:
    victim = min(Path(sample.uri, folder).glob(pattern))
    shutil.rmtree(victim) if victim.is_dir() else victim.unlink()


# The commands by what they need of a table.
SHARDS = ("shard ls", "shard stats", "shard show")
LOGS = ("wal ls", "wal tail")
NEWEST = (
    *("index ls", "index show", "index search", "shard repair", "wal reset", "copy", "ingest"),
)
VERSIONS = ("status", "history", "vacuum", "maintain", "rescue", *NEWEST)
DECIDING = ("wal show", "wal repair", "adopt", "release")
EVERY = (*SHARDS, *LOGS, *VERSIONS, *DECIDING)
ROWS = {"index search": 8}
HOLE = {**dict.fromkeys(("shard stats", "wal reset", "ingest", *LOGS), 8), **ROWS, "wal repair": 1}
UNREADABLE = dict.fromkeys(
    (*SHARDS, "vacuum", "maintain", "shard repair", "wal repair", "wal reset", "ingest"), 8
)


@dataclass(frozen=True)
class Damage:
    """What is done to a table, on which tables, and what is said of it.

    `finds` is the kind of what doctor finds, None for nothing; `exits` has the commands that end
    with another code than 0, besides doctor and repair. `heals` says that a decided object is put
    back by whoever opens the table to read it, as every reader with the right to write does.
    `mends` has, by table, the arguments with which `repair --confirm` puts it right; `lost` the
    rows that are given up then.
    """

    do: Callable[[Sample], object]
    finds: str | None
    says: str = ""
    exits: Mapping[str, int] = field(default_factory=dict)
    on: tuple[str, ...] = ("condition", "sqlite")
    heals: bool = False
    mends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lost: tuple[int, ...] = ()


def _all(code: int, verbs: Iterable[str] = EVERY) -> dict[str, int]:
    return dict.fromkeys(verbs, code)


def _version(sample: Sample, version: int) -> Path:
    return sample.file(version_name(version).path)


def _entry(sample: Sample) -> Path:
    return sample.file(entry_name(sample.shard, sample.position).path)


def _shard_manifests(sample: Sample) -> list[Path]:
    folder = sample.file(f"_mem_wal/{sample.shard}/manifest")
    return sorted(folder.glob("*.binpb"), key=lambda path: int(path.stem[::-1], 2))


def _key_index(sample: Sample) -> Path:
    return next(sample.file("_indices").glob("*/page_data.lance")).parent


def _gone(sample: Sample) -> Path:
    return sample.file("_holdfast/commits.db")


DAMAGES: Mapping[str, Damage] = {
    "nothing": Damage(lambda _: None, None, mends={"sqlite": (), "condition": ()}),
    "the newest manifest is truncated": Damage(
        lambda s: truncate(_version(s, s.newest)),
        "unreadable_object",
        "newest manifest cannot be read",
        _all(8, VERSIONS),
        mends={"sqlite": ()},
    ),
    "an old manifest is truncated": Damage(
        lambda s: truncate(_version(s, 2)),
        "unreadable_object",
        "cannot be read",
        _all(8, ("history", "vacuum", "maintain")),
        mends={"sqlite": ()},
    ),
    "all manifests are gone": Damage(
        lambda s: shutil.rmtree(s.file("_versions")),
        "missing_file",
        "no version",
        _all(3, (*VERSIONS, "adopt", "release")),
        on=("condition",),
    ),
    "all manifests are gone, the records hold them": Damage(
        lambda s: shutil.rmtree(s.file("_versions")),
        "unfinished_decision",
        "not in place",
        on=("sqlite",),
        heals=True,
        mends={"sqlite": ()},
    ),
    "a data file is gone": Damage(
        lambda s: remove_first(s, "data"), "missing_file", "shows a file", ROWS
    ),
    "a deletion file is gone": Damage(
        lambda s: remove_first(s, "_deletions"), "missing_file", "shows a file", ROWS
    ),
    "a file of an index is gone": Damage(
        lambda s: remove_first(s, "_indices", "*/page_data.lance"), "missing_file", "an index"
    ),
    "an index is gone": Damage(
        lambda s: shutil.rmtree(_key_index(s)), "missing_file", "an index", {"maintain": 1}
    ),
    "the pin is damaged": Damage(
        lambda s: s.file("_holdfast/pin.json").write_text("{"),
        "pin_problem",
        "pin cannot be read",
        _all(8, (*EVERY, "pin", "store move")),
        mends={"sqlite": (), "condition": ("--conditional-put",)},
    ),
    "the commit store is gone": Damage(
        lambda s: _gone(s).unlink(),
        "commit_store_problem",
        "is gone",
        _all(3, (*EVERY, "store move")),
        on=("sqlite",),
        mends={"sqlite": ("--new-commit-store", "sqlite")},
    ),
    "the commit store is damaged": Damage(
        lambda s: _gone(s).write_bytes(b"nonsense" * 1000),
        "commit_store_problem",
        "damaged",
        _all(8, (*EVERY, "store move")),
        on=("sqlite",),
        mends={"sqlite": ("--new-commit-store", "sqlite")},
    ),
    "the commit store is empty": Damage(
        lambda s: _gone(s).write_bytes(b""),
        "commit_store_problem",
        "no commit store",
        _all(3, (*EVERY, "store move")),
        on=("sqlite",),
        mends={"sqlite": ("--new-commit-store", "sqlite")},
    ),
    "the commit store was set back": Damage(
        lambda s: forget(s, "versions", s.newest),
        "commit_store_regressed",
        "forgot version",
        _all(8, ("maintain", *NEWEST)),
        on=("sqlite",),
        mends={"sqlite": ()},
    ),
    "the commit store forgot the end of a log": Damage(
        lambda s: forget(s, f"log/{s.shard}", s.position),
        "commit_store_regressed",
        "the shard's log cannot be read",
        {**HOLE, "wal repair": 8},
        on=("sqlite",),
        mends={"sqlite": ()},
    ),
    "the commit store forgot a shard's manifest": Damage(
        lambda s: forget(s, f"shard/{s.shard}", len(_shard_manifests(s))),
        "commit_store_regressed",
        "newest manifest cannot be read",
        {**UNREADABLE, **ROWS},
        on=("sqlite",),
        mends={"sqlite": ()},
    ),
    "the commit store is unfit": Damage(
        change_journal, "commit_store_problem", "not fit to decide: journal_mode", on=("sqlite",)
    ),
    "a stock writer was here": Damage(
        write_foreign,
        "foreign_version",
        "past Holdfast",
        _all(8, ("maintain", *NEWEST)),
        on=("sqlite",),
    ),
    "a log entry is gone": Damage(
        lambda s: _entry(s).unlink(),
        "log_problem",
        "is missing",
        HOLE,
        on=("condition",),
        mends={"condition": ()},
        lost=(103,),
    ),
    "a log entry is gone, its record holds it": Damage(
        lambda s: _entry(s).unlink(),
        "unfinished_decision",
        "log entries",
        on=("sqlite",),
        heals=True,
        mends={"sqlite": ()},
    ),
    "a log entry is truncated": Damage(
        lambda s: truncate(_entry(s)),
        "log_problem",
        "is damaged",
        HOLE,
        on=("condition",),
        mends={"condition": ()},
        lost=(103,),
    ),
    "a log entry is truncated, its record holds it": Damage(
        lambda s: truncate(_entry(s)),
        "log_problem",
        "is damaged",
        HOLE,
        on=("sqlite",),
        mends={"sqlite": ()},
    ),
    "a shard manifest is truncated": Damage(
        lambda s: truncate(_shard_manifests(s)[-1]),
        "shard_problem",
        "cannot be read",
        {**UNREADABLE, **ROWS},
        on=("condition",),
    ),
    "a decided shard manifest is truncated": Damage(
        lambda s: truncate(_shard_manifests(s)[-1]),
        "foreign_version",
        "cannot be read",
        {**UNREADABLE, **ROWS},
        on=("sqlite",),
        mends={"sqlite": ()},
    ),
    "the shard manifests are gone": Damage(
        lambda s: shutil.rmtree(_shard_manifests(s)[0].parent),
        "shard_problem",
        "has no manifest",
        {**_all(3, ("shard show", "shard repair", "wal repair")), "wal reset": 2, "ingest": 8},
        on=("condition",),
    ),
    "the shard manifests are gone, the records hold them": Damage(
        lambda s: shutil.rmtree(_shard_manifests(s)[0].parent),
        "unfinished_decision",
        "newest manifest",
        on=("sqlite",),
        heals=True,
        mends={"sqlite": ()},
    ),
    "an SSTable is gone": Damage(
        lambda s: shutil.rmtree(s.sstable),
        "missing_file",
        "generation 1",
        {"shard repair": 1, **ROWS},
    ),
    "an SSTable lacks its data": Damage(
        lambda s: remove_first(s, f"_mem_wal/{s.shard}", "*_gen_*/data/*"),
        "missing_file",
        "generation 1",
        {"shard repair": 1, **ROWS},
    ),
    "an SSTable lacks its bloom filter": Damage(
        lambda s: remove_first(s, f"_mem_wal/{s.shard}", "*_gen_*/bloom_filter.bin"),
        "missing_file",
        "generation 1",
        {"shard repair": 1},
    ),
    **{
        f"an SSTable's {what} is gone": Damage(
            lambda s, path=path: (s.sstable / path).unlink(),  # type: ignore[misc]
            "missing_file",
            "generation 1",
            {"shard repair": 1},
        )
        for what, path in (("key index", KEY_INDEX_DATA), ("key pages", KEY_INDEX_LOOKUP))
    },
    "an SSTable's bloom filter is empty": Damage(
        lambda s: (s.sstable / BLOOM_FILE).write_bytes(b""),
        "shard_problem",
        "is damaged",
        {"shard repair": 1},
    ),
    "a tag is damaged": Damage(
        damage_tag,
        "unreadable_object",
        "a tag or branch",
    ),
    "there are unknown files": Damage(
        lambda s: s.file("notes.txt").write_text("hello"), "stray_objects", "no table has"
    ),
}
