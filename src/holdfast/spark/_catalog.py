"""What the catalog in Java asks: tables by name, made, described, changed and dropped.

A question is JSON in the option `secretAsk` of a load whose schema Spark asks for; the answer is
JSON in the metadata of that schema's one column. An error of ours is an answer, too, with its kind:
Java turns it into the exception that Spark expects.

| verb | returns |
|---|---|
| `load` | a table's facts: see `_facts` |
| `look` | likewise, of the table that a load by address names |
| `create`, `plan_create` | where a new table is; `plan_create` only checks that it can be made |
| `call` | what a verb of a table returned, for a procedure |
| `merge_waiting` | merges what waits in the log, then as `load`, of that version |
| `alter`, `delete`, `replace` | nothing: the version is decided when they return |
| `drop` | nothing; refused unless the catalog has `allowDrop` |
| `tables`, `namespaces` | the names directly below a namespace |
| `create_namespace`, `drop_namespace` | nothing |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from pyarrow import types
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from holdfast.commits import Folders, drop_table, translate_errors
from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnsupportedError,
)
from holdfast.formats import key_columns, quote_name
from holdfast.options import StorageOptions, suggestion
from holdfast.spark._about import ABOUT, about_schema
from holdfast.spark._evolve import Evolution, column_path, evolve, is_wider
from holdfast.spark._fresh import fresh_record
from holdfast.spark._options import STORAGE_PREFIX, SparkOptions, Use, as_s3, parse
from holdfast.spark._place import Place
from holdfast.spark._read import version_of
from holdfast.spark._types import spark_schema, table_schema, width_of

if TYPE_CHECKING:
    from holdfast.table import Table
    from holdfast.upkeep import VacuumResult

QUESTION = "secretAsk"
_NO_TABLE = "no_table"
_NOT_EMPTY = "not_empty"
# What Spark adds to a table's properties of its own accord, and a table here need not keep.
_OF_SPARK = {"owner", "external", "is_managed_location", "table_type"}
_CREATION = ("primaryKey", "vectorColumns", "commitStoreUrl")
_COMMENT = "comment"
_TRIES = 5

Question = Mapping[str, Any]  # Any: JSON
Options = Mapping[str, str]


def answer_of(options: Mapping[str, str]) -> spark.StructType:
    """Return the answer to the question among the options, in the shape of a schema."""
    rest = {key: text for key, text in options.items() if key.lower() != QUESTION.lower()}
    question = json.loads(next(options[key] for key in options if key not in rest))
    metadata = {"answer": json.dumps(_answer(question, rest))}
    return spark.StructType([spark.StructField("answer", spark.StringType(), True, metadata)])


class _NoTableError(NotFoundError):
    """There is no such table, where one was to be loaded."""


def _answer(question: Question, options: Options) -> Mapping[str, Any]:
    try:
        return _VERBS[question["verb"]](question, options)
    except _NoTableError as error:
        return {"kind": _NO_TABLE, "error": str(error)}
    except HoldfastError as error:
        return {"kind": error.kind.value, "error": f"{type(error).__name__}: {error}"}


# Where things are.


def _storage(options: Options) -> StorageOptions:
    prefix = STORAGE_PREFIX
    pairs = ((key.lower(), text) for key, text in options.items())
    return StorageOptions({k.removeprefix(prefix): v for k, v in pairs if k.startswith(prefix)})


def _root(question: Question) -> str:
    return as_s3(str(question["root"])).rstrip("/")


def _folders(question: Question, options: Options) -> Folders:
    return Folders(_root(question), _storage(options))


def _location(question: Question, options: Options, names: Sequence[str] | None = None) -> str:
    """Return where a table is; a name that is an address, as in lake.`s3://b/t`, is its own."""
    names = question["id"] if names is None else names
    if len(names) == 1 and (names[0].startswith("/") or "://" in names[0]):
        return as_s3(str(names[0]))
    return f"{_root(question)}/{_folders(question, options).table(names)}"


def _parse_options(location: str, options: Options, use: Use, **more: str) -> SparkOptions:
    return parse({**options, **more, "path": location}, use)


# Loading.


def _load(question: Question, options: Options) -> Mapping[str, Any]:
    try:
        location = _location(question, options)
    except InvalidInputError as error:
        raise _NoTableError(str(error)) from error
    given = _parse_options(location, options, Use.READ, **_moment(question))
    try:
        with Place.of(given).open_table() as table:
            return _facts(table, given)
    except NotFoundError as error:
        about = _about(question, options)
        if about is not None:
            return about
        if "version" in question or "timestamp" in question:
            raise
        raise _NoTableError(str(error)) from error


def _look(question: Question, options: Options) -> Mapping[str, Any]:
    """Return the facts of the table, and the version, that the options of a load name."""
    del question
    given = _parse_options(_path(options), options, Use.READ)
    with Place.of(given).open_table() as table:
        return _facts(table, given)


def _merge_waiting(question: Question, options: Options) -> Mapping[str, Any]:
    """Merge what waits in the table's log; return the facts of the version that holds it."""
    del question
    given = _parse_options(_path(options), options, Use.READ, freshness="base")
    with Place.of(given).open_table() as table:
        table.merge_log()
        return _facts(table, given)


