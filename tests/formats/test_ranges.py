"""Ranges against a plain set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.formats._ranges import Ranges


@pytest.mark.requirement("P3")
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=20))
def test_it_agrees_with_a_set(added: list[tuple[int, int]]) -> None:
    ranges, model = Ranges(), set[int]()
    for first, more in added:
        ranges = ranges.with_range(first, first + more)
        model.update(range(first, first + more + 1))
        assert [n in ranges for n in range(40)] == [n in model for n in range(40)]
        assert len(ranges) == sum(n - 1 not in model for n in model)
        assert str(Ranges.parse(str(ranges))) == str(ranges)


def test_how_it_is_written() -> None:
    ranges = Ranges.parse("0-41,43,50-60")
    assert 41 in ranges and 42 not in ranges and 43 in ranges
    assert str(ranges.with_range(42, 42)) == "0-43,50-60"
    assert str(Ranges().with_range(2**63 - 1, 2**63 - 1)) == str(2**63 - 1)


@pytest.mark.parametrize(
    "text",
    ["", "x", "1.5", "0x1", "-1", "1-", "-", "01", "5-4", "5-5", "1,1", "1,2", "2-4,5", "4,2", "1,",
     " 1", "1-2-3", "9" * 5000, "٣"],
)  # fmt: skip
def test_what_is_written_in_another_way_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Ranges.parse(text)
