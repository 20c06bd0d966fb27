"""The ledger against a model: what was recorded is applied, for ever, and nothing else is."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commits._ledger import Ledger, MissingTxnFileError
from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats import _ledger as formats
from holdfast.formats import applied_here, carried_ledger, is_in_config, older_files, record_txns
from holdfast.formats._ledger import MOST_RANGES, RECENT_KEPT
from holdfast.formats._txn_file import DIGEST_BYTES, TxnFile, encode_file, files_to_merge
from holdfast.testing import CountedIds, SimulatedStore, State
from holdfast.txn import AppTxn, FreeTxn, OwnTxn, Txn

APPS = ["job", "job.7", "jöb", "recent", "a b"]
TXNS = st.one_of(
    st.builds(AppTxn, st.sampled_from(APPS), st.integers(0, 9)),
    st.builds(FreeTxn, st.sampled_from("abcdefghijklmnop")),
    st.builds(OwnTxn, st.sampled_from("abcdefgh")),
)
ALL: list[Txn] = [
    *(AppTxn(app, n) for app in APPS for n in range(10)),
    *(FreeTxn(text) for text in "abcdefghijklmnop"),
    *(OwnTxn(text) for text in "abcdefgh"),
]


class Table:
    """Versions of a table as far as the ledger goes: each has a config; files are shared."""

    def __init__(self) -> None:
        self.objects = State()
        self.configs: list[dict[str, str]] = [{"mine": "kept"}]
        self.models: list[frozenset[Txn]] = [frozenset()]
        self.ids = CountedIds(1)
        self.ledger = self.open()

    def open(self) -> Ledger:
        """Return the ledger of a process that knows nothing yet."""
        return Ledger(SimulatedStore(self.objects.apply), self.ids)

    @property
    def config(self) -> dict[str, str]:
        return self.configs[-1]

    def apply(self, txns: Sequence[Txn]) -> list[Txn]:
        """Make the next version by those that are not applied yet."""
        distinct = list(dict.fromkeys(txns))
        applied = self.ledger.applied(self.config, distinct)
        fresh = [txn for txn in distinct if txn not in applied]
        entries = {**self.config, **self.ledger.record(self.config, fresh)}
        self.configs.append({key: value for key, value in entries.items() if value is not None})
        self.models.append(self.models[-1] | set(fresh))
        return fresh

    def restore(self, version: int) -> None:
        """Make the next version by going back to an older one."""
        self.configs.append(self.configs[version])
        self.models.append(self.models[version])


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep few strings in the config, so that many files are made and merged."""
    monkeypatch.setattr(formats, "_KEPT", {formats._RECENT: 3, formats._OWN: 2})


ACTIONS = st.one_of(st.lists(TXNS, max_size=5), st.integers(0, 100))


@pytest.mark.requirement("C8", "P3")
@pytest.mark.usefixtures("few")
@settings(max_examples=60)
@given(st.lists(ACTIONS, max_size=25))
def test_it_agrees_with_a_plain_set_in_any_order_and_after_restores(
    actions: list[list[Txn] | int],
) -> None:
    table = Table()
    for action in actions:
        if isinstance(action, int):
            table.restore(action % len(table.configs))
        else:
            fresh = table.apply(action)
            assert applied_here(table.config) == tuple(str(txn) for txn in fresh)
        for ledger in (table.ledger, table.open()):
            applied = ledger.applied(table.config, ALL)
            assert applied == [txn for txn in ALL if txn in table.models[-1]]
    assert table.config["mine"] == "kept"
    for config, model in zip(table.configs, table.models, strict=True):  # time travel
        assert set(table.ledger.applied(config, ALL)) == model


@pytest.mark.requirement("P3")
def test_strings_are_kept_for_ever_in_few_files() -> None:
    table = Table()
    texts = [FreeTxn(f"run {n}") for n in range(1500)]
    for start in range(0, len(texts), 7):
        table.apply(texts[start : start + 7])
    assert table.ledger.applied(table.config, texts) == texts
    assert table.open().applied(table.config, texts) == texts
    assert not table.open().applied(table.config, [FreeTxn(f"run {n}") for n in range(1500, 2000)])
    assert len(older_files(table.config)) <= math.log(len(texts) / 128, 4) + 1
    assert sum(len(key) + len(value) for key, value in table.config.items()) < 6000


