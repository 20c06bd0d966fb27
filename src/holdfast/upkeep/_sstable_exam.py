"""What of an SSTable can be read, looked at row by row where not all of it can. Reads only.

Lance stores some values that it cannot read again (text in a list that is no UTF-8, say), and files
are lost or cut off by people and disks. Each fragment is read whole. Where that fails, its files
are read from a copy on this machine whose manifest says bytes for text, since Lance reads no row
beside a text that is no UTF-8; by halves, until single rows are told from their neighbours.

A store that does not answer is no damage: it is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar

import lance
import numpy as np
import pyarrow as pa

from holdfast.commits import translate_errors
from holdfast.errors import (
    CorruptError,
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.formats import (
    BLOOM_FILE,
    KEY_INDEX_DATA,
    KEY_INDEX_LOOKUP,
    SSTABLE_MANIFEST,
    SsTable,
    bloom_filter,
    find_good,
    key_columns,
    key_hashes,
    only_rows,
    readable_rows,
    shown_files,
    sstable_path,
    text_as_bytes,
)
from holdfast.shard import SstableWriter, combine_column
from holdfast.storage import ObjectStore

Fragment: TypeAlias = Any  # pylance's, which takes more than its types say
_T = TypeVar("_T")
_OF_ROWS = ("_versions/", "data/", "_deletions/")
_READS = 2  # what failed once for a passing reason is not damaged


class SstableDamage(StrEnum):
    """What is wrong with an SSTable."""

    LOST = "lost"
    POISONED = "poisoned"
    BESIDE = "beside"


@dataclass(frozen=True, slots=True, kw_only=True)
class SstableWound:
    """One generation that cannot be read whole.

    Attributes:
        generation: which one.
        folder: its SSTable's folder.
        damage: lost, with no row that can be read; poisoned, with some that cannot; or beside
            its rows: a file that only helps to find them is gone or damaged.
        rows: how many rows cannot be read; None if nothing tells.
        kept: how many can.
        quarantine: where its files are kept; None before the repair, or if there were none.
    """

    generation: int
    folder: str
    damage: SstableDamage
    rows: int | None
    kept: int
    quarantine: str | None = None


@dataclass(slots=True)
class SstableExam:
    """Looks at one SSTable.

    Args:
        store: the table's store.
        sstables: opens SSTables.
        shard_id: the shard.
        table: what the shard's manifest says of it.
    """

    store: ObjectStore
    sstables: SstableWriter
    shard_id: str
    table: SsTable
    dataset: lance.LanceDataset | None = field(init=False, default=None)
    rows: list[pa.RecordBatch] = field(init=False, default_factory=list)
    _lost: int = field(init=False, default=0)
    _answered: bool = field(init=False, default=False)

    def wound(self) -> SstableWound | None:
        """Read it; return what is wrong, or None. What can be read is in `rows` afterwards.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        self.rows, self._lost = [], 0
        shown = self._shown_files()
        if shown is not None:
            self.dataset = self._try(lambda: self.sstables.open(self.shard_id, self.table.path))
        if shown is None or self.dataset is None:
            return self._wound(SstableDamage.LOST, self.table.physical_rows)
        with TemporaryDirectory(prefix="holdfast-repair-") as copied:
            for part in self.dataset.get_fragments():
                self._read_fragment(part, Path(copied))
        if self._lost:
            kept = any(batch.num_rows for batch in self.rows)
            return self._wound(SstableDamage.POISONED if kept else SstableDamage.LOST, self._lost)
        return self._wound(SstableDamage.BESIDE, 0) if any(self._broken_beside(shown)) else None

    def _shown_files(self) -> Collection[str] | None:
        """Return what its manifest names; None if that cannot be read.

        The bytes are looked at: a dataset that is open in this process opens once more without.
        """
        folder = sstable_path(self.shard_id, self.table.path)
        try:
            return shown_files(self.store.get(f"{folder}/{SSTABLE_MANIFEST}"))
        except (NotFoundError, CorruptError):
            return None

    def _wound(self, damage: SstableDamage, rows: int | None) -> SstableWound:
        return SstableWound(
            generation=self.table.generation,
            folder=self.table.path,
            damage=damage,
            rows=rows,
            kept=sum(batch.num_rows for batch in self.rows),
        )

    def _read_fragment(self, part: Fragment, copied: Path) -> None:
        count = self._try(part.count_rows)
        read = None if count is None else self._read(part, 0, count)
        if read is not None and all(readable_rows(batch).all() for batch in read):
            self.rows += read
            return
        if count is None or not all(self._opens(f"data/{file.path}") for file in part.data_files()):
            self._lost += part.physical_rows if count is None else count
            return
        same = self._copy(copied).get_fragment(part.fragment_id)
        read_at: dict[int, list[pa.RecordBatch]] = {}

        def is_read(start: int, rows: int) -> bool:
            read = self._read(same, start, rows)
            if read is not None:
                read_at[start] = read
            return read is not None

        find_good(count, is_read)
        texts = [
            _retype(batch, self._schema) for start in sorted(read_at) for batch in read_at[start]
        ]
        kept = [only_rows(batch, readable_rows(batch)) for batch in texts]
        self.rows += kept
        self._lost += count - sum(batch.num_rows for batch in kept)

    def _read(self, part: Fragment, start: int, rows: int) -> list[pa.RecordBatch] | None:
        """Return a range of a fragment's rows; None if it cannot be read."""
        return self._try(lambda: list(part.to_table(offset=start, limit=rows).to_batches()))

    def _copy(self, folder: Path) -> Any:  # noqa: ANN401 - pylance's dataset; see `Fragment`
        """Return the same rows on this machine, with bytes where there is text."""
        above = sstable_path(self.shard_id, self.table.path)
        for info in () if any(folder.iterdir()) else self.store.list(above):
            name = info.path.removeprefix(f"{above}/")
            if name.startswith(_OF_ROWS):
                body = self.store.get(info.path)
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text_as_bytes(body) if name.endswith(".manifest") else body)
        with translate_errors(self.shard_id):
            return lance.dataset(str(folder))

    @property
    def _schema(self) -> pa.Schema:
        assert self.dataset is not None  # noqa: S101 - opened before its rows are read
        return self.dataset.schema

    def _broken_beside(self, shown: Collection[str]) -> Iterator[str]:
        """Yield the files beside the rows that are gone or cannot be read."""
        folder = sstable_path(self.shard_id, self.table.path)
        if self.table.primary_key_bytes is not None:
            yield from (one for one in (KEY_INDEX_DATA, KEY_INDEX_LOOKUP) if not self._opens(one))
            if not self._filter_fits(f"{folder}/{BLOOM_FILE}"):
                yield BLOOM_FILE
        listed = {info.path for info in self.store.list(folder)}
        for path in sorted(shown):
            there = any(name.startswith(f"{folder}/{path}") for name in listed)
            if path.startswith("_indices/") and not there:
                yield path

    def _filter_fits(self, path: str) -> bool:
        """Tell whether the bloom filter has every key: one that lacks a key hides its row."""
        try:
            stored = np.frombuffer(self.store.get(path), np.uint8)
        except NotFoundError:
            return False
        names = key_columns(self._schema)
        if len(names) != 1:  # a stock writer may have hashed the columns in another order
            return True
        rows = pa.Table.from_batches(self.rows, self._schema)
        keys = [combine_column(rows[name]) for name in names]
        wanted = np.frombuffer(bloom_filter(key_hashes(keys)), np.uint8)
        return len(stored) == len(wanted) and bool(((stored & wanted) == wanted).all())

    def _opens(self, name: str) -> bool:
        def read() -> bool:
            file = self.sstables.read_file(self.shard_id, self.table.path, name)
            if not name.startswith("data/"):
                file.read_all().to_table()
            return True

        return self._try(read) is not None

    def _try(self, call: Callable[[], _T]) -> _T | None:
        """Return what a call reads; None for what can be read by nobody.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        for _ in range(_READS):
            try:
                with translate_errors(self.shard_id):
                    return call()
            except PermissionDeniedError:
                raise
            except UnavailableError:
                self._ask_store()
            except HoldfastError:
                continue
        return None

    def _ask_store(self) -> None:
        """Get every byte by ourselves: Lance calls a damaged file a store without an answer.

        Raises:
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        if self._answered:
            return
        for info in self.store.list(sstable_path(self.shard_id, self.table.path)):
            self.store.get(info.path)
        self._answered = True


def _retype(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the same memory as columns of other types, which are laid out alike."""
    _, memory = batch.__arrow_c_array__()
    return pa.RecordBatch._import_from_c_capsule(schema.__arrow_c_schema__(), memory)  # noqa: SLF001 - no other way keeps nested columns
