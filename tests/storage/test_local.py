"""A folder as a store: durable when a call returns, one winner per name, no half files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.storage import LocalStore, open_store
from storage.mounts import mounted, remount

TEMPORARY = "_holdfast/temporary"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root, fsync=False)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that fills with the paths that are fsynced, in order."""
    paths: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def leftovers(root: Path) -> list[Path]:
    folder = root / TEMPORARY
    return list(folder.iterdir()) if folder.exists() else []


# One call at a time


@pytest.mark.requirement("C2")
def test_put_get_head_copy_delete(store: LocalStore) -> None:
    store.put("a/b.bin", b"hello")
    assert store.get("a/b.bin") == b"hello"
    info = store.head("a/b.bin")
    assert (info.path, info.size) == ("a/b.bin", 5)
    assert info.modified > 1_600_000_000
    store.copy("a/b.bin", "c")
    store.delete(["a/b.bin"])
    assert [i.path for i in store.list()] == ["c"]


def test_put_replaces_and_put_if_absent_does_not(store: LocalStore) -> None:
    store.put_if_absent("x", b"first")
    with pytest.raises(AlreadyExistsError) as caught:
        store.put_if_absent("x", b"second")
    assert caught.value.details["path"] == "x"
    assert store.get("x") == b"first"
    store.put("x", b"third")
    assert store.get("x") == b"third"


@pytest.mark.parametrize("body", [b"", b"x", bytes(3 << 20)], ids=["empty", "one", "3MiB"])
def test_bodies_of_any_size_come_back(store: LocalStore, body: bytes) -> None:
    store.put_if_absent("x", body)
    store.copy("x", "y")
    assert store.get("x") == store.get("y") == body


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (3, 5, b"34"),
        (0, 10, b"0123456789"),
        (5, 99, b"56789"),
        (5, 5, b""),
        (7, 5, b""),
        (10, None, b""),
        (50, 60, b""),
    ],
)
def test_ranges(store: LocalStore, start: int, end: int | None, wanted: bytes) -> None:
    store.put("x", b"0123456789")
    assert store.get("x", start=start, end=end) == wanted


@pytest.mark.parametrize(("start", "end"), [(-1, None), (0, -1), (-5, 3)])
def test_a_negative_range_is_refused(store: LocalStore, start: int, end: int) -> None:
    store.put("x", b"0123456789")
    with pytest.raises(InvalidInputError, match="range"):
        store.get("x", start=start, end=end)


@pytest.mark.parametrize("path", ["nothing", "no/folder/either", "folder", "file/below"])
def test_what_is_not_there_is_not_found(store: LocalStore, path: str) -> None:
    store.put("folder/x", b"")
    store.put("file", b"")
    calls: list[Callable[[], object]] = [
        lambda: store.get(path),
        lambda: store.get(path, start=2, end=4),
        lambda: store.head(path),
        lambda: store.copy(path, "target"),
    ]
    for call in calls:
        with pytest.raises(NotFoundError):
            call()
    with pytest.raises(NotFoundError):
        store.get("target")


def test_delete_of_what_is_not_there_is_fine(store: LocalStore, root: Path) -> None:
    store.put("folder/x", b"")
    store.put("file", b"")
    store.delete(["nothing", "no/folder", "file/below", "folder/x", "file"])
    assert store.list() == []
    store.delete(["folder"])
    assert (root / "folder").is_dir()


@pytest.mark.parametrize("path", ["folder", "file/below"])
def test_a_file_and_a_folder_cannot_share_a_name(store: LocalStore, path: str) -> None:
    store.put("folder/x", b"")
    store.put("file", b"")
    with pytest.raises(InvalidInputError, match="share a name"):
        store.put(path, b"")
    assert leftovers(Path(store.location.removeprefix("file://"))) == []


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(tmp_path / "file", fsync=False)
    with pytest.raises(InvalidInputError, match="share a name"):
        store.put("x", b"")
    assert store.list() == []


def test_paths_are_checked_in_every_call(store: LocalStore) -> None:
    calls: list[Callable[[str], object]] = [
        store.get,
        store.head,
        store.list,
        lambda path: store.list(after=path),
        lambda path: store.put(path, b""),
        lambda path: store.put_if_absent(path, b""),
        lambda path: store.copy(path, "x"),
        lambda path: store.copy("x", path),
        lambda path: store.delete([path]),
        lambda path: store.sync([path]),
    ]
    store.put("x", b"")
    for call in calls:
        for path in ("../escape", "/etc/passwd", "a//b", "a%2fb"):
            with pytest.raises(InvalidInputError):
                call(path)


def test_a_relative_root_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="absolute"):
        LocalStore(Path("relative"))


# Listing


