"""Opens SSTables for reading: their rows, their key index and their bloom filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from lance.file import LanceFileReader

from holdfast.errors import NotFoundError
from holdfast.formats import (
    BLOOM_FILE,
    KEY_INDEX_DATA,
    KEY_INDEX_LOOKUP,
    PAGE_ROWS,
    SsTable,
    hash_rows,
    hashed_bytes,
    may_contain,
    sstable_path,
)
from holdfast.read._key_index import KeyIndex, Page
from holdfast.read._lance import Dataset, open_dataset, translate_read_errors
from holdfast.read._levels import combine_column
from holdfast.read._newest import Mask
from holdfast.storage import ObjectStore

_BLOOM_ROWS = 16_384
"""With more keys than this, a bloom filter of its fixed size lets too much pass."""


class SstableReader:
    """Opens the SSTables of one table.

    Args:
        store: the table's store.
        address: the table's address as pylance takes it.
        options: storage options with their values.
    """

    def __init__(self, store: ObjectStore, address: str, options: Mapping[str, str]) -> None:
        self._store = store
        self._address = address.rstrip("/")
        self._options = dict(options) or None

    def open(self, shard_id: str, sstable: SsTable) -> tuple[Dataset, OpenSstable]:
        """Return the rows of one, and what it has beside them.

        Raises:
            NotFoundError: it is gone.
            UnavailableError: the store gave no answer.
        """
        path = sstable_path(shard_id, sstable.path)
        with translate_read_errors(self._address):
            dataset = open_dataset(f"{self._address}/{path}", self._options)
        files = OpenSstable(self._store, self._address, path, self._options, sstable.physical_rows)
        return dataset, files


class OpenSstable:
    """The files beside the rows of one SSTable."""

    def __init__(
        self,
        store: ObjectStore,
        address: str,
        path: str,
        options: Mapping[str, str] | None,
        rows: int | None,
    ) -> None:
        self._store = store
        self._address = address
        self._path = path
        self._options = options
        self._rows = rows
        self._bloom: bytes | None = None

    def may_hold(self, columns: Sequence[pa.Array]) -> Mask | None:
        """Tell of each key whether it may be there; None when the filter cannot tell."""
        if self._rows is None or self._rows > _BLOOM_ROWS:
            return None
        if self._bloom is None:
            try:
                self._bloom = self._store.get(f"{self._path}/{BLOOM_FILE}")
            except NotFoundError:
                return None  # the key index says whether the SSTable is there at all
        return may_contain(self._bloom, hash_rows(hashed_bytes(columns)))

    def key_index(self) -> KeyIndex:
        """Return the key index.

        Raises:
            NotFoundError: it is gone.
            UnavailableError: the store gave no answer.
        """
        with translate_read_errors(self._address):
            pages = self._file(KEY_INDEX_LOOKUP).read_all().to_table()
            data = self._file(KEY_INDEX_DATA)

        def read_page(number: int) -> Page:
            with translate_read_errors(self._address):
                rows = min(PAGE_ROWS, data.num_rows() - number * PAGE_ROWS)
                page = data.read_range(number * PAGE_ROWS, rows).to_table()
            return combine_column(page["values"]), combine_column(page["ids"])

        return KeyIndex(combine_column(pages["min"]), read_page)

    def _file(self, name: str) -> LanceFileReader:
        return LanceFileReader(
            f"{self._address}/{self._path}/{name}",
            storage_options=None if self._options is None else dict(self._options),
        )
