"""Log entries and shard manifests as bytes: every damage shows, and stock's bytes are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats._entry import (
    COMPRESS_ABOVE_BYTES,
    MAX_FENCE_BYTES,
    decode_entry,
    draft_entry,
    draft_fence,
)
from holdfast.formats._shard_manifest import (
    ShardManifest,
    SsTable,
    decode_shard_manifest,
    encode_shard_manifest,
)
from holdfast.formats._wal_names import entry_name, position_of, shard_of
from holdfast.testing import mutate

SHARD = "c86481e0-7f0b-47f8-aead-d10d7a62c5b2"
WRITER = "ab" * 16
TOKEN = "hf-" + "c" * 32
STOCK = Path(__file__).parent / "stock_bytes"
BATCH = pa.record_batch({"id": [1, 2], "v": ["a", "b"]})


def entry_bytes(*batches: pa.RecordBatch, position: int = 7, **given: object) -> bytes:
    settings: dict[str, object] = {"shard_id": SHARD, "epoch": 3, "writer": WRITER, **given}
    draft = draft_entry(batches or (BATCH,), **settings)  # type: ignore[arg-type]
    return draft.stamp(position=position, sequence=5, token=TOKEN)


def fence_bytes(position: int = 7) -> bytes:
    draft = draft_fence(shard_id=SHARD, epoch=3, writer=WRITER)
    return draft.stamp(position=position, sequence=0, token=TOKEN)


def read(body: bytes, position: int = 7) -> object:
    return decode_entry(body, shard_id=SHARD, position=position)


@pytest.mark.requirement("L10")
def test_an_entry_comes_back_whole() -> None:
    entry = decode_entry(
        entry_bytes(BATCH, BATCH, generation=4, tags={"job.id": "ä/7"}),
        shard_id=SHARD,
        position=7,
    )
    assert (entry.position, entry.epoch, entry.generation, entry.fence) == (7, 3, 4, False)
    assert (entry.writer, entry.sequence, entry.token) == (WRITER, 5, TOKEN)
    assert entry.tags == {"job.id": "ä/7"}
    assert pa.Table.from_batches(entry.batches).equals(pa.Table.from_batches([BATCH, BATCH]))
    assert (len(entry.batches), entry.rows) == (1, 4)


def test_a_fence_is_small_and_has_no_rows() -> None:
    body = fence_bytes()
    entry = decode_entry(body, shard_id=SHARD, position=7)
    assert entry.fence and entry.rows == 0
    assert len(body) < MAX_FENCE_BYTES


def test_large_entries_are_compressed() -> None:
    large = pa.record_batch({"v": ["same text"] * COMPRESS_ABOVE_BYTES})
    assert len(entry_bytes(large)) < large.nbytes / 3
    assert b"plain text" in entry_bytes(pa.record_batch({"v": ["plain text"]}))


def damaged(body: bytes) -> Iterator[bytes]:
    for at in range(len(body)):
        yield body[:at]
        for bit in range(8):
            yield body[:at] + bytes([body[at] ^ (1 << bit)]) + body[at + 1 :]


@pytest.mark.requirement("L10")
@pytest.mark.parametrize("body", [entry_bytes(), fence_bytes()], ids=["rows", "fence"])
def test_a_flipped_bit_or_a_cut_at_any_byte_shows(body: bytes) -> None:
    for bad in damaged(body):
        with pytest.raises(CorruptError):
            read(bad)
    with pytest.raises(CorruptError):
        read(body + b"\x00")


@pytest.mark.requirement("L10")
def test_a_cut_at_a_batch_boundary_shows() -> None:
    two = stock_like(BATCH, BATCH)
    cut = two.rfind(b"\xff\xff\xff\xff", 0, len(two) - 8)
    with ipc.open_stream(two[:cut]) as reader:  # what stock does: fewer rows, no error
        assert sum(batch.num_rows for batch in reader) == 2
    for body in (two[:cut], two[:-8]):
        with pytest.raises(CorruptError):
            read(body)


@pytest.mark.mutant
def test_without_the_checksum_a_flipped_bit_goes_unnoticed() -> None:
    careless = mutate("holdfast.formats._entry", ("if checksum != int(stamp[4], 16):", "if False:"))
    body = entry_bytes()
    silent = 0
    for bad in damaged(body):
        try:
            careless.__dict__["decode_entry"](bad, shard_id=SHARD, position=7)
        except CorruptError:
            continue
        silent += 1
    assert silent > 100


def test_an_entry_of_another_place_shows() -> None:
    with pytest.raises(CorruptError, match="belongs elsewhere"):
        read(entry_bytes(), position=8)
    with pytest.raises(CorruptError, match="belongs elsewhere"):
        decode_entry(entry_bytes(), shard_id=SHARD.replace("c", "d"), position=7)


def stock_like(*batches: pa.RecordBatch, **metadata: str) -> bytes:
    """Return an entry as stock writes it: uncompressed, without our keys."""
    kept = {"writer_epoch": "2", **metadata}
    schema = (batches[0].schema if batches else pa.schema([])).with_metadata(kept)
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(kept))
    body: bytes = sink.getvalue().to_pybytes()
    return body


def test_entries_without_our_keys_are_read() -> None:
    entry = decode_entry(stock_like(BATCH, BATCH, generation="3"), shard_id=SHARD, position=1)
    assert (entry.epoch, entry.generation, entry.rows, entry.writer) == (2, 3, 4, None)
    fence = decode_entry(stock_like(fence_sentinel="true"), shard_id=SHARD, position=1)
    assert fence.fence


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no arrow at all",
        stock_like(BATCH.slice(0, 0)),
        stock_like(BATCH, BATCH.slice(0, 0)),
        stock_like(),
        stock_like(BATCH, fence_sentinel="true"),
        stock_like(BATCH, writer_epoch="x"),
    ],
    ids=["empty", "text", "empty batch", "then empty", "no batch", "full fence", "no epoch"],
)
def test_what_is_no_entry_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptError):
        read(body)


@pytest.mark.parametrize(
    "batches",
    [[], [BATCH.slice(0, 0)], [BATCH, BATCH.slice(0, 0)], [BATCH, BATCH.select(["id"])]],
    ids=["none", "empty", "one empty", "other columns"],
)
def test_what_cannot_be_an_entry_is_refused_before_it_is_one(batches: list[pa.RecordBatch]) -> None:
    with pytest.raises(InvalidInputError):
        draft_entry(batches, shard_id=SHARD, epoch=1, writer=WRITER)


def test_a_stamp_in_the_columns_is_refused() -> None:
    stamp = f"{TOKEN}/{7:020d}/{1:020d}/{0:016x}"
    column = pa.field("id", pa.int64(), metadata={"note": stamp})
    batch = pa.record_batch([pa.array([1])], schema=pa.schema([column]))
    with pytest.raises(InvalidInputError, match="looks like"):
        draft_entry([batch], shard_id=SHARD, epoch=1, writer=WRITER)
    with pytest.raises(InvalidInputError):
        draft_entry([BATCH], shard_id=SHARD, epoch=1, writer=WRITER, tags={"a/b": "x"})


def test_names_are_strict() -> None:
    path = entry_name(SHARD, 5).path
    assert path.endswith("/wal/101" + "0" * 61 + ".arrow")
    assert position_of(path) == 5
    for other in (
        path + ".tmp.0",
        path + "#1",
        path[:-7],
        path.upper(),
        path.replace("/101", "/102"),
    ):
        assert position_of(other) is None
    assert shard_of(path) == SHARD
    for hostile in ("..", "../x", SHARD.upper() + "/..", "", "%2e%2e", "a" * 400, f"{SHARD}\n"):
        with pytest.raises(InvalidInputError):
            entry_name(hostile, 1)
    with pytest.raises(InvalidInputError):
        entry_name(SHARD, 2**63)


def test_a_shard_manifest_comes_back_whole() -> None:
    table = SsTable(generation=2, path="ab12cd34_gen_2", physical_rows=0)
    manifest = ShardManifest(
        shard_id=SHARD,
        version=9,
        writer_epoch=4,
        replay_after=17,
        current_generation=3,
        sstables=(table,),
        shard_spec_id=1,
        field_entries=(("bucket", b"\x01\x00\x00\x00"),),
        sealed=True,
        token=TOKEN,
    )
    body = encode_shard_manifest(manifest)
    assert decode_shard_manifest(body, shard_id=SHARD, version=9) == manifest
    assert TOKEN.encode() in body
    for wrong in ({"shard_id": SHARD, "version": 8}, {"shard_id": SHARD[::-1], "version": 9}):
        with pytest.raises(CorruptError):
            decode_shard_manifest(body, **wrong)  # type: ignore[arg-type]
    with pytest.raises(CorruptError):
        decode_shard_manifest(b"\xff\xff", shard_id=SHARD, version=9)


def test_fields_of_a_newer_lance_pass_through() -> None:
    unknown = bytes([0xBA, 0x06, 0x03]) + b"new"  # field 103
    body = encode_shard_manifest(ShardManifest(shard_id=SHARD, version=1)) + unknown
    again = encode_shard_manifest(decode_shard_manifest(body, shard_id=SHARD, version=1))
    assert unknown in again


# Bytes written by the stock release of the lock file: a change of its format shows here.


@pytest.mark.requirement("L6", "W10")
def test_committed_bytes_of_stock_are_read() -> None:
    told = json.loads((STOCK / "told.json").read_text())
    assert told["entries"]
    for name, expected in told["entries"].items():
        body = (STOCK / name).read_bytes()
        entry = decode_entry(body, shard_id=told["shard"], position=expected["position"])
        assert (entry.epoch, entry.generation, entry.fence, entry.rows) == (
            expected["epoch"],
            expected["generation"],
            expected["fence"],
            expected["rows"],
        )
        assert [b.to_pylist() for b in entry.batches] == expected["values"]
    for name, expected in told["manifests"].items():
        body = (STOCK / name).read_bytes()
        found = decode_shard_manifest(body, shard_id=told["shard"], version=expected["version"])
        assert (found.writer_epoch, found.current_generation) == (
            expected["epoch"],
            expected["current_generation"],
        )
        assert [table.generation for table in found.sstables] == expected["generations"]
        assert encode_shard_manifest(found) == body  # byte for byte as stock
