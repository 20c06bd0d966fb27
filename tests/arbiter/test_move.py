"""A table moves to another commit store: nothing is lost, wherever the move is cut off.

The rows of the crash table in `arbiter/_move.py`: every call to a store and to both commit stores
fails once, before or after it was applied; then the same command is given again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from command_line import Cli
from commits.table_worker import set_up
from holdfast.arbiter import _move, connect_commit_store, move_commit_store, read_pin
from holdfast.errors import (
    ForeignVersionError,
    HoldfastError,
    InvalidInputError,
    PinMismatchError,
    StaleHandleError,
    UnavailableError,
)
from holdfast.formats import version_name
from holdfast.storage import open_store
from holdfast.testing import FaultyS3

pytestmark = pytest.mark.requirement("P1")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


class Case:
    """A table on a store that ignores conditions, and two commit stores."""

    def __init__(self, s3: FaultyS3, folder: Path, name: str) -> None:
        self.uri, self.options = s3.url("lake", name), dict(s3.storage_options())
        self.old = set_up(f"sqlite:///{folder}/{name}-old.db?single_host=true")
        self.new = set_up(f"sqlite:///{folder}/{name}-new.db?single_host=true")
        self.table = holdfast.create_table(
            self.uri,
            SCHEMA,
            primary_key=["id"],
            storage_options=self.options,
            commit_store=self.old,
        )

    def open(self) -> holdfast.Table:
        return holdfast.open_table(self.uri, self.options)

    def move(self) -> None:
        move_commit_store(self.uri, self.options, to=self.new)

    def ids(self) -> list[int]:
        dataset = lance.dataset(self.uri, storage_options=self.options)
        return sorted(dataset.to_table()["id"].to_pylist())

    def url(self) -> str | None:
        pin = read_pin(open_store(self.uri, self.options))
        return None if pin is None else pin.store_url


def row(number: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"row {number}"}]


@pytest.fixture
def make(tmp_path: Path, faulty_s3: Callable[..., FaultyS3]) -> Iterator[Callable[[str], Case]]:
    server = faulty_s3(conditions="ignoring")
    cases: list[Case] = []

    def make(name: str) -> Case:
        cases.append(Case(server, tmp_path, name))
        return cases[-1]

    yield make
    for case in cases:
        case.table.close()


def test_a_table_with_a_log_moves_and_goes_on(make: Callable[[str], Case]) -> None:
    case = make("t")
    case.table.append(row(1), txn="first")
    writer = case.table.claim_writer("unsharded")
    for number in range(10, 15):
        writer.put(row(number))
    writer.flush()
    writer.put(row(15))
    case.move()
    assert case.url() == case.new
    with pytest.raises(HoldfastError):
        writer.put(row(99))
    writer.abort()
    with pytest.raises(StaleHandleError):
        case.table.append(row(2), txn="second")
    table = case.open()
    assert not table.append(row(1), txn="first").applied, "transaction ids moved as well"
    table.append(row(2), txn="second")
    with table.claim_writer("unsharded") as again:
        again.put(row(16))
    table.compact_lsm()
    assert case.ids() == [1, 2, *range(10, 17)]
    table.vacuum(confirm=True)
    table.close()
    case.move()  # a repeat changes nothing
    case.open().close()


def test_a_decision_that_was_not_copied_is_finished(make: Callable[[str], Case]) -> None:
    case = make("t")
    case.table.append(row(1))
    arbiter: Any = case.table.core.arbiter
    body, token = b"a manifest " + (t := holdfast.new_token()).encode(), t
    name = version_name(3)
    arbiter._copy_to_name = lambda *_: (_ for _ in ()).throw(UnavailableError("cut off"))
    with pytest.raises(HoldfastError):
        arbiter.decide(name, body, token)
    store = open_store(case.uri, case.options)
    assert not [info for info in store.list("_versions") if info.path == name.path]
    case.move()
    assert store.get(name.path) == body, "an unfinished decision was left to a late copy"


def test_a_strangers_version_stops_a_move_while_the_table_still_works(
    make: Callable[[str], Case],
) -> None:
    case = make("t")
    case.table.append(row(1), txn="one")
    store = open_store(case.uri, case.options)
    path = version_name(3).path
    store.put(path, store.get(version_name(2).path))
    with pytest.raises(ForeignVersionError):
        case.move()
    assert case.url() == case.old
    store.delete([path])  # the operator's way out
    assert case.open().append(row(2)).applied, "the move had closed the old store"


@pytest.mark.parametrize("applied", [False, True])
def test_a_move_that_is_cut_off_anywhere_is_finished_by_a_repeat(
    make: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """Every call of the move fails once; in between the table is whole, or says that it moves."""
    calls = count_calls(make("counted"), monkeypatch)
    assert calls >= 6
    for place in range(calls):
        case = make(f"t{place}{applied}")
        case.table.append(row(1), txn="one")
        with monkeypatch.context() as patch:
            cut(patch, place, applied=applied)
            with pytest.raises(UnavailableError, match="cut off"):
                case.move()
        try:  # the old handle, and one that is opened now
            case.table.append(row(2), txn="two")
        except StaleHandleError:
            append_if_it_opens(case)
        case.move()
        table = case.open()
        table.append(row(2), txn="two")
        table.append(row(3))
        assert case.ids() == [1, 2, 3], f"cut off at call {place}"
        assert case.url() == case.new
        table.close()


def append_if_it_opens(case: Case) -> None:
    if case.url() == case.new:
        case.open().append(row(2), txn="two")
        return
    with pytest.raises(UnavailableError, match="store move"):
        case.open()


def count_calls(case: Case, monkeypatch: pytest.MonkeyPatch) -> int:
    with monkeypatch.context() as patch:
        seen = cut(patch, None)
        case.move()
    return seen[0]


def cut(patch: pytest.MonkeyPatch, place: int | None, *, applied: bool = False) -> list[int]:
    """Let one call of a move fail: to the object store, or to either commit store."""
    seen = [0]

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **more: Any) -> Any:
            number, seen[0] = seen[0], seen[0] + 1
            if number == place and not applied:
                raise UnavailableError("cut off")
            answer = call(*arguments, **more)
            if number == place:
                raise UnavailableError("cut off")
            return answer

        return act

    class Cut:
        def __init__(self, inner: Any, verbs: frozenset[str]) -> None:
            self._inner, self._verbs = inner, verbs

        def __getattr__(self, name: str) -> Any:
            found = getattr(self._inner, name)
            return failing(found) if name in self._verbs else found

    writes = frozenset({"put_if_absent", "compare_and_set", "collect", "retire"})
    store_writes = frozenset({"put", "put_if_absent", "copy", "delete"})
    for name in ("connect_store", "connect_pinned"):
        opened = getattr(_move, name)
        patch.setattr(_move, name, lambda *a, opened=opened, **k: Cut(opened(*a, **k), writes))
    real = open_store
    patch.setattr(_move, "open_store", lambda *a, **k: Cut(real(*a, **k), store_writes))
    return seen


def test_only_one_of_two_moves_is_made(make: Callable[[str], Case], tmp_path: Path) -> None:
    case = make("t")
    other = set_up(f"sqlite:///{tmp_path}/other.db?single_host=true")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_move, "_close", lambda *_: (_ for _ in ()).throw(UnavailableError("cut")))
        with pytest.raises(UnavailableError):
            case.move()
    case.table.append(row(1))  # decided, not begun: the table works on
    with pytest.raises(PinMismatchError, match="begun before"):
        move_commit_store(case.uri, case.options, to=other)
    case.move()
    assert case.ids() == [1]


def test_copies_do_not_take_part_in_a_move(
    make: Callable[[str], Case], faulty_s3: Callable[..., FaultyS3]
) -> None:
    case = make("t")
    case.table.append(row(1))
    here = open_store(case.uri, case.options)
    there = open_store(case.uri + "-copy", case.options)
    for info in here.list():
        there.put(info.path, here.get(info.path))
    case.move()
    with pytest.raises(PinMismatchError, match="--copied"):
        move_commit_store(case.uri + "-copy", case.options, to=case.new)
    with pytest.raises(PinMismatchError):
        holdfast.open_table(case.uri + "-copy", case.options)
    assert case.open().append(row(2)).applied


def test_a_local_table_leaves_its_own_file_for_a_server(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t", SCHEMA, commit_store="sqlite")
    table.append(row(1), txn="one")
    url = set_up(f"sqlite:///{tmp_path}/server.db")
    assert move_commit_store(tmp_path / "t", to=url).store_url == url
    assert holdfast.open_table(tmp_path / "t").append(row(2)).applied
    back = move_commit_store(tmp_path / "t", to="sqlite")
    assert back.store_url == "sqlite"
    assert not holdfast.open_table(tmp_path / "t").append(row(1), txn="one").applied
    assert holdfast.open_table(tmp_path / "t").append(row(3)).applied


def test_a_table_without_a_commit_store_is_not_moved(tmp_path: Path) -> None:
    holdfast.create_table(tmp_path / "t", SCHEMA)
    url = set_up(f"sqlite:///{tmp_path}/server.db")
    with pytest.raises(InvalidInputError, match="adopt"):
        move_commit_store(tmp_path / "t", to=url)


def test_the_command(make: Callable[[str], Case], cli: Cli) -> None:
    case = make("t")
    options = [word for key, value in case.options.items() for word in ("-o", f"{key}={value}")]
    command = ["store", "move", case.uri, "--to", case.new, *options]
    assert "plan: " in cli.text(*command)
    assert case.url() == case.old
    assert "moved: " in cli.text(*command, "--confirm")
    assert case.url() == case.new
    report = cli.text("store", "check", case.new, "--json")
    assert '"decide": true' in report and '"races": 20' in report


def test_a_store_that_lets_two_win_is_unfit(tmp_path: Path) -> None:
    from holdfast.arbiter import check_store

    url = set_up(f"sqlite:///{tmp_path}/c.db")

    class Careless:
        """Tells everybody that they won."""

        def __init__(self) -> None:
            self._inner = connect_commit_store(url)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def put_if_absent(self, key: Any, value: bytes) -> bytes | None:
            self._inner.put_if_absent(key, value)
            return None

    report = check_store(Careless)
    assert any("won one name" in problem for problem in report.problems)
