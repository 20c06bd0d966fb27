"""Rows of a change on their way into fragments: as Lance's own scan gave them, or as users did."""

from __future__ import annotations

from collections.abc import Iterable

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from holdfast.commits import translate_errors
from holdfast.errors import InvalidInputError
from holdfast.formats import Content, parts_of

_BLOB = b"lance-encoding:blob"


def write_rows(
    base: lance.LanceDataset, batches: Iterable[pa.RecordBatch]
) -> list[FragmentMetadata]:
    """Write batches that have the table's columns as new fragments, under new names.

    Raises:
        InvalidInputError: a value is none of its type.
        UnavailableError, PermissionDeniedError: the store did not do its part.
    """
    reader = Content(base.schema).check_batches(batch for batch in batches if batch.num_rows)
    with translate_errors(base.uri):
        written = list(write_fragments(reader, base, mode="append"))
    return [part for part in written if part.physical_rows]


def fit_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return computed columns in the table's own types.

    Raises:
        InvalidInputError: a value does not fit its column.
    """
    columns = [_fit(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _fit(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidInputError(
            "an expression gives values that do not fit its column: cast it",
            column=field.name,
            type=str(field.type),
            given=str(column.type),
            reason=str(error)[:200],
        ) from error


def refuse_unwritable(base: lance.LanceDataset, verb: str) -> None:
    """Refuse tables whose rows cannot be written again as they were read.

    Raises:
        InvalidInputError: the table has stable row ids, which new rows would lose, or blobs,
            of which a scan gives descriptions.
    """
    if base.has_stable_row_ids:
        raise InvalidInputError(
            f"{verb} would give rows new ids, and this table has stable row ids: use pylance's "
            "update or merge_insert on `Table.dataset()`",
            table=base.uri,
        )
    for field in base.schema:
        if _has_blob(field):
            raise InvalidInputError(
                f"{verb} cannot copy blobs: use pylance on `Table.dataset()`, or delete rows and "
                "append them anew",
                column=field.name,
            )


def _has_blob(field: pa.Field) -> bool:
    marked = (field.metadata or {}).get(_BLOB, b"").lower() == b"true"
    extension = isinstance(field.type, pa.BaseExtensionType)
    named = extension and "blob" in str(field.type.extension_name)
    return marked or named or any(_has_blob(part) for part in parts_of(field.type))