def _moment(question: Question) -> dict[str, str]:
    """Return what VERSION AS OF and TIMESTAMP AS OF are as options; a word is a tag."""
    if "timestamp" in question:
        return {"timestampAsOf": question["timestamp"]}
    if "version" in question:
        asked = str(question["version"])
        return {"versionAsOf" if asked.isdigit() else "tag": asked}
    return {}


def _about(question: Question, options: Options) -> Mapping[str, Any] | None:
    """Return the facts of `lake.ev.history` and its like; a table of that name comes first."""
    *names, what = question["id"]
    if not names or what not in ABOUT:
        return None
    location = _location(question, options, names)
    try:
        with Place.of(_parse_options(location, options, Use.READ)).open_table() as table:
            return {
                "path": table.uri,
                "schema": about_schema(what).json(),
                "about": what,
                "columns": {},
            }
    except NotFoundError:
        return None


def _facts(table: Table, given: SparkOptions) -> Mapping[str, Any]:
    """Return what a scan needs to know of the version that is read.

    `exact` says that no row waits in a log or an SSTable, so that `rows` is the count; then `pin`
    is the version that all of a statement reads. `columns` are those that conditions may name;
    `key` are the columns of the key, which no statement changes.
    """
    record = fresh_record(table, given)
    fresh = record is not None and bool(record.shards)
    version = version_of(table, given) if record is None else record.base_version
    dataset = table.dataset(version)
    pin = table.pin
    facts = {
        "path": table.uri,
        "schema": spark_schema(dataset.schema).json(),
        "version": str(version),
        "id": pin.table_id if pin is not None else None,
        "rows": int(dataset.count_rows()),
        "exact": not fresh,
        "columns": {
            f.name: {"sql": quote_name(f.name), "kind": kind}
            for f, kind in _nameable_columns(dataset)
        },
        "widths": {field.name: width_of(field.type) for field in dataset.schema},
        "properties": _properties(table, dataset),
        "key": [name for name in key_columns(dataset.schema) if not _may_be_null(dataset, name)],
    }
    return facts if fresh else {**facts, "pin": str(version)}


def _may_be_null(dataset: lance.LanceDataset, name: str) -> bool:
    return bool(dataset.schema.field(name).nullable)


def _nameable_columns(dataset: lance.LanceDataset) -> list[tuple[pa.Field, str]]:
    """Return the columns that conditions may name, with how their values are spelled."""
    kinds = [(field, _kind(field.type)) for field in dataset.schema]
    return [(field, kind) for field, kind in kinds if kind is not None]


