"""`holdfast copy`: a table at another place, complete, checked, and with an id of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from commits.table_worker import set_up
from holdfast.arbiter.stores.sqlite import SqliteCommitStore
from holdfast.cli import _copy as copy_command
from holdfast.cli import main
from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    HoldfastError,
    PermissionDeniedError,
)
from holdfast.formats import HINT_PATH, version_of
from holdfast.storage import LocalStore, ObjectInfo
from holdfast.testing import FakeCloud, FaultyS3
from holdfast.upkeep import copy_files, doctor, plan_copy

pytestmark = pytest.mark.requirement("C5")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


def row(number: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"row {number}"}]


def make(place: str, commit_store: str | None) -> None:
    """Create a table with appends under txns, an index, SSTables, and rows that wait in the log."""
    table = holdfast.create_table(place, SCHEMA, primary_key=["id"], commit_store=commit_store)
    with contextlib.closing(table):
        for number in range(3):
            table.append(row(number), txn=f"t{number}")
        table.create_index("text")
        with table.claim_writer("unsharded") as writer:
            writer.put(row(10))
            writer.flush()
            writer.put(row(11))


def check_goes_on(place: str, options: dict[str, str] | None = None) -> None:
    """Check that the copy has it all, remembers txns, and can be written."""
    with contextlib.closing(holdfast.open_table(place, storage_options=options)) as copy:
        assert copy.append(row(0), txn="t0").applied is False
        copy.append(row(3), txn="t3")
        with copy.claim_writer("unsharded") as writer:
            writer.put(row(12))
        found = copy.scan().read_all()["id"].to_pylist()
        assert sorted(found) == [0, 1, 2, 3, 10, 11, 12]
        copy.compact_lsm()
        assert copy.search("text", "11")["id"].to_pylist() == [11]
    assert doctor(place, options).findings == ()


@pytest.fixture(params=["conditional-put", "embedded", "sqlite"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    stores = {"embedded": "sqlite", "sqlite": f"sqlite:///{tmp_path}/commits.db"}
    commit_store = stores.get(request.param)
    if request.param == "sqlite":
        set_up(str(commit_store))
    make(str(tmp_path / "source"), commit_store)
    return str(tmp_path / "source")


def test_a_copy_is_a_table_of_its_own(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "target")
    assert main(["copy", source, "--to", target]) == 0
    assert "plan: copy" in capsys.readouterr().out
    assert not Path(target).exists()
    assert main(["copy", source, "--to", target, "--confirm", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["missing"] == []
    check_goes_on(target)
    with contextlib.closing(holdfast.open_table(source)) as original:
        assert original.pin is not None
        assert original.pin.table_id != shown["table_id"]
        original.append(row(4))
        assert sorted(original.scan().read_all()["id"].to_pylist()) == [0, 1, 2, 4, 10, 11]
    assert main(["copy", source, "--to", target, "--confirm"]) != 0, "copied over a table"


def test_to_another_kind_of_store(
    source: str, tmp_path: Path, fake_cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From local disk to a bucket of Tencent COS, where a commit store must decide."""
    url = f"sqlite:///{tmp_path}/other.db?single_host=true"
    set_up(url)
    options = fake_cloud.storage_options("cos")
    target = f"cos://lake/{Path(source).parent.name}"
    words = [word for pair in options.items() for word in ("--to-option", "=".join(pair))]
    command = ["copy", source, "--to", target, *words, "--confirm"]
    if "commit-store" not in str(Path(source, "_holdfast/pin.json").read_text()):
        assert main(command) != 0, "a store that cannot decide was trusted"
    assert main([*command, "--commit-store", url]) == 0
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", url)
    check_goes_on(target, options)


