"""Transaction ids in files and in ranges, under every schedule; and without each of their rules.

The config keeps no string at all here, so each one goes to a file, with those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.commits import _history, _ledger
from holdfast.commits._versions import Versions
from holdfast.formats import _ledger as formats
from holdfast.testing import Violation, explore, mutate
from holdfast.txn import Txn
from holdfast.upkeep import _leftovers, _vacuum
from model.commit_scenarios import Table, conditional, recorded
from model.vacuum_scenarios import NoThreads, Vacuums, vacuum, vacuum_twice, write_by_string

pytestmark = pytest.mark.requirement("P3", "C8")

STRINGS = {mark: f"run {mark}" for mark in "ab"}
NUMBERS = {"a": ("app", 1), "b": ("app", 0)}


@pytest.fixture(autouse=True)
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every string go to a file; and greenlets do not cross threads."""
    monkeypatch.setattr(formats, "_KEPT", {formats._RECENT: 0, formats._OWN: 0})
    monkeypatch.setattr(_history, "ThreadPoolExecutor", NoThreads)


TWICE = Table(
    name="one string twice", make=conditional, marks="aa", direct=True, faults=1, preemptions=1,
    ids=STRINGS,
)  # fmt: skip
ANY_ORDER = Table(
    name="numbers in any order", make=conditional, marks="aab", direct=True, preemptions=1,
    ids=NUMBERS,
)  # fmt: skip
SCENARIOS = [
    TWICE,
    replace(TWICE, name="two strings", marks="ab", faults=0, preemptions=2),
    replace(TWICE, name="by Lance", direct=False, faults=0),
    replace(TWICE, name="by a commit store", make=recorded, honest=False, faults=0),
    replace(TWICE, name="a writer dies", faults=0, crashes=1),
    ANY_ORDER,
]


@pytest.mark.parametrize("table", SCENARIOS, ids=lambda one: one.name)
def test_every_schedule_applies_each_id_once(table: Table) -> None:
    report = explore(table.scenario())
    print(report)
    assert not report.capped


class NamedBeforeDurable(Versions):
    """Puts files once the version that names them is decided."""

    def _record(
        self, config: Mapping[str, str], txns: Sequence[Txn], version: int
    ) -> dict[str, str | None]:
        late = Late(self.core.store)
        ledger = _ledger.Ledger(late, self.core.ids)  # type: ignore[arg-type]
        self._late = late.puts
        return ledger.record(config, txns)

    def _decide(self, *given: Any, **named: Any) -> Any:
        outcome = super()._decide(*given, **named)
        for path, body in self._late:
            self.core.store.put(path, body)
        return outcome


class Late:
    """A store that keeps puts for later."""

    def __init__(self, store: Any) -> None:
        self.get = store.get
        self.puts: list[tuple[str, bytes]] = []

    def put(self, path: str, body: bytes) -> None:
        self.puts.append((path, body))


@pytest.mark.mutant
def test_a_file_that_is_named_before_it_is_durable_is_noticed() -> None:
    with pytest.raises(Violation, match="GONE") as caught:
        explore(replace(TWICE, versions=NamedBeforeDurable).scenario())
    print(caught.value)


LEDGER = "holdfast.commits._ledger"
FORMATS = "holdfast.formats._ledger"
MUTANTS = {
    "ranges are a high-water mark": (
        ANY_ORDER,
        FORMATS,
        "return txn.number in numbers_of(config, txn.app)",
        "return any(n in numbers_of(config, txn.app) for n in range(txn.number, 10))",
        "LOST",
    ),
    "files are not read": (
        TWICE,
        LEDGER,
        "for file in older_files(config) if open_ones else ():",
        "for file in ():",
        "DOUBLED",
    ),
    "a missing file holds nothing": (
        replace(TWICE, versions=NamedBeforeDurable),
        LEDGER,
        "raise MissingTxnFileError(",
        "return b''\n            raise MissingTxnFileError(",
        "GONE|DOUBLED",
    ),
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, module, rule, without, outcome = MUTANTS[name]
    mutant = mutate(module, (rule, without))
    if module == FORMATS:
        monkeypatch.setattr(_ledger, "is_in_config", mutant.is_in_config)
    else:
        monkeypatch.setattr(_ledger.Ledger, "applied", mutant.Ledger.applied)
        monkeypatch.setattr(_ledger.Ledger, "_read", mutant.Ledger._read)
    with pytest.raises(Violation, match=outcome) as caught:
        explore(table.scenario())
    print(caught.value)


# Vacuum.

LONG_WORK = Vacuums(
    name="a writer outlasts two vacuums",
    actors={"writer": write_by_string, "vacuum": vacuum_twice},
    orphans=(),
    preemptions=1,
)
VACUUMS = [
    LONG_WORK,
    replace(LONG_WORK, name="by a commit store", make=recorded, honest=False),
    replace(LONG_WORK, name="a vacuum dies", actors={"w": write_by_string, "v": vacuum}, crashes=1),
]


@pytest.mark.parametrize("setup", VACUUMS, ids=lambda one: one.name)
def test_no_version_names_a_file_that_vacuum_took(setup: Vacuums) -> None:
    report = explore(setup.scenario())
    print(report)
    assert not report.capped


@pytest.mark.mutant
def test_a_file_that_goes_by_its_age_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = mutate(
        "holdfast.upkeep._numbers",
        (
            "    TRANSACTIONS_FOLDER,\n    TXNS_FOLDER,\n    INDICES",
            "    TRANSACTIONS_FOLDER,\n    INDICES",
        ),
    )
    monkeypatch.setattr(_vacuum, "is_numbered", mutant.is_numbered)
    with pytest.raises(Violation, match="GONE") as caught:
        explore(LONG_WORK.scenario())
    print(caught.value)


@pytest.mark.mutant
def test_a_file_that_is_collected_while_it_is_named_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant: Any = mutate(
        "holdfast.upkeep._leftovers",
        ("self.needed |= {file.path for file in older_files(read_config(manifest))}", "pass"),
    )
    monkeypatch.setattr(_leftovers.Contents, "_note_needed", mutant.Contents._note_needed)
    with pytest.raises(Violation, match="GONE") as caught:
        explore(LONG_WORK.scenario())
    print(caught.value)
