"""Rows over the wire: insert, create, delete, query and count, for clients without a Lance.

An insert with the header `Holdfast-Txn: app/42` is applied once, however often it is sent:
`Holdfast-Applied: false` says that it was there already. Inserts that arrive at the same time
become one version, and each request gets its own outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from holdfast import CommitResult, create_table, write_table
from holdfast.commits import translate_errors
from holdfast.errors import AlreadyExistsError, InvalidInputError
from holdfast.formats import whole_sql
from holdfast.server._answers import UNAVAILABLE, Answer, Call, json_answer, problem
from holdfast.server._arrow import FILE, JSON, STREAM, read_rows, to_file, to_json, to_stream
from holdfast.server._catalog import Catalog
from holdfast.server._inserts import Inserts
from holdfast.server._lanes import Lane
from holdfast.server._writers import OwnedElsewhereError
from holdfast.table import Table
from holdfast.txn import TxnLike

TXN_HEADER = "holdfast-txn"
KEY_HEADER = "holdfast-primary-key"
APPLIED_HEADER = "holdfast-applied"
VERSION_HEADER = "holdfast-version"
OWNER_HEADER = "holdfast-owner"

_APP = re.compile(r"(.+)/([0-9]{1,19})", re.DOTALL)
_MAX_K = 1_000_000
_LARGE_BYTES = 4 << 20  # from here on a fragment of its own costs little
_QUICK_BYTES = 16 << 10  # decoded so quickly that no request waits for it
INSERT_MODES = {"append", "overwrite"}
_QUERY_FIELDS = {
    "bypass_vector_index",
    "columns",
    "context",
    "distance_type",
    "ef",
    "fast_search",
    "filter",
    "freshness",
    "full_text_query",
    "id",
    "identity",
    "k",
    "keys",
    "nprobes",
    "offset",
    "prefilter",
    "refine_factor",
    "vector",
    "vector_column",
    "version",
}


class Sharing(Protocol):
    """What inserts that share a version are handed to."""

    inserts: Inserts


def is_shared(call: Call) -> bool:
    """Tell whether an insert may become one version with those that arrive at the same time."""
    plain = "durable" not in call.query and _mode(call, "append", INSERT_MODES) == "append"
    return plain and len(call.body) <= _LARGE_BYTES


async def insert_shared(here: Sharing, call: Call, lane: Lane) -> Answer:
    """Add rows, together with those of others."""
    txn = txn_of(call)
    parse = partial(read_rows, call.body, call.headers.get("content-type", ""))
    rows = parse() if len(call.body) <= _QUICK_BYTES else await lane.run(parse)
    return _commit_answer(await here.inserts.add(call.id, (rows, txn)), call)


def insert(here: Catalog, call: Call) -> Answer:
    """Add many rows, put rows into the log, or replace all rows."""
    mode = _mode(call, "append", INSERT_MODES)
    txn = txn_of(call)
    rows = read_rows(call.body, call.headers.get("content-type", ""))
    if "durable" in call.query:
        return _put(here, call, rows, mode, txn)
    table = here.tables.open(call.id)
    if mode == "append":
        return _commit_answer(table.append(rows, txn=txn), call)
    done = write_table(
        rows,
        table.uri,
        mode="overwrite",
        txn=txn,
        storage_options=here.settings.storage_options,
    )
    return _commit_answer(done, call)


def _put(
    here: Catalog, call: Call, rows: pa.Table | list[dict[str, Any]], mode: str, txn: TxnLike | None
) -> Answer:
    """Put rows into the table's log, or say which server does."""
    if call.query["durable"] != "log" or mode != "append":
        raise InvalidInputError("durable is `log`, for rows that are appended")
    try:
        done = here.writers.put(call.id, rows, txn)
    except OwnedElsewhereError as owned:
        answer = problem(
            UNAVAILABLE,
            f"another server writes this table's log: send the rows there (owner={owned.url})",
            kind="misdirected",
            request_id=call.request_id,
            status=421,
        )
        return replace(answer, headers={OWNER_HEADER: owned.url})
    fields = {
        "transaction_id": call.headers.get(TXN_HEADER),
        "num_inserted_rows": done.rows,
    }
    return json_answer(fields, headers={APPLIED_HEADER: str(done.applied).lower()})


def create(here: Catalog, call: Call) -> Answer:
    """Create a table with the columns of the rows, and add them."""
    mode = _mode(call, "create", {"create", "exist_ok", "overwrite"})
    txn = txn_of(call)
    rows = read_rows(call.body, call.headers.get("content-type", ""))
    if isinstance(rows, list):
        rows = _infer_table(rows)
    location = here.namespace.location(call.id)
    key = [name.strip() for name in call.headers.get(KEY_HEADER, "").split(",") if name.strip()]
    try:
        create_table(
            location,
            rows.schema,
            primary_key=key,
            commit_store=here.settings.commit_store,
            storage_options=here.settings.storage_options,
        ).close()
    except AlreadyExistsError:
        return _created_before(here, call, rows, mode, txn)
    table = here.tables.open(call.id)
    if rows.num_rows == 0:
        return _create_answer(call, table, int(table.dataset().version), applied=True)
    done = table.append(rows, txn=txn)
    return _create_answer(call, table, done.version, applied=done.applied)


