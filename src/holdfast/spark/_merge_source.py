"""What a merge does on the executors: read keys with their row addresses, write what changes.

One data source does all: `holdfast` itself, when it is given the option `secretWork`. Its
reader gives columns of one version with the address of each row. Its writer takes changes: it
writes new rows as fragments, under new names, and tells the addresses of those that go. Or it
stages the source of a merge; see `holdfast.spark._stage`. It decides nothing. What the tasks
that counted have to say is left in one object, where the caller finds it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from holdfast.errors import HoldfastError
from holdfast.options import StorageOptions
from holdfast.spark._tasks import Answer, error_answer

SOURCE = "holdfast"
WORK = "secretWork"  # Spark hides the values of options whose names speak of secrets
ADDRESS = "__holdfast_address"
COPIES = "__holdfast_copies"
WRITES = "__holdfast_writes"

_SHOWN_KEYS = 10
_ROWS_AT_ONCE = 500_000
_FRAGMENT_BITS = 32
_OFFSET_MASK = (1 << _FRAGMENT_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeWork:
    """What the tasks need to know; plain data.

    Attributes:
        uri: where the table is.
        options: its storage options, as the user gave them.
        version: the version that is read.
        on: the key columns.
        fragments: for reading: the fragments, in groups that one task reads.
        columns: for reading: the columns; those of the key by default.
        answer: for writing: where to leave what was written.
        stage: for writing: `""` to write changes; `"rows"` to stage the source of a merge whose
            rows are all written as they are, `"small"` to stage any that is small.
    """

    uri: str
    options: Mapping[str, str]
    version: int
    on: tuple[str, ...]
    fragments: tuple[tuple[int, ...], ...] = ()
    columns: tuple[str, ...] = ()
    answer: str = ""
    stage: str = ""

    def encode(self) -> str:
        """Return it as the value of an option."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> MergeWork:
        """Return what `encode` was given."""
        given = json.loads(text)
        groups = tuple(tuple(group) for group in given.pop("fragments"))
        lists = {name: tuple(given[name]) for name in ("on", "columns")}
        return cls(**{**given, **lists, "fragments": groups})

    def dataset(self) -> Any:  # noqa: ANN401 - pylance's dataset, only read here
        """Open the version."""
        from holdfast.spark._place import Place  # noqa: PLC0415 - planning needs no Lance

        return Place(uri=self.uri, storage=StorageOptions(self.options)).plain(self.version)


@dataclass(slots=True, kw_only=True)
class WrittenMerge:
    """What one task has written, and what it found wrong with the source.

    Attributes:
        new: fragments of new rows, as Lance's JSON.
        gone: by fragment, the rows that go, packed; see `packed_offsets`.
        staged: what was staged of a source; see `holdfast.spark._stage`.
        changes: how many rows were updated, inserted, deleted.
        repeated: keys that the source has more than once.
        nulls: how many rows of the source have no key.
        error: what trying again would not have mended.
    """

    new: list[str] = field(default_factory=list)
    gone: dict[str, str] = field(default_factory=dict)
    staged: dict[str, Any] = field(default_factory=dict)  # Any: JSON
    changes: dict[str, int] = field(
        default_factory=lambda: {"updated": 0, "inserted": 0, "deleted": 0}
    )
    repeated: list[str] = field(default_factory=list)
    nulls: int = 0
    error: Answer | None = None

    @property
    def refused(self) -> bool:
        """Tell whether the source cannot be merged."""
        return bool(self.repeated or self.nulls)