_KINDS: Sequence[tuple[str, Callable[[pa.DataType], bool]]] = (
    ("integer", types.is_signed_integer),
    ("boolean", types.is_boolean),
    ("string", lambda kind: types.is_string(kind) or types.is_large_string(kind)),
    ("date", types.is_date32),
    ("float", lambda kind: types.is_float32(kind) or types.is_float64(kind)),
    ("timestamp", lambda kind: kind in {pa.timestamp("us"), pa.timestamp("us", "UTC")}),
)


def _kind(kind: pa.DataType) -> str | None:
    """Return how a value of this type is spelled in a condition; None for no sure spelling."""
    return next((word for word, fits in _KINDS if fits(kind)), None)


def _properties(table: Table, dataset: lance.LanceDataset) -> dict[str, str]:
    own = {key: text for key, text in dataset.config().items() if _is_users(key)}
    properties = {**own, "provider": "holdfast", "location": table.uri}
    if key_columns(dataset.schema):
        properties["primaryKey"] = ",".join(map(quote_name, key_columns(dataset.schema)))
    sizes = [
        quote_name(f"{field.name}:{field.type.list_size}")
        for field in dataset.schema
        if types.is_fixed_size_list(field.type)
    ]
    if sizes:
        properties["vectorColumns"] = ",".join(sizes)
    return properties


def _is_users(key: str) -> bool:
    return not key.startswith(("holdfast.", "lance."))


# Making, changing, dropping.


def _creation(question: Question, options: Options) -> tuple[SparkOptions, dict[str, str]]:
    """Return the options of a table that is to be made, from its properties."""
    creation = {}
    for key, text in question["properties"].items():
        if key in _OF_SPARK or key.startswith("option."):
            continue
        if key == "provider":
            if text.lower() != "holdfast":
                raise InvalidInputError(
                    "this catalog makes tables USING holdfast; with saveAsTable, say "
                    '.format("holdfast")',
                    given=text,
                )
        elif key == "location":
            _check_place(text, _location(question, options))
        elif key == _COMMENT:
            raise InvalidInputError(
                "a table that is made or replaced with its rows gets no comment: say "
                "COMMENT ON TABLE ... IS afterwards"
            )
        elif key not in _CREATION:
            known = suggestion(key, list(_CREATION))
            raise InvalidInputError(f"a table has no property {key!r}{known} when it is made")
        else:
            creation[key] = text
    location = _location(question, options)
    return _parse_options(location, options, Use.WRITE, **creation), creation


def _check_place(given: str, location: str) -> None:
    """Let SHOW CREATE TABLE's own words pass; a table's name is its place."""
    if given.removeprefix("file:").rstrip("/") != location.removeprefix("file:"):
        raise InvalidInputError(
            "a table's name is its place: leave LOCATION out", place=location, given=given
        )


def _plan_create(question: Question, options: Options) -> Mapping[str, Any]:
    given, creation = _creation(question, options)
    place = Place.of(given)
    try:
        with place.open_table() as table:
            table.dataset()
    except NotFoundError:
        frame = spark.StructType.fromJson(json.loads(question["schema"]))
        table_schema(frame, given.sizes)
        return {"path": place.uri, "schema": question["schema"], "creation": creation}
    raise AlreadyExistsError("there is a table already", location=place.uri)


def _create(question: Question, options: Options) -> Mapping[str, Any]:
    from holdfast.lifecycle import create_table  # noqa: PLC0415 - workers do without

    properties = dict(question["properties"])
    comment = properties.pop(_COMMENT, None)
    given, _ = _creation({**question, "properties": properties}, options)
    frame = spark.StructType.fromJson(json.loads(question["schema"]))
    place = Place.of(given)
    table = create_table(
        place.uri,
        table_schema(frame, given.sizes),
        primary_key=given.get("primaryKey") or (),
        commit_store=place.commit_store,
        storage_options=place.storage,
    )
    with closing(table):
        if comment is not None:
            with translate_errors(table.uri):
                table.dataset().update_config({_COMMENT: comment})
    return {}


