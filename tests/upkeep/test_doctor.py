"""Every kind of finding, produced and found; and a healthy table without any."""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import Key, RecordedDecisions, connect_commit_store, open_arbiter
from holdfast.arbiter.stores.sqlite import SqliteCommitStore
from holdfast.cli import main
from holdfast.errors import (
    CommitStoreRegressedError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from holdfast.formats import SSTABLE_MANIFEST, Record, encode_record, make_record, version_name
from holdfast.formats._wal_names import entry_name
from holdfast.storage import ObjectStore, open_store
from holdfast.upkeep import Candidate, Diagnosis, Doubt, Finding, FindingKind, Severity, doctor
from holdfast.upkeep import _doctor as doctor_module
from holdfast.upkeep import _doctor_shards as shards_module
from holdfast.upkeep._candidates import _doubt
from holdfast.upkeep._survey import survey
from upkeep.stock import append, ids_in, lose, lose_after_showing, rows, take_away

KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), 4)),
    ]
)
TOKEN = "hf-" + "7" * 32
Tables = pytest.mark.parametrize(
    "kind", ["plain", None, "sqlite"], ids=["plain", "condition", "commit store"]
)


def keyed(*ids: int) -> pa.Table:
    vectors = pa.array([[float(n)] * 4 for n in ids], pa.list_(pa.float32(), 4))
    text = [f"word {n}" for n in ids]
    return pa.table({"id": list(ids), "text": text, "vector": vectors}, schema=KEYED)


def files_in(folder: str) -> dict[str, int]:
    found = (p for p in Path(folder).rglob("*") if p.is_file() and "commits.db" not in p.name)
    return {str(p): p.stat().st_mtime_ns for p in found}


def examine(uri: str, **options: Any) -> Diagnosis:
    before = files_in(uri)
    found = doctor(uri, **options)
    assert files_in(uri) == before, "doctor changed something"
    for finding in found.findings:
        assert finding.what
        assert finding.advice
        assert finding.path
        assert finding.since is not None
        assert finding.command or any(word in finding.advice for word in ("backup", "remove"))
    return found


def only(uri: str, kind: FindingKind) -> Finding:
    (finding,) = examine(uri).findings
    assert finding.kind is kind
    return finding


def follow(finding: Finding) -> int:
    """Run the command that a finding names, and return its exit code."""
    assert finding.command is not None
    return main(shlex.split(finding.command)[1:])


def candidate_in(uri: str) -> Candidate:
    (candidate,) = examine(uri).candidates
    return candidate


@pytest.fixture
def plain(tmp_path: Path) -> str:
    uri = str(tmp_path / "t.lance")
    append(uri, None, 0, mode="create")
    return uri


@pytest.fixture
def tied(tmp_path: Path) -> holdfast.Table:
    table = holdfast.create_table(str(tmp_path / "t.lance"), rows(0).schema, commit_store="sqlite")
    table.append(rows(1), txn="one")
    return table


def decide(table: holdfast.Table, version: int, *, inline: bool) -> tuple[Record, bytes]:
    """Put a record of a version, and nothing else, as a writer does that dies then."""
    arbiter = open_arbiter(table.uri)
    assert isinstance(arbiter, RecordedDecisions)
    body = Path(table.uri, version_name(version - 1).path).read_bytes()
    record = make_record(version_name(version).path, body, TOKEN, after=None, inline=inline)
    key = Key(f"{arbiter.pin.table_id}/versions", version)
    arbiter._commit_store.put_if_absent(key, encode_record(record))
    arbiter.close()
    return record, body


# Healthy tables


@Tables
def test_a_busy_table_is_healthy(tmp_path: Path, kind: str | None) -> None:
    uri = str(tmp_path / "t.lance")
    if kind == "plain":
        append(uri, None, *range(20), mode="create")
        dataset = lance.dataset(uri)
    else:
        table = holdfast.create_table(uri, rows(0).schema, commit_store=kind)
        table.append(rows(*range(20)), txn="first")
        dataset = table.dataset()
    for number in range(20, 24):
        lance.write_dataset(rows(number), dataset, mode="append")
    dataset.delete("id < 5")
    dataset.delete("id = 22")
    dataset.update({"id": "id + 100"}, where="id = 21")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        rows(7, 300)
    )
    dataset.create_scalar_index("id", "BTREE")
    dataset.add_columns({"double": "id * 2"})
    dataset.optimize.compact_files()
    dataset.drop_columns(["double"])
    older: Any = dataset.checkout_version(3)
    older.restore()
    dataset = lance.dataset(uri) if kind == "plain" else table.dataset()
    lance.write_dataset(rows(1), dataset, mode="overwrite")
    dataset = lance.dataset(uri) if kind == "plain" else table.dataset()
    lance.write_dataset(rows(2), dataset, mode="append")
    found = examine(uri)
    assert found.findings == ()
    assert found.healthy
    assert found.arbiter == {"plain": None, None: "conditional-put"}.get(kind, "commit-store")
    assert found.version == found.versions == lance.dataset(uri).version
    assert found.transactions == found.versions
    assert found.elapsed > 0


