"""`SnapshotRecord`: which files one reading of a table needs, as JSON; and the pins that keep them.

A record names a version of the base table and, per shard, the SSTables and log positions above
it. It is what travels to other processes that read a part each. A pin is a record stored in
the table: whoever deletes files leaves alone what a pin names.

    _holdfast/snapshots/<token>.json    {"format": 1, "snapshot": {...} or null}

`null` is a pin whose snapshot is still being taken: nothing at all may be deleted then.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from holdfast.errors import CorruptError
from holdfast.formats._names import HOME, check_path, check_shard_id

SNAPSHOT_PINS_FOLDER = f"{HOME}/snapshots"

_FORMAT = 1
_PIN = re.compile(rf"{SNAPSHOT_PINS_FOLDER}/(hf-[0-9a-f]{{32}})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """What a snapshot needs of one shard.

    Attributes:
        shard_id: the shard.
        manifest_version: the version of its manifest that was read.
        replay_after: the flushed cursor there: the log is needed beyond it.
        last_position: up to here; equal to `replay_after` where no log is needed.
        sstables: the folders of the SSTables that are not in the base, with their
            generations, newest first.
    """

    shard_id: str
    manifest_version: int
    replay_after: int
    last_position: int
    sstables: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """What one reading of a table needs.

    Attributes:
        base_version: the version of the base table.
        shards: what is newer, shard by shard.
    """

    base_version: int
    shards: tuple[ShardRecord, ...]


def snapshot_pin_path(token: str) -> str:
    """Return where a pin is kept."""
    return check_path(f"{SNAPSHOT_PINS_FOLDER}/{token}.json")


def snapshot_pin_of(path: str) -> str | None:
    """Return the token of the pin with this path; None for any other path."""
    match = _PIN.fullmatch(path)
    return match[1] if match else None


def encode_snapshot(record: SnapshotRecord | None) -> bytes:
    """Return a record as JSON; None for a snapshot that is still being taken."""
    return json.dumps(
        {"format": _FORMAT, "snapshot": None if record is None else _plain(record)},
        separators=(",", ":"),
        sort_keys=True,
    ).encode()


def decode_snapshot(body: bytes) -> SnapshotRecord | None:
    """Return the record behind its JSON.

    Raises:
        CorruptError: it is none, or one of a newer format.
    """
    try:
        parsed: Any = json.loads(body)  # Any: whatever somebody stored
        if parsed["format"] != _FORMAT:
            raise CorruptError("a snapshot has a newer format: upgrade Holdfast")
        snapshot = parsed["snapshot"]
        return None if snapshot is None else _record(snapshot)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError("a snapshot cannot be read", size=len(body)) from error


def _plain(record: SnapshotRecord) -> dict[str, object]:
    return {
        "base": record.base_version,
        "shards": [
            {
                "shard": shard.shard_id,
                "manifest": shard.manifest_version,
                "after": shard.replay_after,
                "through": shard.last_position,
                "sstables": [[generation, folder] for generation, folder in shard.sstables],
            }
            for shard in record.shards
        ],
    }


def _record(plain: Any) -> SnapshotRecord:  # noqa: ANN401 - parsed JSON
    return SnapshotRecord(
        base_version=int(plain["base"]),
        shards=tuple(
            ShardRecord(
                shard_id=check_shard_id(shard["shard"]),
                manifest_version=int(shard["manifest"]),
                replay_after=int(shard["after"]),
                last_position=int(shard["through"]),
                sstables=tuple((int(number), str(folder)) for number, folder in shard["sstables"]),
            )
            for shard in plain["shards"]
        ),
    )
