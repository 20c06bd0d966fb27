"""JSON in Arrow's `arrow.json` columns: Lance parses all of it, and reads nothing beside bad text.

Strict JSON is what every reader agrees on. A name twice in one object Lance refuses; a text that
is nested deeper than Python goes would end the process that reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import types

from holdfast.errors import InvalidInputError

_SHOWN_CHARS = 100


def is_json(kind: pa.DataType) -> bool:
    """Tell whether a type is Arrow's JSON."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def check_json(array: pa.Array, path: str) -> None:
    """Refuse text that is no JSON, at any depth of a column; also where a row above it is null.

    Raises:
        InvalidInputError: there is one.
    """
    for place, texts in _texts(array, path):
        for text in texts.storage.drop_null():
            # Arrow puts an empty text below a null; Lance takes it for JSON's null.
            if place == path or len(text.as_py()):
                _check(text.as_py(), place)


def _check(text: str, place: str) -> None:
    try:
        json.loads(text, object_pairs_hook=_refuse_twice, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "too deep" if isinstance(error, RecursionError) else str(error)
        raise InvalidInputError(
            "a column of JSON has a text that is none; nothing was written",
            column=place,
            text=repr(text[:_SHOWN_CHARS]),
            reason=reason[:_SHOWN_CHARS],
        ) from error


def _refuse_twice(pairs: list[tuple[str, object]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("an object has a name twice")


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _texts(array: pa.Array, path: str) -> Iterator[tuple[str, pa.ExtensionArray]]:
    kind = array.type
    if is_json(kind):
        yield path, array
    elif types.is_struct(kind):
        for at in range(kind.num_fields):
            yield from _texts(array.field(at), f"{path}.{kind.field(at).name}")
    elif types.is_map(kind):
        start, length = _span(array)
        yield from _texts(array.keys.slice(start, length), f"{path}.key")
        yield from _texts(array.items.slice(start, length), f"{path}.value")
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from _texts(array.values.slice(*_span(array)), f"{path}.{kind.value_field.name}")


def _span(array: pa.Array) -> tuple[int, int]:
    """Return where the values of lists begin, and how many there are; those behind nulls count."""
    if not len(array):
        return 0, 0
    offsets = array.offsets
    start = offsets[0].as_py()
    return start, offsets[-1].as_py() - start
