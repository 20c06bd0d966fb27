"""UPDATE, MERGE INTO and DELETE in Spark SQL: Spark finds the rows, `apply_change` commits them.

The catalog in Java pins the statement to one version. Spark's tasks get the rows to write and
the addresses that go, as those of `merge_into` do (`_merge_source`), and write files that nobody
sees. The driver then makes all of it one version upon the pinned one, or nothing: a statement
cannot be computed anew here, so what others changed meanwhile, if it is about the same rows,
ends it with `RowConflictError`. See RFC 0014.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from holdfast._clock import SystemClock
from holdfast.errors import CommitUnknownError, UnavailableError
from holdfast.formats import key_columns
from holdfast.spark._merge_source import MergeWork, WrittenMerge
from holdfast.spark._options import Use, parse
from holdfast.spark._place import Place
from holdfast.spark._sql_keys import RowsWithKeys, WrittenKeys, as_inserts, written_keys
from holdfast.spark._tasks import raise_if_error
from holdfast.storage import open_store
from holdfast.txn import OwnTxn, TxnLike

if TYPE_CHECKING:
    import lance

    from holdfast.edit import Computed, Where

log = logging.getLogger(__name__)

CHANGE = "secretChange"
"""What the statement is; the catalog in Java says so, users never do."""
_TRIES = 5
_FIRST_PAUSE_SECONDS = 0.2


class ChangeSource(DataSource):
    """The data source of a statement that changes rows."""

    def writer(self, schema: object, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark calls it so
        """Return the writer of its changes."""
        del schema, overwrite
        return ChangeWriter(self.options)


@dataclass
class _ChangeMessage(WriterCommitMessage):
    body: str


class ChangeWriter(DataSourceArrowWriter):
    """One statement: `write` in its tasks, `commit` once on the driver. Travels as planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        told = {key: text for key, text in options.items() if key.lower() != CHANGE.lower()}
        statement = json.loads(next(options[key] for key in options if key not in told))
        given = parse(told, Use.WRITE)
        self._place = Place.of(given)
        self._command = str(statement["command"])
        self._version = int(statement["version"])
        self._looks_at = str(statement["looks_at"]) or None
        self._only_inserts = bool(statement["only_inserts"])
        self._replaces = self._command == "REPLACE WHERE"
        self._applied = False
        self._key: tuple[str, ...] = ()
        self._txn = self._plan(given.get("txnAppId"), given.get("txnVersion"))
        # An upsert by key looked for the keys that it writes, and for no other row.
        self._upserts = bool(self._key) and tuple(statement["upsert_key"]) == self._key
        self._work = MergeWork(
            uri=self._place.uri,
            options=dict(given.storage),
            version=self._version,
            on=self._key,
        )

    def _plan(self, app: str | None, number: int | None) -> TxnLike:
        """Refuse what cannot be changed, before tasks write; return the statement's own id."""
        from holdfast.edit import refuse_unwritable  # noqa: PLC0415 - workers do without
        from holdfast.spark._write import new_txn  # noqa: PLC0415 - workers do without

        with self._place.open_table() as table:
            table.check_writable()
            dataset = table.dataset(self._version)
            if self._command != "DELETE":
                self._key = tuple(key_columns(dataset.schema))
                refuse_unwritable(dataset, self._command)
            if app is None or number is None:
                return new_txn()
            self._applied = table.writes.is_repeat((app, number))
        return app, number

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write the changes of one task; files only, under new names."""
        if self._applied:
            for _ in iterator:  # to the end: Spark expects its rows to be taken
                pass
            return _ChangeMessage(json.dumps(asdict(WrittenMerge())))
        rows = as_inserts(iterator) if self._only_inserts else iterator
        condition = self._looks_at if self._replaces else None
        task = RowsWithKeys(self._work, condition, all_keys=self._upserts)
        return _ChangeMessage(json.dumps(asdict(task.write(rows))))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all changes of the statement one version, or nothing.

        Raises:
            RowConflictError: others changed rows that this statement is about.
            CommitUnknownError: the outcome could not be learnt.
            HoldfastError: a value does not fit, or a store failed; nothing was changed.
        """
        if self._applied:
            log.info("already applied: txn=%s table=%s", self._txn, self._place.uri)
            return
        parts = [
            WrittenMerge(**json.loads(one.body))
            for one in messages
            if isinstance(one, _ChangeMessage)
        ]
        for part in parts:
            raise_if_error(part.error or {})
        from holdfast.edit import Where  # noqa: PLC0415 - workers do without
        from holdfast.spark._merge_join import computed_of  # noqa: PLC0415 - workers do without

        computed = self._complete(computed_of(parts))
        if computed.is_empty and isinstance(self._txn, OwnTxn):
            return
        store = open_store(self._place.uri, self._place.storage)
        keys = written_keys(parts, store, self._key) if self._key else None
        self._apply(_Fixed(None if self._upserts else Where(self._looks_at), computed, keys))

    def _complete(self, computed: Computed) -> Computed:
        """Add the rows that go, where a condition says which."""
        from holdfast.edit import Where, by_fragment  # noqa: PLC0415 - workers do without

        if not self._replaces:
            return computed
        with self._place.open_table() as table:
            gone = by_fragment(Where(self._looks_at).addresses(table.dataset(self._version)))
        deleted = sum(len(offsets) for offsets in gone.values())
        return replace(computed, gone=gone, counts=replace(computed.counts, deleted=deleted))

    def _apply(self, change: _Fixed) -> None:
        clock = SystemClock()
        unknown: CommitUnknownError | None = None
        for attempt in range(_TRIES):
            if attempt:
                clock.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
            try:
                self._apply_once(change)
            except CommitUnknownError as error:
                unknown = error
            except UnavailableError:
                if attempt + 1 == _TRIES and unknown is None:
                    raise
            else:
                return
        raise CommitUnknownError(
            f"the outcome of this {self._command} could not be learnt: look at the table, or run "
            "it with holdfast.spark.run_sql(..., txn=...), which may be repeated",
            txn=self._txn,
            table=self._place.uri,
        ) from unknown

    def _apply_once(self, change: _Fixed) -> None:
        """Commit; under the statement's id a repeat changes nothing."""
        from holdfast.edit import apply_change  # noqa: PLC0415 - workers do without

        with self._place.open_table() as table:
            apply_change(
                table.versions,
                change,
                txn=self._txn,
                upon=table.dataset(self._version),
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything as it is: the files may be in the table."""
        del messages
        place = self._place.uri
        log.warning("Spark gave up a %s of %s; files stay until vacuum", self._command, place)


class _Fixed:
    """A change that Spark has computed on one version, and cannot compute anew.

    Args:
        where: which rows the statement looked at; None for those with keys that it writes.
        computed: the change.
        keys: the keys that it writes, into a table with a key.
    """

    def __init__(self, where: Where | None, computed: Computed, keys: WrittenKeys | None) -> None:
        self._where = where
        self._computed = computed
        self._keys = keys

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Return the change, unless it would make a key appear twice."""
        if self._keys is not None:
            self._keys.check(base, self._computed.gone)
        return self._computed

    def concerns(self, newest: lance.LanceDataset, fragments: Sequence[Any]) -> bool:
        """Tell whether the statement would have looked at a row in these fragments."""
        if self._keys is not None and self._keys.are_in(newest, fragments):
            return True
        return self._where is not None and self._where.concerns(newest, fragments)

    def renew(self) -> None:
        """Do nothing: there is one try."""
