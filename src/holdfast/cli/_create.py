"""`holdfast create URI COLUMN:TYPE ...` and `holdfast tables ROOT`."""

from __future__ import annotations

import argparse
import re
from contextlib import closing

import pyarrow as pa

from holdfast.cli._arguments import add_json, add_table, storage_options
from holdfast.cli._output import Exit, print_result
from holdfast.cli._roots import find_tables
from holdfast.cli._table import add_commit_store
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


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    making = verbs.add_parser(
        "create",
        help="create an empty table",
        description="Create an empty table and tie it to its way of deciding, for good.",
        allow_abbrev=False,
    )
    add_table(making)
    making.add_argument(
        "columns",
        metavar="COLUMN:TYPE",
        nargs="+",
        help=f"a column; {', '.join(_SIMPLE)}, vector[N]; with ! behind the type it is never null",
    )
    making.add_argument("--key", metavar="COLUMN[,COLUMN]", help="the columns that identify a row")
    making.add_argument("--txn", metavar="ID", help="makes a repeat harmless")
    add_commit_store(making)
    add_json(making)
    making.set_defaults(run=create)
    listing = verbs.add_parser("tables", help="list the tables below a root", allow_abbrev=False)
    add_table(listing)
    add_json(listing)
    listing.set_defaults(run=tables)


def create(arguments: argparse.Namespace) -> Exit:
    """Create a table."""
    key = [] if arguments.key is None else [name.strip() for name in arguments.key.split(",")]
    schema = parse_schema(arguments.columns, key)
    made = create_table(
        arguments.uri,
        schema,
        primary_key=key,
        commit_store=arguments.commit_store,
        storage_options=storage_options(arguments.option),
        txn=arguments.txn,
    )
    with closing(made) as table:
        pin = table.pin
        shown = {
            "uri": arguments.uri,
            "columns": {field.name: str(field.type) for field in schema},
            "key": key,
            "arbiter": None if pin is None else pin.arbiter.value,
            "commit_store": None if pin is None else pin.store_url,
            "table_id": None if pin is None else pin.table_id,
        }
    decider = shown["commit_store"] or "the store's own put-if-absent"
    text = f"created {arguments.uri}: {len(schema)} columns, decided by {decider}"
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK


def parse_schema(columns: list[str], key: list[str]) -> pa.Schema:
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


def tables(arguments: argparse.Namespace) -> Exit:
    """List the tables below a root."""
    found = find_tables(arguments.uri, storage_options(arguments.option))
    shown = {"root": arguments.uri, "tables": [{"name": n, "uri": uri} for n, uri in found]}
    text = "\n".join(f"{name}  {uri}" for name, uri in found) or "no tables"
    print_result(shown, text, as_json=arguments.json)
    return Exit.OK
