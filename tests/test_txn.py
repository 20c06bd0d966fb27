"""What may be a transaction id, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.txn import AppTxn, FreeTxn, parse_txn

PRINTABLE = st.text(min_size=1, max_size=200).filter(str.isprintable)
NUMBERS = st.integers(0, 2**63 - 1)


@given(PRINTABLE, NUMBERS)
def test_a_pair(app: str, number: int) -> None:
    txn = parse_txn((app, number))
    assert txn == AppTxn(app, number)
    assert parse_txn(txn) == txn
    assert str(txn) == f"{app}:{number}"


@given(PRINTABLE)
def test_a_string(text: str) -> None:
    txn = parse_txn(text)
    assert txn == FreeTxn(text)
    assert parse_txn(txn) == txn
    assert str(txn) == text


@pytest.mark.requirement("C8")
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        1.5,
        b"bytes",
        "",
        "x" * 201,
        "line\nbreak",
        "nul\0",
        "bell\x07",
        "\ud800",
        "\u200b",
        (),
        ("app",),
        ("app", 1, 2),
        ("app", "1"),
        ("app", 1.0),
        ("app", True),
        ("app", None),
        ("app", -1),
        ("app", 2**63),
        ("app", 10**400),
        ("", 1),
        ("a\tb", 1),
        ("x" * 201, 1),
        (7, "app"),
        (b"app", 1),
        {"app": 1},
        {"app"},
        AppTxn("", 1),
        AppTxn("app", True),
        AppTxn("app", -1),
        FreeTxn(""),
        FreeTxn("a\nb"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_malformed_ones_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_txn(value)
    assert len(str(caught.value)) < 600


def test_they_travel_between_processes() -> None:
    for txn in (AppTxn("job", 3), FreeTxn("once")):
        assert pickle.loads(pickle.dumps(txn)) == txn
