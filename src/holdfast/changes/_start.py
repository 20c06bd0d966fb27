"""Where a reading of changes begins, where it ends now, and how far behind it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from holdfast.changes._cursor import FOLLOWED, ChangeCursor, Followed
from holdfast.changes._history import History
from holdfast.changes._plan import ChangeTarget
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import SnapshotRecord

Since: TypeAlias = int | datetime | str | ChangeCursor | None
"""Where to begin: a version, a time, a cursor or its text, `"now"`, or None for a snapshot."""

Until: TypeAlias = int | datetime | str | ChangeCursor | None
"""Where to end: a version, a time, a cursor or its text, or None for what is newest now."""

Take: TypeAlias = Callable[[Followed], SnapshotRecord]
"""Takes a snapshot of the table as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a cursor is behind the table.

    Attributes:
        versions: base versions that it has not read.
        entries: by shard, entries of the log that it has not read.
    """

    versions: int
    entries: dict[str, int]


def check_followed(freshness: str) -> Followed:
    """Return `freshness` if changes can be read with it.

    Raises:
        InvalidInputError: they cannot.
    """
    for known in FOLLOWED:
        if freshness == known:
            return known
    raise InvalidInputError(
        "changes are read with freshness 'latest' or 'base'", freshness=repr(freshness)[:80]
    )


def find_start(history: History, since: Since, freshness: str | None, take: Take) -> ChangeCursor:
    """Return the cursor at which a reading begins.

    Args:
        history: of the table.
        since: where to begin.
        freshness: `latest` or `base`; as the cursor has it, if None, or `latest`.
        take: takes a snapshot.

    Raises:
        InvalidInputError: a cursor of another table or freshness, or none at all.
        CollectedError: what is needed from there on is gone.
        NotFoundError: there is no such version yet.
    """
    if isinstance(since, str) and since != "now":
        since = ChangeCursor.parse(since)
    if isinstance(since, ChangeCursor):
        if freshness is not None and freshness != since.freshness:
            raise InvalidInputError(
                "the cursor follows with another freshness: go on with that, or begin anew",
                cursor=since.freshness,
                freshness=freshness,
            )
        history.check(since)
        return since.started()
    followed = check_followed(freshness or "latest")
    table = history.table_id()
    if since is None or since == "now":
        record = take(followed)
        log = {shard.shard_id: shard.last_position for shard in record.shards}
        begin = record if since is None else None
        log = {} if since is None else log
        return ChangeCursor(
            table=table, freshness=followed, version=record.base_version, log=log, begin=begin
        )
    if isinstance(since, datetime):
        return _at_time(history, since, followed, table)
    if type(since) is not int or since < 0:
        raise InvalidInputError(
            "changes begin at a version, a time, a cursor, 'now' or None", since=repr(since)[:80]
        )
    newest = history.newest()
    if since > newest:
        raise NotFoundError("the table has no such version yet", version=since, newest=newest)
    history.look(since)
    return ChangeCursor(table=table, freshness=followed, version=since)


def _at_time(history: History, moment: datetime, followed: Followed, table: str) -> ChangeCursor:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    cursor = ChangeCursor(table=table, freshness=followed, version=history.version_at(moment))
    if followed == "base":
        return cursor
    log = {
        shard_id: history.position_at(shard_id, history.position(cursor, shard_id), moment)
        for shard_id in history.shards()
    }
    return ChangeCursor(table=table, freshness=followed, version=cursor.version, log=log)


def find_end(history: History, start: ChangeCursor, until: Until) -> ChangeTarget:
    """Return where a reading ends: what is newest now by default.

    Raises:
        InvalidInputError: an end before the start, or of another table.
        NotFoundError: there is no such version yet.
        CollectedError: what was there at the time is gone.
    """
    if isinstance(until, str):
        until = ChangeCursor.parse(until)
    if isinstance(until, datetime):
        until = _at_time(history, until, start.freshness, start.table)
        _refuse_earlier(history, start, until)
    if isinstance(until, ChangeCursor):
        history.check(until)
        if until.freshness != start.freshness:
            raise InvalidInputError(
                "the two cursors follow with different freshness",
                start=start.freshness,
                end=until.freshness,
            )
        return ChangeTarget.of(until)
    newest = history.newest()
    if until is not None:
        if type(until) is not int or until < 0:
            raise InvalidInputError(
                "changes end at a version, a time or a cursor", until=repr(until)[:80]
            )
        if until > newest:
            raise NotFoundError("the table has no such version yet", version=until, newest=newest)
        return ChangeTarget(version=until)
    if start.freshness == "base":
        return ChangeTarget(version=newest)
    return ChangeTarget(version=newest, log=_tips(history, start, newest))


def _refuse_earlier(history: History, start: ChangeCursor, end: ChangeCursor) -> None:
    """Refuse an end that a reading from `start` has passed: its changes cannot be taken back.

    Raises:
        InvalidInputError: it is one.
    """
    first = start.begin_positions() or start.log
    passed = [one for one, at in first.items() if at > history.position(end, one)]
    # A version that merged a shard's log tells nothing of the entries that came before it.
    if end.version < start.version or (end.version == start.version and passed):
        raise InvalidInputError(
            "the end lies before the start: a snapshot (`since=None`) and a cursor are of a later "
            "time",
            start=start.version,
            end=end.version,
            shards=", ".join(sorted(passed)) or None,
        )


def _tips(history: History, start: ChangeCursor, newest: int) -> dict[str, int]:
    """Return the end of each shard's log, at least as far as the newest version needs it."""
    merged = history.look(newest).merged
    known = start.begin_positions()
    return {
        shard_id: max(
            history.tip(
                shard_id,
                known.get(shard_id, history.position(start, shard_id)),
            ),
            history.covered_position(shard_id, merged.get(shard_id, 0)),
        )
        for shard_id in history.shards()
    }


def find_lag(history: History, cursor: ChangeCursor) -> Lag:
    """Return how far a cursor is behind the table.

    Raises:
        InvalidInputError: it is of another table.
        CollectedError: what comes next was collected.
    """
    history.check(cursor)
    return lag_behind(history, cursor, find_end(history, cursor, None))


def lag_behind(history: History, cursor: ChangeCursor, target: ChangeTarget) -> Lag:
    """Return how far a cursor is behind a place that it goes to."""
    known = cursor.begin_positions()
    return Lag(
        versions=max(0, target.version - cursor.version),
        entries={
            shard_id: max(0, end - known.get(shard_id, history.position(cursor, shard_id)))
            for shard_id, end in (target.log or {}).items()
        },
    )
