"""The commit hook, the ledger and both arbiters, under every schedule; and their mutants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest

from holdfast.arbiter import create_arbiter
from holdfast.commits._operation import TABLE_ID, DatasetHook
from holdfast.commits._versions import AlreadyAppliedError, Versions
from holdfast.core import TableCore
from holdfast.errors import ConflictError
from holdfast.formats import version_name
from holdfast.storage import open_store
from holdfast.testing import Violation, explore, mutate
from holdfast.txn import parse_txn
from model.commit_scenarios import LanceModel, Table, conditional, manifest_bytes, recorded
from model.decide_scenarios import look_first, look_last, racing_with

SCENARIOS = [
    Table(name="conditional put, two writers", make=conditional, faults=1, preemptions=2),
    Table(
        name="conditional put, one writer twice",
        make=conditional,
        marks="aa",
        faults=1,
        preemptions=2,
    ),
    *[
        Table(
            name=f"{'direct' if direct else 'by Lance'}, beside stock's clean-up, "
            f"{'with' if txns else 'no'} transactions",
            make=conditional,
            marks="a",
            faults=0 if txns else 1,
            preemptions=3 if txns else 1,
            direct=direct,
            cleaner=True,
            txns=txns,
        )
        for direct in (False, True)
        for txns in (False, True)
    ],
    *[
        Table(
            name=f"racing, {'look first' if together is look_first else 'look last'}, {what}",
            make=racing_with(together),
            marks=marks,
            faults=faults,
            preemptions=2,
            direct=True,
            cleaner=cleaner,
            txns=cleaner or marks == "aa",
        )
        for together in (look_first, look_last)
        for what, marks, faults, cleaner in (
            ("two writers", "ab", 1, False),
            ("one writer twice", "aa", 1, False),
            ("beside stock's clean-up", "a", 1, True),
        )
    ],
    Table(name="commit store, two writers", make=recorded, honest=False, preemptions=2, crashes=1),
    Table(
        name="commit store, one writer twice",
        make=recorded,
        honest=False,
        marks="aa",
        preemptions=2,
        crashes=1,
    ),
    Table(name="commit store, a fault", make=recorded, honest=False, faults=1, preemptions=1),
    Table(
        name="commit store, a fault, one writer twice",
        make=recorded,
        honest=False,
        marks="aa",
        faults=1,
        preemptions=1,
    ),
    Table(name="direct, conditional put, two writers", make=conditional, faults=1, direct=True),
    Table(
        name="direct, conditional put, one writer twice",
        make=conditional,
        marks="aa",
        faults=1,
        crashes=1,
        preemptions=2,
        direct=True,
    ),
    Table(
        name="direct, commit store, two writers",
        make=recorded,
        honest=False,
        preemptions=2,
        crashes=1,
        direct=True,
    ),
    Table(
        name="direct, commit store, a fault, one writer twice",
        make=recorded,
        honest=False,
        marks="aa",
        faults=1,
        preemptions=1,
        direct=True,
    ),
    Table(
        name="commit store, three writers",
        make=recorded,
        honest=False,
        marks="aab",
        preemptions=1,
    ),
]


@pytest.mark.requirement("C1", "C8", "P1")
@pytest.mark.parametrize("table", SCENARIOS, ids=lambda t: t.name)
def test_every_schedule_applies_each_transaction_once(table: Table) -> None:
    report = explore(table.scenario())
    print(report)
    assert not report.capped


VERSIONS = "holdfast.commits._versions"
MUTANTS = {
    "the ledger is not checked": (
        "            applied = self.ledger.applied(config, txns)\n        if applied:",
        "            applied = []\n        if applied:",
    ),
    "the ledger is not written": ("return self.ledger.record(config, txns)", "return {}"),
    "the version is put, not decided": (
        "decision = decide(name, body, token)",
        "decision = self.core.store.put(name.path, body)",
    ),
}
EARLY = "the ledger is checked before the decision, not inside it"
EARLY_MUTANTS = {
    False: (
        "self._refuse_applied(config, txns, version)",
        "self._refuse_applied(self.__dict__.setdefault('_early', config), txns, version)",
    ),
    True: (
        "self._refuse_applied(base.config, txns, version)",
        "self._refuse_applied(self.__dict__.setdefault('_early', base.config), txns, version)",
    ),
}
LOST = "a lost decision is taken for a won one"
LOST_MUTANTS = {
    False: (
        'if isinstance(decision, Lost):\n            raise ConflictError("another',
        'if decision is None:\n            raise ConflictError("another',
    ),
    True: ("return decision if isinstance(decision, Lost) else body", "return body"),
}


@pytest.mark.mutant
@pytest.mark.requirement("C1", "C8")
@pytest.mark.parametrize("direct", [False, True], ids=["by Lance", "direct"])
@pytest.mark.parametrize("name", [*MUTANTS, EARLY, LOST])
def test_mutant_is_killed(name: str, direct: bool) -> None:
    special = {EARLY: EARLY_MUTANTS[direct], LOST: LOST_MUTANTS[direct]}
    careless = mutate(VERSIONS, special.get(name) or MUTANTS[name])
    careless.__dict__["AlreadyAppliedError"] = AlreadyAppliedError  # the one callers know
    for marks in ("aa", "ab"):
        table = Table(
            name=name,
            make=conditional,
            marks=marks,
            faults=1,
            versions=careless.Versions,
            direct=direct,
        )
        try:
            explore(table.scenario())
        except Violation as violation:
            print(violation)
            return
    pytest.fail(f"nobody noticed: {name}")


OLD_NAMES = {
    "nobody looks whether the version is the newest": (
        "if not self.core.arbiter.refuses_old_names:\n            look",
        "if False:\n            look",
    ),
    "a newer version is taken for one that builds on ours": (
        "if overtaking is not None:",
        "if overtaking is None and name is None:",
    ),
    "Lance may find its own transaction at an old name": (
        "if not self._unsure or isinstance(self.core.arbiter, SupportsSeries):",
        "if True:",
    ),
}


@pytest.mark.mutant
@pytest.mark.requirement("P1")
@pytest.mark.parametrize("txns", [False, True], ids=["no transactions", "transactions"])
@pytest.mark.parametrize(
    ("name", "direct"),
    [
        (name, direct)
        for name in OLD_NAMES
        for direct in (False, True)
        if not (direct and "Lance" in name)
    ],
)
def test_mutant_that_wins_an_old_name_is_killed(name: str, direct: bool, txns: bool) -> None:
    careless = mutate(VERSIONS, OLD_NAMES[name])
    careless.__dict__["AlreadyAppliedError"] = AlreadyAppliedError
    table = Table(
        name=name,
        make=conditional,
        marks="a",
        preemptions=1,
        versions=careless.Versions,
        direct=direct,
        cleaner=True,
        txns=txns,
    )
    with pytest.raises(Violation, match="LOST") as caught:
        explore(table.scenario())
    print(caught.value)


class Recorder(DatasetHook):
    """Notes how the hook is called, and refuses the first version to make a conflict."""

    def __init__(self, versions: Versions, *, conflict: bool) -> None:
        super().__init__(versions)
        self.calls: list[str] = []
        self.fields: list[set[str]] = []
        self._conflict = conflict

    def describe_table(self, request: object) -> Any:
        self.calls.append("describe_table")
        return super().describe_table(request)

    def list_table_versions(self, request: object) -> dict[str, object]:
        self.calls.append("list_table_versions")
        return super().list_table_versions(request)

    def describe_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        self.calls.append("describe_table_version")
        return super().describe_table_version(request)

    def create_table_version(self, request: Mapping[str, Any]) -> dict[str, object]:
        self.calls.append("create_table_version")
        self.fields.append({key for key, value in request.items() if value is not None})
        if self._conflict:
            self._conflict = False
            rival = DatasetHook(self._versions)
            _append(rival, 100)
        return super().create_table_version(request)


def _append(hook: Any, number: int) -> None:
    table = lance.dataset(namespace_client=hook, table_id=TABLE_ID)
    table.insert(pa.table({"id": [number]}))


@pytest.mark.parametrize("conflict", [False, True])
def test_the_model_calls_the_hook_as_lance_does(tmp_path: Path, conflict: bool) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"id": [0]}), uri)
    arbiter = create_arbiter(uri)
    store = open_store(uri)
    real = Recorder(Versions(TableCore(store, arbiter, uri)), conflict=conflict)
    _append(real, 1)
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [0, 1] + [100] * conflict

    model: Any = ModelCalls(conflict=conflict)
    LanceModel(model, model, "uuid").append("mark")
    # Opening asks for the table first, which the model leaves to its caller.
    assert _shape(real.calls) == _shape(["describe_table", *model.calls])
    assert {"version", "manifest_path", "manifest_size", "naming_scheme"} <= real.fields[0]


def _shape(calls: list[str]) -> list[str]:
    """Return the calls without repeats in a row: Lance describes a conflict more than once."""
    return [call for i, call in enumerate(calls) if i == 0 or calls[i - 1] != call]


class ModelCalls:
    """A store and a hook in one, that note how the model calls the hook."""

    def __init__(self, *, conflict: bool) -> None:
        self.calls: list[str] = []
        self.objects = {version_name(1).path: manifest_bytes((), "create", ())}
        self._conflict = conflict

    def list(self, prefix: str) -> list[Any]:
        return [SimpleNamespace(path=path) for path in self.objects if path.startswith(prefix)]

    def get(self, path: str) -> bytes:
        return self.objects[path]

    def put(self, path: str, body: bytes) -> None:
        self.objects[path] = body

    def delete(self, paths: Any) -> None:
        for path in paths:
            self.objects.pop(path)

    def list_table_versions(self, _request: object) -> dict[str, object]:
        self.calls.append("list_table_versions")
        return {"versions": []}

    def describe_table_version(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.calls.append("describe_table_version")
        return {"version": {"manifest_path": version_name(request["version"]).path}}

    def create_table_version(self, request: Mapping[str, Any]) -> None:
        self.calls.append("create_table_version")
        path = version_name(request["version"]).path
        if self._conflict:
            self._conflict = False
            self.objects[path] = manifest_bytes(("rival",), "rival", ())
            raise ConflictError("taken")
        self.objects[path] = self.objects[request["manifest_path"]]


def test_transactions_are_told_apart() -> None:
    assert parse_txn(("app", 1)) != parse_txn(("app", 2)) != parse_txn("app:1")
