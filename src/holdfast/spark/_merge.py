"""`merge_into`: change a table's rows by key, by Spark, in one commit.

1. Pin the newest version. Join the source with its keys and row addresses.
2. Tasks write new rows and deletion files, under new names.
3. Commit all of it as *the version right after the pinned one*, or not at all.

Step 3 is what keeps keys unique. Lance would put an update on top of whatever was appended
meanwhile; two merges that both insert a key that neither saw would both succeed. So the
number of the version is checked in the very manifest that is decided. When others were
faster, their versions are looked at: if none of them brought or changed a row of these
keys, the commit is tried again as it is; otherwise the merge begins anew.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from pyspark.sql import Window
from pyspark.sql import functions as f

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.commits._log_rules import After
from holdfast.commits._versions import Edit
from holdfast.errors import ConflictError, HoldfastError, InvalidInputError
from holdfast.formats import temporary_path
from holdfast.formats._transaction import VersionFacts
from holdfast.spark._merge_source import (
    ADDRESS,
    COPIES,
    SOURCE,
    WORK,
    WRITES,
    Work,
    Written,
    grouped,
)
from holdfast.spark._progress import described
from holdfast.spark._tasks import failure_of, raise_if_error
from holdfast.spark._types import check_writable, spark_schema
from holdfast.table import CommitResult, Table
from holdfast.txn import TxnLike
from holdfast.upkeep._waiting import merge_waiting

Operation: TypeAlias = Any
"""One of `lance.LanceOperation`, which ships no types."""
Frame: TypeAlias = Any
"""A Spark DataFrame, classic or of Spark Connect: they share no class."""
Matched: TypeAlias = Literal["update", "delete", "ignore"]
NotMatched: TypeAlias = Literal["insert", "ignore"]

TRIES = 5
"""How often a merge begins anew when other writers touch its keys meanwhile."""

_COMMITS = 20  # how often one that nobody disturbed is put on top of what came meanwhile
_SHOWN_KEYS = 10
_SALT = 8  # over how many tasks the rows that match nothing are spread
_BRINGS_NO_ROWS = frozenset({"CreateIndex", "ReserveFragments", "UpdateConfig"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What one merge did.

    Attributes:
        version: the version that holds it.
        rows: how many rows it changed in all; 0 when not `applied`.
        updated: how many rows of the table were replaced.
        inserted: how many were added.
        deleted: how many were removed.
        txn: the transaction id it was made under.
        applied: False when the transaction was in the table already.
        tries: how often the merge was computed; above 1, other writers were faster.
        elapsed: seconds.
    """

    version: int
    rows: int
    updated: int
    inserted: int
    deleted: int
    txn: TxnLike | None
    applied: bool
    tries: int
    elapsed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Clauses:
    """What happens to rows: the clauses of a merge.

    Attributes:
        matched: to a row of the table that has a row of the source.
        not_matched: to a row of the source that has none of the table.
        delete_where: a condition, in Spark's SQL, on rows of the source: matched ones are
            deleted, others do nothing.
    """

    matched: Matched = "update"
    not_matched: NotMatched = "insert"
    delete_where: str | None = None

    def __post_init__(self) -> None:
        """Refuse clauses that are none.

        Raises:
            InvalidInputError: a word that is not known, or nothing to do.
        """
        if self.matched not in {"update", "delete", "ignore"}:
            raise InvalidInputError(
                "when_matched is 'update', 'delete' or 'ignore'", given=repr(self.matched)
            )
        if self.not_matched not in {"insert", "ignore"}:
            raise InvalidInputError(
                "when_not_matched is 'insert' or 'ignore'", given=repr(self.not_matched)
            )
        if self.matched == self.not_matched == "ignore" and self.delete_where is None:
            raise InvalidInputError("this merge would do nothing: give it a clause")

    @property
    def writes(self) -> bool:
        """Tell whether rows of the source may be written."""
        return self.matched == "update" or self.not_matched == "insert"


class _StaleError(ConflictError):
    """Another version came between the one that was read and the one to be made."""


