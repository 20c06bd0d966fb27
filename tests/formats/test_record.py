"""Records of a commit store: bodies of any size, compressed or not, and bytes that are damaged."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptError, UpgradeError
from holdfast.formats import Record, decode_record, encode_record, make_record, pack_body

TOKEN = "hf-" + "7" * 32
MANIFEST = b"".join(b"data/%d.lance " % number for number in range(3_000))


def make(body: bytes) -> Record:
    return make_record("_versions/1", body, TOKEN, after=None, inline=True, packed=pack_body(body))


@pytest.mark.requirement("C5")
@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(lambda text, times: text * times, st.binary(min_size=1), st.integers(1, 9_000)),
        st.builds(lambda n: random.Random(n).randbytes(n), st.integers(0, 20_000)),
    )
)
def test_every_body_comes_back(body: bytes) -> None:
    record = decode_record(encode_record(make(body)))
    assert record == make(body)
    assert record.body == body


def test_what_shrinks_is_kept_small() -> None:
    assert len(encode_record(make(MANIFEST))) < len(MANIFEST) / 3


@pytest.mark.parametrize("size", [0, 4_096, (1 << 20) + 1], ids=["none", "few", "too many"])
def test_bytes_that_are_kept_as_they_are(size: int) -> None:
    body = b"x" * size
    assert pack_body(body) is None
    assert decode_record(encode_record(make(body))).body == body


def test_bytes_that_do_not_shrink_are_kept_as_they_are() -> None:
    assert pack_body(random.Random(1).randbytes(100_000)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"size":', b'"size":1'),
        (b'"size":', b'"size":99999999'),
        (b'"sha256":"', b'"sha256":"0'),
    ],
    ids=["another size", "a size beyond all", "another checksum"],
)
def test_a_damaged_head_is_told(old: bytes, new: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_record(encode_record(make(MANIFEST)).replace(old, new, 1))


@pytest.mark.parametrize("at", [-1, -400], ids=["the end", "the middle"])
def test_damaged_bytes_are_told(at: int) -> None:
    value = bytearray(encode_record(make(MANIFEST)))
    value[at] ^= 255
    with pytest.raises(CorruptError):
        decode_record(bytes(value))


def test_a_codec_of_a_later_release() -> None:
    value = encode_record(make(MANIFEST)).replace(b'"zstd"', b'"what"', 1)
    with pytest.raises(UpgradeError, match="codec"):
        decode_record(value)
