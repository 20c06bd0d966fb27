"""Preparing a table for writers: one commit, so that every Lance reader knows of its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import lance
from lance.dataset import Index
from lance.lance import Bitmap

from holdfast.commits import (
    Committed,
    LanceOperation,
    LancePlan,
    Versions,
    make_version,
    open_dataset,
)
from holdfast.errors import ConflictError, InvalidInputError, NextStep, NotFoundError
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
from holdfast.shard._config import ShardWriterConfig, recorded_settings
from holdfast.shard._shards import Sharding
from holdfast.txn import parse_txn

_PREPARED = parse_txn(("holdfast.log", 1))
"""The transaction under which a table is prepared, so that it is once."""
_BUILDS_WITH_TXN = 2


def prepare_writers(
    versions: Versions,
    *,
    sharding: Sharding | None = None,
    maintained_indexes: Sequence[str] | None = None,
    defaults: ShardWriterConfig | None = None,
) -> bool:
    """Prepare the table for writers, by one commit; see `Table.prepare_writers`."""

    def details_upon(base: Base) -> MemWalDetails:
        return _details(versions, base, sharding, maintained_indexes, defaults)

    return make_version(PreparePlan(versions, details_upon)).applied


class PreparePlan(LancePlan):
    """The version that says to every Lance reader that the table has shards."""

    builds = 4

    def __init__(self, versions: Versions, details_upon: Callable[[Base], MemWalDetails]) -> None:
        super().__init__(versions)
        self._details_upon = details_upon
        self._builds = 0

    def build(self) -> Committed | None:
        """Look at the newest version, unless somebody has prepared it."""
        base = read_newest_base(self.versions)
        if base.details is not None:
            return Committed(base.version, applied=False)
        self._read_version = base.version
        self._operation = _entry_of(self.versions, base, self._details_upon(base))
        # A table whose entry was dropped by hand has the transaction, but no details: then the
        # entry is made without one.
        self.txns = [_PREPARED] if self._builds < _BUILDS_WITH_TXN else []
        self._builds += 1
        return None

    def operation(self, newest: lance.LanceDataset) -> tuple[LanceOperation, int]:
        """Return the entry, upon the version that was looked at: Lance refuses a second one."""
        del newest
        return self._operation, self._read_version

    def find(self, error: ConflictError) -> Committed | None:
        """Leave it to the next look: the transaction alone does not say that details are there."""
        del error
        return None

    def judge(self, error: ConflictError) -> NextStep:
        """Look again after any other conflict than a mere loss."""
        return NextStep.AGAIN if error.next_step is NextStep.AGAIN else NextStep.REBUILD


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
        writer_defaults={} if defaults is None else recorded_settings(defaults),
    )


def _entry_of(versions: Versions, base: Base, details: MemWalDetails) -> LanceOperation:
    index = Index(
        uuid=index_id(versions.core.ids.token()),
        name=MEM_WAL_INDEX,
        fields=[],
        dataset_version=base.version,
        fragment_ids=Bitmap([]),
        index_version=0,
        index_details=(DETAILS_TYPE, encode_details(details)),
    )
    return lance.LanceOperation.CreateIndex([index], [])
