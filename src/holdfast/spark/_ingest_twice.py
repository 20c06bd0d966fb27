"""Two sinks of one table in one run of a query: refused, as they would count the same batches."""

from __future__ import annotations

import threading

from holdfast.errors import InvalidInputError


class WrittenBatches:
    """Which sink of this process wrote the newest batch of a run to a table.

    Two sinks in one run share the batch's identity: the second would take the rows of the first
    for its own, and leave its own out.
    """

    _MOST = 1000

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards `_newest`
        self._newest: dict[tuple[str, str], tuple[object, int]] = {}

    def check(self, table_id: str, attempt: str, sink: object, batch: int) -> None:
        """Refuse a batch that another sink of the same run has written to the same table.

        Raises:
            InvalidInputError: it has.
        """
        with self._lock:
            before = self._newest.get((table_id, attempt)) if attempt else None
        if before is not None and before[0] is not sink and batch <= before[1]:
            raise InvalidInputError(
                "another ingest of this query has written this batch to the same table; both "
                "share the batch's number, so the rows of this one would be taken for written. "
                "Union the frames and write them with one ingest",
                batch=batch,
            )

    def note(self, table_id: str, attempt: str, sink: object, batch: int) -> None:
        """Take note of a batch that is written."""
        if not attempt:  # outside a streaming query nobody says which calls are one run
            return
        with self._lock:
            self._newest.pop((table_id, attempt), None)
            self._newest[table_id, attempt] = (sink, batch)
            while len(self._newest) > self._MOST:
                del self._newest[next(iter(self._newest))]