def test_a_prefix_is_a_folder_and_the_order_is_by_path(store: LocalStore) -> None:
    for path in ("a/2", "a/1", "a/sub/3", "ab/4", "a.x", "b"):
        store.put(path, path.encode())
    assert [i.path for i in store.list("a")] == ["a/1", "a/2", "a/sub/3"]
    assert [i.path for i in store.list("a", after="a/1")] == ["a/2", "a/sub/3"]
    assert [i.path for i in store.list(after="a/sub/3")] == ["ab/4", "b"]
    assert [i.size for i in store.list("a")] == [3, 3, 7]
    everything = [i.path for i in store.list()]
    assert everything == sorted(everything)
    assert everything == ["a.x", "a/1", "a/2", "a/sub/3", "ab/4", "b"]


def test_lists_of_nothing_are_empty(store: LocalStore) -> None:
    assert store.list() == []
    assert store.list("nowhere") == []
    store.put("file", b"")
    assert store.list("file") == []
    assert [i.path for i in store.list(after="a")] == ["file"]


def test_a_file_that_vanishes_during_a_list_is_left_out(store: LocalStore, root: Path) -> None:
    store.put("x", b"")
    (root / "dangling").symlink_to(root / "nowhere")
    assert [i.path for i in store.list()] == ["x"]


# Races


def test_eight_threads_have_one_winner_per_name(store: LocalStore) -> None:
    barrier = threading.Barrier(8)

    def create(number: int) -> list[bool]:
        won = []
        for round_ in range(25):
            barrier.wait(60)
            try:
                store.put_if_absent(f"race/{round_}", b"%d" % number)
                won.append(True)
            except AlreadyExistsError:
                won.append(False)
        return won

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(create, range(8)))
    for round_, results in enumerate(zip(*outcomes, strict=True)):
        assert sum(results) == 1
        assert store.get(f"race/{round_}") == b"%d" % results.index(True)


RACER = """
import sys, time
from pathlib import Path
from holdfast.errors import AlreadyExistsError
from holdfast.storage import LocalStore

root, meeting, me = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
store = LocalStore(root, fsync=False)
for round_ in range(15):
    (meeting / f"{round_}-{me}").touch()
    deadline = time.monotonic() + 60
    while len(list(meeting.glob(f"{round_}-*"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.0005)
    try:
        store.put_if_absent(f"race/{round_}", me.encode())
        print("won")
    except AlreadyExistsError:
        print("lost")
"""


def test_four_processes_have_one_winner_per_name(root: Path, tmp_path: Path) -> None:
    (tmp_path / "meeting").mkdir()
    command = [sys.executable, "-c", RACER, str(root), str(tmp_path / "meeting")]
    racers = [
        subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(4)
    ]
    outcomes = [racer.communicate(timeout=200)[0].split() for racer in racers]
    store = LocalStore(root)
    for round_, results in enumerate(zip(*outcomes, strict=True)):
        assert sorted(results) == ["lost", "lost", "lost", "won"]
        assert store.get(f"race/{round_}") == b"%d" % results.index("won")


def test_a_reader_never_sees_half_an_overwrite(store: LocalStore) -> None:
    bodies = [bytes([n]) * 200_000 for n in range(2)]
    store.put("x", bodies[0])
    stop = threading.Event()

    def write() -> None:
        for turn in range(60):
            store.put("x", bodies[turn % 2])
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not stop.is_set() or reads == 0:
        assert store.get("x") in bodies
        reads += 1
    writer.join()


# Copies


def test_a_copy_is_a_file_of_its_own(store: LocalStore, root: Path) -> None:
    store.put("source", b"before")
    store.copy("source", "target")
    assert (root / "source").stat().st_ino != (root / "target").stat().st_ino
    assert (root / "target").stat().st_nlink == 1
    with (root / "source").open("r+b") as file:  # as a library would that writes in place
        file.write(b"AFTER!")
    assert store.get("target") == b"before"


def test_a_copy_replaces_unless_told_not_to(store: LocalStore) -> None:
    store.put("source", b"new")
    store.put("target", b"old")
    with pytest.raises(AlreadyExistsError) as caught:
        store.copy("source", "target", if_absent=True)
    assert caught.value.details["path"] == "target"
    assert store.get("target") == b"old"
    store.copy("source", "target")
    store.copy("source", "fresh", if_absent=True)
    assert store.get("target") == store.get("fresh") == b"new"
    assert store.copies_if_absent


# Durability


@pytest.mark.requirement("C2")
@pytest.mark.parametrize("verb", ["put", "put_if_absent", "copy"])
def test_the_file_then_its_folder_is_fsynced_before_the_return(
    root: Path, synced: list[str], verb: str
) -> None:
    store = LocalStore(root)
    store.put("source", b"bytes")
    store.put("folder/earlier", b"")
    synced.clear()
    if verb == "copy":
        store.copy("source", "folder/x")
    else:
        getattr(store, verb)("folder/x", b"bytes")
    assert len(synced) == 2
    assert synced[0].startswith(str(root / TEMPORARY))
    assert synced[1] == str(root / "folder")