@Tables
def test_a_table_whose_old_versions_are_gone_is_healthy(tmp_path: Path, kind: str | None) -> None:
    uri = str(tmp_path / "t.lance")
    if kind == "plain":
        append(uri, None, 0, mode="create")
        dataset = lance.dataset(uri)
    else:
        dataset = holdfast.create_table(uri, rows(0).schema, commit_store=kind).dataset()
    for number in range(1, 4):
        lance.write_dataset(rows(number), dataset, mode="append")
    dataset.optimize.compact_files()
    dataset.cleanup_old_versions(timedelta(0))
    assert examine(uri).findings == ()


def test_progress_is_reported(plain: str) -> None:
    append(plain, None, 1)
    heard: list[tuple[int, int]] = []
    doctor(plain, progress=lambda done, total: heard.append((done, total)))
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]


# Nothing to examine


def test_where_no_table_is(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no Lance table"):
        doctor(str(tmp_path / "none"))
    (tmp_path / "file.txt").write_text("hello")
    with pytest.raises(NotFoundError, match="no Lance table"):
        doctor(str(tmp_path))


def test_old_manifest_names_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(rows(1), uri, enable_v2_manifest_paths=False)
    with pytest.raises(InvalidInputError, match="migrate_manifest_paths_v2"):
        doctor(uri)


@pytest.mark.requirement("O1")
def test_a_damaged_newest_manifest(plain: str) -> None:
    """Damage never ends the examination: the version below is read instead."""
    append(plain, None, 1)
    append(plain, None, 2)
    body = Path(plain, version_name(3).path).read_bytes()
    Path(plain, version_name(3).path).write_bytes(body[:50])
    found = examine(plain)
    assert [(f.kind, f.severity, f.version) for f in found.findings if f.candidate is None] == [
        (FindingKind.UNREADABLE, Severity.PROBLEM, 3)
    ]
    assert found.version == 2
    for version in (1, 2):
        Path(plain, version_name(version).path).write_bytes(b"nonsense")
    finding = only(plain, FindingKind.UNREADABLE)
    assert "none of the table's 3 manifests" in finding.what
    assert finding.since is not None
    with pytest.raises(CorruptError):
        survey(open_store(plain), None)  # who acts on it does not pass over damage


@pytest.mark.requirement("O1")
@pytest.mark.parametrize("folder", ["_refs/tags", "_refs/branches"])
def test_a_tag_or_branch_that_cannot_be_read(plain: str, folder: str) -> None:
    file = Path(plain, folder, "kept.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{")
    finding = only(plain, FindingKind.UNREADABLE)
    assert (finding.severity, finding.path) == (Severity.WARNING, f"{folder}/kept.json")
    assert "vacuum keeps all versions" in finding.what
    assert finding.since is not None


# Decisions


def test_a_decision_that_was_not_put_in_place(tied: holdfast.Table) -> None:
    decide(tied, 3, inline=True)
    finding = only(tied.uri, FindingKind.UNFINISHED)
    assert (finding.severity, finding.version) == (Severity.WARNING, 3)
    assert not examine(tied.uri).healthy
    assert follow(finding) == 0
    assert Path(tied.uri, version_name(3).path).exists()
    assert examine(tied.uri).findings == ()


def test_a_decision_is_put_in_place_by_who_opens_the_table(tied: holdfast.Table) -> None:
    decide(tied, 3, inline=True)
    holdfast.open_table(tied.uri).dataset()
    assert examine(tied.uri).findings == ()


def test_a_staged_decision_that_was_not_put_in_place(tied: holdfast.Table) -> None:
    record, body = decide(tied, 3, inline=False)
    tied.core.store.put(str(record.staged), body)
    finding = only(tied.uri, FindingKind.UNFINISHED)  # what it needs is not called stray
    assert finding.severity is Severity.WARNING
    tied.core.store.put(version_name(3).path, body)
    finding = only(tied.uri, FindingKind.UNFINISHED)
    assert finding.severity is Severity.NOTE
    assert examine(tied.uri).healthy


def test_a_decision_whose_bytes_are_gone(tied: holdfast.Table) -> None:
    decide(tied, 3, inline=False)
    finding = only(tied.uri, FindingKind.MISSING)
    assert (finding.severity, finding.version) == (Severity.PROBLEM, 3)


def test_a_foreign_version(tied: holdfast.Table) -> None:
    append(tied.uri, None, 2)
    finding = only(tied.uri, FindingKind.FOREIGN)
    assert (finding.severity, finding.version) == (Severity.PROBLEM, 3)
    assert finding.path == version_name(3).path
    assert "--accept" in finding.advice
    holdfast.adopt_table(tied.uri, commit_store="sqlite", accept=3)
    assert examine(tied.uri).findings == ()


def test_a_decided_version_that_was_overwritten(tied: holdfast.Table) -> None:
    body = take_away(tied.uri, 2)
    append(tied.uri, None, 9)
    found = examine(tied.uri)
    (problem,) = [f for f in found.findings if f.severity is Severity.PROBLEM]
    assert problem.kind is FindingKind.FOREIGN
    assert problem.command == f"holdfast repair {tied.uri} --confirm", "its record has the bytes"
    Path(tied.uri, version_name(2).path).write_bytes(body)
    assert examine(tied.uri).healthy


def test_a_commit_store_that_was_set_back(tied: holdfast.Table, tmp_path: Path) -> None:
    tied.close()
    backup = tmp_path / "backup"
    backup.mkdir()
    for file in Path(tied.uri, "_holdfast").glob("commits.db*"):
        shutil.copy(file, backup)
    table = holdfast.open_table(tied.uri)
    table.append(rows(2))
    table.close()
    for file in Path(tied.uri, "_holdfast").glob("commits.db*"):
        file.unlink()
    for file in backup.iterdir():
        shutil.copy(file, Path(tied.uri, "_holdfast"))
    finding = only(tied.uri, FindingKind.REGRESSED)
    assert (finding.severity, finding.version) == (Severity.PROBLEM, 3)
    assert "it knows 2" in finding.what


# The pin


def test_a_table_that_was_copied(tied: holdfast.Table, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.lance")
    shutil.copytree(tied.uri, copy)
    finding = only(copy, FindingKind.PIN)
    assert finding.severity is Severity.PROBLEM
    assert "--copied" in finding.what


def test_a_damaged_pin(tied: holdfast.Table) -> None:
    Path(tied.uri, "_holdfast/pin.json").write_text("{")
    finding = only(tied.uri, FindingKind.PIN)
    assert finding.path == "_holdfast/pin.json"


def test_a_commit_store_that_is_another_one(tied: holdfast.Table, tmp_path: Path) -> None:
    other = holdfast.create_table(
        str(tmp_path / "other.lance"), rows(0).schema, commit_store="sqlite"
    )
    for table in (tied, other):
        table.close()
    shutil.copy(Path(other.uri, "_holdfast/commits.db"), Path(tied.uri, "_holdfast/commits.db"))
    finding = only(tied.uri, FindingKind.PIN)
    assert "not the commit store" in finding.what


@pytest.mark.requirement("O1")
def test_a_commit_store_that_is_gone(tied: holdfast.Table) -> None:
    tied.close()
    for file in Path(tied.uri, "_holdfast").glob("commits.db*"):
        file.unlink()
    finding = only(tied.uri, FindingKind.COMMIT_STORE)
    assert "is gone" in finding.what
    with pytest.raises(NotFoundError, match="commit store is gone"):
        holdfast.open_table(tied.uri)
    assert not list(Path(tied.uri, "_holdfast").glob("commits.db*")), "a new one was made"


@pytest.mark.requirement("O1")
def test_a_commit_store_that_gives_no_answer(tmp_path: Path) -> None:
    """It is told with where it is, and the rest is examined without it."""
    url = f"sqlite:///{tmp_path}/commits.db"
    store: Any = connect_commit_store(url)
    store.set_up()
    store.close()
    table = holdfast.create_table(str(tmp_path / "t"), rows(0).schema, commit_store=url)
    table.append(rows(1))
    table.close()
    Path(tmp_path, "commits.db").rename(tmp_path / "elsewhere.db")
    finding = only(table.uri, FindingKind.COMMIT_STORE)
    assert (finding.severity, finding.path) == (Severity.PROBLEM, url)
    assert finding.command == f"holdfast repair {table.uri}"
    silent = examine(table.uri, commit_store="redis://127.0.0.1:1/0").findings[0]
    assert (silent.kind, silent.severity) == (FindingKind.COMMIT_STORE, Severity.PROBLEM)
    assert "cannot be asked" in silent.what
    assert silent.command == f"holdfast store check {url}"


@pytest.mark.requirement("O1")
@pytest.mark.parametrize("where", ["in the table", "beside it"])
def test_a_commit_store_that_is_unfit(tmp_path: Path, where: str) -> None:
    """The very command that is named says the same; the advice puts it right."""
    uri, file, store = str(tmp_path / "t"), tmp_path / "commits.db", "sqlite"
    if where == "beside it":
        store = f"sqlite:///{file}"
        made: Any = connect_commit_store(store)
        made.set_up()
        made.close()
    else:
        file = Path(uri, "_holdfast/commits.db")
    holdfast.create_table(uri, rows(0).schema, commit_store=store).close()
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    finding = only(uri, FindingKind.COMMIT_STORE)
    assert finding.severity is Severity.WARNING
    assert "not fit to decide: journal_mode is delete" in finding.what
    assert finding.path == ("_holdfast/commits.db" if where == "in the table" else store)
    assert follow(finding) == 1
    assert main(["store", "init", f"sqlite:///{file}"]) == 0
    assert examine(uri).findings == ()


# Shards; more of their damages are in tests/cli/damaged.py


@pytest.mark.requirement("O1")
@pytest.mark.parametrize("kind", [None, "sqlite"], ids=["condition", "commit store"])
def test_a_table_with_everything_is_healthy(tmp_path: Path, kind: str | None) -> None:
    """Shards at every stage, indexes of many kinds, deletions, a tag, a clone with a writer."""
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, KEYED, commit_store=kind, primary_key=["id"])
    table.append(keyed(*range(300)))
    with table.claim_writer("unsharded") as writer:
        writer.put(keyed(300))
    assert examine(uri).findings == ()
    (shard,) = table.shards()
    table.flush_log(shard)
    assert examine(uri).findings == ()
    table.compact_lsm()
    with table.claim_appender(shard) as appender:
        appender.append(keyed(301).to_batches()[0])
    for kind_of_index, column in (
        ("BTREE", "id"),
        ("BITMAP", "text"),
        ("INVERTED", "text"),
        ("NGRAM", "text"),
        ("ZONEMAP", "id"),
        ("BLOOMFILTER", "id"),
    ):
        index: Any = kind_of_index
        table.dataset().create_scalar_index(column, index, name=f"{index}_{column}")
    vectors: Any = table.dataset()
    vectors.create_index("vector", "IVF_FLAT", num_partitions=2)
    table.dataset(over_log=True).delete("id < 20")
    remapped: Any = table.dataset()
    remapped.optimize.compact_files(defer_index_remap=True)  # an index of Lance's own, no files
    table.dataset().tags.create("kept", 2)
    assert examine(uri).findings == ()
    lance.dataset(uri).shallow_clone(str(tmp_path / "clone.lance"), lance.dataset(uri).version)
    clone = holdfast.adopt_table(str(tmp_path / "clone.lance"), commit_store=kind)
    assert examine(clone.uri).findings == ()
    before = clone.count()
    with clone.claim_writer("unsharded") as writer:
        writer.put(keyed(900, 901))
    assert clone.count() == before + 2, "readers pass over generations that the original merged"
    clone.flush_log(shard)
    clone.compact_lsm()
    assert clone.count() == before + 2
    assert examine(clone.uri).findings == ()


@pytest.mark.requirement("O1")
def test_a_shard_whose_manifests_were_set_back(tmp_path: Path) -> None:
    """Generations that the table merged come before the shard's next one, or rows are lost."""
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, KEYED, primary_key=["id"])
    with table.claim_writer("unsharded") as writer:
        writer.put(keyed(1))
    (shard,) = table.shards()
    table.flush_log(shard)
    table.compact_lsm()
    folder = Path(uri, "_mem_wal", shard, "manifest")
    numbers = sorted(folder.glob("*.binpb"), key=lambda path: int(path.stem[::-1], 2))
    for file in numbers[1:]:
        file.unlink()
    found = [f for f in examine(uri).findings if f.kind is FindingKind.SHARD]
    assert ["older than the table" in f.what for f in found] == [True]
    assert found[0].shard == shard


