"""What vacuum and doctor remember: the same answers for less reading, and nothing deleted by it."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.formats import version_name
from holdfast.storage import LocalStore, ObjectInfo, open_store
from holdfast.testing import FaultyS3Process
from holdfast.upkeep import doctor, vacuum
from holdfast.upkeep._memory import ReadMemory, Remembered, open_memory

DAY = 24 * 3600
SCHEMA = pa.schema([("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "holdfast" / "seen"


@pytest.fixture(params=["sqlite", None], ids=["commit-store", "conditional-put"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Table]:
    made = holdfast.create_table(str(tmp_path / "t.lance"), SCHEMA, commit_store=request.param)
    yield made
    made.close()


def age(uri: str, days: float = 8) -> None:
    """Make everything of a table look as if it was written days ago."""
    then = time.time() - days * DAY
    for file in Path(uri).rglob("*"):
        if file.is_file() and not file.name.startswith("commits.db"):
            os.utime(file, (then, then))


def count_reads(
    monkeypatch: pytest.MonkeyPatch, verb: Callable[[str], object], uri: str
) -> list[str]:
    """Return the manifests and transaction files that a verb reads from the disk."""
    read: list[str] = []
    get = LocalStore.get

    def noted(self: LocalStore, path: str, **options: Any) -> bytes:
        read.append(path)
        return get(self, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "get", noted)
        verb(uri)
    return [path for path in read if path.endswith((".manifest", ".txn"))]


def answers(uri: str) -> tuple[object, ...]:
    """Return what vacuum plans and doctor finds, without times."""
    plan, diagnosis = vacuum(uri), doctor(uri)
    return (
        [(one.kind, one.path) for one in (*plan.leftovers, *plan.waiting)],
        [(f.kind, f.severity, f.what, f.path, f.version) for f in diagnosis.findings],
        (plan.raised, diagnosis.version, diagnosis.versions, diagnosis.transactions),
    )


@pytest.mark.requirement("O3")
@pytest.mark.parametrize("verb", [vacuum, doctor])
def test_the_next_run_reads_what_is_new(
    table: holdfast.Table, verb: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        table.append(rows(number))
    age(table.uri)
    first = count_reads(monkeypatch, verb, table.uri)
    again = count_reads(monkeypatch, verb, table.uri)
    assert len(first) >= 12
    assert len(again) <= 2  # doctor looks at the newest version itself, before and after
    newest = version_name(table.append(rows(99)).version).path
    more = count_reads(monkeypatch, verb, table.uri)
    assert len(more) <= len(again) + 3
    assert newest in more


def test_what_one_verb_read_the_other_needs_not(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        table.append(rows(number))
    age(table.uri, days=1)  # transactions of commits that may be under way are read by both
    vacuum(table.uri)
    assert len(count_reads(monkeypatch, doctor, table.uri)) <= 2


@pytest.mark.requirement("O3")
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_a_run_that_remembers_nothing(
    table: holdfast.Table, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    table.append(rows(1, 2, 3))

    def compact() -> None:
        table.dataset().optimize.compact_files()

    def lose_rows() -> None:
        Path(table.uri, "data", f"lost-{chance.random()}.lance").write_bytes(b"nobody's")

    steps: list[Callable[[], object]] = [
        lambda: table.append(rows(*range(chance.randrange(1, 5)))),
        lambda: table.append(rows(*range(chance.randrange(1, 5)))),
        lambda: table.append(rows(7), txn=f"t{chance.random()}"),
        lambda: table.dataset().delete("id = 1"),
        compact,
        lambda: table.dataset().delete("true"),
        lambda: vacuum(table.uri, confirm=True),
        lose_rows,
    ]
    for _ in range(14):
        chance.choice(steps)()
        if chance.random() < 0.7:
            age(table.uri, days=chance.choice([1, 8]))
        remembered = answers(table.uri)
        with monkeypatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path / "none" / str(chance.random())))
            assert answers(table.uri) == remembered


def test_a_manifest_of_the_same_size_and_time_is_read_again(table: holdfast.Table) -> None:
    table.append(rows(1))
    table.append(rows(2))
    age(table.uri)
    assert vacuum(table.uri).leftovers == ()
    manifest = Path(table.uri, version_name(2).path)
    before, body = manifest.stat(), manifest.read_bytes()
    manifest.write_bytes(b"x" * len(body))
    os.utime(manifest, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert manifest.stat().st_size == before.st_size
    broken = [one for one in doctor(table.uri).findings if one.version == 2]
    assert broken


def test_a_table_made_anew_in_the_same_place_is_read_anew(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    for number in range(2):
        shutil.rmtree(uri, ignore_errors=True)
        with_rows = holdfast.create_table(uri, SCHEMA)
        for _ in range(3):
            with_rows.append(rows(number))
        with_rows.close()
        orphan = Path(uri, "data", f"orphan{number}.lance")
        orphan.write_bytes(b"nobody's")
        age(uri)
        plan = vacuum(uri)
        assert [one.path for one in plan.waiting] == [f"data/{orphan.name}"]


def test_what_is_younger_than_a_minute_is_not_remembered(
    table: holdfast.Table, cache: Path
) -> None:
    table.append(rows(1))
    vacuum(table.uri)
    doctor(table.uri)
    assert not list(cache.glob("*")) if cache.exists() else True


def spoil_memory(table: holdfast.Table, version: int, body: bytes) -> None:
    """Let the memory say that a version is other bytes."""
    store = open_store(table.uri)
    memory = open_memory(store, table._core.arbiter.pin, time.time())
    info = store.head(version_name(version).path)
    kept = memory._objects[info.path]
    memory._objects[info.path] = replace(kept, body=body, parent=None)
    memory._changed = True
    memory.save(list(memory._objects))


@pytest.mark.requirement("O3")
def test_a_memory_that_lies_deletes_nothing(table: holdfast.Table) -> None:
    first = table.append(rows(1)).version
    (shown,) = lance.dataset(table.uri, version=first).get_fragments()
    file = Path(table.uri, "data", shown.metadata.files[0].path)
    table.dataset().delete("id = 1")
    table.append(rows(3))
    age(table.uri)
    vacuum(table.uri)
    # The only version that shows the file is said to be one that does not.
    empty = Path(table.uri, version_name(1).path).read_bytes()
    spoil_memory(table, first, empty)
    listed = vacuum(table.uri, confirm=True)
    assert f"data/{file.name}" in {one.path for one in listed.waiting}  # the lie is believed
    age(table.uri)
    vacuum(table.uri)  # the files' times changed: it remembers anew
    spoil_memory(table, first, empty)
    plan = vacuum(table.uri)
    assert f"data/{file.name}" in {one.path for one in plan.leftovers}
    done = vacuum(table.uri, confirm=True)
    assert f"data/{file.name}" not in {one.path for one in done.leftovers}
    assert file.exists()
    assert lance.dataset(table.uri, version=first).count_rows() == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "other format", "others may write", "folder"])
def test_a_damaged_memory_counts_as_none(
    table: holdfast.Table, damage: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        table.append(rows(number))
    age(table.uri)
    vacuum(table.uri)
    (file,) = cache.glob("*.bin")
    assert file.stat().st_mode & 0o777 == 0o600
    body = file.read_bytes()
    if damage == "cut":
        file.write_bytes(body[: len(body) // 2])
    elif damage == "flipped":
        file.write_bytes(body[:-5] + bytes([body[-5] ^ 1]) + body[-4:])
    elif damage == "other format":
        file.write_bytes(b"{}")
    elif damage == "others may write":
        file.chmod(0o666)
    else:
        file.unlink()
        file.mkdir()
    assert len(count_reads(monkeypatch, vacuum, table.uri)) >= 5
    assert doctor(table.uri).healthy


def test_without_a_place_to_remember_nothing_fails(
    table: holdfast.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(rows(1))
    age(table.uri)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert vacuum(table.uri).leftovers == ()
    assert doctor(table.uri).healthy


def test_a_child_is_forgotten_with_its_parent(tmp_path: Path) -> None:
    memory = ReadMemory(tmp_path / "m.bin", now=1000.0)
    info = ObjectInfo(path="a", size=1, modified=1.0, tag="t")
    memory.keep(info, b"a", parent=(9, "x"))
    memory.save(["a"])
    again = ReadMemory(tmp_path / "m.bin", now=1000.0)
    assert again.recall(info) == Remembered(
        size=1, modified=1.0, tag="t", body=b"a", parent=(9, "x")
    )
    assert again.recall(replace(info, tag="other")) is None
    assert again.recall(replace(info, tag=None)) is None
    again.save([])
    assert ReadMemory(tmp_path / "m.bin", now=1000.0).recall(info) is None


def test_on_an_object_store_the_next_run_asks_for_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.upkeep._memory._SETTLED_SECONDS", -60.0)  # do not wait for it
    with FaultyS3Process() as server:
        uri, options = server.url("bucket", "t.lance"), dict(server.storage_options())
        table = holdfast.create_table(uri, SCHEMA, storage_options=options)
        for number in range(20):
            table.append(rows(number))
        table.close()

        def requests(verb: Callable[..., object]) -> int:
            before = sum(one.requests for one in server.control.totals().values())
            verb(uri, options)
            return sum(one.requests for one in server.control.totals().values()) - before

        for verb in (vacuum, doctor):
            shutil.rmtree(os.environ["XDG_CACHE_HOME"])
            first, again = requests(verb), requests(verb)
            assert first - again >= 40  # 20 manifests, 20 transaction files
