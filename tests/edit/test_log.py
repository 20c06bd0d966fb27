"""Changes of a keyed table in whose log rows wait: what waited when they began never comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.edit._where import Delete
from holdfast.errors import LogWaitsError
from holdfast.testing._mutants import mutate
from lsm.tables import make_table, new_shard, rows_of

pytestmark = [pytest.mark.requirement("P1"), pytest.mark.requirement("P2")]

ROWS = [{"k": n, "v": "base"} for n in range(4)]
CHANGES: dict[str, tuple[Callable[[Any], Any], dict[int, str]]] = {
    "merge": (
        lambda t: t.merge_into([{"k": 1, "v": "new"}, {"k": 9, "v": "new"}], txn="t"),
        {0: "base", 1: "new", 2: "waits", 3: "base", 8: "waits", 9: "new"},
    ),
    "update": (
        lambda t: t.update("v = 'waits'", {"v": "'new'"}, txn="t"),
        {0: "base", 1: "new", 2: "new", 3: "base", 8: "new"},
    ),
    "delete": (
        lambda t: t.delete("v = 'waits'", txn="t"),
        {0: "base", 3: "base"},
    ),
    "replace": (
        lambda t: t.replace_where([{"k": 1, "v": "new"}], "k < 3", txn="t"),
        {1: "new", 3: "base", 8: "waits"},
    ),
    "restore": (lambda t: t.restore(2, txn="t"), dict.fromkeys(range(4), "base")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_waits_is_changed_too(tmp_path: Path, name: str) -> None:
    call, expected = CHANGES[name]
    table = make_table(tmp_path / "t", ROWS)
    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": k, "v": "waits"} for k in (1, 2, 8)])
        assert call(table).applied
        assert not call(table).applied
        writer.put([{"k": 3, "v": "later"}])
    table.merge_log()
    assert rows_of(table) == {**expected, 3: "later"}


def test_over_log_leaves_what_waits(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", ROWS)
    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": 1, "v": "waits"}])
        table.update("k = 1", {"v": "'new'"}, over_log=True)
    table.merge_log()
    assert rows_of(table)[1] == "waits"


@pytest.mark.mutant
def test_without_merging_first_the_change_is_refused(tmp_path: Path) -> None:
    """The rule is checked again in the bytes that are decided."""
    table = make_table(tmp_path / "t", ROWS)
    engine = mutate(
        "holdfast.edit._engine",
        ('self.terms["after"] = merge_waiting(self.versions)', 'self.terms["after"] = None'),
    )

    with table.claim_writer(new_shard()) as writer:
        writer.put([{"k": 1, "v": "waits"}])
        with pytest.raises((LogWaitsError, engine.RowConflictError)):
            engine.apply_change(table.versions, Delete("k = 1"))
    assert rows_of(table)[1] == "base"
