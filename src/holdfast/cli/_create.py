"""`holdfast create URI COLUMN:TYPE ...` and `holdfast tables ROOT`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing

import pyarrow as pa

from holdfast.cli._declare import Target
from holdfast.cli._output import Exit, print_result
from holdfast.cli._roots import find_tables
from holdfast.cli._terminal import table_text
from holdfast.errors import InvalidInputError
from holdfast.lifecycle import create_table

_SIMPLE: dict[str, pa.DataType] = {
    **{f"int{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_VECTOR = re.compile(r"vector\[([1-9][0-9]{0,5})\]")


def create(target: Target, columns: tuple[str, ...], key: str | None, txn: str | None) -> Exit:
    """Create a table."""
    names = [] if key is None else [name.strip() for name in key.split(",")]
    schema = parse_schema(columns, names)
    made = create_table(
        target.uri,
        schema,
        primary_key=names,
        commit_store=target.commit_store,
        storage_options=target.options,
        txn=txn,
    )
    with closing(made) as table:
        pin = table.pin
        shown = {
            "uri": target.uri,
            "columns": {field.name: str(field.type) for field in schema},
            "key": names,
            "arbiter": None if pin is None else pin.arbiter.value,
            "commit_store": None if pin is None else pin.store_url,
            "table_id": None if pin is None else pin.table_id,
        }
    decider = shown["commit_store"] or "the store's own put-if-absent"
    text = f"created {target.uri}: {len(schema)} columns, decided by {decider}"
    print_result(shown, text)
    return Exit.OK


def parse_schema(columns: Sequence[str], key: list[str]) -> pa.Schema:
    """Return the schema behind `NAME:TYPE` words; columns of the key are never null.

    Raises:
        InvalidInputError: a word is none, or a name is given twice.
    """
    fields: dict[str, pa.Field] = {}
    for word in columns:
        name, colon, kind = word.rpartition(":")
        if not colon or not name:
            raise InvalidInputError("a column is NAME:TYPE, such as id:int64", given=word[:80])
        if name in fields:
            raise InvalidInputError("this column is given twice", column=name)
        nullable = not kind.endswith("!") and name not in key
        fields[name] = pa.field(name, _type(kind.removesuffix("!")), nullable=nullable)
    return pa.schema(list(fields.values()))


def _type(kind: str) -> pa.DataType:
    vector = _VECTOR.fullmatch(kind)
    if vector is not None:
        return pa.list_(pa.float32(), int(vector[1]))
    if kind not in _SIMPLE:
        known = ", ".join([*_SIMPLE, "vector[N]"])
        raise InvalidInputError("there is no such type", type=kind[:40], known=known)
    return _SIMPLE[kind]


def tables(target: Target) -> Exit:
    """List the tables below a root."""
    rows = find_tables(target)
    shown = {"root": target.uri, "tables": [{"name": name, "uri": uri} for name, uri in rows]}
    print_result(shown, table_text(("name", "uri"), rows) if rows else "no tables")
    return Exit.OK
