"""Plain appends on object stores: made without Lance, the same bytes, beside stock writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import lance
import pytest
from lance.fragment import write_fragments

import holdfast
from commits.table_worker import (
    Place,
    append_each,
    rows,
    set_up,
    spawned,
    write_with_stock,
)
from formats.test_append import ROWS, TABLES, message_of
from holdfast.commits import _appends
from holdfast.commits._versions import Versions
from holdfast.errors import CommitUnknownError
from holdfast.formats import version_name
from holdfast.storage import open_store
from holdfast.testing import Fault, FaultyS3Process
from holdfast.txn import parse_txn


@pytest.fixture(scope="module")
def honest() -> Iterator[FaultyS3Process]:
    with FaultyS3Process() as server:
        yield server


@pytest.fixture(scope="module")
def ignoring() -> Iterator[FaultyS3Process]:
    with FaultyS3Process(conditions="ignoring") as server:
        yield server


@pytest.fixture(params=["conditional put", "commit store"])
def place(
    request: pytest.FixtureRequest,
    honest: FaultyS3Process,
    ignoring: FaultyS3Process,
    tmp_path: Path,
) -> Place:
    server, url = honest, None
    if request.param == "commit store":
        server, url = ignoring, set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true")
    uri = server.url("lake", f"{tmp_path.name}/t.lance")
    return Place(uri=uri, commit_store=url, options=server.storage_options())


def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise AssertionError("not this way")


@pytest.mark.requirement("C1", "C2")
def test_a_plain_append_opens_no_dataset_and_needs_no_commit_of_lance(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = place.create()
    table.append(rows(0), txn=("job", 0))
    monkeypatch.setattr(lance.LanceDataset, "commit", refuse)
    monkeypatch.setattr(_appends, "open_hooked", refuse)
    for number in range(1, 5):
        assert table.append(rows(number), txn=("job", number)).version == number + 2
        assert not table.append(rows(number), txn=("job", number)).applied
    assert place.ids() == list(range(5))
    newest: Any = place.stock()
    newest.validate()


@pytest.mark.parametrize("kind", TABLES)
def test_the_manifest_is_the_one_that_lance_makes(
    honest: FaultyS3Process, tmp_path: Path, kind: str
) -> None:
    options = honest.storage_options()
    uris = [honest.url("lake", f"{tmp_path.name}/{name}.lance") for name in ("theirs", "ours")]
    TABLES[kind](lance.write_dataset(ROWS, uris[0], storage_options=options))
    theirs, ours = (open_store(uri, options) for uri in uris)
    for info in theirs.list():
        ours.put(info.path, theirs.get(info.path))
    data = ROWS
    if kind == "widened":
        data = ROWS.append_column("more", ROWS["id"])
    made = lance.write_dataset(data, uris[0], mode="append", storage_options=options)
    table = holdfast.adopt_table(uris[1], storage_options=options)
    assert table.append(data).version == made.version
    path = version_name(int(made.version)).path
    mine, wanted = message_of(ours.get(path)), message_of(theirs.get(path))
    for message in (mine, wanted):
        for key in [key for key in message.config if key.startswith("holdfast.")]:
            message.config.pop(key)
        if not message.config:
            message.writer_feature_flags &= ~8
        message.ClearField("timestamp")
        message.transaction_file = message.transaction_file.partition("-")[0]
        message.fragments[-1] = _without_name(message.fragments[-1])
        for name in ("schema_metadata", "table_metadata"):  # maps: Lance has no order
            entries = sorted(getattr(message, name))
            del getattr(message, name)[:]
            getattr(message, name).extend(entries)
    assert mine.SerializeToString(deterministic=True) == wanted.SerializeToString(
        deterministic=True
    )


def _without_name(fragment: bytes) -> bytes:
    """Return a fragment with a data file's random name left out."""
    at = fragment.index(b".lance")
    start = fragment.rindex(b"\n", 0, at)
    return fragment[:start] + fragment[at:]


@pytest.mark.requirement("P1")
def test_a_table_made_anew_is_not_built_upon_from_memory(place: Place) -> None:
    """It has as many versions as the one that the handle remembers, and other rows."""
    old = place.create()
    old.append(rows(1))
    store = open_store(place.uri, place.options)
    store.delete([info.path for info in store.list()])
    new = place.create()
    new.append(rows(2))
    with pytest.raises(holdfast.errors.StaleHandleError):
        old.append(rows(3))
    assert place.ids() == [2]


@pytest.mark.requirement("P1")
def test_columns_that_others_changed_are_looked_at_again(place: Place) -> None:
    table, other = place.create(), place.open()
    table.append(rows(1))
    other.dataset().add_columns({"more": "id * 2"})
    wider = rows(2).append_column("more", [[7]])
    table.append(wider)
    other.append([{"id": 3, "text": "x", "more": 8}])
    other.dataset().drop_columns(["more"])
    other.append(rows(4))
    table.append(rows(5))
    assert place.ids() == [1, 2, 3, 4, 5]


