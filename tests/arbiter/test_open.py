"""Tables are tied to their arbiter once, found again by their pin, and never mixed up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import servers
from holdfast._ids import RandomIds
from holdfast.arbiter import (
    ConditionalPut,
    Key,
    RecordedDecisions,
    Won,
    confirm_pin,
    connect_commit_store,
    create_arbiter,
    open_arbiter,
    pin_to_commit_store,
    read_pin,
    repin,
)
from holdfast.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PinMismatchError,
    UnsafeStoreError,
)
from holdfast.formats import PIN_PATH, decode_pin, version_name
from holdfast.storage import open_store
from holdfast.testing import FaultyS3

FIRST = version_name(1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)


def marked(text: str = "body") -> tuple[bytes, str]:
    token = RandomIds().token()
    return f"{text} {token}".encode(), token


def new_store(path: Path) -> str:
    url = f"sqlite:///{path}"
    with closing(connect_commit_store(url)) as store:
        store.set_up()  # type: ignore[attr-defined]
    return url


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def ignoring(faulty_s3: Callable[..., FaultyS3]) -> FaultyS3:
    return faulty_s3(conditions="ignoring")


@pytest.mark.requirement("C2", "C3")
def test_a_local_table_decides_by_its_disk(table: str) -> None:
    arbiter = create_arbiter(table)
    assert isinstance(arbiter, ConditionalPut)
    assert arbiter.decide(FIRST, *marked()) == Won()
    again = open_arbiter(table)
    assert isinstance(again, ConditionalPut)
    assert again.pin == arbiter.pin
    assert create_arbiter(table).pin == arbiter.pin


@pytest.mark.requirement("C5")
def test_the_embedded_commit_store_needs_no_set_up(table: str) -> None:
    arbiter = create_arbiter(table, commit_store="sqlite")
    body, token = marked()
    assert arbiter.decide(FIRST, body, token) == Won()
    again = open_arbiter(table)
    assert isinstance(again, RecordedDecisions)
    assert again.read(FIRST) == body
    assert (Path(table) / "_holdfast" / "commits.db").exists()


@pytest.mark.requirement("C3")
def test_a_store_that_fails_the_probe_is_refused(ignoring: FaultyS3) -> None:
    url, options = ignoring.url("bucket", "table"), ignoring.storage_options()
    with pytest.raises(UnsafeStoreError, match="commit store") as caught:
        create_arbiter(url, options)
    assert caught.value.verdict == "ignored"
    assert open_store(url, options).list() == []


@pytest.mark.requirement("C3")
def test_a_table_whose_store_began_to_lie_is_refused(
    faulty_s3: Callable[..., FaultyS3], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = faulty_s3()
    url, options = server.url("bucket", "table"), server.storage_options()
    create_arbiter(url, options)
    server.conditions = "ignoring"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    server.requests.clear()
    opened = open_arbiter(url, options)
    assert opened.read(FIRST) is None
    assert {seen.method for seen in server.requests.all()} == {"GET"}, "a reader never probes"
    with pytest.raises(UnsafeStoreError):
        opened.decide(FIRST, *marked())
    assert opened.read(FIRST) is None


@pytest.mark.requirement("C5")
def test_sqlite_for_a_remote_store_needs_a_word(ignoring: FaultyS3, tmp_path: Path) -> None:
    url, options = ignoring.url("bucket", "table"), ignoring.storage_options()
    store = new_store(tmp_path / "decisions.db")
    with pytest.raises(UnsafeStoreError, match="single_host"):
        create_arbiter(url, options, commit_store=store)
    arbiter = create_arbiter(url, options, commit_store=f"{store}?single_host=true")
    assert arbiter.decide(FIRST, *marked()) == Won()
    assert isinstance(open_arbiter(url, options), RecordedDecisions)


@pytest.mark.requirement("C5")
@pytest.mark.parametrize("server", ["postgres", "mariadb", "redis_server"])
def test_every_server_decides_for_an_ignoring_store(
    ignoring: FaultyS3,
    server: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running: servers.Server = request.getfixturevalue(server)
    with closing(connect_commit_store(running.url)) as store:
        store.set_up()  # type: ignore[attr-defined]
    url, options = ignoring.url("bucket", f"table-{server}"), ignoring.storage_options()
    body, token = marked()
    assert (
        create_arbiter(url, options, commit_store=running.url).decide(FIRST, body, token) == Won()
    )
    pin = read_pin(open_store(url, options))
    assert pin is not None
    assert "@" not in str(pin.store_url)
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", running.url)
    with closing(open_arbiter(url, options)) as again:
        assert again.read(FIRST) == body


@pytest.mark.parametrize("name", ["with space", "50%", "a?b", "a#b", "ümlaut"])
@pytest.mark.parametrize("commit_store", [None, "sqlite"])
def test_odd_folder_names_open_again(tmp_path: Path, name: str, commit_store: str | None) -> None:
    body, token = marked()
    first = create_arbiter(tmp_path / name, commit_store=commit_store)
    assert first.decide(FIRST, body, token) == Won()
    assert open_arbiter(tmp_path / name).read(FIRST) == body
    assert open_arbiter(open_store(tmp_path / name).location).read(FIRST) == body


def test_another_address_is_fine_another_store_is_not(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path / "one.db")
    create_arbiter(table, commit_store=store)
    (tmp_path / "link.db").symlink_to(tmp_path / "one.db")
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", f"sqlite:///{tmp_path}/link.db")
    assert isinstance(open_arbiter(table), RecordedDecisions)
    other = new_store(tmp_path / "other.db")
    monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", other)
    with pytest.raises(PinMismatchError, match="not the commit store") as caught:
        open_arbiter(table)
    assert caught.value.expected != caught.value.actual
    with pytest.raises(PinMismatchError):
        create_arbiter(table, commit_store=other)


def test_a_table_is_tied_one_way_only(table: str, tmp_path: Path) -> None:
    create_arbiter(table)
    with pytest.raises(PinMismatchError, match="conditional-put"):
        create_arbiter(table, commit_store="sqlite")
    other = str(tmp_path / "other")
    create_arbiter(other, commit_store="sqlite")
    with pytest.raises(PinMismatchError, match="commit-store"):
        create_arbiter(other)


def test_a_table_that_is_not_there(table: str) -> None:
    with pytest.raises(NotFoundError, match="create or adopt"):
        open_arbiter(table)
    with pytest.raises(NotFoundError):
        repin(table, how="copied")


def test_a_commit_store_that_was_not_set_up(table: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="holdfast store init"):
        create_arbiter(table, commit_store=f"sqlite:///{tmp_path}/nothing.db")
    assert not Path(table, PIN_PATH).exists()


def test_a_pin_that_cannot_be_read(table: str) -> None:
    create_arbiter(table)
    for garbage in (
        b"{",
        b"[]",
        b'{"v": 0}',
        b'{"v": true}',
        b'{"v": 1, "arbiter": "dice"}',
        b'{"v": 1}',
    ):
        Path(table, PIN_PATH).write_bytes(garbage)
        with pytest.raises(CorruptError):
            open_arbiter(table)


def test_a_copied_table_is_refused_and_can_go_on_by_itself(table: str, tmp_path: Path) -> None:
    first = create_arbiter(table, commit_store="sqlite")
    body, token = marked()
    first.decide(FIRST, body, token)
    copy = str(tmp_path / "copy")
    shutil.copytree(table, copy)
    with pytest.raises(PinMismatchError, match="--copied"):
        open_arbiter(copy)
    fresh = repin(copy, how="copied")
    assert fresh.pin.table_id != first.pin.table_id  # type: ignore[union-attr]
    again = open_arbiter(copy)
    assert again.read(FIRST) == body
    assert again.decide(version_name(2), *marked("in the copy")) == Won()
    assert open_arbiter(table).read(version_name(2)) is None


def test_a_moved_table_goes_on_under_its_own_id(table: str, tmp_path: Path) -> None:
    first = create_arbiter(table, commit_store="sqlite")
    first.decide(FIRST, *marked())
    moved = str(tmp_path / "moved")
    shutil.move(table, moved)
    with pytest.raises(PinMismatchError, match="--moved"):
        open_arbiter(moved)
    assert repin(moved, how="moved").pin.table_id == first.pin.table_id  # type: ignore[union-attr]
    assert open_arbiter(moved).decide(version_name(2), *marked()) == Won()


def test_a_table_that_decides_by_its_store_may_be_moved_freely(table: str, tmp_path: Path) -> None:
    create_arbiter(table)
    moved = str(tmp_path / "moved")
    shutil.move(table, moved)
    assert isinstance(open_arbiter(moved), ConditionalPut)
    with pytest.raises(InvalidInputError, match="freely"):
        repin(moved, how="moved")


def test_a_removed_table_leaves_its_place_to_a_new_one(table: str, tmp_path: Path) -> None:
    store = new_store(tmp_path / "decisions.db")
    old = create_arbiter(table, commit_store=store)
    old.decide(FIRST, *marked("old"))
    shutil.rmtree(table)
    new = create_arbiter(table, commit_store=store)
    assert new.pin != old.pin
    body, token = marked("new")
    assert new.decide(FIRST, body, token) == Won()
    assert open_arbiter(table).read(FIRST) == body


def test_a_creator_that_died_after_deciding_the_pin_is_continued(
    table: str, tmp_path: Path
) -> None:
    store = new_store(tmp_path / "decisions.db")
    first = create_arbiter(table, commit_store=store)
    Path(table, PIN_PATH).unlink()
    assert create_arbiter(table, commit_store=store).pin == first.pin


def test_confirm_notices_another_creator(table: str, tmp_path: Path) -> None:
    store = open_store(table)
    with closing(connect_commit_store(new_store(tmp_path / "one.db"))) as one:
        pin = pin_to_commit_store(store, one, RandomIds())
        confirm_pin(store, pin)
        store.delete([PIN_PATH])
        with pytest.raises(PinMismatchError):
            confirm_pin(store, pin)
        with closing(connect_commit_store(new_store(tmp_path / "two.db"))) as two:
            pin_to_commit_store(store, two, RandomIds())
        with pytest.raises(PinMismatchError):
            confirm_pin(store, pin)


def test_the_pin_names_ids_and_no_secrets(table: str, tmp_path: Path) -> None:
    arbiter = create_arbiter(table, commit_store="sqlite")
    pin = decode_pin(Path(table, PIN_PATH).read_bytes())
    assert pin == arbiter.pin
    assert pin.store_url == "sqlite"
    with closing(connect_commit_store(f"sqlite:///{table}/_holdfast/commits.db")) as store:
        assert store.identity() == pin.store_id
        assert store.get(Key("nothing", 0)) is None
