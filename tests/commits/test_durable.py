"""On local disk every file that a version shows is fsynced before the version is decided."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

import holdfast
from commits.table_worker import Place, rows
from holdfast.arbiter import RecordedDecisions
from holdfast.commits._versions import Versions
from holdfast.errors import CommitUnknownError, PoisonedError, UnavailableError
from holdfast.formats import version_of
from holdfast.table import Table


def merge(table: Table) -> None:
    by_id = table.dataset().merge_insert("id")
    by_id.when_matched_update_all().when_not_matched_insert_all().execute(rows(1, 500))


OPERATIONS: dict[str, Callable[[Table], object]] = {
    "append": lambda t: t.append(rows(100), txn="once"),
    "insert": lambda t: t.dataset().insert(rows(101)),
    "merge_insert": merge,
    "delete": lambda t: t.dataset().delete("id = 2"),
    "update": lambda t: t.dataset().update({"text": "'new'"}, where="id = 3"),
    "compaction": lambda t: t.dataset().optimize.compact_files(),
    "scalar index": lambda t: t.dataset().create_scalar_index("id", "BTREE"),
    "text index": lambda t: t.dataset().create_scalar_index("text", "INVERTED"),
    "add_columns": lambda t: t.dataset().add_columns({"double": "id * 2"}),
    "overwrite": lambda t: t.dataset().insert(rows(9), mode="overwrite"),
}


class Disk:
    """What happened to the files of a table, in order."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[tuple[str, str]] = []

    def note(self, what: str, path: str) -> None:
        if path == str(self.root) or path.startswith(f"{self.root}/"):
            self.events.append((what, os.path.relpath(path, self.root)))

    def files(self) -> set[str]:
        found = (file for file in self.root.rglob("*") if file.is_file())
        return {
            path
            for path in (str(file.relative_to(self.root)) for file in found)
            if not path.startswith(("_holdfast/", "_versions/"))
        }

    def decided_at(self) -> int:
        """Return when the version was decided; compaction decides two, the last shows its files."""
        return max(i for i, (what, _) in enumerate(self.events) if what == "decided")


@pytest.fixture(params=[None, "sqlite"], ids=["conditional put", "commit store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(uri=str(tmp_path / "t.lance"), commit_store=request.param)


@pytest.fixture
def disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(Path(place.uri))
    fsync, link, replace, claim = os.fsync, os.link, os.replace, RecordedDecisions._claim

    def noted_fsync(fd: int) -> None:
        fsync(fd)
        disk.note("fsync", str(Path(f"/proc/self/fd/{fd}").readlink()))

    def noted_link(source: str, target: str) -> None:
        if version_of(os.path.relpath(target, disk.root)) and place.commit_store is None:
            disk.note("decided", target)
        link(source, target)

    def noted_replace(source: str, target: str) -> None:
        replace(source, target)
        if ("fsync", os.path.relpath(source, disk.root)) in disk.events:
            disk.note("fsync", target)  # the file was, under its first name

    def noted_claim(self: RecordedDecisions, *args: Any) -> Any:
        disk.note("decided", str(disk.root))
        return claim(self, *args)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(RecordedDecisions, "_claim", noted_claim)
    return disk


@pytest.mark.requirement("C2")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_files_are_durable_before_they_are_shown(place: Place, disk: Disk, operation: str) -> None:
    table = place.create()
    for first in (0, 10, 20):
        table.append(pa.concat_tables([rows(n) for n in range(first, first + 10)]))
    before = disk.files()
    disk.events.clear()
    OPERATIONS[operation](place.open())
    made = disk.files() - before
    assert made
    synced = [path for what, path in disk.events[: disk.decided_at()] if what == "fsync"]
    assert made <= set(synced)
    for folder in {os.path.dirname(path) for path in made}:  # noqa: PTH120
        files = [path for path in made if os.path.dirname(path) == folder]  # noqa: PTH120
        named = len(synced) - synced[::-1].index(folder)  # the folder's last fsync
        assert all(synced.index(path) < named for path in files)


@pytest.mark.requirement("C1")
def test_data_that_cannot_be_made_durable_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data is synced while Lance commits; the hook waits for it, and hears how it went."""
    table = Place(uri=str(tmp_path / "t.lance")).create()

    sync = Versions.sync

    def broken(self: Versions, paths: Sequence[str]) -> None:
        if any(path.startswith("data/") for path in paths):
            raise UnavailableError("the disk is broken")
        sync(self, paths)

    monkeypatch.setattr(Versions, "sync", broken)
    with pytest.raises(UnavailableError, match="the disk is broken"):
        table.append(rows(1), txn="once")
    monkeypatch.undo()
    assert table.dataset().version == 1
    assert table.append(rows(1), txn="once").applied


class BrokenDisk:
    """Fails the fsync of what `breaks` names, once; then it is forgotten, as systems do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, breaks: str) -> None:
        self.left = 1
        real = os.fsync

        def fsync(fd: int) -> None:
            path = str(Path(f"/proc/self/fd/{fd}").readlink())
            if self.left and path.endswith(breaks):
                self.left -= 1
                raise OSError(errno.EIO, "Input/output error")
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)


