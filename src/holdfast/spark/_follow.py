"""Following a table as a stream: the rows that each version added, in the order of versions.

The stream begins with all rows of one version, or with a version the user names. From then
on it emits what appends added, and what merges of the log wrote: the rows that writers put, new
or not. Compactions, index builds, settings and new columns add no
rows and emit nothing. Any other version that deleted, changed or overwrote rows cannot be told as
added rows: it ends the stream, or is passed over with `skipChangeCommits`.

An offset says of which table it is, which version the stream began at and which one comes
next, with how many of its fragments were emitted already; so versions that were read may be
removed. A table that is made anew at the same place has other versions: an offset of the old
one is refused. Where the
stream begins is fixed with the first end offset, not before: Spark keeps that one in the
checkpoint and asks for the initial offset anew when it repeats the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.arbiter import read_pin
from holdfast.commits import transaction_of
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import VersionFacts, data_path, read_log_entry, version_name
from holdfast.spark._new_columns import refuse_new_columns
from holdfast.spark._options import SparkOptions, Use, parse
from holdfast.spark._place import Place
from holdfast.spark._read import Piece, read_part, share_out
from holdfast.spark._types import check_readable

Offset: TypeAlias = dict[str, Any]
"""What Spark keeps in its checkpoint as JSON."""

NOT_BEGUN: Offset = {"version": -1}

# What adds no rows and changes none.
_QUIET = frozenset(
    {
        "Clone",
        "CreateIndex",
        "Merge",
        "Project",
        "ReserveFragments",
        "Rewrite",
        "UpdateBases",
        "UpdateConfig",
        "UpdateMemWalState",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a stream got.

    Attributes:
        version: the version that comes next.
        files: how many of the fragments which that version added it has emitted already.
        base: the version it began with.
        table: the id of the table; none for one that was never tied to an arbiter.
        snapshot: whether it began with all rows of that version, or with those it added.
    """

    version: int
    files: int
    base: int
    table: str
    snapshot: bool

    @classmethod
    def at(cls, offset: Offset) -> Position | None:
        """Return the position that an offset tells; None for a stream that has not begun.

        Raises:
            InvalidInputError: the offset is not one of ours.
        """
        if offset == NOT_BEGUN:
            return None
        try:
            return cls(**offset)
        except TypeError as error:
            raise InvalidInputError(
                "the checkpoint is not one of this source: use a new checkpointLocation",
                offset=str(offset)[:200],
            ) from error

    @property
    def seen(self) -> int:
        """Return the version whose columns a stream at this position has met."""
        met = self.files > 0 or self.version == self.base
        return self.version if met else self.version - 1

    def begin(self) -> Position:
        """Return where this stream began."""
        return replace(self, version=self.base, files=0)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in one process on the driver; `read` runs in the tasks."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = schema
        self._given = parse(options, Use.SOURCE)
        self._place = Place.of(self._given)
        self._log: _Log | None = None  # opened where batches are planned; it does not travel
        self._last: int | None = None

    @property
    def _followed(self) -> _Log:
        if self._log is None:
            self._log = _Log(self._place, self._given)
        return self._log

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's
        """Say only that the stream has not begun."""
        return NOT_BEGUN

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return how much one batch may hold."""
        most = self._given.get("maxFilesPerTrigger")
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Let the run end at what is the newest version now."""
        self._last = self._followed.newest()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's
        """Return where the next batch ends.

        Raises:
            InvalidInputError: a version changed rows, or the checkpoint is of another table.
            NotFoundError: a version is gone that the stream has not seen.
        """
        newest = self._followed.newest() if self._last is None else self._last
        position = self._position(start) or self._first(newest)
        if position.version > newest + 1 and position.version > position.base:
            raise InvalidInputError(
                "the checkpoint is ahead of the table: it is of another table, or this one was "
                "made anew; use a new checkpointLocation",
                checkpoint=position.version - 1,
                newest=newest,
            )
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        return asdict(self._advance(position, newest, most))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Share out what lies between two offsets; the same whenever it is asked."""
        last = self._position(end)
        if last is None:
            return []
        first = self._position(start) or last.begin()
        pieces: list[Piece] = []
        for version in range(first.version, last.version + 1):
            begin = first.files if version == first.version else 0
            until = last.files if version == last.version else None
            if until != begin:
                files = self._followed.added_fragments(version, last)
                pieces += [Piece(version, *file) for file in files[begin:until]]
        if pieces:
            self._followed.check(self._schema, pieces[-1].version)
        if self._given.get("columns") is None:
            self._followed.check_complete(self._schema, first.seen, last.seen)
        return share_out(pieces, self._given.get("fragmentsPerPartition"))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_part(self._place, partition, self._schema, self._given.get("filter"))

    def stop(self) -> None:
        """Let go of connections."""
        if self._log is not None:
            self._log.close()

    def _position(self, offset: Offset) -> Position | None:
        """Return the position that an offset of this very table tells.

        Raises:
            InvalidInputError: the offset is of another table, or not one of ours.
        """
        position = Position.at(offset)
        table = "" if position is None else self._followed.table_id
        if position is not None and position.table != table:
            raise InvalidInputError(
                "the checkpoint is of another table: this one was made anew or copied since; "
                "use a new checkpointLocation",
                checkpoint=position.table,
                table=table,
            )
        return position

    def _first(self, newest: int) -> Position:
        asked, table = self._given.get("startingVersion"), self._followed.table_id
        if asked is None:
            return Position(version=newest, files=0, base=newest, table=table, snapshot=True)
        base = newest + 1 if asked == "latest" else asked
        return Position(version=base, files=0, base=base, table=table, snapshot=False)

    def _advance(self, position: Position, newest: int, most: int | None) -> Position:
        """Go on past the newest version, or as far as `most` fragments reach."""
        version, done, left = position.version, position.files, most
        while version <= newest:
            there = len(self._followed.added_fragments(version, position)) - done
            if left is not None and there > left:
                return replace(position, version=version, files=done + left)
            left = None if left is None else left - there
            version, done = version + 1, 0
        return replace(position, version=version, files=done)


class _Log:
    """What each version of a table added, read once."""

    def __init__(self, place: Place, given: SparkOptions) -> None:
        self._table = place.table()
        self._skips = bool(given.get("skipChangeCommits"))
        self._added: dict[tuple[int, bool], list[tuple[int, int]]] = {}

    @property
    def table_id(self) -> str:
        """Return the id of the table that is there now: it may be made anew under a stream."""
        pin = read_pin(self._table.core.store)
        return "" if pin is None else pin.table_id

    def newest(self) -> int:
        """Return the newest version."""
        return int(self._table.dataset().version)

    def check(self, schema: StructType, version: int) -> None:
        """Refuse a version that does not have the stream's columns (any more)."""
        check_readable(schema, self._table.dataset(version).schema)

    def check_complete(self, schema: StructType, before: int, version: int) -> None:
        """Refuse a version with columns that came while a stream of all columns ran.

        Raises:
            InvalidInputError: there are such columns.
        """
        refuse_new_columns(self._table, schema.names, before, version)

    def added_fragments(self, version: int, position: Position) -> list[tuple[int, int]]:
        """Return id and bytes of each fragment that a version adds to a stream.

        Raises:
            InvalidInputError: the version changed rows.
            NotFoundError: the version is gone.
        """
        everything = position.snapshot and version == position.base
        key = (version, everything)
        if key not in self._added:
            self._added[key] = self._look(version, everything=everything)
        return self._added[key]

    def _look(self, version: int, *, everything: bool) -> list[tuple[int, int]]:
        body = self._table.core.arbiter.read(version_name(version))
        if body is None:
            raise NotFoundError(
                "a version that the stream has not read is gone: it was removed by vacuum or "
                "clean-up. Begin anew, with a new checkpointLocation",
                version=version,
            )
        facts = VersionFacts(body)
        sizes = facts.fragment_bytes()
        if everything:
            return list(sizes.items())
        transaction = transaction_of(self._table.core.store, facts)
        operation = "Unknown" if transaction is None else transaction.operation
        if transaction is not None and operation == "Append":
            files = {data_path(file.path) for part in transaction.added for file in part.files}
            new = {fragment for path, fragment in facts.data_files() if path in files}
            return [(number, size) for number, size in sizes.items() if number in new]
        if operation == "Overwrite" and version == 1:
            return list(sizes.items())
        merged = self._written_by_merge(body, version) if operation == "Update" else None
        if merged is not None:
            return [(number, sizes[number]) for number in merged]
        if operation in _QUIET or self._skips:
            return []
        raise InvalidInputError(
            f"version {version} of the table is no append ({operation}): rows that the stream "
            "emitted were changed or removed. Pass over such versions with "
            "skipChangeCommits=true, or begin anew, with a new checkpointLocation",
            version=version,
            operation=operation,
        )

    def _written_by_merge(self, body: bytes, version: int) -> list[int] | None:
        """Return the fragments that a merge of the log wrote; None for any other update.

        A merge says so by its marker. The rows it writes are what writers put; rows that they
        replace or delete cannot be told as added rows.
        """
        now = read_log_entry(body)
        if now is None:
            return None
        before = self._table.core.arbiter.read(version_name(version - 1))
        if before is None:
            raise NotFoundError(
                "the version before one that the stream has not read is gone: it was removed by "
                "vacuum or clean-up. Begin anew, with a new checkpointLocation",
                version=version - 1,
            )
        entry = read_log_entry(before)
        if entry is not None and entry.merged == now.merged:
            return None
        known = VersionFacts(before).fragment_bytes()
        return [number for number in VersionFacts(body).fragment_bytes() if number not in known]

    def close(self) -> None:
        """Let go of connections."""
        self._table.close()