def shard_manifests(uri: str, shard: str) -> list[Path]:
    folder = Path(uri, "_mem_wal", shard, "manifest")
    return sorted(folder.glob("*.binpb"), key=lambda path: int(path.stem[::-1], 2))


@pytest.mark.requirement("O1")
def test_a_merged_generation_that_lacks_files_is_no_loss(tmp_path: Path) -> None:
    """Its rows are in the table: only its shard's manifest still lists it."""
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, KEYED, primary_key=["id"])
    with table.claim_writer("unsharded") as writer:
        writer.put(keyed(1, 2))
    (shard,) = table.shards()
    table.flush_log(shard)
    count = len(shard_manifests(uri, shard))
    table.compact_lsm()
    for drained in shard_manifests(uri, shard)[count:]:
        drained.unlink()  # as if its merger had died right after the commit
    Path(uri, "_mem_wal", shard, "manifest", "version_hint.json").unlink(missing_ok=True)
    assert examine(uri).findings == ()
    (sstable,) = Path(uri, "_mem_wal", shard).glob("*_gen_*")
    shutil.rmtree(sstable)
    finding = only(uri, FindingKind.MISSING)
    assert (finding.severity, finding.shard) == (Severity.NOTE, shard)
    assert "no row is lost" in finding.what
    assert table.count() == 2
    assert follow(finding) == 0
    assert examine(uri).findings == ()