def act_append(table: Table) -> object:
    return table.append(rows(1), txn="once")


def act_delete(table: Table) -> object:
    operation = lance.LanceOperation.Delete([], [0], "true")
    return table.commit_operation(operation, read_version=table.dataset().version, txn="once")


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("act", [act_append, act_delete], ids=["append", "delete"])
def test_a_version_whose_name_is_not_durable_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Table], Any]
) -> None:
    """The name is there and reads back; a second fsync that succeeds proves nothing."""
    place = Place(uri=str(tmp_path / "t.lance"))
    table = place.create()
    table.append(rows(0))
    BrokenDisk(monkeypatch, "/_versions")
    with pytest.raises(CommitUnknownError, match=r"check the disk.*same txn"):
        act(table)
    for _ in range(2):  # the writer stops: it neither builds on that version nor calls it applied
        with pytest.raises(UnavailableError, match="open the table again"):
            act(table)
    with pytest.raises(UnavailableError, match="open the table again"):
        table.applied(["once"])
    assert act(place.open()).applied is False


@pytest.mark.requirement("P1")
def test_a_temporary_file_that_is_not_durable_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no name yet; the same bytes are written again, to another file."""
    table = Place(uri=str(tmp_path / "t.lance")).create()
    real = os.fsync
    failed: list[Path] = []

    def fsync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.parent.name == "temporary" and len(failed) < 3:
            failed.append(path)
            assert not any(file.samefile(path) for file in tmp_path.rglob("*.manifest"))
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(4):
        with suppress(UnavailableError):
            table.append(rows(1), txn="once")
    assert len(set(failed)) == 3  # each time another file
    assert table.dataset().count_rows() == 1


@pytest.mark.requirement("P1")
def test_rows_whose_fsync_failed_are_not_committed_by_a_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(uri=str(tmp_path / "t.lance"))
    table = place.create()
    fragments = write_fragments(rows(1), place.uri, mode="append")
    BrokenDisk(monkeypatch, ".lance")
    for _ in range(2):
        with pytest.raises(UnavailableError, match="sync"):
            table.commit(fragments, txn="once")
        table = place.open()  # nor by another handle
    assert table.dataset().count_rows() == 0
    assert table.append(rows(1), txn="once").applied


@pytest.mark.requirement("P1", "L11")
def test_a_log_entry_whose_name_is_not_durable_stops_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "t.lance")
    table = holdfast.create_table(uri, rows(0).schema, primary_key=["id"])
    table.dataset().initialize_mem_wal(maintained_indexes=[])
    writer = table.claim_writer("unsharded")
    writer.put(rows(1))
    BrokenDisk(monkeypatch, "/wal")
    with pytest.raises(PoisonedError):
        writer.put(rows(2))
    with pytest.raises(PoisonedError):
        writer.put(rows(3))