@pytest.mark.requirement("P1")
def test_a_version_that_outlived_its_successors_is_not_built_upon(honest: FaultyS3Process) -> None:
    """A handle that slept finds the name after it free, and a newer version beyond."""
    place = Place(uri=honest.url("lake", "slept/t.lance"), options=honest.storage_options())
    table = place.create()
    table.append(rows(1))
    other = place.open()
    for number in (2, 3, 4):
        other.append(rows(number))
    open_store(place.uri, place.options).delete([version_name(3).path, version_name(4).path])
    assert table.append(rows(5)).version == 6
    assert place.ids() == [1, 2, 3, 4, 5]


@pytest.mark.requirement("C1", "C2")
def test_stock_writers_and_ours_share_one_bucket(honest: FaultyS3Process) -> None:
    place = Place(uri=honest.url("lake", "shared/t.lance"), options=honest.storage_options())
    place.create()
    with spawned(4) as pool:
        stock = [pool.submit(write_with_stock, place, range(n, n + 8)) for n in (0, 100)]
        ours = [pool.submit(append_each, place, range(n, n + 8)) for n in (200, 300)]
        acknowledged = [number for one in stock for number in one.result()]
        assert acknowledged  # stock writers get on as well
        for one in ours:
            done, errors = one.result()
            assert not errors
            acknowledged += done
    assert set(acknowledged) <= set(place.ids())
    assert len(place.ids()) == len(set(place.ids()))


@pytest.mark.requirement("P3")
def test_what_is_remembered_acknowledges_nothing(place: Place) -> None:
    """The handle remembers a version with the transaction; others have gone back since."""
    table, other = place.create(), place.open()
    first = table.writes.appender.prepare()
    fragments = write_fragments(rows(1), first.table, mode="append")
    assert table.append(rows(1), txn="once").version == 2
    old: Any = other.dataset(1)
    old.restore()  # takes "once" back
    done = table.writes.appender.append(first.append(fragments, parse_txn("once")))
    assert (done.version, done.applied) == (4, True)
    assert place.ids() == [1]


CHANGES: dict[str, Callable[[Any], object]] = {
    "a setting for commits": lambda t: t.update_config({"lance.auto_cleanup.interval": "1000"}),
    "more columns": lambda t: t.add_columns({"more": "id * 2"}),
}


@pytest.mark.requirement("P1")
@pytest.mark.parametrize("change", CHANGES)
def test_a_winner_is_looked_at_like_any_other_version(
    place: Place, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Who wins meanwhile may have changed what appends have to do: then Lance does them."""
    table, rival = place.create(), place.open()
    table.append(rows(1))
    decide = Versions._decide
    commits: list[object] = []
    commit = lance.LanceDataset.commit

    def late(self: Versions, *args: Any, **kwargs: Any) -> Any:
        if self is table.versions and not commits:
            commits.append("before")
            CHANGES[change](rival.dataset())
        return decide(self, *args, **kwargs)

    def noted(*args: Any, **kwargs: Any) -> Any:
        commits.append("by Lance")
        return commit(*args, **kwargs)

    monkeypatch.setattr(Versions, "_decide", late)
    monkeypatch.setattr(lance.LanceDataset, "commit", noted)
    assert table.append(rows(2)).version == 4
    assert commits == ["before", "by Lance"]
    assert place.ids() == [1, 2]


@pytest.mark.requirement("P2")
def test_a_tail_of_unfinished_versions(ignoring: FaultyS3Process, tmp_path: Path) -> None:
    """Decided on top of each other and not copied: finished in order by whoever may write."""
    place = Place(
        uri=ignoring.url("lake", f"{tmp_path.name}/t.lance"),
        commit_store=set_up(f"sqlite:///{tmp_path}/decisions.db?single_host=true"),
        options=ignoring.storage_options(),
    )
    table = place.create()
    table.append(rows(0))
    ignoring.control.add_fault(
        Fault(kind="status_before", method="PUT", path_regex="_versions/", status=403, times=None)
    )
    try:
        for number in (1, 2):
            with pytest.raises(CommitUnknownError):
                table.append(rows(number), txn=("job", number))
        assert place.open().dataset().version == 2  # a reader that may not write
    finally:
        ignoring.control.clear_faults()
    assert place.ids() == [0]
    assert not place.open().append(rows(2), txn=("job", 2)).applied
    assert [place.ids(version) for version in (3, 4)] == [[0, 1], [0, 1, 2]]
    assert table.append(rows(3)).version == 5
    assert place.ids() == [0, 1, 2, 3]