def _drop(question: Question, options: Options) -> Mapping[str, Any]:
    if question.get("allowDrop", "false").lower() != "true":
        raise PermissionDeniedError(
            "nothing was dropped: this would destroy the table for good. Set "
            "spark.sql.catalog.NAME.allowDrop=true to let DROP TABLE do so"
        )
    drop_table(_location(question, options), _storage(options))
    return {}


def _alter(question: Question, options: Options) -> Mapping[str, Any]:
    with Place.of(_parse_options(_path(options), options, Use.READ)).open_table() as table:
        for change in question["changes"]:
            with translate_errors(table.uri):
                _change(table, change)
    return {}


def _change(table: Table, change: Mapping[str, Any]) -> None:
    dataset = table.dataset()
    if "add" in change:
        _add_column(table, dataset, change)
    elif "rename" in change:
        renamed: Any = {
            "path": column_path(change["rename"]),
            "name": change["to"],
        }  # Lance's shape
        dataset.alter_columns(renamed)
    elif "drop" in change:
        if change["if_exists"] and change["drop"][0] not in dataset.schema.names:
            return
        _refuse_key(dataset, change["drop"])
        dataset.drop_columns([column_path(change["drop"])])
    elif "retype" in change:
        _widen_column(table, dataset, change)
    else:
        _set_property(dataset, change)


def _refuse_key(dataset: lance.LanceDataset, names: Sequence[str]) -> None:
    if names[0] in key_columns(dataset.schema):
        raise InvalidInputError("a column of the primary key stays", column=names[0])


def _add_column(table: Table, dataset: lance.LanceDataset, change: Mapping[str, Any]) -> None:
    """Add a column, or a part of a struct."""
    *above, name = change["add"]
    siblings = list(dataset.schema)
    for one in above:
        stored = next((field for field in siblings if field.name == one), None)
        if stored is None or not types.is_struct(stored.type):
            raise InvalidInputError(
                "a new part is for a struct of the table", column=".".join(above)
            )
        siblings = [stored.type.field(at) for at in range(stored.type.num_fields)]
    if any(name.lower() == field.name.lower() for field in siblings):
        raise InvalidInputError("the table has this column already", column=".".join(change["add"]))
    (new,) = table_schema(spark.StructType([spark.StructField(name, _type_of(change))]), {})
    for one in reversed(above):
        new = pa.field(one, pa.struct([new]))
    evolve(table, dataset, Evolution(new=[new], wider=[]))


def _widen_column(table: Table, dataset: lance.LanceDataset, change: Mapping[str, Any]) -> None:
    """Let a number become wider; nothing else can be done with a type."""
    first, *inside = change["retype"]
    stored = dataset.schema.field(first)
    for one in inside:
        stored = stored.type.field(one) if types.is_struct(stored.type) else stored
    wanted = _type_of(change)
    if stored.name != change["retype"][-1] or not is_wider(stored, wanted):
        raise UnsupportedError(
            "a column's type only becomes wider: tinyint, smallint, int, bigint; float, double. "
            "Add a new column",
            column=".".join(change["retype"]),
            type=str(stored.type),
        )
    wider = {"path": column_path(change["retype"]), "data_type": to_arrow_type(wanted)}
    evolve(table, dataset, Evolution(new=[], wider=[wider]))


def _type_of(change: Mapping[str, Any]) -> spark.DataType:
    return spark._parse_datatype_json_string(change["type"])  # noqa: SLF001 - Spark's own way back


def _set_property(dataset: lance.LanceDataset, change: Mapping[str, Any]) -> None:
    key = change.get("set") or change["unset"]
    if not _is_users(key) or key in {"provider", "location", *_CREATION}:
        raise InvalidInputError("this property is Holdfast's own, and stays", property=key)
    if "set" in change:
        dataset.update_config({key: change["value"]})
    else:
        dataset.delete_config_keys([key])