def test_the_newest_strings_need_no_file() -> None:
    table = Table()
    texts = [FreeTxn(f"run {n}") for n in range(RECENT_KEPT + 10)]
    for text in texts:
        table.apply([text])
    table.objects.objects.clear()
    newest = texts[-(RECENT_KEPT // 2) :]
    assert table.open().applied(table.config, newest) == newest


def test_a_group_larger_than_what_the_config_keeps() -> None:
    table = Table()
    group: list[Txn] = [FreeTxn(f"run {n}") for n in range(RECENT_KEPT * 3)]
    table.apply(group)
    assert table.open().applied(table.config, group) == group


def test_our_own_ids_take_no_places_from_users() -> None:
    table = Table()
    texts: list[Txn] = [FreeTxn(f"run {n}") for n in range(RECENT_KEPT // 2)]
    table.apply(texts)
    for number in range(RECENT_KEPT * 2):
        table.apply([OwnTxn(f"index {number}")])
    assert all(is_in_config(table.config, txn) for txn in texts)
    own: list[Txn] = [OwnTxn(f"index {number}") for number in range(RECENT_KEPT * 2)]
    assert table.open().applied(table.config, own) == own


# Large files, which are read in parts.


@pytest.mark.requirement("P3")
def test_a_large_file_is_read_in_parts() -> None:
    table, texts = filled(18_000)
    (file,) = older_files(table.config)
    assert file.pages > 16
    reads: list[tuple[int, int | None]] = []
    ledger = Ledger(Counted(table.objects, reads), table.ids)
    assert ledger.holds(table.config, texts[17])
    assert not ledger.holds(table.config, FreeTxn("new"))
    assert sum((end or file.size) - start for start, end in reads) < file.size / 5
    assert not ledger.holds(table.config, FreeTxn("new"))
    assert len(reads) == 3  # its directory, and a page for each string: what was found is kept
    assert ledger.applied(table.config, texts) == texts


class Counted(SimulatedStore):
    """Notes which parts of objects are read."""

    def __init__(self, state: State, reads: list[tuple[int, int | None]]) -> None:
        super().__init__(state.apply)
        self._reads = reads

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        self._reads.append((start, end))
        return super().get(path, start=start, end=end)


def test_millions_of_strings_need_few_files() -> None:
    files: list[TxnFile] = []
    for _ in range(100_000):  # 12.8 million
        merged = files_to_merge(files, 128)
        count = 128 + sum(file.count for file in files[len(files) - merged :])
        files = [*files[: len(files) - merged], TxnFile("", count, "")]
        assert len(files) < 16
    assert sum(file.count for file in files) == 12_800_000


# What is lost or damaged is an error, never an answer.


@pytest.mark.requirement("P3")
@pytest.mark.parametrize("count", [300, 18_000], ids=["small", "large"])
def test_a_missing_file_is_no_answer(count: int) -> None:
    table, _ = filled(count)
    there = dict(table.objects.objects)
    table.objects.objects.clear()
    for txn in (FreeTxn("run 0"), FreeTxn("new"), OwnTxn("new")):
        with pytest.raises(MissingTxnFileError, match="put the file back"):
            table.open().holds(table.config, txn)
    assert not table.open().holds(table.config, AppTxn("job", 1))
    assert table.open().holds(table.config, FreeTxn(f"run {count - 1}"))
    table.objects.objects.update(there)


@pytest.mark.requirement("P3")
@pytest.mark.parametrize("count", [300, 12_000], ids=["small", "large"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_damaged_byte_goes_unnoticed(count: int, data: st.DataObject) -> None:
    table, texts = filled(count)
    (file,) = older_files(table.config)
    body = bytearray(table.objects.objects[file.path])
    sound = bytes(body)
    at = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        body[at] ^= data.draw(st.integers(1, 255))
    else:
        del body[at:]
    table.objects.objects[file.path] = bytes(body)
    with pytest.raises(CorruptError, match="damaged"):
        table.open().applied(table.config, texts[:: max(1, count // 300)])
    table.objects.objects[file.path] = sound


@functools.cache
def filled(count: int) -> tuple[Table, list[Txn]]:
    """Return a table that applied this many strings, for several tests."""
    table = Table()
    texts: list[Txn] = [FreeTxn(f"run {n}") for n in range(count)]
    table.apply(texts)
    return table, texts


def test_digests_are_sorted_and_distinct() -> None:
    digests = [bytes([n % 7] * DIGEST_BYTES) for n in range(20)]
    file, body = encode_file(b"".join(digests), "hf-" + "0" * 32)
    assert file.count == 7
    assert body[file.directory_bytes :] == b"".join(sorted(set(digests)))
    assert len(body) == file.size


@pytest.mark.parametrize("name", ["x", "../pin.json", "0" * 10 + "-" + "0" * 24 + "-" + "0" * 32])
def test_an_unreadable_name_of_a_file_is_not_guessed(name: str) -> None:
    with pytest.raises(CorruptError):
        older_files({"holdfast.txn.older": name})


# Numbers.


@pytest.mark.requirement("P3")
@given(st.permutations(range(8)))
def test_numbers_come_in_any_order(numbers: list[int]) -> None:
    table = Table()
    for done, number in enumerate(numbers):
        assert table.apply([AppTxn("job", number)])
        applied = table.ledger.applied(table.config, [AppTxn("job", n) for n in range(9)])
        assert {txn.number for txn in applied if isinstance(txn, AppTxn)} == set(
            numbers[: done + 1]
        )
    assert table.config["holdfast.txn.app.job"] == "0-7"


def test_numbers_keep_one_entry_per_application() -> None:
    table = Table()
    for number in range(1000):
        table.apply([AppTxn("job", number)])
    assert len(table.config) == 3  # its numbers, what this version applied, and the user's


@pytest.mark.requirement("P3")
def test_too_many_gaps_are_an_error_before_anything_is_written() -> None:
    table = Table()
    table.apply([AppTxn("job", 2 * n) for n in range(MOST_RANGES)])
    before = dict(table.objects.objects)
    with pytest.raises(InvalidInputError, match="another app name") as caught:
        table.ledger.record(table.config, [AppTxn("job", 10_000), FreeTxn("new")])
    with pytest.raises(InvalidInputError):
        table.ledger.check_room(table.config, AppTxn("job", 10_000))
    assert caught.value.app == "job"
    assert table.objects.objects == before
    table.apply([AppTxn("job", 1)])  # a gap that is filled makes room
    table.apply([AppTxn("job", 10_000), AppTxn("other", 7)])
    assert table.ledger.holds(table.config, AppTxn("job", 10_000))


def test_who_counts_in_order_leaves_no_gaps() -> None:
    table = Table()
    for number in range(0, 3 * MOST_RANGES, 3):
        table.apply([AppTxn("stream", number, in_order=True)])
    assert table.config["holdfast.txn.app.stream"] == f"0-{3 * MOST_RANGES - 3}"
    assert not table.apply([AppTxn("stream", 3)])


def test_a_string_and_a_pair_are_two_things() -> None:
    table = Table()
    table.apply([FreeTxn("job:7"), OwnTxn("other")])
    assert table.apply([AppTxn("job", 7), OwnTxn("job:7"), FreeTxn("other")])
    assert len(table.models[-1]) == 5


def test_a_version_without_transactions_applied_none() -> None:
    table = Table()
    table.apply([FreeTxn("a")])
    table.apply([])
    assert applied_here(table.config) == ()
    assert table.ledger.holds(table.config, FreeTxn("a"))


def test_a_changed_config_gets_its_ledger_back() -> None:
    table = Table()
    table.apply([FreeTxn(f"run {n}") for n in range(300)])
    table.apply([AppTxn("job", 3)])
    forged = {"mine": "new", "holdfast.txn.app.job": "0-9", "holdfast.txn.app.other": "1"}
    entries = {**forged, **carried_ledger(forged, table.config)}
    kept = {key: value for key, value in entries.items() if value is not None}
    del table.config["holdfast.txn.here"]
    assert kept == {**table.config, "mine": "new"}


@pytest.mark.parametrize("value", ["", "x", "1.5", "0x1", "9" * 5000, "5-1", "1,1"])
def test_an_unreadable_number_is_not_guessed(value: str) -> None:
    with pytest.raises(CorruptError):
        is_in_config({"holdfast.txn.app.job": value}, AppTxn("job", 1))


@pytest.mark.parametrize("value", ["", "x", "{}", "7", "[1]"])
def test_an_unreadable_list_is_not_guessed(value: str) -> None:
    with pytest.raises(CorruptError):
        applied_here({"holdfast.txn.here": value})


def test_unreadable_strings_are_not_moved() -> None:
    recent = " ".join(["*" * 16] * RECENT_KEPT)
    with pytest.raises(CorruptError):
        record_txns({"holdfast.txn.recent": recent}, [FreeTxn("a")])
