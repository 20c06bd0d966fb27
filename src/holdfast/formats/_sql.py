"""Names and values in Lance's SQL: spelled so that Lance reads exactly what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
from pyarrow import types

from holdfast.errors import InvalidInputError

_LEAST = -(1 << 63)
_QUOTED = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/""", re.DOTALL
)


def whole_sql(sql: str) -> str:
    """Return an SQL expression in brackets, so that Lance reads it to its end or refuses it.

    Lance takes the first expression of a text and drops what follows without a word: with
    `a = 1 adn b = 2` it would delete all rows where `a = 1`.

    Raises:
        InvalidInputError: it is no text, or empty, or closes a bracket that it did not open.
    """
    given: object = sql
    if not isinstance(given, str) or not given.strip():
        raise InvalidInputError('a filter is SQL such as "score > 0.5"', filter=repr(given))
    depth = 0
    for char in _QUOTED.sub("", given):
        depth += (char == "(") - (char == ")")
        if depth < 0:
            raise InvalidInputError("the SQL has a closing bracket too many", sql=given[:200])
    return f"({given}\n)"  # on a line of its own: a comment may end the text


def quote_name(name: str) -> str:
    """Return a column's name as SQL."""
    return "`" + name.replace("`", "``") + "`"


def check_names(names: Iterable[str]) -> None:
    """Refuse columns with a backtick in their names: Lance makes them and never finds them again.

    Raises:
        InvalidInputError: there is one.
    """
    for name in names:
        if "`" in name:
            raise InvalidInputError(
                "Lance finds no column with a backtick in its name: rename it with "
                "alter_columns, its path in backticks and each of its own doubled",
                column=name,
                path=quote_name(name),
            )


def write_literals(values: pa.Array) -> str | None:
    """Return values as a list in SQL; None for types that have no sure spelling."""
    kind = values.type
    if types.is_integer(kind):
        return ", ".join(_integer(value) for value in values.to_pylist())
    if types.is_boolean(kind):
        return ", ".join("TRUE" if value else "FALSE" for value in values.to_pylist())
    if types.is_string(kind) or types.is_large_string(kind):
        return ", ".join("'" + value.replace("'", "''") + "'" for value in values.to_pylist())
    if types.is_binary(kind) or types.is_large_binary(kind):
        return ", ".join(f"X'{value.hex()}'" for value in values.to_pylist())
    return None


def _integer(value: int) -> str:
    # Lance reads the digits before the sign, and those of the least number are too many.
    return f"({_LEAST + 1} - 1)" if value == _LEAST else str(value)