@pytest.mark.requirement("O1")
@pytest.mark.parametrize("damage", [b"", None], ids=["cut off", "gone"])
def test_a_generation_whose_manifest_cannot_be_read(tmp_path: Path, damage: bytes | None) -> None:
    """Also in a process that has the generation open, and could read its rows without."""
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, KEYED, primary_key=["id"])
    with table.claim_writer("unsharded") as writer:
        writer.put(keyed(1, 2))
    (shard,) = table.shards()
    table.flush_log(shard)
    assert table.count() == 2
    (sstable,) = Path(uri, "_mem_wal", shard).glob("*_gen_*")
    (sstable / SSTABLE_MANIFEST).unlink()
    if damage is not None:
        (sstable / SSTABLE_MANIFEST).write_bytes(damage)
    (finding,) = examine(uri).findings
    assert finding.kind is (FindingKind.MISSING if damage is None else FindingKind.SHARD)
    assert "2 of its 2 rows cannot be read" in finding.what
    assert follow(finding) == 0
    assert examine(uri).findings == ()


@pytest.mark.requirement("O1")
def test_a_shard_without_a_manifest(tmp_path: Path) -> None:
    """Leftovers of a claim that never was are no problem; entries or merged rows are one."""
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, KEYED, primary_key=["id"])
    with table.claim_writer("unsharded") as writer:
        writer.put(keyed(1))
    (shard,) = table.shards()
    other = shard.replace(shard[:8], "0" * 8)
    Path(uri, "_mem_wal", other, "manifest").mkdir(parents=True)
    Path(uri, "_mem_wal", other, "manifest", "version_hint.json").write_text('{"version": 1}')
    assert examine(uri).findings == ()
    shutil.rmtree(Path(uri, "_mem_wal", shard, "manifest"))
    finding = only(uri, FindingKind.SHARD)
    assert (finding.severity, finding.shard) == (Severity.PROBLEM, shard)
    assert "no manifest: 2 log entries, and 0 generations merged" in finding.what
    assert finding.path == f"_mem_wal/{shard}"
    before = files_in(uri)
    for _ in range(2):  # a first manifest would hide what was flushed, and end this finding
        with pytest.raises(CorruptError, match="rows and no manifest"):
            table.claim_writer("unsharded")
    assert files_in(uri) == before


