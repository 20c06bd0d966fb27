"""The writer verbs of a table, as users call them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import lance
from lance.dataset import Index
from lance.lance import Bitmap

from holdfast._clock import Clock
from holdfast._ids import Ids, RandomIds
from holdfast.arbiter import Arbiter
from holdfast.commits import LanceOperation, Versions
from holdfast.errors import ConflictError, FencedError, InvalidInputError, NotFoundError
from holdfast.formats import (
    DETAILS_TYPE,
    MEM_WAL_INDEX,
    Head,
    MemWalDetails,
    check_log_types,
    encode_details,
    index_id,
    version_name,
)
from holdfast.shard._base import Base, read_base, read_entry
from holdfast.shard._config import Settings, ShardWriterConfig, recorded
from holdfast.shard._shards import Router, Shard, Sharding, find_shard
from holdfast.shard._sstables import Sstables
from holdfast.shard._writer import ShardWriter
from holdfast.storage import ObjectStore
from holdfast.txn import TxnLike
from holdfast.wal import LogMemory, ShardManifests, Slots, WalAppender, list_shards

_PREPARED: TxnLike = ("holdfast.log", 1)
"""The transaction under which a table is prepared, so that it is once."""
_TRIES = 4


class ShardVerbs(ABC):
    """What a table can do with shards."""

    _uri: str
    _resolved: Mapping[str, str]
    _store: ObjectStore
    _arbiter: Arbiter
    _clock: Clock
    _versions: Versions

    @abstractmethod
    def dataset(self, version: int | None = None) -> lance.LanceDataset:
        """Return a pylance dataset, the newest or of one version."""

    @abstractmethod
    def commit_operation(
        self, operation: LanceOperation, *, read_version: int, txn: TxnLike | None = None
    ) -> Any:  # noqa: ANN401 - the table's own result
        """Commit what was built elsewhere."""

    def claim_writer(
        self, shard: str | Shard, *, config: ShardWriterConfig | None = None
    ) -> ShardWriter:
        """Claim a shard for writing. This WRITES: it locks the shard's previous writer out.

        What earlier writers got acknowledged and not flushed is replayed from the log. The
        first writer of a table also prepares it, by one commit, so that every Lance reader
        knows of its shards; see `prepare_writers`.

        Args:
            shard: `"unsharded"`, `"bucket-3"`, a UUID, or a shard that a `router` named. One
                that is not there is made.
            config: how the writer works; as the table recorded it by default.

        Raises:
            FencedError: another writer claimed the shard at the same time, or since.
            SealedError: the shard is sealed.
            InvalidInputError: the table has no such shard, or cannot have a log, or the
                config does not fit.
            WalGapError, CorruptError: the log is damaged; see `holdfast wal repair`.
            ConflictError: others changed the table while it was prepared: try again.
            CommitUnknownError: an outcome could not be learnt; claim again.
            UnavailableError, PermissionDeniedError: a store did not do its part.
            CommitStoreRegressedError, ForeignVersionError: a name is not what was decided.
        """
        ids = RandomIds()
        base, appender, settings = self._claim(shard, config or ShardWriterConfig(), ids)
        writer = ShardWriter(
            appender,
            base,
            sstables=Sstables(self._store, self._uri, self._resolved, ids),
            manifests=ShardManifests(self._store, self._arbiter, appender.shard_id, ids=ids),
            settings=settings,
            clock=self._clock,
            memory=LogMemory(self._store, self._arbiter, appender.shard_id, ids=ids),
            newest_base=self._base,
            check_log=partial(self._check_log, base),
        )
        return writer.replayed()

    def _claim_slots(self, shard: str | Shard) -> tuple[Base, Slots]:
        """Claim a shard for tasks that write its entries. This WRITES, as `claim_writer` does.

        Raises:
            As for `claim_writer`.
        """
        ids = RandomIds()
        base, appender, _ = self._claim(shard, ShardWriterConfig(), ids)
        memory = LogMemory(self._store, self._arbiter, appender.shard_id, ids=ids)
        return base, Slots.of(appender, memory)

    def _claim(
        self, shard: str | Shard, config: ShardWriterConfig, ids: Ids
    ) -> tuple[Base, WalAppender, Settings]:
        """Claim a shard, with the columns that the table has once the fence is there.

        An overwrite fences every shard before it replaces the columns. Who claims a shard
        behind that fence, and read the columns before, would write rows for the old ones.
        """
        for _ in range(_TRIES):
            base = self._prepared_base()
            chosen = find_shard(shard, base)
            details = base.details or MemWalDetails()
            settings = config.settled(details.writer_defaults)
            appender = WalAppender.claim(
                self._store,
                self._arbiter,
                chosen.shard_id,
                shard_spec_id=chosen.spec_id,
                field_entries=chosen.values,
                first_generation=details.compacted.get(chosen.shard_id, 0) + 1,
                clock=self._clock,
                ids=ids,
            )
            try:
                now = self._prepared_base()
            except BaseException:
                appender.close()
                raise
            if now.log_id == base.log_id:
                return now, appender, settings
            appender.close()
        raise ConflictError("the table's columns were replaced each time first: try again")

    def _check_log(self, base: Base) -> None:
        """Stop a writer whose rows nobody could read: called now and then, and at each flush.

        Raises:
            LogLostError: the table does not say any more how far its log is merged.
            FencedError: the columns were replaced since the shard was claimed.
            StaleHandleError: another table is there.
            Other errors: of the stores; nothing is known then.
        """
        manifest = self._versions.newest_manifest()
        if manifest is None:
            return
        entry = read_entry(manifest, lambda: list_shards(self._store))
        found = None if entry is None else entry.log_id
        if base.log_id not in (None, found):
            self._arbiter.confirm_place()  # perhaps it is another table
            raise FencedError(
                "the table was overwritten with other columns: what was acknowledged before is "
                "superseded; open the shard again to write for the columns of today",
                version=Head(manifest).version,
            )

    def prepare_writers(
        self,
        *,
        sharding: Sharding | None = None,
        maintained_indexes: Sequence[str] | None = None,
        defaults: ShardWriterConfig | None = None,
    ) -> bool:
        """Prepare the table for writers, by one commit; a table is prepared once.

        Args:
            sharding: how rows are divided into shards; shards are named by hand by default.
            maintained_indexes: the indexes that SSTables carry, too; all by default.
            defaults: settings for writers that say nothing else.

        Returns:
            False when it was prepared before; then nothing is changed.

        Raises:
            InvalidInputError: the sharding does not fit, or there is no such index.
            ConflictError, CommitUnknownError: as for `append`; call it again.
        """
        for left in reversed(range(_TRIES)):
            base = self._base()
            if base.details is not None:
                return False
            details = self._details(base, sharding, maintained_indexes, defaults)
            try:
                # A table whose entry was dropped by hand has the transaction, but no details.
                if self._prepare(base, details, _PREPARED if left > 1 else None):
                    return True
            except ConflictError:
                if not left:
                    raise
        raise ConflictError("others prepare the table at the same time: try again")

    def router(self) -> Router:
        """Return what divides rows among the table's shards.

        Raises:
            InvalidInputError: the table's shards are named by hand.
        """
        return Router(self._base())

    def _details(
        self,
        base: Base,
        sharding: Sharding | None,
        maintained_indexes: Sequence[str] | None,
        defaults: ShardWriterConfig | None,
    ) -> MemWalDetails:
        kept = tuple(maintained_indexes or ())
        known = {one.name for one in self.dataset(base.version).describe_indices()}
        missing = [name for name in kept if name not in known]
        if missing:
            raise InvalidInputError("there is no such index", index=missing[0])
        return MemWalDetails(
            num_shards=0 if sharding is None else sharding.shards,
            sharding_specs=() if sharding is None else (sharding.spec(base),),
            maintained_indexes=kept,
            maintain_all_indexes=maintained_indexes is None,
            writer_defaults={} if defaults is None else recorded(defaults),
        )

    def _prepare(self, base: Base, details: MemWalDetails, txn: TxnLike | None) -> bool:
        """Commit the details, unless somebody else did. Returns whether it was this call."""
        index = Index(
            uuid=index_id(RandomIds().token()),
            name=MEM_WAL_INDEX,
            fields=[],
            dataset_version=base.version,
            fragment_ids=Bitmap([]),
            index_version=0,
            index_details=(DETAILS_TYPE, encode_details(details)),
        )
        operation = lance.LanceOperation.CreateIndex([index], [])
        done = self.commit_operation(operation, read_version=base.version, txn=txn)
        return bool(done.applied)

    def _prepared_base(self) -> Base:
        base = self._base()
        if base.details is None:
            self.prepare_writers()
            base = self._base()
        return base

    def _base(self) -> Base:
        dataset = self.dataset()
        manifest = self._arbiter.read(version_name(int(dataset.version)))
        if manifest is None:
            raise NotFoundError("the table's newest version is gone", version=dataset.version)
        check_log_types(dataset.schema)
        if dataset.has_stable_row_ids:
            raise InvalidInputError(
                "a table with stable row ids can have no log yet, since nothing could be merged "
                "into it: write it by append, or make it anew without them",
                table=self._uri,
            )
        read_entry(manifest, lambda: list_shards(self._store))
        return read_base(dataset, manifest)
