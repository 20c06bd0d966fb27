"""A snapshot read in parts, with the object store alone."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest

from holdfast.errors import SnapshotExpiredError
from holdfast.formats._snapshot import decode_snapshot, encode_snapshot
from holdfast.read._parts import SnapshotPart, drop_empty_shards, parts_above, read_part
from read.lake import Lake, in_order, row


def spread(folder: Path) -> Lake:
    lake = Lake(folder, shards=2)
    for start in (0, 10):
        lake.append([row(k, 0) for k in range(start, start + 10)])
    lake.put([row(k, 1) for k in range(0, 25, 3)])
    for shard in lake.shards:
        lake.flush(shard)
    lake.put([row(k, 2) for k in range(0, 25, 7)])
    lake.delete([1, 3])
    return lake


def test_all_parts_together_are_the_snapshot(tmp_path: Path) -> None:
    lake = spread(tmp_path)
    with lake.table.snapshot() as snapshot:
        record = drop_empty_shards(snapshot.record)
    assert decode_snapshot(encode_snapshot(record)) == record
    fragments = [part.fragment_id for part in lake.table.dataset().get_fragments()]
    parts = [
        *parts_above(record),
        *(SnapshotPart(record=record, fragments=(number,)) for number in fragments),
    ]
    assert len(parts) == 4
    lake.put([row(100, 100)])  # not of this snapshot
    wanted = [part for part in lake.wanted() if part["k"] != 100]
    for condition in (None, "v > 0"):
        found = [
            found
            for part in pickle.loads(pickle.dumps(parts))
            for batch in read_part(
                part, lake.table.core.store, lake.table.uri, {}, filter=condition
            )
            for found in batch.to_pylist()
        ]
        rows = [part for part in wanted if condition is None or part["v"] > 0]
        assert in_order(found) == in_order(rows)


def test_a_shard_without_rows_is_no_part(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    (shard,) = lake.shards
    lake.put([row(1, 1)])
    lake.flush(shard)
    lake.merge(shard, 1)
    with lake.table.snapshot() as snapshot:
        assert len(snapshot.record.shards) == 1
        assert drop_empty_shards(snapshot.record).shards == ()


@pytest.mark.parametrize("what", ["log", "sstable"])
def test_a_part_whose_files_are_gone_says_so(tmp_path: Path, what: str) -> None:
    lake = spread(tmp_path)
    shard = lake.shards[0]
    with lake.table.snapshot() as snapshot:
        record = drop_empty_shards(snapshot.record)
    (part, *_) = parts_above(record)
    if what == "log":
        (needs,) = part.record.shards
        gone = dataclasses.replace(needs, last_position=needs.last_position + 1)
        part = SnapshotPart(record=dataclasses.replace(part.record, shards=(gone,)), fragments=None)
    else:
        for one in lake.manifest(shard).sstables:
            lake.collect(shard, [one.path])
    with pytest.raises(SnapshotExpiredError):
        list(read_part(part, lake.table.core.store, lake.table.uri, {}))
