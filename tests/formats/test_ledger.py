"""The ledger against a model: what was recorded is applied, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptError
from holdfast.formats import applied_here, is_applied, record_txns
from holdfast.formats._ledger import RECENT_KEPT
from holdfast.txn import AppTxn, FreeTxn, Txn

APPS = st.sampled_from(["job", "job.7", "jöb", "recent", "a b"])
TXNS = st.one_of(
    st.builds(AppTxn, APPS, st.integers(0, 5)),
    st.builds(FreeTxn, st.sampled_from("abcdefgh")),
)
ALL: list[Txn] = [
    *(AppTxn(app, n) for app in ("job", "job.7", "jöb", "recent", "a b") for n in range(7)),
    *(FreeTxn(text) for text in "abcdefgh"),
]


def recorded(config: dict[str, str], txns: Sequence[Txn]) -> dict[str, str]:
    """Return the config of the version that applies `txns`, as `edit_config` makes it."""
    entries = {**config, **record_txns(config, txns)}
    return {key: value for key, value in entries.items() if value is not None}


class Model:
    """What the ledger says, kept in the plainest way."""

    def __init__(self) -> None:
        self.highest: dict[str, int] = {}
        self.texts: list[str] = []

    def record(self, txn: Txn) -> None:
        if isinstance(txn, AppTxn):
            self.highest[txn.app] = max(txn.number, self.highest.get(txn.app, -1))
        else:
            self.texts = [*self.texts, txn.text][-RECENT_KEPT:]

    def holds(self, txn: Txn) -> bool:
        if isinstance(txn, AppTxn):
            return txn.number <= self.highest.get(txn.app, -1)
        return txn.text in self.texts


@pytest.mark.requirement("C8")
@given(st.lists(st.lists(TXNS, max_size=4), max_size=12))
def test_it_agrees_with_a_model(groups: list[list[Txn]]) -> None:
    config = {"mine": "kept"}
    model = Model()
    for group in groups:
        fresh = [txn for txn in dict.fromkeys(group) if not is_applied(config, txn)]
        config = recorded(config, fresh)
        for txn in fresh:
            model.record(txn)
        assert applied_here(config) == tuple(str(txn) for txn in fresh)
        assert [is_applied(config, txn) for txn in ALL] == [model.holds(txn) for txn in ALL]
    assert config["mine"] == "kept"


@given(APPS, st.permutations(range(6)))
def test_the_highest_number_of_a_group_is_kept(app: str, numbers: list[int]) -> None:
    config = recorded({}, [AppTxn(app, n) for n in numbers])
    assert is_applied(config, AppTxn(app, 5))
    assert not is_applied(config, AppTxn(app, 6))


def test_numbers_keep_one_entry_per_application() -> None:
    config: dict[str, str] = {}
    for number in range(1000):
        config = recorded(config, [AppTxn("job", number)])
    assert len(config) == 2  # its number, and what this version applied
    assert is_applied(config, AppTxn("job", 0)) and is_applied(config, AppTxn("job", 999))
    assert not is_applied(config, AppTxn("job", 1000))


def test_the_newest_256_strings_are_kept() -> None:
    config: dict[str, str] = {}
    texts = [f"run {n}" for n in range(RECENT_KEPT + 10)]
    for text in texts:
        config = recorded(config, [FreeTxn(text)])
    assert [is_applied(config, FreeTxn(text)) for text in texts] == [False] * 10 + [
        True
    ] * RECENT_KEPT
    assert sum(len(key) + len(value) for key, value in config.items()) < 5000


def test_a_group_larger_than_the_ring() -> None:
    group = [FreeTxn(f"run {n}") for n in range(RECENT_KEPT + 3)]
    config = recorded({}, group)
    assert [is_applied(config, txn) for txn in group] == [False] * 3 + [True] * RECENT_KEPT


def test_a_string_and_a_pair_are_two_things() -> None:
    config = recorded({}, [FreeTxn("job:7")])
    assert not is_applied(config, AppTxn("job", 7))
    config = recorded({}, [AppTxn("job", 7)])
    assert not is_applied(config, FreeTxn("job:7"))


def test_a_version_without_transactions_applied_none() -> None:
    config = recorded(recorded({}, [FreeTxn("a")]), [])
    assert applied_here(config) == ()
    assert is_applied(config, FreeTxn("a"))


@pytest.mark.parametrize("value", ["", "x", "1.5", "0x1", "9" * 5000])
def test_an_unreadable_number_is_not_guessed(value: str) -> None:
    with pytest.raises(CorruptError):
        is_applied({"holdfast.txn.app.job": value}, AppTxn("job", 1))


@pytest.mark.parametrize("value", ["", "x", "{}", "7", "[1]"])
def test_an_unreadable_list_is_not_guessed(value: str) -> None:
    with pytest.raises(CorruptError):
        applied_here({"holdfast.txn.here": value})
