"""Plain appends are made without Lance; whatever is not plain, and whatever is odd, is Lance's."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import lance
import pytest
from lance.fragment import write_fragments

import holdfast
from commits.table_worker import Place, rows
from holdfast.arbiter import Decision, SupportsChains, Won
from holdfast.commits._queue import Queue
from holdfast.commits._versions import Versions
from holdfast.errors import CommitUnknownError, UnavailableError
from holdfast.formats._append import AppendBase
from holdfast.formats._version_files import HINT_PATH
from holdfast.txn import parse_txn


@pytest.fixture(params=[None, "sqlite"], ids=["conditional put", "commit store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(uri=str(tmp_path / "t.lance"), commit_store=request.param)


def refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise AssertionError("not this way")


def transactions(place: Place) -> set[str]:
    return {file.name for file in Path(place.uri, "_transactions").iterdir()}


def test_a_plain_append_needs_no_commit_of_lance(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = place.create()
    monkeypatch.setattr(lance.LanceDataset, "commit", refuse)
    assert [table.append(rows(n), txn=("job", n)).version for n in range(9)] == [*range(2, 11)]
    assert place.ids() == list(range(9))
    newest: Any = place.stock()
    assert [fragment.fragment_id for fragment in newest.get_fragments()] == list(range(9))
    newest.validate()
    assert Path(place.uri, HINT_PATH).read_text() == '{"version":8}'


@pytest.mark.parametrize("why", ["stable row ids", "another release", "an unknown field"])
def test_what_is_not_plain_is_left_to_lance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(rows(0), uri, enable_stable_row_ids=why == "stable row ids")
    table = holdfast.adopt_table(uri)
    if why == "another release":
        monkeypatch.setattr(lance, "__version__", "14.9.9")
    if why == "an unknown field":
        monkeypatch.setattr(AppendBase, "is_plain", property(lambda _: False))
    monkeypatch.setattr(Versions, "append", refuse)
    before = transactions(Place(uri=uri))
    for number in (1, 2):
        assert table.append(rows(number), txn=("job", number)).applied
    found = lance.dataset(uri).to_table(with_row_id=why == "stable row ids")
    assert found["id"].to_pylist() == [0, 1, 2]
    if why == "stable row ids":
        assert found["_rowid"].to_pylist() == [0, 1, 2]
    assert len(transactions(Place(uri=uri)) - before) == 2  # no second one is left about


def test_a_version_that_outlived_its_successors_is_not_built_upon(tmp_path: Path) -> None:
    """Its tag keeps it: who knew it as the newest finds no version right after it."""
    place = Place(uri=str(tmp_path / "t.lance"))
    table = place.create()
    assert table.append(rows(1)).version == 2
    stock = place.stock()
    stock.tags.create("kept", 2)
    for number in (2, 3, 4):
        stock = lance.write_dataset(rows(number), place.uri, mode="append")
    stock.cleanup_old_versions(timedelta(microseconds=1), error_if_tagged_old_versions=False)
    versions = {int(found["version"]) for found in stock.versions()}
    assert versions == {2, 5}
    assert table.append(rows(5)).version == 6
    assert place.ids() == [1, 2, 3, 4, 5]


def test_a_transaction_stays_while_its_outcome_is_unknown(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = place.create()
    before = transactions(place)
    verb = "decide_next" if isinstance(table.core.arbiter, SupportsChains) else "decide"
    decide = getattr(type(table.core.arbiter), verb)
    made: list[Decision] = []

    def no_answer(*args: Any, **kwargs: Any) -> NoReturn:
        made.append(decide(*args, **kwargs))
        raise CommitUnknownError("no answer")

    def broken(*args: Any, **kwargs: Any) -> NoReturn:
        made.append(decide(*args, **kwargs))
        raise RuntimeError("a driver's own error")

    for number, way in enumerate((no_answer, broken), 1):
        monkeypatch.setattr(type(table.core.arbiter), verb, way)
        with pytest.raises(CommitUnknownError):
            table.append(rows(number), txn=("job", number))
        monkeypatch.undo()
        assert made == [Won()] * number
        assert len(transactions(place) - before) == number
        assert not table.append(rows(number), txn=("job", number)).applied
    assert place.ids() == [1, 2]


def test_a_transaction_goes_when_nothing_was_decided(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = place.create()
    table.append(rows(1), txn="first")
    before = transactions(place)

    def down(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise UnavailableError("no answer")

    monkeypatch.setattr(Versions, "append", down)
    with pytest.raises(UnavailableError):
        table.append(rows(2))
    monkeypatch.undo()
    assert transactions(place) == before
    prepared = table.writes.appender.prepare()
    fragments = write_fragments(rows(2), prepared.table, mode="append")
    late = prepared.append(fragments, parse_txn("first"))
    assert not table.writes.appender.append(late).applied  # somebody else was faster with it
    assert transactions(place) == before


def test_other_writers_are_faster_again_and_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, rival = place.create(), place.open()
    rival.versions.queue = Queue(rival.core.store, longest_wait_seconds=0)  # it is not its turn
    decide = Versions._decide
    left = iter(range(100, 105))

    def late(self: Versions, *args: Any, **kwargs: Any) -> Any:
        if self is table.versions and (number := next(left, None)) is not None:
            rival.append(rows(number))
        return decide(self, *args, **kwargs)

    monkeypatch.setattr(Versions, "_decide", late)
    assert table.append(rows(1), txn="once").version == 7
    assert place.ids() == [1, *range(100, 105)]
    assert table.applied(["once"]) == [True]


def test_a_hint_that_is_wrong_acknowledges_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at before rows are written was decided by nobody, perhaps."""
    table = place.create()
    table.append(rows(1), txn="once")
    hint = Versions.manifest_after(table.versions, 2)
    assert hint is not None
    monkeypatch.setattr(Versions, "manifest_after", lambda *_: hint)
    first: Any = table.dataset(1)
    first.restore()  # takes "once" back
    assert table.append(rows(1), txn="once").applied
    assert place.ids() == [1]


def test_a_repeat_says_nothing_on_stderr(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    table = place.create()
    fragments = write_fragments(rows(1), table.dataset(), mode="append")
    assert table.commit(fragments, txn=("job", 1)).applied
    again = write_fragments(rows(1), table.dataset(), mode="append")
    assert not table.commit(again, txn=("job", 1)).applied
    assert not table.append(rows(1), txn=("job", 1)).applied
    assert capfd.readouterr().err == ""
    assert place.ids() == [1]


def test_tables_that_nobody_closes_share_their_threads(tmp_path: Path) -> None:
    tables = [Place(uri=str(tmp_path / f"{number}.lance")).create() for number in range(8)]
    for table in tables:
        table.append(rows(1))
    names = [thread.name for thread in threading.enumerate()]
    assert 1 <= sum(name.startswith("holdfast-sync") for name in names) <= 4


FORKS = """
import os
from holdfast.commits._syncing import SYNCING

SYNCING.submit(lambda: None).result()
child = os.fork()
if not child:
    SYNCING.submit(lambda: None).result()
    os._exit(7)
raise SystemExit(0 if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7 else 1)
"""


def test_a_forked_child_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], check=True, timeout=120)