@pytest.mark.requirement("O1")
def test_a_merged_shard_whose_folder_is_gone(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, KEYED, primary_key=["id"])
    with table.claim_writer("unsharded") as writer:
        writer.put(keyed(1))
    (shard,) = table.shards()
    table.flush_log(shard)
    table.compact_lsm()
    shutil.rmtree(Path(uri, "_mem_wal", shard))
    findings = examine(uri).findings
    assert (FindingKind.SHARD, shard) in {(one.kind, one.shard) for one in findings}
    assert any("1 generations merged" in one.what for one in findings)


@pytest.mark.requirement("O1")
def test_a_hole_in_a_log_comes_with_its_command(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, KEYED, primary_key=["id"])
    with table.claim_writer("unsharded"):
        pass
    (shard,) = table.shards()
    with table.claim_appender(shard) as appender:
        positions = [appender.append(keyed(n).to_batches()[0]).position for n in range(3)]
    Path(uri, entry_name(shard, positions[1]).path).unlink()
    finding = only(uri, FindingKind.LOG)
    assert finding.since is not None
    assert finding.command == f"holdfast repair {uri} --confirm"
    assert main(finding.command.split()[1:]) == 0
    assert examine(uri).findings == ()
    with table.claim_writer("unsharded") as writer:
        writer.put(keyed(7))
    assert table.count() == 3


# Files


@pytest.mark.parametrize("folder", ["data", "_deletions", "_indices"])
def test_a_file_that_is_missing(plain: str, folder: str) -> None:
    append(plain, None, *range(1, 9))
    dataset = lance.dataset(plain)
    dataset.delete("id = 3")
    dataset.create_scalar_index("id", "BTREE")
    assert examine(plain).findings == ()
    victim = min(Path(plain, folder).iterdir())
    shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
    finding = only(plain, FindingKind.MISSING)
    assert finding.severity is Severity.PROBLEM
    assert str(finding.path).rstrip("/") == f"{folder}/{victim.name}"
    assert finding.version == dataset.version


