"""Changes of rows while others write: each ends as if it had run alone on the version below."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from holdfast.edit import _engine, apply_change, when_matched_update, when_not_matched_insert
from holdfast.edit._source import DataMerge
from holdfast.edit._where import Delete, Update
from holdfast.errors import ConflictError, ErrorKind, RowConflictError
from holdfast.testing._mutants import mutate

pytestmark = pytest.mark.requirement("C1")

SCHEMA = pa.schema(
    [pa.field("k", pa.int64()), pa.field("n", pa.int64()), pa.field("s", pa.string())]
)
Call = Callable[[], object]


def rows(keys: Any, text: str, n: int = 0) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "n": n, "s": text} for k in keys], schema=SCHEMA)


@pytest.fixture
def arbiter() -> str:
    return "commit-store"


both = pytest.mark.parametrize("arbiter", ["conditional", "commit-store"])


@pytest.fixture
def table(arbiter: str, tmp_path: Path) -> Any:
    store = "sqlite" if arbiter == "commit-store" else None
    made = holdfast.create_table(tmp_path / "t", SCHEMA, primary_key=["k"], commit_store=store)
    for start in (0, 10, 20):
        made.append(rows(range(start, start + 10), "old"))
    yield made
    made.close()


def content(table: Any) -> dict[int, tuple[int, str]]:
    found = lance.dataset(table.uri).to_table().to_pylist()
    assert len({row["k"] for row in found}) == len(found), "a key is there twice"
    return {row["k"]: (row["n"], row["s"]) for row in found}


class Disturbed:
    """A change; after each time that it was computed, one call happens."""

    def __init__(self, change: Any, *calls: Call) -> None:
        self._change = change
        self._calls = list(calls)

    def compute(self, base: lance.LanceDataset) -> Any:
        made = self._change.compute(base)
        if self._calls:
            self._calls.pop(0)()
        return made

    def concerns(self, newest: lance.LanceDataset, fragments: Any) -> bool:
        return bool(self._change.concerns(newest, fragments))

    def renew(self) -> None:
        self._change.renew()


def merge(source: pa.Table) -> DataMerge:
    clauses = [when_matched_update(), when_not_matched_insert()]
    return DataMerge(source, "k", clauses, delete_where=None, may_have_more=False)


def disturbed(table: Any, change: Any, *calls: Call, engine: Any = _engine, **more: Any) -> Any:
    return engine.apply_change(table.versions, Disturbed(change, *calls), **more)


def compact(table: Any) -> None:
    table.dataset().optimize.compact_files(materialize_deletions_threshold=0.0)


# Rows that are others': nothing begins anew


OTHERS: dict[str, Callable[[Any], object]] = {
    "append": lambda t: t.append(rows([90], "other")),
    "merge": lambda t: t.merge_into(rows([5, 91], "other")),
    "update": lambda t: t.update("k = 5", {"s": "'other'"}),
    "delete": lambda t: t.delete("k = 5"),
    "index": lambda t: t.dataset().create_scalar_index("k", "BTREE"),
    "config": lambda t: t.dataset().update_config({"a": "b"}),
    "replace": lambda t: t.replace_where(rows([6], "other"), "k = 6"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("mine", ["merge", "update", "delete"])
def test_other_rows_of_the_same_fragment(table: Any, mine: str, other: str) -> None:
    """All three of mine take rows of the fragment with keys 0 to 9, and so do most others."""
    changes = {
        "merge": merge(rows([1, 2, 80], "mine")),
        "update": Update("k = 1 OR k = 2", {"s": "'mine'"}),
        "delete": Delete("k = 1 OR k = 2"),
    }
    alone = {5: "other", 6: "other", 90: "other", 91: "other"}
    done = disturbed(table, changes[mine], lambda: OTHERS[other](table))
    assert done.tries == 1
    found = {k: s for k, (_, s) in content(table).items()}
    if mine == "delete":
        assert (1 in found, 2 in found) == (False, False)
    else:
        assert (found[1], found[2]) == ("mine", "mine")
    assert {k for k, s in found.items() if s == "other"} <= set(alone)
    if other == "delete":
        assert 5 not in found
    elif other in {"merge", "update"}:
        assert found[5] == "other"


def test_a_compaction_of_other_fragments(table: Any) -> None:
    table.delete("k >= 20 AND k < 25")

    def compact_the_last() -> None:
        compact(table)

    done = disturbed(table, merge(rows([80], "mine")), compact_the_last)
    assert done.tries == 1
    assert len(content(table)) == 26


# The same rows: it begins anew, on what is there then


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (lambda t: t.merge_into(rows([1, 80], "other", n=5)), (6, "other")),
        (lambda t: t.update("k = 1", {"n": "5", "s": "'other'"}), (6, "other")),
        (lambda t: t.delete("k = 1"), None),
        (compact, (1, "old")),
        (lambda t: t.restore(3), (1, "old")),
        (lambda t: t.dataset().add_columns({"z": "k"}), (1, "old")),
    ],
    ids=["merge", "update", "delete", "compaction", "restore", "column"],
)
def test_the_same_row(table: Any, other: Any, expected: Any) -> None:
    table.delete("k = 9")  # so that a compaction has something to do
    done = disturbed(table, Update("k = 1 OR k = 80", {"n": "n + 1"}), lambda: other(table))
    assert done.tries == 2
    assert content(table).get(1) == expected


@both
def test_rows_that_come_meanwhile_are_updated_too(table: Any) -> None:
    """A condition is about all rows of the version below, not of the one that was read first."""
    other = lambda: table.append(rows([50], "old"))  # noqa: E731
    done = disturbed(table, Update("s = 'old'", {"s": "'new'"}), other)
    assert (done.tries, done.updated) == (2, 31)
    assert {s for _, s in content(table).values()} == {"new"}


def test_two_updates_that_would_swap(table: Any) -> None:
    """White to black beside black to white: one of them ends with all rows."""
    table.update("k < 15", {"s": "'black'"})
    other = lambda: table.update("s = 'black'", {"s": "'old'"})  # noqa: E731
    done = disturbed(table, Update("s = 'old'", {"s": "'black'"}), other)
    assert (done.tries, done.updated) == (2, 30)


@both
def test_two_merges_that_insert_the_same_key(table: Any) -> None:
    other = lambda: table.merge_into(rows([80, 81], "first"))  # noqa: E731
    done = disturbed(table, merge(rows([81, 82], "second")), other)
    assert (done.tries, done.updated, done.inserted) == (2, 1, 1)
    assert {k: s for k, (_, s) in content(table).items() if k >= 80} == {
        80: "first", 81: "second", 82: "second",
    }  # fmt: skip


@both
def test_deleted_rows_that_a_restore_brings_back(table: Any) -> None:
    """The fragment is the one that was read, with fewer deleted rows."""
    table.delete("k = 1")
    done = disturbed(table, merge(rows([1], "mine")), lambda: table.restore(4))
    assert (done.tries, done.updated, done.inserted) == (2, 1, 0)
    assert content(table)[1] == (0, "mine")


@both
@pytest.mark.parametrize("tries", [1, 5])
def test_a_repeat_of_the_same_transaction_meanwhile(table: Any, tries: int) -> None:
    """Its rows are in the way, and yet nothing need be tried again."""
    other = lambda: table.update("k = 1", {"n": "n + 1"}, txn="once")  # noqa: E731
    done = disturbed(table, Update("k = 1", {"n": "n + 1"}), other, txn="once", tries=tries)
    assert done.tries == 1
    assert not done.applied
    assert content(table)[1] == (1, "old")


def test_the_error_says_what_others_did(table: Any) -> None:
    again = [lambda: table.update("k = 1", {"n": "n + 1"})] * 2
    with pytest.raises(RowConflictError, match="about the same rows") as caught:
        disturbed(table, Update("k < 3", {"n": "0"}), *again, tries=2)
    assert caught.value.kind is ErrorKind.ROW_CONFLICT
    assert caught.value.details["tries"] == 2
    assert caught.value.details["version"] == 6
    assert isinstance(caught.value, ConflictError)
    assert content(table)[1] == (2, "old")


# Each rule, taken out


LOOK = "        obstacle = self._look("
OPERATION = "        operation = self._files.operation("
MOMENT = (OPERATION, f"        moment()\n{OPERATION}")


def careless(*replacements: tuple[str, str]) -> Any:
    return mutate("holdfast.edit._engine", *replacements)


@pytest.mark.mutant
def test_without_the_look_at_new_rows_a_key_is_doubled(table: Any) -> None:
    engine = careless(("if changed and self._change.concerns(", "if False and (lambda *_: 0)("))
    other = lambda: table.merge_into(rows([80], "first"))  # noqa: E731
    disturbed(table, merge(rows([80], "second")), other, engine=engine)
    with pytest.raises(AssertionError, match="twice"):
        content(table)


@pytest.mark.mutant
def test_without_the_check_of_the_version_a_key_is_doubled(table: Any) -> None:
    """Between the last look and the decision only the number in the manifest is left."""
    engine = careless(
        ("if version != seen + 1:", "if False:"),
        MOMENT,
    )
    calls = [lambda: table.append(rows([80], "first"))]
    engine.moment = lambda: calls.pop()() if calls else None
    engine.apply_change(table.versions, merge(rows([80], "second")))
    with pytest.raises(AssertionError, match="twice"):
        content(table)


@both
def test_a_version_that_comes_at_the_last_moment(table: Any) -> None:
    engine = careless(
        MOMENT,
    )
    calls = [lambda: table.append(rows([80], "first"))]
    engine.moment = lambda: calls.pop()() if calls else None
    done = engine.apply_change(table.versions, merge(rows([80], "second")))
    assert (done.tries, content(table)[80]) == (2, (0, "second"))


@pytest.mark.mutant
def test_without_the_count_of_deleted_rows_an_update_is_undone(table: Any) -> None:
    """Both updates write the row anew: it is there twice."""
    engine = careless(
        ("return after == there + len(offsets)", "return True"),
        ("if changed and self._change.concerns(", "if False and (lambda *_: 0)("),
    )
    other = lambda: table.update("k = 1", {"s": "'other'"})  # noqa: E731
    disturbed(table, Update("k = 1", {"s": "'mine'"}), other, engine=engine)
    with pytest.raises(AssertionError, match="twice"):
        content(table)


@pytest.mark.mutant
def test_without_the_count_of_deleted_rows_a_deleted_row_is_back(table: Any) -> None:
    engine = careless(("return after == there + len(offsets)", "return True"))
    other = lambda: table.delete("k = 1")  # noqa: E731
    disturbed(table, Update("k = 1", {"s": "'mine'"}), other, engine=engine)
    assert 1 in content(table)


@pytest.mark.mutant
def test_without_new_deletion_files_deleted_rows_are_back(table: Any) -> None:
    """The file that was written first does not know of rows that others deleted since."""
    engine = careless(
        (LOOK, f"        self._files.operation(self._seen, ())\n{LOOK}"),
        ("if kept is not None and kept[0] == before.deletion_file:", "if kept is not None:"),
    )
    other = lambda: table.delete("k = 5")  # noqa: E731
    disturbed(table, Delete("k = 1"), other, engine=engine)
    assert 5 in content(table)


@pytest.mark.mutant
def test_without_the_look_at_operations_a_restored_row_is_doubled(table: Any) -> None:
    table.delete("k = 1")
    engine = careless(("if not set(operations) <= _KEEPS_ROWS:", "if False:"))
    disturbed(table, merge(rows([1], "mine")), lambda: table.restore(4), engine=engine)
    with pytest.raises(AssertionError, match="twice"):
        content(table)


# Many at the same time


@both
def test_merges_of_different_keys_never_fail(table: Any) -> None:
    """Six threads merge three times each: none of them is told of a conflict, none begins anew."""
    tries: list[int] = []
    failures: list[BaseException] = []

    def work(number: int) -> None:
        own = holdfast.open_table(table.uri)
        try:
            for turn in range(3):
                keys = [number, 100 * (number + 1) + turn]
                done = own.merge_into(rows(keys, f"{number}.{turn}"), txn=(f"w{number}", turn))
                tries.append(done.tries)
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)
        finally:
            own.close()

    run_all([lambda n=n: work(n) for n in range(6)])  # type: ignore[misc]
    assert [str(error) for error in failures] == []
    assert tries == [1] * 18
    found = content(table)
    assert {found[number][1] for number in range(6)} == {f"{number}.2" for number in range(6)}
    assert len(found) == 30 + 18


def run_all(calls: list[Call]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("seed", range(2))
def test_any_mix_ends_as_its_versions_say(table: Any, seed: int) -> None:
    """What is decided in some order is what that order gives, one after the other."""
    done: dict[str, Callable[[dict[int, tuple[int, str]]], None]] = {}
    failures: list[BaseException] = []

    def work(number: int) -> None:
        chance = random.Random(1000 * seed + number)
        own = holdfast.open_table(table.uri)
        try:
            for turn in range(8):
                name = f"{number}.{turn}"
                call, model = step(chance, name)
                done[name] = model
                try:
                    call(own, name)
                except RowConflictError:
                    del done[name]
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)
        finally:
            own.close()

    run_all([lambda n=n: work(n) for n in range(4)])  # type: ignore[misc]
    assert [repr(error) for error in failures] == []
    model = dict.fromkeys(range(30), (0, "old"))
    for info in reversed(table.history()):
        for txn in info.txns:
            if txn in done:
                done[txn](model)
    assert content(table) == model


Model = dict[int, tuple[int, str]]


def step(
    chance: random.Random, name: str
) -> tuple[Callable[[Any, str], object], Callable[[Model], None]]:
    """Return one change, and what it does to a model."""
    low = chance.randrange(40)
    high = low + chance.randrange(1, 8)
    keys = chance.sample(range(45), 4)
    kind = chance.choice(["merge", "update", "delete", "replace", "compact", "label"])

    def merged(model: Model) -> None:
        model.update(dict.fromkeys(keys, (0, name)))

    def updated(model: Model) -> None:
        model.update({k: (n + 1, s) for k, (n, s) in model.items() if low <= k < high})

    def deleted(model: Model) -> None:
        for k in [k for k in model if low <= k < high]:
            del model[k]

    def replaced(model: Model) -> None:
        deleted(model)
        model[low] = (7, name)

    def labelled(model: Model) -> None:
        model.update({k: (n, name) for k, (n, _) in model.items() if n > 0})

    where = f"k >= {low} AND k < {high}"
    calls: dict[str, tuple[Callable[[Any, str], object], Callable[[Model], None]]] = {
        "merge": (lambda t, x: t.merge_into(rows(keys, x), txn=x, tries=50), merged),
        "update": (lambda t, x: t.update(where, {"n": "n + 1"}, txn=x, tries=50), updated),
        "delete": (lambda t, x: t.delete(where, txn=x, tries=50), deleted),
        "replace": (
            lambda t, x: t.replace_where(rows([low], x, n=7), where, txn=x, tries=50),
            replaced,
        ),
        "label": (lambda t, x: t.update("n > 0", {"s": f"'{x}'"}, txn=x, tries=50), labelled),
        "compact": (lambda t, _: try_compact(t), lambda _: None),
    }
    return calls[kind]


def try_compact(table: Any) -> None:
    with contextlib.suppress(ConflictError, OSError, RuntimeError):  # others were faster
        compact(table)


def test_the_verb_is_the_engine(table: Any) -> None:
    assert apply_change(table.versions, Delete("k = 1")).deleted == 1
