"""What entries of a shard's log change: each row against the one before it with its key.

Of several rows with one key in one entry the last counts: an entry is seen whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.changes._compare import AFTER, BEFORE, DELETE, INSERT, key_codes, row_codes
from holdfast.formats import TOMBSTONE, key_values
from holdfast.read import View, combine_column, find_newest, lookup, translate_read_errors

Places: TypeAlias = npt.NDArray[np.int64]
_LOOKED_UP = 500
"""Up to so many keys are looked up one by one; for more, all keys are read once."""
_ADDRESS = "_rowaddr"
_TAKEN = 1 / 10  # of the base table's rows; above that all of them are read


def find_changes(
    old: pa.Table, new: pa.Table, positions: Places, keys: Sequence[str]
) -> tuple[pa.Table, list[str], Places]:
    """Return the change rows, their types and the positions of their entries, in order.

    Args:
        old: the rows with these keys before the entries; a key may have several.
        new: the rows of the entries in order, with `_tombstone`.
        positions: the entry of each new row.
        keys: the columns of the primary key.
    """
    dead = combine_column(pc.fill_null(new[TOMBSTONE], False)).to_numpy(zero_copy_only=False)
    rows = pa.concat_tables([old, new.drop_columns([TOMBSTONE])])
    codes = key_codes(rows, keys)
    first = old.num_rows
    newest = _newest_of_entries(codes[first:], positions)
    chosen = np.concatenate([np.arange(first), newest + first])
    # By key, and in each key by age: so the row before a row is the one it follows.
    order = chosen[np.argsort(codes[chosen], kind="stable")]
    follows = np.concatenate([[False], codes[order][1:] == codes[order][:-1]])
    is_new = order >= first
    alive = np.ones(len(order), np.bool_)
    alive[is_new] = ~dead[order[is_new] - first]
    before = np.concatenate([[False], alive[:-1]]) & follows
    equal = row_codes(rows)
    same = np.concatenate([[False], equal[order][1:] == equal[order][:-1]])
    events: list[tuple[npt.NDArray[np.bool_], int, str]] = [
        (is_new & alive & ~before, 0, INSERT),
        (is_new & ~alive & before, -1, DELETE),
        (is_new & alive & before & ~same, -1, BEFORE),
        (is_new & alive & before & ~same, 0, AFTER),
    ]
    places, at, kinds = [], [], []
    for number, (mask, back, _) in enumerate(events):
        marked = np.flatnonzero(mask)
        places.append(order[marked + back])
        at.append(order[marked] - first)
        kinds.append(np.full(len(marked), number))
    # A key that the base has several times: the others go with the first new row.
    more = ~is_new & np.concatenate([~is_new[1:] & follows[1:], [False]])
    nexts = _next_new(order, is_new)
    places.append(order[more])
    at.append(nexts[more] - first)
    kinds.append(np.full(int(more.sum()), 1))
    joined, when, kind = (np.concatenate(one) for one in (places, at, kinds))
    sequence = np.lexsort((kind, when))
    types = [events[number][2] for number in kind[sequence].tolist()]
    return rows.take(pa.array(joined[sequence])), types, positions[when[sequence]]


def _newest_of_entries(codes: Places, positions: Places) -> Places:
    """Return the rows that are the last with their key in their entry, in order."""
    if not len(codes):
        return np.zeros(0, np.int64)
    order = np.lexsort((np.arange(len(codes)), codes, positions))
    last = np.ones(len(order), np.bool_)
    same_entry = positions[order][1:] == positions[order][:-1]
    last[:-1] = ~(same_entry & (codes[order][1:] == codes[order][:-1]))
    return np.sort(order[last])


def _next_new(order: Places, is_new: npt.NDArray[np.bool_]) -> Places:
    """Return for each place the first new row at or behind it: for an old row, of its key."""
    if not is_new.any():
        return np.zeros(len(order), np.int64)
    places = np.where(is_new, np.arange(len(order)), len(order) - 1)
    following: Places = order[np.minimum.accumulate(places[::-1])[::-1]]
    return following


def find_old(view: View, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return all rows with these keys, as a view shows them.

    Args:
        view: the state before.
        keys: the key columns, each key once.
        names: which columns.
    """
    schema = view.schema(names)
    if not keys.num_rows:
        return schema.empty_table()
    if keys.num_rows <= _LOOKED_UP:
        return lookup(view, keys, names)
    _, wanted = find_newest([[combine_column(column) for column in keys.columns]])
    parts = []
    with translate_read_errors(view.location):
        for level in view.overlay.levels:
            for batch in level.batches(names):
                held = wanted.holds([batch.column(name) for name in view.columns.keys])
                parts.append(_plain(pa.Table.from_batches([batch.filter(pa.array(held))]), schema))
        parts.append(_plain(_from_base(view, keys, names), schema))
    return pa.concat_tables(parts)


def _from_base(view: View, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return base rows with these keys that nothing above hides."""
    held = list(view.columns.keys)
    _, wanted = find_newest([[combine_column(column) for column in keys.columns]])
    above = view.overlay.keys
    narrow = keys.num_rows < view.base.count_rows() * _TAKEN and not view.base.has_stable_row_ids
    columns = held if narrow else [*names, *(one for one in held if one not in names)]
    kept: list[pa.RecordBatch] = []
    scanner = view.base.scanner(columns=columns, with_row_address=narrow)
    for batch in scanner.to_reader():
        values = [batch.column(name) for name in held]
        mask = wanted.holds(values)
        if above is not None and len(above):
            mask &= ~above.holds(values)
        if mask.any():
            kept.append(batch.filter(pa.array(mask)))
    rows = pa.Table.from_batches(kept, scanner.projected_schema if not kept else None)
    if not narrow or not rows.num_rows:
        return rows
    addresses = rows[_ADDRESS].to_pylist()
    return view.base._take_rows(addresses, columns=list(names))  # noqa: SLF001 - the only way by address


def _plain(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    if not rows.num_rows:
        return schema.empty_table()
    return pa.Table.from_arrays([rows[name] for name in schema.names], schema=schema)


def distinct_keys(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the key columns of rows, each key once."""
    held = rows.select(list(keys)).combine_chunks()
    if not held.num_rows:
        return held
    codes = key_values([combine_column(held[name]) for name in keys]).dictionary_encode().indices
    _, first = np.unique(codes.to_numpy(zero_copy_only=False), return_index=True)
    return held.take(pa.array(np.sort(first)))