def delete(here: Catalog, call: Call) -> Answer:
    """Delete the rows for which a condition is true."""
    fields = call.fields()
    predicate = call.text(fields, "predicate")
    if not predicate or not predicate.strip():
        raise InvalidInputError("a delete needs a predicate: use `true` for all rows")
    if fields.get("branch") is not None:
        raise InvalidInputError("branches are not decided by Holdfast")
    table = here.tables.open(call.id)
    dataset = table.dataset()
    with translate_errors(table.uri):
        dataset.delete(whole_sql(predicate))
    return json_answer({"version": int(dataset.version)})


def count_rows(here: Catalog, call: Call) -> Answer:
    """Count rows, those that wait in the log included."""
    fields = call.fields()
    predicate, version = call.text(fields, "predicate"), call.number(fields, "version")
    table = here.tables.open(call.id)
    if version is None:
        return json_answer({"count": table.count(predicate or None)})
    dataset = table.dataset(version)
    with translate_errors(table.uri):
        asked = whole_sql(predicate) if predicate else None
        return json_answer({"count": int(dataset.count_rows(asked))})


def query(here: Catalog, call: Call) -> Answer:
    """Return rows by filter, key, text or vector."""
    fields = call.fields()
    unknown = sorted(str(name)[:40] for name in fields.keys() - _QUERY_FIELDS)
    if unknown:
        raise InvalidInputError("a query does not know these fields", fields=", ".join(unknown))
    table = here.tables.open(call.id)
    k = call.number(fields, "k")
    offset = call.number(fields, "offset") or 0
    limit = None if k is None else min(k, _MAX_K)
    with translate_errors(table.uri):
        reader = _answer_rows(call, fields, table, None if limit is None else limit + offset)
        largest = here.settings.max_answer_bytes
        batches = list(_bound_answer(_slice_rows(reader, offset, limit), largest))
        return _encode_answer(call, batches, reader.schema, largest)


def txn_of(call: Call) -> TxnLike | None:
    """Return the transaction id of a request: `app/42`, or a free text."""
    text = call.headers.get(TXN_HEADER)
    if text is None:
        return None
    match = _APP.fullmatch(text)
    return text if match is None else (match[1], int(match[2]))


def _mode(call: Call, default: str, known: set[str]) -> str:
    """Return a mode in the protocol's small letters; it may come as `ExistOk`, too."""
    text = call.query.get("mode", default)
    mode = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()
    if mode not in known:
        raise InvalidInputError(f"mode is one of {', '.join(sorted(known))}", mode=text[:40])
    return mode


def _commit_answer(done: CommitResult, call: Call) -> Answer:
    fields = {
        "transaction_id": call.headers.get(TXN_HEADER),
        "num_inserted_rows": done.rows,
        "version": done.version,
    }
    headers = {APPLIED_HEADER: str(done.applied).lower(), VERSION_HEADER: str(done.version)}
    return json_answer(fields, headers=headers)


def _create_answer(call: Call, table: Table, version: int, *, applied: bool) -> Answer:
    fields = {
        "transaction_id": call.headers.get(TXN_HEADER),
        "location": table.uri,
        "version": version,
    }
    return json_answer(fields, headers={APPLIED_HEADER: str(applied).lower()})


def _created_before(
    here: Catalog, call: Call, rows: pa.Table, mode: str, txn: TxnLike | None
) -> Answer:
    """Answer a `create` of a table that is there: by this very request, or by another."""
    table = here.tables.open(call.id)
    if txn is not None and table.applied([txn])[0]:
        return _create_answer(call, table, int(table.dataset().version), applied=False)
    if mode == "exist_ok":
        return _create_answer(call, table, int(table.dataset().version), applied=False)
    if mode == "overwrite" and rows.num_rows:
        done = write_table(
            rows,
            table.uri,
            mode="overwrite",
            txn=txn,
            storage_options=here.settings.storage_options,
        )
        return _create_answer(call, table, done.version, applied=done.applied)
    raise AlreadyExistsError(
        "there is a table of this name: if a create of yours was cut off, insert the rows with "
        "the same transaction id",
        table=".".join(call.id),
    )


def _infer_table(rows: list[dict[str, Any]]) -> pa.Table:
    try:
        return pa.Table.from_pylist(rows)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(
            "the columns cannot be told from these rows: send Arrow", reason=str(error)[:200]
        ) from None


