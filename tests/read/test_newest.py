"""Which row is the newest, and sets of keys, against plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast.read._hashed as hashed
import holdfast.read._newest as newest
from holdfast.formats._keys import key_values
from holdfast.read._newest import find_newest

TYPES: dict[str, tuple[Any, Any]] = {
    "close": (pa.int64(), st.integers(-5, 5)),
    "far": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "unsigned": (pa.uint64(), st.one_of(st.integers(0, 4), st.integers(2**63, 2**64 - 1))),
    "small": (pa.int8(), st.integers(-128, 127)),
    "text": (pa.string(), st.text(max_size=20)),
    "long text": (pa.large_string(), st.text(alphabet="ab", max_size=3).map(lambda t: t * 9)),
    "bytes": (pa.binary(), st.binary(max_size=10)),
    "booleans": (pa.bool_(), st.booleans()),
}


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_first_level_that_knows_a_key_has_it(kind: str, data: Any) -> None:
    arrow, values = TYPES[kind]
    rows = st.lists(values, max_size=8)
    levels = data.draw(st.lists(rows, min_size=1, max_size=4))
    asked = data.draw(rows)
    masks, keys = find_newest([[pa.array(level, arrow)] for level in levels])
    owner: dict[Any, tuple[int, int]] = {}
    for number, level in enumerate(levels):
        for at, key in enumerate(level):
            if owner.get(key, (number, 0))[0] == number:
                owner[key] = (number, at)
    for number, (level, mask) in enumerate(zip(levels, masks, strict=True)):
        assert mask.tolist() == [owner[key] == (number, at) for at, key in enumerate(level)]
    wanted = [key in owner for key in asked]
    assert keys.holds([pa.array(asked, arrow)]).tolist() == wanted
    assert len(keys) == len(owner)
    batches: Iterator[pa.RecordBatch] = iter(
        [pa.record_batch({"k": pa.array(asked, arrow), "n": list(range(len(asked)))})]
    )
    kept = [n for batch in keys.without(batches, ["k"]) for n in batch["n"].to_pylist()]
    assert kept == [n for n, there in enumerate(wanted) if not there]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.text(max_size=4), st.integers(0, 3)), max_size=10))
def test_keys_of_several_columns(rows: list[tuple[str, int]]) -> None:
    half = rows[: len(rows) // 2]
    columns = [pa.array([a for a, _ in half]), pa.array([b for _, b in half], pa.int32())]
    columns[0] = columns[0].cast(pa.string())
    (mask,), keys = find_newest([columns])
    assert mask.sum() == len(set(half)) == len(keys)
    asked = [
        pa.array([a for a, _ in rows], pa.string()),
        pa.array([b for _, b in rows], pa.int32()),
    ]
    assert keys.holds(asked).tolist() == [row in half for row in rows]


def test_equal_hashes_do_not_make_keys_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        hashed.KeyBytes, "hashes", lambda keys: np.zeros(len(keys.lengths), np.uint64)
    )
    one = hashed.HashedKeys(pa.array(["a"]))
    assert one.holds(pa.array(["a", "b", "a", None])).tolist() == [True, False, True, False]
    with pytest.raises(ValueError, match="one hash"):
        hashed.HashedKeys(pa.array(["a", "b"]))
    _, keys = find_newest([[pa.array(["a", "b"])]])  # falls back to Arrow's own table
    assert isinstance(keys, newest._Others)
    assert keys.holds([pa.array(["a", "c"])]).tolist() == [True, False]


@pytest.mark.parametrize("high", [0, 2**63, 2**64 - 2**32])
def test_keys_that_want_one_place_get_others(monkeypatch: pytest.MonkeyPatch, high: int) -> None:
    """Also beyond the end of the table, and for keys of differing and of one length."""
    real = hashed.KeyBytes.hashes
    low = np.uint64(2**20 - 1)
    monkeypatch.setattr(
        hashed.KeyBytes, "hashes", lambda keys: (real(keys) & low) | np.uint64(high)
    )
    for width in (0, 12):
        names = [f"{n:0{width}d}" for n in range(300)]
        old, new = pa.array(names[:200]), pa.array(names[100:250] + names[100:110])
        (newer, older), keys = find_newest([[new], [old]])
        assert isinstance(keys, newest._Bytes)
        assert older.tolist() == [True] * 100 + [False] * 100
        assert newer.tolist() == [False] * 10 + [True] * 150
        assert keys.holds([pa.array(names)]).tolist() == [n < 250 for n in range(300)]


def test_keys_of_other_lengths_than_the_set() -> None:
    _, keys = find_newest([[pa.array(["ab", "cd"])]])
    asked = ["ab", "abc", "a", "", "ab\0", "x" * 80, "cd"]
    assert keys.holds([pa.array(asked)]).tolist() == [one in {"ab", "cd"} for one in asked]
    assert keys.holds([pa.array(["abc", "cde"])]).tolist() == [False, False]
    long = ["y" * 80, "z" * 80]
    _, keys = find_newest([[pa.array(long)]])
    assert keys.holds([pa.array([*long, "y" * 79, ""])]).tolist() == [True, True, False, False]


def test_many_keys_of_text() -> None:
    numbers = np.random.default_rng(3).choice(50_000, 20_000, replace=False)
    keys = pa.array([f"key-{number}" for number in numbers])
    (mask,), found = find_newest([[keys]])
    assert mask.all() and len(found) == 20_000
    asked = pa.array([f"key-{number}" for number in range(50_000)])
    there = set(numbers.tolist())
    assert found.holds([asked.slice(7)]).tolist() == [n in there for n in range(7, 50_000)]
    assert key_values([asked]) is asked


def test_null_keys_of_the_base_are_never_shadowed() -> None:
    for kind, values in ((pa.int64(), [0, 1]), (pa.string(), ["", "a"])):
        _, keys = find_newest([[pa.array(values, kind)]])
        assert keys.holds([pa.array([None, values[0]], kind)]).tolist() == [False, True]