@pytest.mark.parametrize(
    "path",
    [
        f"_holdfast/staged/{TOKEN}-0123456789abcdef",
        f"_holdfast/temporary/{TOKEN}",
        f"_holdfast/probe/{TOKEN}/first",
        "_versions/18446744073709551000.manifest-5c1e",
    ],
)
def test_objects_left_behind(tied: holdfast.Table, path: str) -> None:
    for name in (path, f"{path}2"):
        Path(tied.uri, name).parent.mkdir(parents=True, exist_ok=True)
        Path(tied.uri, name).write_bytes(b"12345")
    finding = only(tied.uri, FindingKind.STRAY)
    assert finding.severity is Severity.NOTE
    assert finding.what.startswith("2 ")
    assert finding.what.endswith(", 10 bytes")
    assert path.startswith(f"{finding.path}/")
    assert examine(tied.uri).healthy


def test_objects_that_cannot_be_read(plain: str) -> None:
    append(plain, None, 1)
    Path(plain, "_transactions/0-nonsense.txn").write_bytes(b"\xff\xff")
    Path(plain, version_name(1).path).write_bytes(b"nonsense")
    found = examine(plain).findings
    assert {f.kind for f in found} == {FindingKind.UNREADABLE}
    assert {f.path for f in found} == {"_transactions/0-nonsense.txn", version_name(1).path}


# Lost appends


@pytest.mark.requirement("C1")
def test_an_append_that_no_version_shows(plain: str) -> None:
    lose(plain, 1, 2, 3)
    append(plain, None, 4)
    finding = only(plain, FindingKind.LOST_APPEND)
    assert finding.severity is Severity.WARNING
    lost = candidate_in(plain)
    assert (lost.rows, lost.read_version, lost.seen_in, lost.doubt) == (3, 1, None, None)
    assert lost.size == sum(Path(plain, file).stat().st_size for file in lost.files)
    assert not lost.maybe_retried
    assert lost.known == "no version shows it"
    assert "fragments" not in repr(lost)


@pytest.mark.requirement("C1")
def test_an_append_that_a_version_shows_and_the_next_one_lost(plain: str) -> None:
    lose_after_showing(plain, lost=1, kept=2, next_one=3)
    assert ids_in(plain) == [0, 2, 3]
    lost = candidate_in(plain)
    assert (lost.rows, lost.seen_in, lost.doubt) == (1, 2, None)
    assert lost.known == "version 2 shows it, version 3 lost it"


def test_an_append_that_was_lost_in_a_change_of_another_fragment(plain: str) -> None:
    """Deleting names the fragments it changes: what else is gone was not its doing."""
    append(plain, None, 1)
    append(plain, None, 2)
    two = take_away(plain, 3)
    lance.dataset(plain).delete("id = 0")
    changed = take_away(plain, 3)
    Path(plain, version_name(3).path).write_bytes(two)
    Path(plain, version_name(4).path).write_bytes(changed)
    assert [one.seen_in for one in examine(plain).candidates] == [3]


def test_a_lost_append_whose_rows_a_compaction_saved(plain: str) -> None:
    """The versions with the append were overwritten; one that was built on them was not."""
    append(plain, None, 1)
    lance.dataset(plain).optimize.compact_files()
    other = Path(plain, version_name(1).path).read_bytes()
    for version in (2, 3):
        Path(plain, version_name(version).path).write_bytes(other)
    assert lance.dataset(plain).version == 4
    assert ids_in(plain) == [0, 1]
    assert examine(plain).candidates == ()


def test_a_lost_append_whose_files_are_gone_is_no_candidate(plain: str) -> None:
    lose(plain, 1)
    for file in candidate_in(plain).files:
        Path(plain, file).unlink()
    assert examine(plain).findings == ()


def test_a_try_that_was_repeated(plain: str) -> None:
    lose(plain, 1, 2)
    append(plain, None, 1, 2)
    lose(plain, 3)
    lose(plain, 3)
    found = examine(plain)
    assert Counter(one.doubt for one in found.candidates) == {Doubt.REPEATED: 2, None: 1}
    for one in found.candidates:
        assert one.maybe_retried == (one.doubt is Doubt.REPEATED)
        if one.doubt is not None:
            assert one.same_as is not None
            assert Path(plain, one.same_as).exists()
            assert one.same_as in one.known
    assert [f.severity for f in found.findings] == [Severity.WARNING, Severity.NOTE, Severity.NOTE]


def test_large_files_are_compared_by_samples(plain: str) -> None:
    numbers = range(600_000)
    lose(plain, *numbers)
    append(plain, None, *numbers)
    assert candidate_in(plain).size > 1 << 20
    assert candidate_in(plain).doubt is Doubt.REPEATED