def _answer_rows(
    call: Call, fields: Mapping[str, Any], table: Table, limit: int | None
) -> pa.RecordBatchReader:
    columns = _columns(fields.get("columns"))
    condition = call.text(fields, "filter")
    freshness: Any = call.text(fields, "freshness") or "latest"  # Any: checked by the reader
    version = call.number(fields, "version")
    vector, words = fields.get("vector"), fields.get("full_text_query")
    if fields.get("keys") is not None:
        _refuse_version(version)
        keys = _keys(fields["keys"])
        return table.lookup(keys, columns, freshness=freshness).to_reader()
    if vector:
        _refuse_version(version)
        return _nearest(call, fields, table, limit, columns).to_reader()
    if words is not None:
        column, text = _words(words)
        return table.search(
            column, text, limit, columns=columns, filter=condition, version=version
        ).to_reader()
    if version is None:
        return table.scan(columns, condition, freshness=freshness, limit=limit)
    dataset: Any = table.dataset(version)  # Any: pylance's stubs
    asked = None if condition is None else whole_sql(condition)
    scanner = dataset.scanner(columns=columns, filter=asked, limit=limit)
    return scanner.to_reader()


def _nearest(
    call: Call,
    fields: Mapping[str, Any],
    table: Table,
    limit: int | None,
    columns: Sequence[str] | None,
) -> pa.Table:
    vector = fields["vector"]
    if isinstance(vector, dict):
        vector = vector.get("single_vector")
    if not isinstance(vector, list) or not all(_is_number(one) for one in vector):
        raise InvalidInputError("a query's vector is one list of numbers")
    column = call.text(fields, "vector_column") or _vector_column(table.schema)
    options: dict[str, Any] = {
        name: number
        for name in ("nprobes", "ef", "refine_factor")
        if (number := call.number(fields, name)) is not None
    }
    return table.nearest(
        column,
        vector,
        10 if limit is None else limit,
        columns=columns,
        filter=call.text(fields, "filter"),
        metric=call.text(fields, "distance_type"),
        **options,
    )


def _vector_column(schema: pa.Schema) -> str:
    columns = [field.name for field in schema if pa.types.is_fixed_size_list(field.type)]
    if len(columns) != 1:
        raise InvalidInputError("say which column has the vectors: vector_column")
    return str(columns[0])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _columns(given: Any) -> list[str] | None:  # noqa: ANN401 - JSON
    if isinstance(given, dict):
        if given.get("column_aliases"):
            raise InvalidInputError("columns are named, not renamed: give column_names")
        given = given.get("column_names")
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InvalidInputError("columns are a list of names")
    return given


def _keys(given: Any) -> list[Any]:  # noqa: ANN401 - JSON
    if not isinstance(given, list) or not given:
        raise InvalidInputError("keys are a list of values, or of objects with the key's columns")
    return given


def _words(given: Any) -> tuple[str, str]:  # noqa: ANN401 - JSON
    if isinstance(given, dict):
        inner = given.get("string_query", given)
        columns = inner.get("columns") if isinstance(inner, dict) else None
        text = inner.get("query") if isinstance(inner, dict) else None
        if isinstance(text, str) and isinstance(columns, list) and len(columns) == 1:
            return str(columns[0]), text
    raise InvalidInputError(
        'a text query is {"columns": ["NAME"], "query": "words"}, with one column'
    )


def _refuse_version(version: int | None) -> None:
    if version is not None:
        raise InvalidInputError("keys and vectors are looked for in the newest version only")


def _slice_rows(
    reader: pa.RecordBatchReader, offset: int, limit: int | None
) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in reader:
        skipped = min(offset, batch.num_rows)
        offset -= skipped
        taken = batch.slice(skipped, left)
        if left is not None:
            left -= taken.num_rows
        if taken.num_rows:
            yield taken
        if left == 0:
            return


def _bound_answer(batches: Iterator[pa.RecordBatch], largest: int) -> Iterator[pa.RecordBatch]:
    size = 0
    for batch in batches:
        size += batch.nbytes
        if size > largest:
            raise InvalidInputError(
                "the answer is larger than this server gives: ask for fewer rows or columns, or "
                "page with k and offset",
                max_answer_bytes=largest,
            )
        yield batch


def _encode_answer(
    call: Call, batches: Sequence[pa.RecordBatch], schema: pa.Schema, largest: int
) -> Answer:
    accepted = call.headers.get("accept", "")
    if JSON in accepted:
        body, kind = to_json(batches), JSON
        if len(body) > largest:
            raise InvalidInputError("the answer is larger than this server gives", bytes=len(body))
    elif STREAM in accepted:
        body, kind = to_stream(batches, schema), STREAM
    else:
        body, kind = to_file(batches, schema), FILE
    return Answer(body=body, content_type=kind)
