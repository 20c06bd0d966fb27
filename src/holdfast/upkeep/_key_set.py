"""`MergeKeys`: some keys, and which rows of a table have one of them.

Keys are one value per row. All keys of a table are read once, in lots; or a BTREE is asked, where
that reads less. Numbers that lie close together are looked up by a flag each, which is many
times faster than a hash table.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commits import translate_errors
from holdfast.formats import key_values, quote_name, write_literals
from holdfast.shard import combine_column

Fragment: TypeAlias = Any
"""pylance's `LanceFragment`, which takes more than its types say."""

ADDRESS = "_rowaddr"

_KEYS_AT_ONCE = 1 << 19  # of the base table; each such lot is looked up in one pass
_ROWS_AT_ONCE = 1 << 16
_LOOKED_UP_AT_ONCE = 2_000  # keys that one question to an index names
_FEWEST_FLAGS = 1 << 24
_FLAGS_PER_KEY = 64
_INDEX_PAYS_BELOW = 1 / 200  # of the base table's rows


class MergeKeys:
    """Keys to look for.

    Args:
        names: the key columns.
        keys: every key once, as `key_of` makes them of the columns.
    """

    def __init__(self, names: Sequence[str], keys: pa.Array) -> None:
        self._names = tuple(names)
        self.keys = keys

    def matches(
        self, dataset: lance.LanceDataset, fragments: Iterable[int] | None = None
    ) -> Iterator[tuple[np.ndarray, pa.Array]]:
        """Yield addresses of rows that have one of the keys, with their keys.

        Args:
            dataset: one version.
            fragments: only these; all by default.
        """
        if fragments is None and self._index_pays(dataset):
            yield from self._looked_up(dataset)
            return
        if fragments is None:
            chosen: list[Fragment] = list(dataset.get_fragments())
        else:
            chosen = [dataset.get_fragment(number) for number in fragments]
        for lot in _lots(dataset, self._names, chosen):
            keys = key_of(lot, self._names)
            known = self.contains(keys)
            yield lot[ADDRESS].to_numpy()[known].astype(np.int64), keys.filter(pa.array(known))

    def are_in(self, dataset: lance.LanceDataset, fragments: Sequence[Fragment]) -> bool:
        """Tell whether a row in these fragments of a version has one of the keys."""
        if not fragments or not len(self.keys):
            return False
        with translate_errors(dataset.uri):
            return any(
                bool(self.contains(key_of(lot, self._names)).any())
                for lot in _lots(dataset, self._names, fragments)
            )

    def positions(self, keys: pa.Array) -> np.ndarray:
        """Return where each of these keys, which are all known, is among ours."""
        places: np.ndarray = pc.index_in(keys, value_set=self.keys).to_numpy(zero_copy_only=False)
        return places.astype(np.int64)

    @functools.cached_property
    def _flags(self) -> tuple[int, np.ndarray] | None:
        """Return one flag per number between the least and the greatest key, if they are close."""
        if not pa.types.is_integer(self.keys.type) or not len(self.keys):
            return None
        least, most = (int(one) for one in pc.min_max(self.keys).as_py().values())
        if most - least >= max(_FEWEST_FLAGS, _FLAGS_PER_KEY * len(self.keys)):
            return None
        flags = np.zeros(most - least + 1, bool)
        flags[_offsets(self.keys, least)] = True
        return least, flags

    def contains(self, keys: pa.Array) -> np.ndarray:
        """Tell of each key of the base table whether it is one of ours."""
        if self._flags is None:
            held = pc.fill_null(pc.is_in(keys, value_set=self.keys), False)
            return np.asarray(held.to_numpy(zero_copy_only=False))
        least, flags = self._flags
        ends = pa.scalar(least, keys.type), pa.scalar(least + len(flags) - 1, keys.type)
        inside = pc.and_(pc.greater_equal(keys, ends[0]), pc.less_equal(keys, ends[1]))
        near = np.asarray(pc.fill_null(inside, False).to_numpy(zero_copy_only=False))
        near = near.copy()
        near[near] = flags[_offsets(keys.filter(pa.array(near)), least)]
        return near

    def _index_pays(self, dataset: lance.LanceDataset) -> bool:
        """Tell whether a BTREE on the key finds the rows faster than reading all keys."""
        if len(self._names) != 1 or write_literals(self.keys.slice(0, 1)) is None:
            return False
        if dataset.schema.field(self._names[0]).type != self.keys.type:
            return False  # the bits of floats: their spelling would be that of other values
        few = len(self.keys) < dataset.count_rows() * _INDEX_PAYS_BELOW
        return few and any(
            str(one.index_type).upper() == "BTREE" and list(one.field_names) == list(self._names)
            for one in dataset.describe_indices()
            if one.field_names
        )

    def _looked_up(self, dataset: lance.LanceDataset) -> Iterator[tuple[np.ndarray, pa.Array]]:
        name = quote_name(self._names[0])
        for start in range(0, len(self.keys), _LOOKED_UP_AT_ONCE):
            listed = write_literals(self.keys.slice(start, _LOOKED_UP_AT_ONCE))
            table = dataset.scanner(
                columns=[self._names[0]], filter=f"{name} IN ({listed})", with_row_address=True
            ).to_table()
            yield table[ADDRESS].to_numpy().astype(np.int64), key_of(table, self._names)


def key_of(lot: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return one value per row that is equal where the key is; null or unequal for null keys."""
    return key_values([combine_column(lot[name]) for name in names])


def _offsets(keys: pa.Array, least: int) -> np.ndarray:
    """Return how far above the least key these are."""
    numbers: np.ndarray = keys.to_numpy(zero_copy_only=False)
    if pa.types.is_unsigned_integer(keys.type):
        return (numbers.astype(np.uint64) - np.uint64(least)).astype(np.int64)
    return numbers.astype(np.int64) - least


def _lots(
    dataset: lance.LanceDataset, names: Sequence[str], fragments: Sequence[Fragment]
) -> Iterator[pa.Table]:
    """Yield key columns and row addresses of fragments, many rows at a time."""
    if not fragments:
        return
    scanner = dataset.scanner(
        columns=list(names),
        with_row_address=True,
        fragments=list(fragments),
        batch_size=_ROWS_AT_ONCE,
        scan_in_order=False,
    )
    waiting: list[pa.RecordBatch] = []
    for batch in scanner.to_batches():
        waiting.append(batch)
        if sum(one.num_rows for one in waiting) >= _KEYS_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