def test_a_try_after_the_table_was_tied(plain: str) -> None:
    lose(plain, 1)
    assert candidate_in(plain).doubt is None
    table = holdfast.adopt_table(plain, commit_store="sqlite")
    assert candidate_in(plain).doubt is None
    table.append(rows(5))
    lose(plain, 2)
    doubts = {one.read_version: one.doubt for one in examine(plain).candidates}
    assert doubts == {1: None, 2: Doubt.AFTER_PIN}


def test_a_retried_transaction_does_not_alarm(tied: holdfast.Table) -> None:
    """Whoever finds its transaction applied has written its fragments in vain."""
    from lance.fragment import write_fragments

    fragments = write_fragments(rows(7, 8), tied.dataset(), mode="append")
    assert not tied.commit(fragments, txn="one").applied
    found = examine(tied.uri)
    assert found.healthy
    assert [one.doubt for one in found.candidates] in ([], [Doubt.AFTER_PIN])


def test_an_append_before_the_table_was_overwritten(plain: str) -> None:
    lose(plain, 1)
    append(plain, None, 5, mode="overwrite")
    assert candidate_in(plain).doubt is Doubt.REPLACED


def test_an_append_whose_time_is_gone(plain: str) -> None:
    lose(plain, 1)
    for number in (2, 3, 4):
        append(plain, None, number)
    assert candidate_in(plain).doubt is None
    for version in (1, 2, 3):
        Path(plain, version_name(version).path).unlink()
    assert candidate_in(plain).doubt is Doubt.HISTORY_GONE


def test_an_append_whose_columns_are_gone(plain: str) -> None:
    lose(plain, 1)
    dataset = lance.dataset(plain)
    dataset.add_columns({"other": "id * 2"})
    assert candidate_in(plain).doubt is None  # it will be null there
    dataset.drop_columns(["id"])
    assert candidate_in(plain).doubt is Doubt.SCHEMA_CHANGED


def test_an_append_whose_files_are_elsewhere(plain: str) -> None:
    lose(plain, 1)
    lost = candidate_in(plain)
    (part,) = lost.fragments
    cloned = replace(part, files=tuple(replace(file, base_id=1) for file in part.files))
    seen = survey(open_store(plain), None)
    assert _doubt(lost, seen, 0) is None
    assert _doubt(replace(lost, fragments=(cloned,)), seen, 0) is Doubt.ELSEWHERE


@pytest.mark.parametrize("kind", ["delete", "update", "overwrite"])
def test_a_change_that_no_version_came_of(plain: str, kind: str) -> None:
    if kind == "delete":
        lance.dataset(plain).delete("id = 0")
    elif kind == "update":
        lance.dataset(plain).update({"id": "1"})
    else:
        append(plain, None, 9, mode="overwrite")
    take_away(plain, 2)
    finding = only(plain, FindingKind.ORPHANED_CHANGE)
    assert finding.severity is Severity.WARNING
    assert kind.title() in finding.what
    assert str(finding.path).startswith("_transactions/1-")
    holdfast.adopt_table(plain, commit_store="sqlite")
    assert examine(plain).healthy


def test_a_log_that_the_table_lost_and_a_write_past_one(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 1}])
    rows = pa.table({"k": [2]}, schema=table.schema)
    lance.write_dataset(rows, table.uri, mode="append")
    (note,) = doctor(table.uri).findings
    assert (note.kind, note.severity) == (FindingKind.PAST_LOG, Severity.NOTE)
    lance.write_dataset(rows, table.uri, mode="overwrite")
    worst = doctor(table.uri).findings[0]
    assert (worst.kind, worst.severity) == (FindingKind.LOG_LOST, Severity.PROBLEM)
    table.reset_log("discard", confirm=True)
    assert doctor(table.uri).healthy


