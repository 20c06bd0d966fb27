"""Preparing a table for writers: one commit, so that every Lance reader knows of its shards."""

from __future__ import annotations

from collections.abc import Sequence

import lance
from lance.dataset import Index
from lance.lance import Bitmap

from holdfast.commits import Committer, Versions, open_dataset
from holdfast.errors import ConflictError, InvalidInputError, NotFoundError
from holdfast.formats import (
    DETAILS_TYPE,
    MEM_WAL_INDEX,
    MemWalDetails,
    check_log_types,
    encode_details,
    index_id,
    version_name,
)
from holdfast.shard._base import Base, read_base, read_entry
from holdfast.shard._config import ShardWriterConfig, recorded
from holdfast.shard._shards import Sharding
from holdfast.txn import Txn, parse_txn

_PREPARED = parse_txn(("holdfast.log", 1))
"""The transaction under which a table is prepared, so that it is once."""
_TRIES = 4


def prepare_writers(
    versions: Versions,
    *,
    sharding: Sharding | None = None,
    maintained_indexes: Sequence[str] | None = None,
    defaults: ShardWriterConfig | None = None,
) -> bool:
    """Prepare the table for writers, by one commit; see `Table.prepare_writers`."""
    for left in reversed(range(_TRIES)):
        base = read_newest_base(versions)
        if base.details is not None:
            return False
        details = _details(versions, base, sharding, maintained_indexes, defaults)
        try:
            # A table whose entry was dropped by hand has the transaction, but no details.
            if _prepare(versions, base, details, _PREPARED if left > 1 else None):
                return True
        except ConflictError:
            if not left:
                raise
    raise ConflictError("others prepare the table at the same time: try again")


def prepared_base(versions: Versions) -> Base:
    """Return what the newest version says, of a table that is prepared if it was not."""
    base = read_newest_base(versions)
    if base.details is None:
        prepare_writers(versions)
        base = read_newest_base(versions)
    return base


def read_newest_base(versions: Versions) -> Base:
    """Return what the newest version says to writers.

    Raises:
        InvalidInputError: the table can have no log.
        LogLostError: the table does not say any more how far its log is merged.
        Other errors: as for `Table.dataset`.
    """
    core = versions.core
    dataset = open_dataset(versions)
    manifest = core.arbiter.read(version_name(int(dataset.version)))
    if manifest is None:
        raise NotFoundError("the table's newest version is gone", version=dataset.version)
    check_log_types(dataset.schema)
    if dataset.has_stable_row_ids:
        raise InvalidInputError(
            "a table with stable row ids can have no log yet, since nothing could be merged "
            "into it: write it by append, or make it anew without them",
            table=core.location,
        )
    read_entry(manifest, core.shard_ids)
    return read_base(dataset, manifest)


def _details(
    versions: Versions,
    base: Base,
    sharding: Sharding | None,
    maintained_indexes: Sequence[str] | None,
    defaults: ShardWriterConfig | None,
) -> MemWalDetails:
    kept = tuple(maintained_indexes or ())
    described = open_dataset(versions, base.version).describe_indices()
    known = {index.name for index in described}
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


def _prepare(versions: Versions, base: Base, details: MemWalDetails, txn: Txn | None) -> bool:
    """Commit the details, unless somebody else did. Returns whether it was this call."""
    index = Index(
        uuid=index_id(versions.core.ids.token()),
        name=MEM_WAL_INDEX,
        fields=[],
        dataset_version=base.version,
        fragment_ids=Bitmap([]),
        index_version=0,
        index_details=(DETAILS_TYPE, encode_details(details)),
    )
    operation = lance.LanceOperation.CreateIndex([index], [])
    return Committer(versions).commit(operation, read_version=base.version, txn=txn).applied
