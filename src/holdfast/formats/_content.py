"""Values on their way into a table: checked in full, and laid out as Lance can read them.

Arrow takes much on trust: text that is no UTF-8, an index beyond its dictionary, a null inside a
struct whose field has none. Lance stores such values and cannot read them again, and with them
nothing else of their file. So every way in looks at every value first.

Lance reads values where they lie, and stops the whole call where an address is not a multiple
of what the type needs: 16 bytes for decimals, which Arrow's own format aligns to 8. It also stops
at slices of structs that have structs or booleans inside; and Arrow's own `filter` gives other
values than there are out of slices of vectors of vectors.

A dictionary with indices of 8 or 16 bits counts few values. Lance joins the dictionaries of one
file without a look at that, and cannot read the file again: so the values of one stream are
counted where a table has such a column, and new tables get wider indices; see `widen_type`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyarrow import types

from holdfast.errors import InvalidInputError
from holdfast.formats._json_text import check_json, is_json
from holdfast.formats._sql import check_names

_PLAIN_ALIGNMENT = 8
_WIDE_ALIGNMENT = 16
_WIDE_INDICES = 32
_REASON_CHARS = 200
_LANCES_NAMES = {
    "_rowid",
    "_rowaddr",
    "_rowoffset",
    "_row_created_at_version",
    "_row_last_updated_at_version",
}


class Content:
    """Checks the batches of one stream.

    Args:
        schema: the columns that the batches have.

    Raises:
        InvalidInputError: a column has a type that Lance stores and cannot read again.
    """

    def __init__(self, schema: pa.Schema) -> None:
        check_types(schema)
        self._schema = schema
        self._strict = [at for at, field in enumerate(schema) if _is_strict(field)]
        self._alignments = [
            _WIDE_ALIGNMENT if _is_wide(field.type) else _PLAIN_ALIGNMENT for field in schema
        ]
        self._json = [at for at, field in enumerate(schema) if _has_json(field.type)]
        self._narrow = [at for at, field in enumerate(schema) if has_narrow_indices(field.type)]
        self._values: dict[str, set[object]] = {}

    def check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch, copied where Lance could not read it as it lies.

        Raises:
            InvalidInputError: a value is none of its type, a null is where none may be, or the
                stream has more values than a dictionary's indices can count.
        """
        check_values(batch)
        for at in self._strict:
            _check_nulls(batch.column(at), self._schema.field(at), self._schema.names[at])
        for at in self._json:
            check_json(batch.column(at), self._schema.names[at])
        for at in self._narrow:
            self._count(batch.column(at), self._schema.names[at])
        return self._align(batch)

    def check_batches(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        """Return the batches of a stream, each one checked when it is taken; as for `check`."""
        return pa.RecordBatchReader.from_batches(
            self._schema, (self.check(batch) for batch in batches)
        )

    def _align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        bad = [
            at
            for at, alignment in enumerate(self._alignments)
            if not _is_aligned(batch.column(at), alignment) or _is_cut(batch.column(at))
        ]
        if not bad:
            return batch
        columns = list(batch.columns)
        for at in bad:
            columns[at] = _copy_array(columns[at])
            if not _is_aligned(columns[at], self._alignments[at]):
                raise InvalidInputError(
                    "a column lies in memory where Lance cannot read it: copy the data first",
                    column=self._schema.names[at],
                )
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _count(self, array: pa.Array, path: str) -> None:
        for place, part in _dictionaries(array, path):
            values = self._values.setdefault(place, set())
            values.update(part.dictionary.unique().to_pylist())
            bits = part.type.index_type.bit_width
            room = 1 << (bits - 1 if types.is_signed_integer(part.type.index_type) else bits)
            if len(values) > room:
                raise InvalidInputError(
                    "a column has more values than the indices of its dictionary can count: "
                    "write fewer at a time, or give the column wider indices",
                    column=place,
                    values=len(values),
                    room=room,
                )


def check_log_types(schema: pa.Schema) -> None:
    """Refuse columns whose waiting rows could hold more than one column of them can.

    Raises:
        InvalidInputError: a dictionary has indices of 8 or 16 bits.
    """
    for field in schema:
        if has_narrow_indices(field.type):
            raise InvalidInputError(
                "the dictionary of a column counts few values, and a log may hold more: write "
                "this table by append, or make it anew with indices of 32 bits",
                column=field.name,
                type=str(field.type),
            )


def check_values(batch: pa.RecordBatch) -> None:
    """Refuse values that are none of their type: text that is no UTF-8, an index out of bounds.

    Raises:
        InvalidInputError: there is such a value.
    """
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidInputError(
            "the data holds values that are none of their type; nothing was written",
            columns=", ".join(batch.schema.names)[:_REASON_CHARS],
            reason=str(error)[:_REASON_CHARS],
        ) from error


def check_stored(batch: pa.RecordBatch) -> None:
    """Refuse what nobody can write again: values that are none of their type, nulls inside.

    A column itself may have nulls, as those of deleted rows are.

    Raises:
        InvalidInputError: there is such a value.
    """
    check_values(batch)
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if _is_strict(field):
            _check_nulls(column, field.with_nullable(nullable=True), field.name)


def check_types(schema: pa.Schema) -> None:
    """Refuse columns that Lance takes and cannot read again beside others, or not write at all.

    Raises:
        InvalidInputError: a list of fixed size holds nothing, or something without a fixed
            width; a struct has no fields; JSON lies in views; or a name is there twice, is
            empty, one of Lance's own or `*`, or has a backtick, a dot or a zero byte in it.
    """
    check_names(schema.names)
    if len(set(schema.names)) != len(schema.names):
        raise InvalidInputError("two columns have the same name")
    for field in schema:
        reason = _unusable_name(field.name) or _unreadable(field.type)
        if reason is not None:
            raise InvalidInputError(
                f"Lance cannot read such a column again: {reason}",
                column=field.name,
                type=str(field.type),
            )


def _unusable_name(name: str) -> str | None:
    """Return why Lance does not find a column of this name again: dots divide paths."""
    if not name or "." in name or "\0" in name:
        return "its name is empty, or has a dot or a zero byte in it"
    if name in _LANCES_NAMES:
        return "its name is one of Lance's own"
    return "its name stands for all columns" if name == "*" else None


def _unreadable(kind: pa.DataType) -> str | None:
    """Return what keeps Lance from reading a type, and what to do; None if it can."""
    inside = parts_of(kind)
    if types.is_fixed_size_list(kind):
        value = inside[0].type
        fixed = types.is_primitive(value) or types.is_fixed_size_list(value)
        if not fixed and not types.is_fixed_size_binary(value) and not types.is_decimal(value):
            return "a list of fixed size holds numbers; make it a list"
        if not kind.list_size:
            return "a list of fixed size holds one value at least"
    if types.is_struct(kind) and not inside:
        return "a struct has one field at least"
    if is_json(kind) and types.is_string_view(kind.storage_type):
        return "JSON is stored as string or large_string"
    return next(filter(None, (_unreadable(part.type) for part in inside)), None)


def _has_json(kind: pa.DataType) -> bool:
    return is_json(kind) or any(_has_json(part.type) for part in parts_of(kind))


def align_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch that was checked when it was written, copied where Lance could not read it."""
    bad = [
        at
        for at, column in enumerate(batch.columns)
        if not _is_aligned(column, _WIDE_ALIGNMENT if _is_wide(column.type) else _PLAIN_ALIGNMENT)
        or _is_cut(column)
    ]
    if not bad:
        return batch
    columns = [_copy_array(one) if at in bad else one for at, one in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def widen_type(kind: pa.DataType) -> pa.DataType:
    """Return a type whose dictionaries, at every depth, have indices of 32 bits or more."""
    if types.is_dictionary(kind):
        if kind.index_type.bit_width >= _WIDE_INDICES:
            return kind
        return pa.dictionary(pa.int32(), kind.value_type, ordered=kind.ordered)
    if not has_narrow_indices(kind):
        return kind
    return rebuild_type(kind, [part.with_type(widen_type(part.type)) for part in parts_of(kind)])


def has_narrow_indices(kind: pa.DataType) -> bool:
    """Tell whether a dictionary in a type has indices of 8 or 16 bits."""
    if types.is_dictionary(kind):
        return bool(kind.index_type.bit_width < _WIDE_INDICES)
    return any(has_narrow_indices(part.type) for part in parts_of(kind))


def parts_of(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields directly inside a type: of a map its key and its value."""
    if types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [kind.value_field]
    if types.is_struct(kind):
        return [kind.field(at) for at in range(kind.num_fields)]
    return []


def rebuild_type(kind: pa.DataType, parts: Sequence[pa.Field]) -> pa.DataType:
    """Return a nested type of the same kind around other fields."""
    if types.is_map(kind):
        return pa.map_(parts[0], parts[1], keys_sorted=kind.keys_sorted)
    if types.is_large_list(kind):
        return pa.large_list(parts[0])
    if types.is_fixed_size_list(kind):
        return pa.list_(parts[0], kind.list_size)
    return pa.list_(parts[0]) if types.is_list(kind) else pa.struct(parts)


def _is_strict(field: pa.Field) -> bool:
    """Tell whether a field, or one inside it, has no nulls."""
    return not field.nullable or any(_is_strict(part) for part in parts_of(field.type))


def _is_wide(kind: pa.DataType) -> bool:
    """Tell whether Lance needs more than 8 bytes of alignment: decimals and views."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_wide(kind.storage_type)
    if types.is_dictionary(kind):
        return _is_wide(kind.value_type)
    inside = parts_of(kind)
    if inside:
        return any(_is_wide(part.type) for part in inside)
    return bool(types.is_decimal(kind) or types.is_string_view(kind) or types.is_binary_view(kind))


def _is_aligned(array: pa.Array, alignment: int) -> bool:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray) and not _is_aligned(array.dictionary, alignment):
        return False
    return not any(one is not None and one.address % alignment for one in array.buffers())


def _is_cut(array: pa.Array) -> bool:
    """Tell whether a struct, or a vector of vectors, at any depth, is a slice of another one."""
    kind = array.type
    if types.is_struct(kind):
        fields = (array.field(at) for at in range(kind.num_fields))
        return bool(array.offset) or any(_is_cut(field) for field in fields)
    if types.is_map(kind):
        return _is_cut(array.keys) or _is_cut(array.items)
    if types.is_fixed_size_list(kind):
        nested = types.is_fixed_size_list(kind.value_type)
        return nested and bool(array.offset or array.values.offset or _is_cut(array.values))
    return bool(parts_of(kind)) and _is_cut(array.values)


def _copy_array(array: pa.Array) -> pa.Array:
    """Return the same values in memory of their own; Arrow's allocator aligns to 64 bytes."""
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, _copy_array(array.storage))
    if isinstance(array, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(
            _copy_array(array.indices), _copy_array(array.dictionary), ordered=array.type.ordered
        )
    return pa.concat_arrays([array, array.slice(0, 0)])  # one array alone is not copied


def _check_nulls(
    array: pa.Array, field: pa.Field, path: str, counts: np.ndarray | None = None
) -> None:
    """Refuse nulls where a field has none; those of a row that is itself null do not count.

    Without Arrow's own `drop_null`, which knows no extension types inside of lists.

    Args:
        array: the values.
        field: what they are values of.
        path: where that is.
        counts: which of them are there; None for all.
    """
    there = counts
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if not field.nullable and not (valid if counts is None else valid | ~counts).all():
            raise InvalidInputError("a column has nulls that may have none", column=path)
        there = valid if counts is None else valid & counts
    inside = [(at, part) for at, part in enumerate(parts_of(field.type)) if _is_strict(part)]
    if not inside:
        return
    children, lengths = _children(array)
    if lengths is not None and there is not None:
        there = np.repeat(there, lengths)
    for at, part in inside:
        _check_nulls(children[at], part, f"{path}.{part.name}", there)


def _children(array: pa.Array) -> tuple[list[pa.Array], np.ndarray | int | None]:
    """Return the arrays inside of one, and how many of their values each value has; None: one."""
    kind = array.type
    if types.is_struct(kind):
        return [array.field(at) for at in range(kind.num_fields)], None
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        return [array.values.slice(array.offset * size, len(array) * size)], size
    offsets = array.offsets.to_numpy()
    start, length = int(offsets[0]), int(offsets[-1] - offsets[0])
    inside = [array.keys, array.items] if types.is_map(kind) else [array.values]
    return [part.slice(start, length) for part in inside], np.diff(offsets)


def _flatten(array: pa.Array) -> pa.Array:
    """Return what lists or maps hold, without what lies behind a null or outside a slice."""
    if types.is_map(array.type):
        array = array.cast(pa.list_(pa.struct(parts_of(array.type))))
    return array.flatten()


def _dictionaries(array: pa.Array, path: str) -> Iterator[tuple[str, pa.DictionaryArray]]:
    """Yield the dictionaries in a column that count few values, with where they are."""
    if isinstance(array, pa.DictionaryArray):
        if has_narrow_indices(array.type):
            yield path, array
        return
    inside = parts_of(array.type)
    if isinstance(array, pa.StructArray):
        for at, part in enumerate(inside):
            yield from _dictionaries(array.field(at), f"{path}.{part.name}")
    elif types.is_map(array.type):
        entries = _flatten(array)
        for at, part in enumerate(inside):
            yield from _dictionaries(entries.field(at), f"{path}.{part.name}")
    elif inside:
        yield from _dictionaries(_flatten(array), f"{path}.{inside[0].name}")
