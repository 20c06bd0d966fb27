"""The source of a merge, staged once: what the tasks saw is what is merged, whatever is repeated.

A source may be computed differently each time. So its rows leave Spark once, and every later
step, also after a conflict, works with those:

| a task has             | it leaves                                                          |
|------------------------|--------------------------------------------------------------------|
| few rows               | the rows themselves, in its answer                                 |
| many, all to be        | fragments of the table, which nobody sees yet, and their keys      |
| written as they are    |                                                                    |
| many, of another merge | a word that it has too many: the source is then kept by Spark      |
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments

from holdfast._ids import RandomIds
from holdfast.errors import HoldfastError
from holdfast.formats import Content, temporary_path
from holdfast.options import StorageOptions
from holdfast.spark._merge_source import MergeWork, WrittenMerge
from holdfast.spark._tasks import error_answer
from holdfast.spark._types import batch_for_table
from holdfast.storage import ObjectStore, open_store

FEW_BYTES = 1 << 20
"""What a task sends in its answer."""


class StagedSource:
    """Stages the rows of one task."""

    def __init__(self, work: MergeWork) -> None:
        self._work = work
        self._table = work.dataset()
        self._writes = work.stage == "rows"
        self._keys: list[pa.RecordBatch] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> WrittenMerge:
        """Stage them; what trying again would not mend is an answer."""
        done = WrittenMerge()
        try:
            done.staged = self._stage(self._check_batches(batches), done)
        except HoldfastError as error:
            done.error = error_answer(error)
            if done.error is None:
                raise
        for _ in batches:  # to the end: Spark expects its rows to be taken
            pass
        return done

    def _stage(self, batches: Iterator[pa.RecordBatch], done: WrittenMerge) -> dict[str, str]:
        few: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            few.append(batch)
            size += batch.nbytes
            if size > FEW_BYTES:
                break
        else:
            return {"rows": _text(few)} if few else {}
        if not self._writes:
            return {"too_many": "true"}
        return self._write_fragments(chain(few, batches), done)

    def _write_fragments(
        self, batches: Iterator[pa.RecordBatch], done: WrittenMerge
    ) -> dict[str, str]:
        schema = self._table.schema
        noted = (self._note_keys(batch) for batch in batches)
        problems: list[HoldfastError] = []
        rows = pa.RecordBatchReader.from_batches(schema, _keep_errors(noted, problems))
        try:
            fragments = write_fragments(rows, self._table, mode="append")
        except (OSError, ValueError, RuntimeError):
            if problems:
                raise problems[0] from None
            raise
        done.new = [json.dumps(part.to_json()) for part in fragments]
        return _put_keys(self._work, self._keys)

    def _check_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches whose columns of the table have its types."""
        content: Content | None = None
        for batch in batches:
            ours = [one for one in self._table.schema if one.name in batch.schema.names]
            schema = pa.schema(ours, self._table.schema.metadata)
            content = content or Content(schema)
            fitted = content.check(batch_for_table(batch.select(schema.names), schema))
            for name in batch.schema.names:
                if name not in schema.names:
                    fitted = fitted.append_column(batch.schema.field(name), batch.column(name))
            yield fitted

    def _note_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self._keys.append(batch.select(list(self._work.on)))
        return batch


def _keep_errors(
    batches: Iterator[pa.RecordBatch], problems: list[HoldfastError]
) -> Iterator[pa.RecordBatch]:
    """Yield batches; keep our error, of which Lance would leave a text."""
    try:
        yield from batches
    except HoldfastError as error:
        problems.append(error)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The source of a merge.

    Attributes:
        begun_on: the version that tasks had read before they wrote.
        rows: rows that are not written yet; None if there are none.
        fragments: fragments that hold the others.
        keys: the keys of those.
        too_many: nothing was staged, there are too many rows.
    """

    begun_on: int
    rows: pa.Table | None
    fragments: Sequence[FragmentMetadata]
    keys: pa.Table | None
    too_many: bool


def collect(parts: Sequence[WrittenMerge], store: ObjectStore, version: int) -> Staged:
    """Return what tasks have staged; reads their keys, and removes the files with them."""
    told = [part.staged for part in parts]
    rows = [_batches(base64.b64decode(one["rows"])) for one in told if "rows" in one]
    paths = [one["keys"] for one in told if "keys" in one]
    keys = [_batches(bytes(store.get(path))) for path in paths]
    if paths:
        store.delete(paths)
    return Staged(
        begun_on=version,
        rows=pa.concat_tables(rows) if rows else None,
        fragments=[FragmentMetadata.from_json(text) for part in parts for text in part.new],
        keys=pa.concat_tables(keys) if keys else None,
        too_many=any("too_many" in one for one in told),
    )


def keep_keys(work: MergeWork, keys: Sequence[pa.RecordBatch]) -> dict[str, str]:
    """Return keys for the answer of a task; many are put into an object of their own."""
    if sum(batch.nbytes for batch in keys) <= FEW_BYTES:
        return {"rows": _text(keys)}
    return _put_keys(work, keys)


def _put_keys(work: MergeWork, keys: Sequence[pa.RecordBatch]) -> dict[str, str]:
    path = temporary_path(RandomIds().token())
    open_store(work.uri, StorageOptions(work.options)).put(path, _bytes(keys))
    return {"keys": path}


def _text(batches: Sequence[pa.RecordBatch]) -> str:
    return base64.b64encode(_bytes(batches)).decode()


def _bytes(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _batches(body: bytes) -> pa.Table:
    return pa.ipc.open_stream(body).read_all()
