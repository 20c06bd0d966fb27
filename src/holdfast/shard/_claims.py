"""Claiming a shard: with the columns that the table has once its fence is there."""

from __future__ import annotations

from functools import partial

from holdfast.commits import Versions
from holdfast.errors import ConflictError, FencedError
from holdfast.formats import Head, MemWalDetails
from holdfast.shard._base import Base, read_entry
from holdfast.shard._config import Settings, ShardWriterConfig
from holdfast.shard._prepare import prepared_base, read_newest_base
from holdfast.shard._shards import Shard, find_shard
from holdfast.shard._sstables import sstables_of
from holdfast.shard._writer import ShardWriter
from holdfast.wal import LogMemory, ShardManifests, Slots, WalAppender

_TRIES = 4


def claim_writer(
    versions: Versions, shard: str | Shard, config: ShardWriterConfig | None = None
) -> ShardWriter:
    """Claim a shard for writing; see `Table.claim_writer`. This WRITES."""
    core = versions.core
    base, appender, settings = _claim(versions, shard, config or ShardWriterConfig())
    writer = ShardWriter(
        appender,
        base,
        sstables=sstables_of(core),
        manifests=ShardManifests(core, appender.shard_id),
        settings=settings,
        clock=core.clock,
        memory=LogMemory(core, appender.shard_id),
        newest_base=partial(read_newest_base, versions),
        check_log=partial(check_log, versions, base),
    )
    return writer.replay()


def claim_slots(versions: Versions, shard: str | Shard) -> tuple[Base, Slots]:
    """Claim a shard for tasks that write its entries. This WRITES, as `claim_writer` does.

    Raises:
        As for `Table.claim_writer`.
    """
    base, appender, _ = _claim(versions, shard, ShardWriterConfig())
    return base, Slots.of(appender, LogMemory(versions.core, appender.shard_id))


def _claim(
    versions: Versions, shard: str | Shard, config: ShardWriterConfig
) -> tuple[Base, WalAppender, Settings]:
    """Claim a shard, with the columns that the table has once the fence is there.

    An overwrite fences every shard before it replaces the columns. Who claims a shard
    behind that fence, and read the columns before, would write rows for the old ones.
    """
    for _ in range(_TRIES):
        base = prepared_base(versions)
        chosen = find_shard(shard, base)
        details = base.details or MemWalDetails()
        settings = config.resolve(details.writer_defaults)
        appender = WalAppender.claim(
            versions.core,
            chosen.shard_id,
            shard_spec_id=chosen.spec_id,
            field_entries=chosen.values,
            first_generation=details.compacted.get(chosen.shard_id, 0) + 1,
        )
        try:
            now = prepared_base(versions)
        except BaseException:
            appender.close()
            raise
        if now.log_id == base.log_id:
            return now, appender, settings
        appender.close()
    raise ConflictError("the table's columns were replaced each time first: try again")


def check_log(versions: Versions, base: Base) -> None:
    """Stop a writer whose rows nobody could read: called now and then, and at each flush.

    Raises:
        LogLostError: the table does not say any more how far its log is merged.
        FencedError: the columns were replaced since the shard was claimed.
        StaleHandleError: another table is there.
        Other errors: of the stores; nothing is known then.
    """
    manifest = versions.newest_manifest()
    if manifest is None:
        return
    entry = read_entry(manifest, versions.core.shard_ids)
    log_id = None if entry is None else entry.log_id
    if base.log_id not in (None, log_id):
        versions.core.arbiter.confirm_place()  # perhaps it is another table
        raise FencedError(
            "the table was overwritten with other columns: what was acknowledged before is "
            "superseded; open the shard again to write for the columns of today",
            version=Head(manifest).version,
        )