class MergeSource(DataSource):
    """The data source of a merge."""

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ANN401 - Spark's schema
        """Return the reader of keys."""
        return _KeyReader(MergeWork.decode(self.options[WORK]), schema)

    def writer(self, schema: object, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark calls it so
        """Return the writer of changes."""
        del schema, overwrite
        return _ChangeWriter(MergeWork.decode(self.options[WORK]))


class _Group(InputPartition):
    """Fragments that one task reads."""

    def __init__(self, fragments: Sequence[int]) -> None:
        self.fragments = fragments


class _KeyReader(DataSourceReader):
    def __init__(self, work: MergeWork, schema: Any) -> None:  # noqa: ANN401 - Spark's schema
        self._work = work
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the groups of fragments."""
        return [_Group(group) for group in self._work.fragments]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the keys of one group of fragments, with the rows' addresses."""
        from holdfast.spark._types import batches_for_spark  # noqa: PLC0415 - loads Arrow

        if not isinstance(partition, _Group):  # what Spark makes of no partitions
            return
        table = self._work.dataset()
        columns = list(self._work.columns or self._work.on)
        scanner = table.scanner(
            columns=columns,
            with_row_address=True,
            fragments=[table.get_fragment(number) for number in partition.fragments],
        )
        names = [*columns, ADDRESS]
        batches = (batch.rename_columns(names) for batch in scanner.to_batches())
        yield from batches_for_spark(batches, self._schema)


@dataclass
class _MergeMessage(WriterCommitMessage):
    body: str


class _ChangeWriter(DataSourceArrowWriter):
    def __init__(self, work: MergeWork) -> None:
        self._work = work

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the changes of one task; files only, under new names."""
        if self._work.stage:
            from holdfast.spark._stage import StagedSource  # noqa: PLC0415 - loads Arrow

            return _MergeMessage(json.dumps(asdict(StagedSource(self._work).write(iterator))))
        return _MergeMessage(json.dumps(asdict(ChangedRows(self._work).write(iterator))))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave what the tasks have written for the caller, who alone commits."""
        from holdfast.storage import open_store  # noqa: PLC0415 - only here is it needed

        bodies = [message.body for message in messages if isinstance(message, _MergeMessage)]
        store = open_store(self._work.uri, StorageOptions(self._work.options))
        store.put(self._work.answer, json.dumps(bodies).encode())

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete nothing: unused files are taken by `vacuum`, in time."""


class ChangedRows:
    """Writes the changes of one task."""

    def __init__(self, work: MergeWork) -> None:
        self._work = work
        self._table = work.dataset()
        self._gone: dict[int, list[Any]] = defaultdict(list)  # Any: numpy's arrays
        self._done = WrittenMerge()

    def write(self, batches: Iterator[Any]) -> WrittenMerge:
        """Write them, and return what was written.

        An error that trying again would not mend is an answer, for which Spark need not try
        four times.
        """
        import pyarrow as pa  # noqa: PLC0415
        from lance.fragment import write_fragments  # noqa: PLC0415

        rows = pa.RecordBatchReader.from_batches(self._table.schema, self._rows(batches))
        try:
            fragments = write_fragments(rows, self._table, mode="append")
        except (OSError, ValueError, RuntimeError):
            if self._done.error is None:
                raise
            for _ in batches:  # to the end: Spark expects its rows to be taken
                pass
            return WrittenMerge(error=self._done.error)
        self._done.new = [json.dumps(fragment.to_json()) for fragment in fragments]
        self._done.gone = {
            str(number): packed_offsets(lots) for number, lots in sorted(self._gone.items())
        }
        return self._done

    def _rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows to write; keep in mind those to delete."""
        from holdfast.formats import Content  # noqa: PLC0415

        content = Content(self._table.schema)
        for batch in batches:
            self._check(batch)
            if self._done.refused:
                continue
            self._note(batch)
            writing = batch.filter(batch.column(WRITES))
            if not writing.num_rows:
                continue
            try:
                yield content.check(self._fit_batch(writing))
            except HoldfastError as error:
                self._done.error = error_answer(error)
                raise

    def _fit_batch(self, batch: Any) -> Any:  # noqa: ANN401 - Arrow's batch
        """Return rows in the table's types."""
        from holdfast.spark._types import batch_for_table  # noqa: PLC0415

        return batch_for_table(batch, self._table.schema)

    def _check(self, batch: Any) -> None:  # noqa: ANN401 - Arrow's batch
        import pyarrow.compute as pc  # noqa: PLC0415

        keys = batch.select(list(self._work.on))
        of_source = keys.filter(pc.greater(batch.column(COPIES), 0))
        self._done.nulls += max((int(one.null_count) for one in of_source.columns), default=0)
        room = _SHOWN_KEYS - len(self._done.repeated)
        repeated = keys.filter(pc.greater(batch.column(COPIES), 1)).slice(0, max(room, 0))
        key_texts = [str(list(row.values())) for row in repeated.to_pylist()]
        self._done.repeated += [
            key for key in dict.fromkeys(key_texts) if key not in self._done.repeated
        ]

    def _note(self, batch: Any) -> None:  # noqa: ANN401 - Arrow's batch
        import numpy as np  # noqa: PLC0415

        old = batch.column(ADDRESS).drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
        parts = old >> _FRAGMENT_BITS
        for number in np.unique(parts):
            self._gone[int(number)].append(old[parts == number] & _OFFSET_MASK)
        written = int(batch.column(WRITES).true_count)
        inserted = batch.num_rows - len(old)
        self._done.changes["inserted"] += inserted
        self._done.changes["updated"] += written - inserted
        self._done.changes["deleted"] += batch.num_rows - written


def packed_offsets(lots: Sequence[Any]) -> str:  # Any: numpy's arrays
    """Return the numbers of rows of one fragment, each once, as text."""
    import numpy as np  # noqa: PLC0415

    steps = np.diff(np.unique(np.concatenate(lots)).astype(np.int64), prepend=0)
    return base64.b64encode(zlib.compress(steps.astype("<u4").tobytes(), 1)).decode()


def unpacked_offsets(text: str) -> Any:  # noqa: ANN401 - numpy's array
    """Return what `packed_offsets` was given, joined."""
    import numpy as np  # noqa: PLC0415

    steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4")
    return np.cumsum(steps.astype(np.int64))


def group_fragments(rows: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    """Return fragments in groups of about half a million rows; each is read by one task."""
    groups: list[list[int]] = []
    room = 0
    for number, count in sorted(rows.items()):
        if not groups or room < count:
            groups.append([])
            room = _ROWS_AT_ONCE
        groups[-1].append(number)
        room -= count
    return tuple(tuple(group) for group in groups)
