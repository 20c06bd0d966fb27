"""Lists from Spark as lists of fixed size, at any depth.

Arrow's own cast ends the process where all lists of a batch are null: what lies in them has no
memory then. So vectors are made here, value by value in one `take`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.errors import InvalidInputError
from holdfast.formats import parts_of


def has_vectors(kind: pa.DataType) -> bool:
    """Tell whether a type is, or has inside, a list of fixed size."""
    return types.is_fixed_size_list(kind) or any(has_vectors(part.type) for part in parts_of(kind))


def cast_vectors(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of Spark's in a type that has lists of fixed size in it.

    Raises:
        InvalidInputError: a list has another length.
        ArrowInvalid: a value has no place in its type.
    """
    if array.type == kind:
        return array
    if not has_vectors(kind) or types.is_null(array.type):
        return array.cast(kind)
    if types.is_fixed_size_list(kind):
        return _vectors(array, kind)
    if types.is_struct(kind):
        return _struct(array, kind)
    return _lists(array, kind)


def _vectors(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    lengths = pc.list_value_length(array).filter(pa.array(valid))
    if pc.any(pc.not_equal(lengths, kind.list_size)).as_py():
        raise InvalidInputError(f"every array must have {kind.list_size} elements")
    starts = (np.cumsum(valid) - 1).repeat(kind.list_size) * kind.list_size
    places = starts + np.tile(np.arange(kind.list_size), len(array))
    # Under a null lie the values of the row before, or of the first one: nobody reads them.
    values = array.flatten().take(pa.array(np.maximum(places, 0)))
    mask = pa.array(~valid) if array.null_count else None
    cast = cast_vectors(values, kind.value_type)
    return pa.FixedSizeListArray.from_arrays(cast, type=kind, mask=mask)


def _struct(array: pa.StructArray, kind: pa.DataType) -> pa.Array:
    fields = [kind.field(at) for at in range(kind.num_fields)]
    parts = [cast_vectors(array.field(field.name), field.type) for field in fields]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)


def _lists(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_map(kind):
        keys = cast_vectors(array.keys, kind.key_type)
        items = cast_vectors(array.items, kind.item_type)
        fields = [kind.key_field, kind.item_field]
        values = pa.StructArray.from_arrays([keys, items], fields=fields)
        same = kind
    else:
        values = cast_vectors(array.values, kind.value_type)
        same = pa.list_(kind.value_field)  # where each begins is kept as Spark has it
    made = pa.Array.from_buffers(
        same, len(array), array.buffers()[:2], offset=array.offset, children=[values]
    )
    return made if made.type == kind else made.cast(kind)