def test_nothing_is_fsynced_when_switched_off(root: Path, synced: list[str]) -> None:
    store = LocalStore(root, fsync=False)
    store.put("a/b/x", b"")
    store.put_if_absent("a/b/y", b"")
    store.copy("a/b/x", "a/b/z")
    store.sync(["a/b/x"])
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("a/b/x", b"")
    assert synced == []


def test_new_folders_are_fsynced_into_their_parents(root: Path, synced: list[str]) -> None:
    LocalStore(root).put("a/b/x", b"")
    for folder in (root.parent, root, root / "a", root / "a/b"):
        assert str(folder) in synced


def test_a_folder_that_another_process_just_made_is_made_durable_too(
    root: Path, synced: list[str]
) -> None:
    LocalStore(root, fsync=False).put("a/b/first", b"")
    store = LocalStore(root)
    store.put_if_absent("a/b/x", b"")
    for folder in (root.parent, root, root / "a", root / "a/b"):
        assert str(folder) in synced
    synced.clear()
    store.put_if_absent("a/b/y", b"")
    assert synced[1:] == [str(root / "a/b")]


def test_losing_a_name_makes_the_winners_name_durable(root: Path, synced: list[str]) -> None:
    LocalStore(root, fsync=False).put("folder/x", b"theirs")
    synced.clear()
    with pytest.raises(AlreadyExistsError):
        LocalStore(root).put_if_absent("folder/x", b"mine")
    assert str(root / "folder") in synced


def test_sync_covers_files_and_folders_that_another_library_wrote(
    root: Path, synced: list[str]
) -> None:
    store = LocalStore(root)
    for path in ("data/1.lance", "data/2.lance", "_transactions/0.txn"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"theirs")
    store.sync(["data/1.lance", "data/2.lance", "_transactions/0.txn"])
    wanted = ["data", "data/1.lance", "data/2.lance", "_transactions", "_transactions/0.txn"]
    assert {str(root / path) for path in wanted} | {str(root), str(root.parent)} == set(synced)
    assert synced.index(str(root / "data/2.lance")) < synced.index(str(root / "data"))
    with pytest.raises(NotFoundError):
        store.sync(["data/3.lance"])


def test_a_failing_fsync_fails_the_put(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(root)
    store.put("y", b"")

    def fsync(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UnavailableError, match="Input/output error"):
        store.put_if_absent("x", b"")
    assert not (root / "x").exists()
    assert leftovers(root) == []


# Temporary files


def test_temporary_files_are_in_one_folder_and_removed(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = os.open

    def record(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            opened.append(str(path))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", record)
    store.put("x", b"")
    store.put_if_absent("y", b"")
    store.copy("x", "z")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("x", b"")
    with pytest.raises(NotFoundError):
        store.copy("nothing", "w")
    assert opened
    assert all(path.startswith(str(root / TEMPORARY)) for path in opened)
    assert leftovers(root) == []


# Trouble with the disk


@pytest.mark.requirement("C2")
def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "size=1m") as folder:
        store = LocalStore(folder / "table")
        store.put("x", b"small")
        for verb in (store.put, store.put_if_absent):
            with pytest.raises(UnavailableError, match="No space left") as caught:
                verb("big", bytes(2 << 20))
            assert caught.value.details["path"] == "big"
        with pytest.raises(UnavailableError, match="No space left"):
            store.put("x", bytes(2 << 20))
        assert store.get("x") == b"small"
        assert [i.path for i in store.list()] == ["x"]
        assert leftovers(folder / "table") == []


@pytest.mark.requirement("C2")
def test_a_read_only_place_is_refused(tmp_path: Path) -> None:
    with mounted(tmp_path / "fixed", "size=1m") as folder:
        store = LocalStore(folder / "table")
        store.put("x", b"kept")
        remount(folder, "ro")
        calls: list[Callable[[], object]] = [
            lambda: store.put("y", b""),
            lambda: store.put_if_absent("y", b""),
            lambda: store.copy("x", "y"),
            lambda: store.delete(["x"]),
            lambda: LocalStore(folder / "other").put("x", b""),
        ]
        for call in calls:
            with pytest.raises(PermissionDeniedError, match="Read-only"):
                call()
        assert store.get("x") == b"kept"


# Opening


def test_one_folder_has_one_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b/table").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a b")
    monkeypatch.chdir(tmp_path / "a b")
    wanted = f"file://{tmp_path}/a%20b/table"
    for spelling in (
        tmp_path / "a b/table",
        f"{tmp_path}/a b/table/",
        f"file://{tmp_path}/a%20b/table",
        f"file://localhost{tmp_path}/a%20b/table",
        "table",
        "./table",
        "../a b/table",
        f"{tmp_path}/link/table",
        f"{tmp_path}/a b/../a b/table",
    ):
        assert open_store(spelling).location == wanted


@pytest.mark.parametrize(
    "url", ["", "  ", "file://", "file://host/x", "file:///a%00b", "a\0b", "a\nb", "~nobody-here/x"]
)
def test_a_malformed_place_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError):
        open_store(url)