def test_what_changes_no_rows_is_not_written_past_a_log(tmp_path: Path) -> None:
    """An index that a stock writer builds beside a log: rows that wait win over nothing."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    table = holdfast.create_table(tmp_path / "t", schema, primary_key=["k"])
    with table.claim_writer("unsharded") as writer:
        writer.put([{"k": 1}])
    table.append([{"k": 2}])
    lance.dataset(table.uri).create_scalar_index("k", "BTREE")
    assert doctor(table.uri).findings == ()


# What the examination says beside the kind of a finding


def test_a_check_of_the_commit_store_that_fails_is_told(
    tied: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: object) -> Iterator[str]:
        raise UnavailableError("it fell silent")

    monkeypatch.setattr(SqliteCommitStore, "check", fail)
    finding = only(tied.uri, FindingKind.COMMIT_STORE)
    assert "not fit to decide: it fell silent" in finding.what


def test_a_pin_problem_is_as_old_as_the_pin(tied: holdfast.Table) -> None:
    pin = Path(tied.uri, "_holdfast/pin.json")
    pin.write_text("{")
    os.utime(pin, (1_000_000_000, 1_000_000_000))
    since = only(tied.uri, FindingKind.PIN).since
    assert since is not None
    assert since.timestamp() == 1_000_000_000


def test_a_damaged_pin_of_a_table_without_versions(tied: holdfast.Table) -> None:
    Path(tied.uri, "_holdfast/pin.json").write_text("{")
    shutil.rmtree(Path(tied.uri, "_versions"))
    kinds = {finding.kind for finding in examine(tied.uri).findings}
    assert kinds == {FindingKind.PIN, FindingKind.MISSING}


def test_the_commit_store_in_the_table_is_checked_by_its_address(
    tied: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UnavailableError("it fell silent")

    monkeypatch.setattr(doctor_module, "records_of", fail)
    finding = only(tied.uri, FindingKind.COMMIT_STORE)
    assert finding.command == f"holdfast store check sqlite:///{tied.uri}/_holdfast/commits.db"
    assert follow(finding) == 0


def test_a_commit_store_that_forgot_as_it_is_opened(
    tied: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CommitStoreRegressedError("it forgot")

    monkeypatch.setattr(doctor_module, "records_of", fail)
    finding = only(tied.uri, FindingKind.REGRESSED)
    assert finding.command == f"holdfast repair {tied.uri} --confirm"


def test_stray_objects_are_told_once_and_since_the_oldest(tied: holdfast.Table) -> None:
    """What is in a folder of its own kind is not unknown besides."""
    for number, name in enumerate(("one", "two")):
        file = Path(tied.uri, "_holdfast/temporary", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
        os.utime(file, (1_000_000_000 + number, 1_000_000_000 + number))
    since = only(tied.uri, FindingKind.STRAY).since
    assert since is not None
    assert since.timestamp() == 1_000_000_000


def test_one_file_of_an_index_is_named_and_not_its_folder(plain: str) -> None:
    append(plain, None, *range(1, 9))
    lance.dataset(plain).create_scalar_index("id", "BTREE")
    (file,) = Path(plain, "_indices").glob("*/page_data.lance")
    file.unlink()
    assert only(plain, FindingKind.MISSING).path == str(file.relative_to(plain))


@pytest.mark.parametrize("name", ["ShardManifests", "repair_log"])
def test_a_store_without_an_answer_is_no_damage_of_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, KEYED, primary_key=["id"])
    with table.claim_writer("unsharded") as writer:
        writer.put(keyed(1))

    def fail(*_: object) -> None:
        raise UnavailableError("it fell silent")

    monkeypatch.setattr(shards_module, name, fail)
    with pytest.raises(UnavailableError, match="it fell silent"):
        doctor(uri)


def test_what_is_written_while_doctor_looks_is_not_missed(
    plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is younger than the listing is asked for by its name."""
    append(plain, None, 1)

    def without_data(store: ObjectStore, *given: Any, **named: Any) -> Any:
        seen = survey(store, *given, **named)
        objects = {p: info for p, info in seen.objects.items() if not p.startswith("data/")}
        return replace(seen, objects=objects)

    monkeypatch.setattr(doctor_module, "survey", without_data)
    assert [f for f in doctor(plain).findings if f.kind is FindingKind.MISSING] == []


def test_a_hole_is_as_old_as_the_entry_after_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, KEYED, primary_key=["id"])
    with table.claim_writer("unsharded"):
        pass
    (shard,) = table.shards()
    with table.claim_appender(shard) as appender:
        positions = [appender.append(keyed(n).to_batches()[0]).position for n in range(3)]
    Path(uri, entry_name(shard, positions[1]).path).unlink()
    os.utime(Path(uri, entry_name(shard, positions[2]).path), (1_000_000_000, 1_000_000_000))
    since = only(uri, FindingKind.LOG).since
    assert since is not None
    assert since.timestamp() == 1_000_000_000


def test_candidates_come_oldest_first(plain: str) -> None:
    """Also where the worst comes first among the findings."""
    lose(plain, 1)
    append(plain, None, 5, mode="overwrite")
    lose(plain, 2)
    found = examine(plain)
    assert [one.read_version for one in found.candidates] == [1, 2]
    assert [f.severity for f in found.findings] == [Severity.WARNING, Severity.NOTE]


def test_doctor_closes_the_commit_store(
    tied: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    real = RecordedDecisions.close

    def close(self: RecordedDecisions) -> None:
        closed.append(self)
        real(self)

    monkeypatch.setattr(RecordedDecisions, "close", close)
    doctor(tied.uri)
    assert len(closed) >= 1


def test_every_kind_of_finding_and_doubt_has_a_test() -> None:
    source = Path(__file__).read_text()
    for kind in FindingKind:
        assert f"FindingKind.{kind.name}" in source
    for doubt in Doubt:
        assert f"Doubt.{doubt.name}" in source