class Merge:
    """One merge into one table."""

    def __init__(
        self,
        table: Table,
        options: Mapping[str, str],
        source: Frame,
        on: Sequence[str],
        clauses: Clauses,
        *,
        over_log: bool = False,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._over_log = over_log
        self._after: After | None = {}
        self._table = table
        self._options = options
        self._source = source
        self._spark = source.sparkSession
        self._on = _keys(on)
        self._clauses = clauses
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()
        self._tries = 0

    def run(self, txn: TxnLike | None, tries: int) -> MergeResult:
        """Merge; anew as long as other writers touch the same keys, `tries` times at most.

        Raises:
            ConflictError: they did so every time.
            InvalidInputError: the source does not fit.
            CommitUnknownError: the outcome could not be learnt.
        """
        begun = self._clock.elapsed()
        if txn is not None and self._table._is_repeat(txn):  # noqa: SLF001 - an edge of the same house
            return self._result(self._table.dataset().version, None, txn, begun)
        if not self._over_log:
            # What waits now counts; what is put from now on is concurrent, and may win.
            self._after = merge_waiting(self._table._log_ground())  # noqa: SLF001 - as below
        for _ in range(tries):
            self._tries += 1
            base = self._table.dataset()
            with described(self._spark, f"holdfast: merge into {self._table.uri}"):
                work = self._work(base)
                parts = self._compute(base, work)
                operation = _operation(parts)
                if operation is None and txn is None:
                    return self._result(base.version, _changes(parts), txn, begun)
                done = self._commit(operation or lance.LanceOperation.Update(), base, txn)
            if done is not None:
                changes = _changes(parts) if done.applied else None
                return self._result(done.version, changes, txn, begun)
        raise ConflictError(
            "other writers changed rows of the same keys, again and again: try again later",
            table=self._table.uri,
            tries=tries,
        )

    def _work(self, base: lance.LanceDataset) -> Work:
        if base.has_stable_row_ids:
            raise InvalidInputError(
                "tables with stable row ids cannot be merged into yet: use pylance's merge_insert "
                "on `Table.dataset()`",
                table=self._table.uri,
            )
        return Work(
            uri=self._table.uri,
            options=dict(self._options),
            version=int(base.version),
            on=self._on,
            fragments=_groups_of(base),
            answer=temporary_path(self._ids.token()),
        )

    def _compute(self, base: lance.LanceDataset, work: Work) -> list[Written]:
        """Let Spark find and write the changes; nobody sees them yet."""
        parts = write_changes(self._table, work, self._changes_frame(base, work))
        _refuse_keys(parts, self._on)
        return parts

    def _changes_frame(self, base: lance.LanceDataset, work: Work) -> Frame:
        """Return the rows of the source that change something, with the address they replace."""
        on = list(self._on)
        copies = f.count(f.lit(1)).over(Window.partitionBy(*on))
        counted = self._checked_source(base).withColumn(COPIES, copies)
        found = counted.join(self._keys_frame(base, work), on, "left")
        matched = f.col(ADDRESS).isNotNull()
        if self._clauses.matched == "delete":
            found = found.withColumn(WRITES, f.col(WRITES) & ~matched)
        if_matched = ~f.col(WRITES) if self._clauses.matched == "ignore" else f.lit(True)
        if_not = f.col(WRITES) if self._clauses.not_matched == "insert" else f.lit(False)
        wrong = f.col(COPIES) > 1
        for key in on:
            wrong = wrong | f.col(key).isNull()
        # All rows that replace rows of one fragment meet in one task: it has one deletion file.
        fragment = f.shiftright(f.col(ADDRESS), 32)
        spread = f.when(matched, f.lit(-1)).otherwise(f.pmod(f.hash(*on), f.lit(_SALT)))
        acts = f.when(matched, if_matched).otherwise(if_not)
        return found.where(acts | wrong).repartition(fragment, spread)

    def _checked_source(self, base: lance.LanceDataset) -> Frame:
        """Return the columns that are needed, and whether a row is there to be written.

        Raises:
            InvalidInputError: columns are missing, have other types, or are not the table's.
        """
        names, given = list(base.schema.names), list(self._source.columns)
        needed = names if self._clauses.writes else list(self._on)
        _refuse_columns("the key names columns that the table lacks", set(self._on) - set(names))
        _refuse_columns("the source lacks columns of the table", set(needed) - set(given))
        if self._clauses.delete_where is None:
            extra = set(given) - set(names)
            _refuse_columns("the source has columns that the table lacks: drop them", extra)
            marked = self._source.withColumn(WRITES, f.lit(True))
        else:
            deletes = f.coalesce(f.expr(self._clauses.delete_where), f.lit(False))
            marked = self._source.withColumn(WRITES, ~deletes)
        chosen = self._source.select(*needed)
        check_writable(chosen.schema, pa.schema([base.schema.field(name) for name in needed]))
        return marked.select(*needed, WRITES)

    def _keys_frame(self, base: lance.LanceDataset, work: Work) -> Frame:
        """Return the keys of a version, with their rows' addresses."""
        columns = spark_schema(base.schema, self._on).add(ADDRESS, "long")
        reader = self._spark.read.format(SOURCE).schema(columns)
        return reader.option(WORK, work.encoded()).load()

    def _commit(
        self, operation: Operation, base: lance.LanceDataset, txn: TxnLike | None
    ) -> CommitResult | None:
        """Make it the next version; None when others came between that touch the same keys."""
        seen = int(base.version)
        for _ in range(_COMMITS):
            newest = self._table.dataset()  # spares a try that the check below would refuse
            if newest.version != seen and not self._is_undisturbed(base, newest):
                return None
            seen = int(newest.version)
            try:
                return self._table._commit_operation(  # noqa: SLF001 - an edge of the same house
                    operation,
                    read_version=int(base.version),
                    txn=txn,
                    edit=_only_after(seen),
                    after=self._after,
                )
            except _StaleError:
                continue
            except ConflictError as error:
                if not error.details.get("retryable", True):
                    raise
                return None
        return None

    def _is_undisturbed(self, base: lance.LanceDataset, newest: lance.LanceDataset) -> bool:
        """Tell whether no version after the one that was read has to do with these keys.

        Appended rows are looked up by key; any other change of rows counts as one of these.
        """
        between = range(base.version + 1, newest.version + 1)
        history = self._table.history(limit=newest.version - base.version)
        operations = {info.version: info.operation for info in history}
        met = {operations.get(version, "Unknown") for version in between}
        if met <= _BRINGS_NO_ROWS:
            return True
        if not met <= _BRINGS_NO_ROWS | {"Append"}:
            return False
        known = {fragment.fragment_id for fragment in base.get_fragments()}
        work = replace(
            self._work(newest),
            fragments=_groups_of(newest, without=known),
        )
        keys = list(self._on)
        fresh = self._keys_frame(newest, work).select(*keys)
        return not self._source.select(*keys).join(fresh, keys, "left_semi").limit(1).collect()

    def _result(
        self, version: int, changes: Mapping[str, int] | None, txn: TxnLike | None, begun: float
    ) -> MergeResult:
        counts = changes or dict.fromkeys(("updated", "inserted", "deleted"), 0)
        return MergeResult(
            version=int(version),
            rows=sum(counts.values()),
            updated=counts["updated"],
            inserted=counts["inserted"],
            deleted=counts["deleted"],
            txn=txn,
            applied=changes is not None,
            tries=self._tries,
            elapsed=self._clock.elapsed() - begun,
        )


def write_changes(table: Table, work: Work, frame: Frame) -> list[Written]:
    """Let Spark's tasks write files for the rows of a frame; nobody sees them yet.

    Raises:
        HoldfastError: a row does not fit, or the job failed.
    """
    try:
        frame.write.format(SOURCE).option(WORK, work.encoded()).mode("append").save()
    except Exception as error:
        raise failure_of(error, f"write into {table.uri}") from error
    store = table._store  # noqa: SLF001 - an edge of the same house
    bodies = json.loads(store.get(work.answer))
    store.delete([work.answer])
    parts = [Written(**json.loads(body)) for body in bodies]
    for part in parts:
        raise_if_error(part.error or {})
    return parts


def fragments_of(texts: Iterable[str]) -> list[FragmentMetadata]:
    """Return fragments from Lance's JSON."""
    return [FragmentMetadata.from_json(text) for text in texts]


def _only_after(seen: int) -> Edit:
    """Return what refuses a manifest that is not of the version right after `seen`."""

    def check(manifest: bytes) -> bytes:
        version = VersionFacts(manifest).version
        if version != seen + 1:
            raise _StaleError("the table has changed since it was read", read=seen, now=version - 1)
        return manifest

    return check


def _keys(on: str | Sequence[str]) -> tuple[str, ...]:
    keys = (on,) if isinstance(on, str) else tuple(on)
    given: Sequence[object] = keys
    if not keys or not all(isinstance(key, str) and key for key in given):
        raise InvalidInputError("on names the key columns: a name, or a list of names")
    if len(set(keys)) != len(keys):
        raise InvalidInputError("on names a column twice", on=", ".join(keys))
    return keys


def _groups_of(
    table: lance.LanceDataset, without: Collection[int] = ()
) -> tuple[tuple[int, ...], ...]:
    parts = (part.metadata for part in table.get_fragments())
    return grouped({part.id: int(part.physical_rows) for part in parts if part.id not in without})


def _operation(parts: Sequence[Written]) -> Operation | None:
    """Return all changes as one operation; None if there are none.

    Raises:
        HoldfastError: two tasks changed one fragment.
    """
    touched = [number for part in parts for number in part.touched]
    if len(set(touched)) != len(touched):
        # One of two deletion files would be lost, and rows would come back.
        raise HoldfastError("Spark gave rows of one fragment to two tasks: nothing was changed")
    new = fragments_of(text for part in parts for text in part.new)
    updated = fragments_of(text for part in parts for text in part.updated)
    removed = [number for part in parts for number in part.removed]
    if not (new or updated or removed):
        return None
    return lance.LanceOperation.Update(
        removed_fragment_ids=removed, updated_fragments=updated, new_fragments=new
    )


def _changes(parts: Sequence[Written]) -> dict[str, int]:
    names = ("updated", "inserted", "deleted")
    return {name: sum(part.changes[name] for part in parts) for name in names}


def _refuse_keys(parts: Sequence[Written], on: Sequence[str]) -> None:
    nulls = sum(part.nulls for part in parts)
    if nulls:
        raise InvalidInputError(
            "the source has rows without a key: filter them out", on=", ".join(on), nulls=nulls
        )
    repeated = [key for part in parts for key in part.repeated]
    if repeated:
        raise InvalidInputError(
            "the source has keys more than once, so it is not clear which row counts: keep one "
            "row for each",
            on=", ".join(on),
            keys=", ".join(repeated[:_SHOWN_KEYS]),
        )


def _refuse_columns(problem: str, names: Collection[str]) -> None:
    if names:
        raise InvalidInputError(problem, columns=", ".join(sorted(names)))


__all__ = ["TRIES", "Clauses", "Merge", "MergeResult", "fragments_of", "write_changes"]
