"""`reset_log`: the way out when a table does not say any more how far its log is merged.

Somebody overwrote or restored it past Holdfast. The rows that wait are all there, but nobody
knows whether they still count; their owner does. He says `keep`: they go over what the table
holds now; or `discard`: they are given up.

1. Every shard is claimed and fenced: no writer is at work, and each must open its shard again.
2. To discard, the shard's manifest is decided without its generations, its cursor at the fence,
   its next generation one higher than any that was.
3. A version is decided with the log's entry, its marker right below what is kept.

| stopped after | others see                                    | who goes on              |
|---------------|-----------------------------------------------|--------------------------|
| 1, 2          | the same `LogLostError`; writers are fenced   | `reset_log`, once more   |
| 3             | the table with its log                        | nothing is left to do    |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from holdfast.commits import Edit, Versions, open_dataset, touch
from holdfast.errors import ConflictError, InvalidInputError, SealedError
from holdfast.formats import (
    LOG_ID_KEY,
    Head,
    LogEntry,
    MemWalDetails,
    ShardManifest,
    edit_config,
    put_log_entry,
    read_log_entry,
    version_name,
)
from holdfast.wal import ShardManifests, WalAppender, WalTailer

Waiting = Literal["keep", "discard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetLogResult:
    """What a reset found, and did.

    Attributes:
        version: the newest version of the base table afterwards.
        rows: how many rows wait, deletes among them; one that several generations have
            counts several times.
        txn: None; a repeat changes nothing more.
        applied: whether it was done; without `confirm` this is a plan.
        elapsed: seconds.
        waiting: what becomes of the rows: `keep` or `discard`.
        shards: how many rows wait in each shard.
    """

    version: int
    rows: int
    txn: None = None
    applied: bool
    elapsed: float
    waiting: Waiting
    shards: dict[str, int]


def reset_log(versions: Versions, waiting: Waiting, *, confirm: bool) -> ResetLogResult:
    """Say anew how far a table's log is merged; see `Table.reset_log`."""
    if waiting not in {"keep", "discard"}:
        raise InvalidInputError("waiting is 'keep' or 'discard'", waiting=repr(waiting))
    begun = versions.core.clock.elapsed()
    shards = [
        one
        for one in versions.core.shard_ids()
        if ShardManifests(versions.core, one).latest() is not None
    ]
    if not shards:
        raise InvalidInputError(
            "this table has no shards: nothing waits", table=versions.core.location
        )
    rows = {shard_id: _count(versions, shard_id) for shard_id in shards}
    version = int(open_dataset(versions).version)
    if waiting == "keep" and any(rows.values()):
        _refuse_other_columns(versions, version)
    if confirm:
        marks = {shard_id: _lock_writers_out(versions, shard_id, waiting) for shard_id in shards}
        edit = _entry_with(versions, version, marks)
        version = touch(versions, edit)
    return ResetLogResult(
        version=version,
        rows=sum(rows.values()),
        applied=confirm,
        elapsed=versions.core.clock.elapsed() - begun,
        waiting=waiting,
        shards=rows,
    )


def _refuse_other_columns(versions: Versions, version: int) -> None:
    """Refuse to put rows into columns that they were not written for."""
    source, now = _last_entry(versions, version), versions.core.arbiter.read(version_name(version))
    if source is not None and now is not None:
        before, after = Head(source).identities, Head(now).identities
        if before != after:
            raise InvalidInputError(
                "the rows that wait were written for other columns than the table has now: give "
                "them up with `discard`, or go back to the version before with "
                "`table.dataset(version).restore()`",
                version=Head(source).version,
            )


def _count(versions: Versions, shard_id: str) -> int:
    """Count the rows that a shard has; those that are merged but not drained count, too."""
    manifest = ShardManifests(versions.core, shard_id).latest()
    if manifest is None:
        return 0
    entries = WalTailer(versions.core, shard_id).entries(after=manifest.replay_after)
    flushed = sum(one.physical_rows or 0 for one in manifest.sstables)
    return flushed + sum(entry.rows for entry in entries)


def _lock_writers_out(versions: Versions, shard_id: str, waiting: Waiting) -> int:
    """Lock writers out and, to discard, forget what the shard has; return its marker."""
    manifests = ShardManifests(versions.core, shard_id)
    fence: int | None = None
    try:
        appender = WalAppender.claim(versions.core, shard_id)
        appender.close()
        # Fenced before it is decided what becomes of the rows: one that is put in between would be
        # counted by nobody.
        fence = appender.fence_position
    except SealedError:
        fence = max(
            (one.position for one in WalTailer(versions.core, shard_id).entries()), default=None
        )
    current = manifests.latest()
    if current is None:
        raise ConflictError("the shard is gone: try again", shard_id=shard_id)
    if waiting == "keep":
        kept = [one.generation for one in current.sstables]
        return min(kept, default=current.current_generation) - 1

    def forget(now: ShardManifest) -> ShardManifest:
        cursor = max(now.replay_after, fence or 0)
        if not now.sstables and now.replay_after == cursor:
            return now
        return replace(
            now,
            sstables=(),
            replay_after=cursor,
            last_seen=max(now.last_seen, cursor),
            # Rows of the log would have had this number: the marker must cover them as well.
            current_generation=now.current_generation + 1,
        )

    return manifests.update(current.writer_epoch, forget).current_generation - 1


def _entry_with(versions: Versions, version: int, marks: dict[str, int]) -> Edit:
    """Return the edit that puts the log's entry, with these markers, into a version."""
    source = _last_entry(versions, version)
    fresh = versions.core.ids.token()

    def edit(manifest: bytes) -> bytes:
        now = Head(manifest)
        entry = read_log_entry(manifest)
        if entry is None or (now.config.get(LOG_ID_KEY) not in (None, entry.log_id)):
            entry = _carry_entry(source, now) if source is not None else None
        entry = entry or LogEntry.new(fresh, MemWalDetails())
        entry.set_merged(marks)
        same = source is not None and Head(source).identities == now.identities
        if source is not None and not same:
            manifest = now.with_new_columns(Head(source), replaced=True)
        log_id = entry.log_id if same and entry.log_id is not None else fresh
        entry.give_id(log_id)
        return edit_config(put_log_entry(manifest, entry), {LOG_ID_KEY: log_id})

    return edit


def _carry_entry(source: bytes, now: Head) -> LogEntry | None:
    """Return the entry of an older version for the columns of today."""
    entry = read_log_entry(source)
    if entry is None:
        return None
    ids = {column.name: number for number, column in now.top_columns.items()}
    before = {number: column.name for number, column in Head(source).top_columns.items()}
    fits = {old: ids[name] for old, name in before.items() if name in ids}
    if entry.fit_columns(fits):
        raise InvalidInputError(
            "the rows of this table's log are divided by a column that the table lacks now: "
            "add it again, or create another table"
        )
    return entry


def _last_entry(versions: Versions, version: int) -> bytes | None:
    """Return the newest manifest that has the log's entry, if one is still there."""
    for number in range(version, 0, -1):
        body = versions.core.arbiter.read(version_name(number))
        if body is None:
            return None
        entry = read_log_entry(body)
        if entry is not None and Head(body).config.get(LOG_ID_KEY) in (None, entry.log_id):
            return body
    return None
