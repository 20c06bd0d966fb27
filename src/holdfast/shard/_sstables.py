"""SSTables: one generation of a shard's rows as a Lance dataset, exactly as stock Lance reads it.

`write` leaves a complete folder under a name that nobody else has: data with the base
table's column ids, the indexes the base maintains, a bloom filter, a key index; on local
disk all of it fsynced. Until a shard manifest names it, nobody sees it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter

from holdfast._ids import Ids
from holdfast.commits import translate_errors
from holdfast.core import TableCore
from holdfast.formats import (
    BLOOM_FILE,
    KEY_INDEX_DATA,
    KEY_INDEX_LOOKUP,
    SSTABLE_MANIFEST,
    SsTable,
    bloom_filter,
    key_hashes,
    key_index_data,
    key_index_lookup,
    key_values,
    renumber_columns,
    sstable_folder,
    sstable_path,
)
from holdfast.shard._base import Base, KeptIndex
from holdfast.storage import ObjectStore, SupportsDistrust, SupportsSync

_ALL_ROWS = (1 << 31) - 1  # in one file; Lance counts in 32 bits, and more would wrap around
_BITS = "hamming"
_NO_VECTORS = re.compile(r"cannot train \d+ centroids with 0 vectors")
_KEY_INDEX_VERSION = "2.0"  # of Lance's files; the readers expect this one


class SstableWriter:
    """Writes and opens the SSTables of one table.

    Args:
        store: the table's store.
        address: the table's address as pylance takes it.
        options: storage options with their values.
        ids: gives folders their names.
    """

    def __init__(
        self, store: ObjectStore, address: str, options: Mapping[str, str], ids: Ids
    ) -> None:
        self._store = store
        self._address = address.rstrip("/")
        self._options = dict(options) or None
        self._ids = ids
        # Lance refuses to commit where it knows that the store's condition does not hold. The
        # folder has a name that nobody else has, so there is nobody to keep out.
        self._lock = _alone if isinstance(store, SupportsDistrust) else None

    def write(self, base: Base, shard_id: str, generation: int, rows: pa.Table) -> SsTable:
        """Write one generation; durable when this returns, and seen by nobody yet.

        Args:
            base: the base table.
            shard_id: the shard.
            generation: the number it will have.
            rows: in the order they were written, with tombstones, one row per key.

        Raises:
            UnavailableError, PermissionDeniedError: a store did not do its part; what is
                there is garbage, and the next attempt has another folder.
        """
        # A random name at each attempt: a flusher that was locked out and sleeps may still write,
        # and must not touch the files of the one that counts.
        folder = sstable_folder(self._ids.token(), generation)
        path = sstable_path(shard_id, folder)
        address = f"{self._address}/{path}"
        # Two sets of files of one folder that nobody knows yet: they need not wait for each other.
        with ThreadPoolExecutor(1, thread_name_prefix="holdfast-sstable") as other:
            keys = other.submit(self._add_keys, path, address, [rows[name] for name in base.keys])
            self._write_data(path, address, base, rows)
            key_bytes = keys.result()
        # Lance fsyncs nothing, and the log entries go once a manifest names this SSTable.
        self._sync(path)
        return SsTable(
            generation=generation,
            path=folder,
            in_memory_bytes=int(rows.nbytes),
            physical_rows=rows.num_rows,
            primary_key_bytes=key_bytes,
        )

    def _write_data(self, path: str, address: str, base: Base, rows: pa.Table) -> None:
        storage_version: Any = base.storage_version  # pylance lists the versions of today
        with translate_errors(self._address):
            lance.write_dataset(
                pa.Table.from_arrays(rows.columns, schema=base.storage_schema),
                address,
                mode="create",
                storage_options=self._options,
                data_storage_version=storage_version,
                max_rows_per_file=_ALL_ROWS,
                max_bytes_per_file=1 << 62,
                enable_v2_manifest_paths=True,
                commit_lock=self._lock,
            )
        if not base.numbered_afresh:
            self._give_base_ids(path, base)
        self._add_indexes(address, base.indexes)

    def open(self, shard_id: str, folder: str) -> lance.LanceDataset:
        """Open one for reading.

        Raises:
            NotFoundError, UnavailableError: it is not there, or cannot be reached.
        """
        address = f"{self._address}/{sstable_path(shard_id, folder)}"
        with translate_errors(self._address):
            return lance.dataset(address, storage_options=self._options)

    def read_file(self, shard_id: str, folder: str, name: str) -> LanceFileReader:
        """Open one of its Lance files by itself.

        Raises:
            NotFoundError, UnavailableError: it is not there, or cannot be reached.
            CorruptError, InvalidInputError: it is no such file.
        """
        address = f"{self._address}/{sstable_path(shard_id, folder)}/{name}"
        with translate_errors(self._address):
            return LanceFileReader(address, storage_options=self._options)

    def bloom_filter(self, shard_id: str, folder: str) -> bytes:
        """Return the bloom filter of one.

        Raises:
            NotFoundError, UnavailableError: it is not there, or cannot be reached.
        """
        return self._store.get(f"{sstable_path(shard_id, folder)}/{BLOOM_FILE}")

    def _give_base_ids(self, path: str, base: Base) -> None:
        name = f"{path}/{SSTABLE_MANIFEST}"
        manifest = self._store.get(name)
        renumbered = renumber_columns(manifest, base.ids)
        if renumbered != manifest:
            self._store.put(name, renumbered)

    def _add_indexes(self, address: str, indexes: Sequence[KeptIndex]) -> None:
        if not indexes:
            return
        with translate_errors(self._address):
            dataset = lance.dataset(address, storage_options=self._options, commit_lock=self._lock)
            for index in indexes:
                _add_index(dataset, index)

    def _add_keys(self, path: str, address: str, columns: Sequence[pa.ChunkedArray]) -> int | None:
        if not columns:
            self._store.put(f"{path}/{BLOOM_FILE}", bloom_filter(np.zeros(0, np.uint64)))
            return None
        arrays = [combine_column(column) for column in columns]
        self._store.put(f"{path}/{BLOOM_FILE}", bloom_filter(key_hashes(arrays)))
        data = key_index_data(key_values(arrays))
        with translate_errors(self._address):
            for name, table in (
                (KEY_INDEX_DATA, data),
                (KEY_INDEX_LOOKUP, key_index_lookup(data)),
            ):
                self._write_file(f"{address}/{name}", table)
        return sum(int(array.nbytes) for array in arrays)

    def _write_file(self, address: str, table: pa.Table) -> None:
        with LanceFileWriter(
            address, table.schema, version=_KEY_INDEX_VERSION, storage_options=self._options
        ) as writer:
            writer.write_batch(table)

    def _sync(self, path: str) -> None:
        if isinstance(self._store, SupportsSync):
            self._store.sync([info.path for info in self._store.list(path)])


@contextlib.contextmanager
def _alone(_version: int) -> Iterator[None]:
    """Commit without keeping anybody out; for a folder that nobody else knows."""
    yield


def _add_vector_index(dataset: lance.LanceDataset, index: KeptIndex) -> None:
    """Index the vectors; without one there is nothing to find, and nothing is indexed.

    A generation may hold deletes only, or vectors that are null, not finite, or too short for
    their metric: Lance trains no index on none.
    """
    metric = str(index.settings["metric"])
    try:
        dataset.create_index(
            index.column,
            "IVF_FLAT" if metric == _BITS else "IVF_HNSW_SQ",  # the latter knows no bits
            name=index.name,
            metric=metric,
            num_partitions=1,
            replace=True,
        )
    except RuntimeError as error:
        if not _NO_VECTORS.search(str(error)):
            raise


def combine_column(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _add_index(dataset: lance.LanceDataset, index: KeptIndex) -> None:
    if index.kind == "VECTOR":
        _add_vector_index(dataset, index)
    else:
        kind: Any = index.kind  # pylance lists the kinds of today
        settings: dict[str, Any] = dict(index.settings)
        dataset.create_scalar_index(index.column, kind, name=index.name, replace=True, **settings)


def sstables_of(core: TableCore) -> SstableWriter:
    """Return what writes and opens the SSTables of a table."""
    return SstableWriter(core.store, core.location, core.resolved, core.ids)
