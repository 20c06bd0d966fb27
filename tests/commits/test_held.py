"""Calls on `Table.dataset()` end as they really ended, in the words of the hook."""

from __future__ import annotations

import copy
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
from commits.table_worker import rows
from holdfast.commits._versions import Versions
from holdfast.errors import ConflictError, NotFoundError, UnavailableError

pytestmark = pytest.mark.requirement("P2")


@pytest.fixture(params=[None, "sqlite"], ids=["conditional put", "commit store"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> holdfast.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    made = holdfast.create_table(
        tmp_path / "t.lance", schema, primary_key=["id"], commit_store=request.param
    )
    made.append(rows(1, 2, 3))
    return made


def merge(held: Any) -> object:
    builder = held.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    return builder.execute(rows(2, 9))


CHANGES: dict[str, Callable[[Any], object]] = {
    "update": lambda held: held.update({"text": "'changed'"}),
    "merge_insert": merge,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_refused_change_is_no_unknown_outcome(
    table: holdfast.Table, change: Callable[[Any], object]
) -> None:
    held = table.dataset()
    with table.claim_writer(str(uuid.uuid4())) as writer:
        writer.put([{"id": 2, "text": "waits"}])
        before = table.dataset().version
        with pytest.raises(ConflictError, match="rows wait"):
            change(held)
        with pytest.raises(ConflictError, match="rows wait"):
            change(held.checkout_version(2))  # another handle of the same hook
    assert table.dataset().version == before
    versions = Path(table.uri) / "_versions"
    assert not list(versions.glob("*.manifest-*")), "what Lance staged is left behind"


@pytest.mark.parametrize(
    "call",
    [
        lambda held: held.delete("id = 1"),
        lambda held: held.add_columns({"twice": "id * 2"}),
        lambda held: held.drop_columns(["text"]),
        lambda held: held.create_scalar_index("id", "BTREE"),
        lambda held: held.insert(rows(4)),
        lambda held: held.optimize.compact_files(target_rows_per_fragment=100),
        lambda held: held.checkout_version(1).restore(),
    ],
    ids=["delete", "add", "drop", "index", "insert", "compact", "restore"],
)
def test_what_a_store_refuses_is_said_as_it_is(
    table: holdfast.Table, call: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(rows(5))
    held = table.dataset()

    def refuse(*_: object, **__: object) -> None:
        raise UnavailableError("the commit store is away", reason="for a test")

    monkeypatch.setattr(Versions, "_decide", refuse)
    with pytest.raises(UnavailableError, match="is away"):
        call(held)


def test_history_tags_and_versions_that_are_not_there(table: holdfast.Table) -> None:
    held: Any = table.dataset()
    assert len(held.get_transactions(10)) == 2
    with pytest.raises(ValueError, match="does not exist"):
        held.tags.create("a", 99)
    held.tags.create("a", 1)
    assert held.checkout_version("a").version == 1
    with pytest.raises(OSError, match="was not found"):
        held.checkout_version(99)
    with pytest.raises(NotFoundError, match="no such version"):
        table.dataset(99)


def test_it_is_a_pylance_dataset_in_every_other_way(table: holdfast.Table) -> None:
    held: Any = table.dataset()
    assert isinstance(held, lance.LanceDataset)
    assert held.count_rows() == 3
    assert lance.write_dataset(rows(7), held, mode="append").version == 3
    with pytest.raises(OSError, match="nope"):
        held.delete("nope = 1")
    for one in (held, copy.copy(held), held.checkout_version(1)):
        with pytest.raises(TypeError, match=r"holdfast\.open_table"):
            pickle.dumps(one)