def _replace(question: Question, options: Options) -> Mapping[str, Any]:
    """Replace all rows by none, and the columns by others."""
    from holdfast.formats import add_key  # noqa: PLC0415 - workers do without

    given, _ = _creation({**question, "id": [_path(options)]}, options)
    frame = spark.StructType.fromJson(json.loads(question["schema"]))
    with Place.of(given).open_table() as table:
        dataset = table.dataset()
        key = given.get("primaryKey") or key_columns(dataset.schema)
        columns = add_key(table_schema(frame, given.sizes), key)
        operation = lance.LanceOperation.Overwrite(columns, [])
        table.commit_operation(operation, read_version=int(dataset.version))
    return {}


def _delete(question: Question, options: Options) -> Mapping[str, Any]:
    """Delete rows by a condition; what waits in the table's log is merged first."""
    with Place.of(_parse_options(_path(options), options, Use.READ)).open_table() as table:
        table.delete(question["where"], txn=_txn(question))
    return {}


def _txn(question: Question) -> tuple[str, int] | None:
    app = question.get("txnAppId")
    return None if app is None else (app, int(question["txnVersion"]))


def _path(options: Options) -> str:
    return next(text for key, text in options.items() if key.lower() == "path")


# Namespaces.


def _tables(question: Question, options: Options) -> Mapping[str, Any]:
    return {"names": _folders(question, options).tables(question["id"])}


def _namespaces(question: Question, options: Options) -> Mapping[str, Any]:
    return {"names": _folders(question, options).namespaces(question["id"])}


def _create_namespace(question: Question, options: Options) -> Mapping[str, Any]:
    _folders(question, options).create(question["id"])
    return {}


def _drop_namespace(question: Question, options: Options) -> Mapping[str, Any]:
    folders = _folders(question, options)
    folders.check(question["id"])
    try:
        folders.drop(question["id"])
    except InvalidInputError as error:
        return {"kind": _NOT_EMPTY, "error": str(error)}
    return {}


# Procedures.


def _call(question: Question, options: Options) -> Mapping[str, Any]:
    """Call a verb of a table; answer with the newest version and what the verb returned."""
    arguments = dict(question["arguments"])
    named = str(arguments.pop("table"))
    names = [named] if named.startswith("/") or "://" in named else named.split(".")
    location = _location(question, options, names)
    with Place.of(_parse_options(location, options, Use.READ)).open_table() as table:
        told = _PROCEDURES[question["call"]](table, arguments)
        return {"version": int(table.dataset().version), "details": json.dumps(told, default=str)}


def _compact(table: Table, given: dict[str, Any]) -> object:  # Any: JSON, as for the others
    limits = (
        {} if "target_rows" not in given else {"target_rows_per_fragment": given["target_rows"]}
    )
    with translate_errors(table.uri):
        done = table.dataset().optimize.compact_files(**limits)
    return {"fragments_removed": done.fragments_removed, "fragments_added": done.fragments_added}


def _create_index(table: Table, given: dict[str, Any]) -> object:
    if "column" not in given:
        raise InvalidInputError("create_index names a column")
    return asdict(table.create_index(given["column"], given.get("kind", "fts")))


_PROCEDURES: Mapping[str, Callable[[Table, dict[str, Any]], object]] = {
    "compact": _compact,
    "create_index": _create_index,
    "maintain": lambda table, given: asdict(table.maintain(**given)),
    "merge_log": lambda table, given: asdict(table.merge_log(**given)),
    "restore": lambda table, given: asdict(table.restore(**given)),
    "vacuum": lambda table, given: _vacuum_summary(table.vacuum(**given)),
}


def _vacuum_summary(done: VacuumResult) -> object:
    return {"leftovers": len(done.leftovers), "size": done.size, "applied": done.applied}


_VERBS: Mapping[str, Callable[[Question, Options], Mapping[str, Any]]] = {
    "alter": _alter,
    "call": _call,
    "create": _create,
    "create_namespace": _create_namespace,
    "delete": _delete,
    "drop": _drop,
    "drop_namespace": _drop_namespace,
    "load": _load,
    "look": _look,
    "merge_waiting": _merge_waiting,
    "namespaces": _namespaces,
    "plan_create": _plan_create,
    "replace": _replace,
    "tables": _tables,
}
