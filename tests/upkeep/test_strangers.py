"""What a killed process, Lance or another program leaves stops nobody, and doctor tells."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import connect_commit_store, repin
from holdfast.errors import CorruptError
from holdfast.formats._snapshot import SNAPSHOT_PINS_FOLDER
from holdfast.testing import FaultyS3
from holdfast.upkeep import FindingKind, doctor

pytestmark = pytest.mark.requirement("P4")
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())],
)
SHARD = "11111111-2222-4333-8444-555555555555"
OLD = 20 * 24 * 3600
HOUR = timedelta(hours=1)
FOLDERS = (
    "",
    "data/",
    "_versions/",
    "_transactions/",
    "_deletions/",
    "_indices/",
    "_mem_wal/",
    f"_mem_wal/{SHARD}/",
    f"_mem_wal/{SHARD}/wal/",
    f"_mem_wal/{SHARD}/manifest/",
    "_holdfast/",
    "_holdfast/index/",
    "_holdfast/staged/",
    "_holdfast/vacuum/",
    "_holdfast/snapshots/",
    "_holdfast/boundary/",
    f"_holdfast/boundary/{SHARD}/",
    "_refs/tags/",
    "_refs/branches/",
    "tree/x/",
    "unknown/",
)
NAMES = (".tmpA1b2C3", ".DS_Store", "x.tmp", "stränge name #1?.json", "-dash", "a%20b", "x" * 240)


class Place(Protocol):
    uri: str
    options: dict[str, str]
    commit_store: str | None

    def leave(self, path: str) -> None: ...
    def let_age(self) -> None: ...


class Folder:
    def __init__(self, root: Path, commit_store: str | None) -> None:
        self.uri, self.commit_store = str(root), commit_store
        self.options: dict[str, str] = {}

    def leave(self, path: str) -> None:
        file = Path(self.uri, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"junk")

    def let_age(self) -> None:
        for file in Path(self.uri).rglob("*"):
            if file.is_file() and "commits.db" not in file.name:
                old = file.stat().st_mtime - OLD
                os.utime(file, (old, old))


class Bucket:
    def __init__(self, server: FaultyS3, commit_store: str | None) -> None:
        self.uri, self.options = server.url("bucket", "t"), dict(server.storage_options())
        self.commit_store = commit_store

    def leave(self, path: str) -> None:
        address = f"{self.options['aws_endpoint']}/bucket/t/{quote(path)}"
        request = urllib.request.Request(address, data=b"junk", method="PUT")
        urllib.request.urlopen(request).close()

    def let_age(self) -> None:
        """Nobody can make the objects of a bucket older."""


@pytest.fixture(params=["conditional", "embedded", "honest s3", "ignoring s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if not request.param.endswith("s3"):
        return Folder(tmp_path / "t", "sqlite" if request.param == "embedded" else None)
    server: FaultyS3 = request.getfixturevalue("faulty_s3")(conditions=request.param.split()[0])
    if request.param == "honest s3":
        return Bucket(server, None)
    url = f"sqlite:///{tmp_path}/decisions.db?single_host=true"
    store = connect_commit_store(url)
    store.set_up()  # type: ignore[attr-defined]
    store.close()
    return Bucket(server, url)


def batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": list(ids), "text": ["word"] * len(ids)}, schema=SCHEMA)


def make(place: Place) -> holdfast.Table:
    table = holdfast.create_table(
        place.uri,
        SCHEMA,
        primary_key=["id"],
        commit_store=place.commit_store,
        storage_options=place.options,
    )
    table.append([{"id": 1, "text": "word"}])
    with table.claim_writer(SHARD) as writer:
        writer.put(batch(2))
        writer.flush()
        writer.put(batch(3))
    table.create_index("text")
    return table


def inner_folders(table: holdfast.Table) -> list[str]:
    """Return the folders of the index and of the SSTable."""
    paths = [info.path.split("/") for info in table.core.store.list()]
    indexes = {f"_indices/{parts[1]}/" for parts in paths if parts[0] == "_indices"}
    tables = {"/".join(parts[:3]) + "/" for parts in paths if "_gen_" in "/".join(parts[:3])}
    return [*indexes, *tables, *(f"{folder}data/" for folder in tables)]


def test_nothing_stops_by_what_others_left(place: Place) -> None:
    table = make(place)
    for folder in (*FOLDERS, *inner_folders(table)):
        for name in NAMES:
            place.leave(f"{folder}{name}")
    if place.options:
        for folder in FOLDERS[1:]:
            place.leave(folder)  # as consoles make empty folders
    else:
        for folder in FOLDERS[1:]:
            Path(place.uri, folder, "empty").mkdir()
    place.let_age()
    table = holdfast.open_table(place.uri, place.options)
    table.append([{"id": 4, "text": "word"}])
    with table.claim_writer(SHARD) as writer:
        writer.put(batch(5))
        writer.flush()
    table.compact_lsm()
    assert sorted(table.to_table()["id"].to_pylist()) == [1, 2, 3, 4, 5]
    assert table.lookup([2]).num_rows == 1
    assert table.search("text", "word").num_rows == 5
    found = doctor(place.uri, place.options)
    assert found.healthy
    strays = [one for one in found.findings if one.kind is FindingKind.STRAY]
    assert any("no table has" in one.what for one in strays)
    table.history()
    table.status()
    table.vacuum(grace=HOUR, confirm=True)
    place.let_age()
    table.vacuum(grace=HOUR, confirm=True)
    table.vacuum(grace=HOUR, keep_versions_for=timedelta(days=7), confirm=True)
    table.maintain(confirm=True)
    assert sorted(table.to_table()["id"].to_pylist()) == [1, 2, 3, 4, 5]
    stock = lance.dataset(place.uri, storage_options=place.options or None)
    assert sorted(stock.to_table()["id"].to_pylist()) == [1, 2, 3, 4, 5]
    left = {info.path for info in table.core.store.list()}
    if not place.options:
        assert not left & {f"data/{name}" for name in NAMES[:3]}
    if place.commit_store and place.options:
        repin(place.uri, place.options, how="copied")
        assert holdfast.open_table(place.uri, place.options).count() == 5


@pytest.mark.parametrize("name", ["tags/broken.json", "branches/feature%2Fx.json"])
def test_versions_stay_while_a_tag_or_branch_cannot_be_read(tmp_path: Path, name: str) -> None:
    place = Folder(tmp_path / "t", None)
    table = make(place)
    for _ in range(3):
        table.append([{"id": 9, "text": "word"}])
    place.leave(f"_refs/{name}")
    place.leave("data/.tmpA1b2C3")
    place.let_age()
    week = timedelta(days=7)
    table.vacuum(grace=HOUR, keep_versions_for=week, confirm=True)
    place.let_age()
    done = table.vacuum(grace=HOUR, keep_versions_for=week, confirm=True)
    assert "data/.tmpA1b2C3" in {one.path for one in done.leftovers}
    assert len(table.history()) >= 5
    told = [one for one in doctor(place.uri).findings if one.kind is FindingKind.UNREADABLE]
    assert [one.path for one in told] == [f"_refs/{name}"]
    Path(place.uri, "_refs", name).unlink()
    place.let_age()
    table.vacuum(grace=HOUR, keep_versions_for=week, confirm=True)
    assert len(table.history()) <= 2


def test_a_damaged_pin_of_a_snapshot_ages_as_any_other(tmp_path: Path) -> None:
    place = Folder(tmp_path / "t", None)
    table = make(place)
    with table.snapshot(pinned=True):
        (pin,) = [info.path for info in table.core.store.list(SNAPSHOT_PINS_FOLDER)]
        Path(place.uri, pin).write_bytes(b"{")
        table.vacuum(grace=HOUR, confirm=True)
        place.let_age()
        table.vacuum(grace=HOUR, confirm=True)


def test_a_name_that_no_client_can_list_is_told(faulty_s3: Callable[..., FaultyS3]) -> None:
    """The client library of Lance refuses the whole listing, so nobody can pass it over."""
    place = Bucket(faulty_s3(), None)
    table = make(place)
    place.leave("data/a//b")
    for call in (lambda: doctor(place.uri, place.options), lambda: table.vacuum(confirm=True)):
        with pytest.raises(CorruptError, match="remove or rename") as caught:
            call()
        assert caught.value.name == "t/data/a//b"


def test_a_tag_of_stock_keeps_its_version(tmp_path: Path) -> None:
    place = Folder(tmp_path / "t", None)
    table = make(place)
    for _ in range(3):
        table.append([{"id": 9, "text": "word"}])
    lance.dataset(place.uri).tags.create("kept", 2)
    assert json.loads(Path(place.uri, "_refs/tags/kept.json").read_bytes())["version"] == 2
    place.let_age()
    table.vacuum(grace=HOUR, keep_versions_for=timedelta(days=7), confirm=True)
    assert 2 in {one.version for one in table.history()}