def test_cut_off_it_shows_whole_versions_and_goes_on(source: str, tmp_path: Path) -> None:
    """Cut it off after every file: whatever a stock reader sees is whole; repeated, it ends."""
    origin, seen = LocalStore(Path(source)), set()
    files = len(plan_copy(origin, LocalStore(tmp_path / "none")).files)
    for allowed in range(files):
        target = tmp_path / f"target-{allowed}"
        store = CutOff(target, allowed)
        with pytest.raises(OSError, match="cut off"):
            copy_files(origin, store, plan_copy(origin, store))
        with contextlib.suppress(ValueError):
            seen.add(lance.dataset(str(target)).to_table().num_rows)
        if allowed in {files // 2, files - 1}:
            assert main(["copy", source, "--to", str(target), "--confirm"]) == 0
            check_goes_on(str(target))
        shutil.rmtree(target, ignore_errors=True)
    assert seen <= {0, 1, 2, 3}
    assert 3 in seen


class Watched(LocalStore):
    """Notes what was there when a file came."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, fsync=False)
        self.came: list[str] = []
        self._lock = threading.Lock()

    def put(self, path: str, body: bytes) -> None:
        super().put(path, body)
        with self._lock:
            self.came.append(path)


def test_versions_come_last_and_in_order_and_the_hint_behind_them(
    source: str, tmp_path: Path
) -> None:
    origin, target = LocalStore(Path(source)), Watched(tmp_path / "target")
    copy_files(origin, target, plan_copy(origin, target))
    versions = [version_of(path) for path in target.came]
    copied = [number for number in versions if number is not None]
    assert copied == sorted(copied)
    assert len(copied) > 3
    assert target.came[-1] == HINT_PATH
    before = versions.index(copied[0])
    assert before == len(target.came) - len(copied) - 1, "a version came before its files"


WRITES = {
    LocalStore: ("put", "put_if_absent", "copy", "delete"),
    SqliteCommitStore: ("put_if_absent", "compare_and_set", "collect", "retire"),
}


@pytest.mark.parametrize("applied", [False, True])
def test_cut_off_while_the_copy_is_tied_it_is_finished_by_adopt(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], applied: bool
) -> None:
    """Cut it off before and after every writing call between the last file and the check.

    While the pin is there and the versions are not accepted, nobody reads or writes the copy by
    what it seems to be.
    """
    with contextlib.closing(holdfast.open_table(source)) as table:
        assert table.pin is not None
        decider = table.pin.store_url
    by_adopt = 0
    for place in range(50):
        target = str(tmp_path / f"target-{place}")
        with pytest.MonkeyPatch.context() as patch:
            reached = cut_adoption(patch, place, applied=applied)
            assert main(["copy", source, "--to", target, "--confirm"]) == 0 or reached.cut
        if not reached.cut:
            break
        if main(["copy", source, "--to", target, "--confirm"]) != 0:
            assert "holdfast adopt" in capsys.readouterr().err
            refuse_half_tied(target, tied=decider is None or reached.accepted)
            words = ["--commit-store", decider] if decider else []
            assert main(["adopt", target, *words, "--confirm"]) == 0
            by_adopt += 1
        check_goes_on(target)
    # By its own condition the pin is the only step.
    assert by_adopt >= (int(applied) if decider is None else 3), "steps were not met"


def refuse_half_tied(target: str, *, tied: bool) -> None:
    """Check that a copy is whole, or that everybody who opens it is stopped."""
    if tied:
        return
    for use in (read, write):
        with pytest.raises(HoldfastError), contextlib.closing(holdfast.open_table(target)) as copy:
            use(copy)


def read(table: holdfast.Table) -> None:
    table.scan().read_all()


def write(table: holdfast.Table) -> None:
    table.append(row(99))


class Reached:
    """Whether an adoption was cut off, and what it had done before."""

    cut = False
    accepted = False


def cut_adoption(patch: pytest.MonkeyPatch, place: int, *, applied: bool) -> Reached:
    """Let the n-th writing call of an adoption fail, before or after it is applied."""
    reached, calls, begun = Reached(), itertools.count(), []
    adopt = holdfast.adopt_table

    def adopt_table(*arguments: Any, **more: Any) -> Any:
        begun.append(True)
        return adopt(*arguments, **more)

    def failing(verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **more: Any) -> Any:
            cut = bool(begun) and not reached.cut and next(calls) == place
            if cut and not applied:
                reached.cut = True
                raise PermissionDeniedError("cut off")
            answer = call(*arguments, **more)
            reached.accepted |= bool(begun) and verb == "collect"
            if cut:
                reached.cut = True
                raise PermissionDeniedError("cut off")
            return answer

        return act

    patch.setattr(copy_command, "adopt_table", adopt_table)
    for owner, verbs in WRITES.items():
        for verb in verbs:
            patch.setattr(owner, verb, failing(verb, getattr(owner, verb)))
    return reached


class CutOff(LocalStore):
    """Breaks after some puts."""

    def __init__(self, root: Path, allowed: int) -> None:
        super().__init__(root, fsync=False)
        self._allowed = allowed

    def put(self, path: str, body: bytes) -> None:
        if not self._allowed:
            raise OSError("cut off")
        self._allowed -= 1
        super().put(path, body)


class Written(LocalStore):
    """Gets one more file while it is copied."""

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        if not (self.root / "data/late.lance").exists():
            self.put("data/late.lance", b"late")
        return super().get(path, start=start, end=end)


def test_a_table_that_is_written_meanwhile_is_noticed(source: str, tmp_path: Path) -> None:
    origin, target = Written(Path(source)), LocalStore(tmp_path / "target")
    with pytest.raises(ConflictError, match="written while it was copied"):
        copy_files(origin, target, plan_copy(origin, target))
    copy_files(origin, target, plan_copy(origin, target))


def test_nothing_else_is_written_over(source: str, tmp_path: Path) -> None:
    origin, target = LocalStore(Path(source)), LocalStore(tmp_path / "target")
    target.put("data/of-another-table.lance", b"x")
    with pytest.raises(AlreadyExistsError, match="not of this table"):
        plan_copy(origin, target)
    assert main(["copy", source, "--to", source, "--confirm"]) != 0


def test_large_files_that_are_there_are_not_copied_again(tmp_path: Path) -> None:
    origin, target = LocalStore(tmp_path / "source"), LocalStore(tmp_path / "target")
    for store in (origin, target):
        store.put("data/large.lance", bytes(1 << 20))
        store.put("_versions/latest_version_hint.json", b"{}")
    planned: tuple[ObjectInfo, ...] = plan_copy(origin, target).files
    assert [info.path for info in planned] == ["_versions/latest_version_hint.json"]


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        yield server


def test_from_disk_to_s3(tmp_path: Path, s3: FaultyS3) -> None:
    make(str(tmp_path / "source"), None)
    options, target = s3.storage_options(), s3.url("lake", "copy")
    words = [word for pair in options.items() for word in ("--to-option", "=".join(pair))]
    assert main(["copy", str(tmp_path / "source"), "--to", target, *words, "--confirm"]) == 0
    check_goes_on(target, options)
