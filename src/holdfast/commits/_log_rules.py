"""What a version must hold so that rows of the table's log are neither lost nor brought back.

Two rules, checked in the very bytes that are decided, whoever asks for the version:

| the version ...                      | so                                                      |
|--------------------------------------|---------------------------------------------------------|
| changes rows of a table with a key   | its marker covers every row that waited when the call   |
|                                      | began, or it is refused                                 |
| replaces all rows: an overwrite,     | it carries the log's entry on, with a marker that       |
| a restore                            | covers every row that waited: they are superseded       |

A generation wins over the base row of its key, whenever that row was written. So an append, a
delete or an update that was acknowledged would be undone by an older row that is merged later.
Rows that are put after the call began are concurrent with it and may win.

Callers that can, merge what waits first and say by `after` how far; others are refused while
anything waits. A table without a log pays nothing: its manifest says that it has none.

To look at shards and to flush them is the work of a higher floor, which registers here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from holdfast.commits._history import transaction_of
from holdfast.errors import InvalidInputError, LogLostError, LogWaitsError
from holdfast.formats import (
    LOG_ID_KEY,
    Head,
    LogEntry,
    VersionFacts,
    edit_config,
    put_log_entry,
    read_log_entry,
    version_name,
)

if TYPE_CHECKING:
    from holdfast.commits._versions import Versions

After: TypeAlias = Mapping[str, int]
"""By shard id, the generation that must be merged in a version; empty: nothing need be."""

# Operations that leave the values of rows as they are. What is not known counts as a change.
# `Merge` adds columns: in rows that wait they are null, as in rows that come.
_CHANGES_NO_ROWS = {
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


def changes_rows(operation: str) -> bool:
    """Tell whether one of Lance's operations changes the values of rows."""
    return operation not in _CHANGES_NO_ROWS


class LogKeeper(Protocol):
    """Looks after the shards of one table."""

    def waiting_shards(self, merged: After) -> list[str]:
        """Return the shards with rows that a version with this marker has not merged."""
        ...

    def supersede(self, *, fence: bool) -> dict[str, int]:
        """Flush all that waits, and return by shard the newest generation.

        With `fence`, every writer is locked out first, and must open its shard again.
        """
        ...


Factory: TypeAlias = "Callable[[Versions], LogKeeper]"
_FACTORIES: list[Factory] = []
_HOME = "holdfast.upkeep._waiting"


def register_keeper(factory: Factory) -> None:
    """Say who looks after shards. The first stays: a changed copy of its module is a guest."""
    if not _FACTORIES:
        _FACTORIES.append(factory)


def keeper_of(versions: Versions) -> LogKeeper:
    """Return who looks after the shards of a table."""
    if versions.keeper is not None:
        return versions.keeper
    if not _FACTORIES:
        importlib.import_module(_HOME)  # it registers itself
    return _FACTORIES[0](versions)


def check_log_id(config: Mapping[str, str], entry: LogEntry | None, **details: object) -> None:
    """Refuse a version that lost the log's entry, or has one that was made anew.

    Raises:
        LogLostError: it did.
    """
    known = config.get(LOG_ID_KEY)
    if known is not None and (entry is None or entry.log_id != known):
        raise lost_log(**details)


def lost_log(**details: object) -> LogLostError:
    """Return the error of a table that does not say how far its log is merged."""
    return LogLostError(
        "the table was overwritten or restored past Holdfast, and does not say any more how far "
        "its log is merged; the rows that wait are all there. Say what becomes of them: "
        "`holdfast wal reset URI --keep` puts them over what the table holds now, `--discard` "
        "gives them up; freshness='base' reads without them",
        **details,
    )


def keep_log(
    versions: Versions, manifest: bytes, head: Head, after: After | None, log_id: str
) -> bytes:
    """Return the manifest as it may be decided.

    Args:
        versions: of the table.
        manifest: what is about to be decided.
        head: the same, read.
        after: the marker that it must have; None: nothing may wait.
        log_id: for a log that has no id yet, or whose columns are replaced.

    Raises:
        LogWaitsError: rows wait that would win over it.
        LogLostError: nobody knows which rows wait.
        HoldfastError: the shards could not be looked at, or flushed; nothing is decided.
    """
    if head.replaces_rows and head.version > 1:
        return _carry_log(versions, manifest, head, log_id)
    entry = read_log_entry(manifest) if head.has_indexes else None
    if entry is None:
        return manifest
    if head.has_key and (after is None or after):
        facts = VersionFacts(manifest)
        transaction = transaction_of(versions.core.store, facts)
        operation = "Unknown" if transaction is None else transaction.operation
        if changes_rows(operation):
            check_log_id(head.config, entry, version=head.version - 1)
            # What merges generations, and says so by the marker, is what they wait for.
            if after is not None or entry.merged == _merged_below(versions, head):
                check_merged(versions, entry, after)
    if entry.log_id is None and LOG_ID_KEY not in head.config:
        entry.give_id(log_id)
        return edit_config(put_log_entry(manifest, entry), {LOG_ID_KEY: log_id})
    if entry.log_id is not None and LOG_ID_KEY not in head.config:
        return edit_config(manifest, {LOG_ID_KEY: entry.log_id})  # a change of the config took it
    return manifest


def check_merged(versions: Versions, entry: LogEntry, after: After | None) -> None:
    """Refuse a change of keyed rows unless the marker covers what waited.

    Raises:
        LogWaitsError: it does not.
    """
    merged = entry.merged
    if after is not None:
        behind = sorted(one for one, number in after.items() if merged.get(one, 0) < number)
    else:
        behind = keeper_of(versions).waiting_shards(merged)
    if behind:
        raise LogWaitsError(
            "rows wait in the table's log, and would win over this change once they are merged; "
            "nothing was committed: run `Table.merge_log()`, then read again and rebuild; or open "
            "the dataset with over_log=True if no key is in both",
            shards=", ".join(behind[:3]),
            waiting=len(behind),
        )


def _merged_below(versions: Versions, head: Head) -> dict[str, int] | None:
    below = versions.core.arbiter.read(version_name(head.version - 1))
    entry = None if below is None else read_log_entry(below)
    return None if entry is None else entry.merged


def _carry_log(versions: Versions, manifest: bytes, head: Head, log_id: str) -> bytes:
    """Put the log's entry of the version below into one that replaces all its rows."""
    below = versions.core.arbiter.read(version_name(head.version - 1))
    if below is None:
        return manifest
    before = Head(below)
    entry = read_log_entry(below) if before.has_indexes else None
    try:
        check_log_id(before.config, entry, version=before.version)
    except LogLostError:
        if head.restores:
            return manifest  # goes back to a version that may know; reading tells if it does
        raise
    if entry is None:
        return manifest
    same = before.identities == head.identities
    entry.set_merged({**entry.merged, **keeper_of(versions).supersede(fence=not same)})
    ids = {column.name: number for number, column in head.top_columns.items()}
    moved = {number: ids.get(column.name) for number, column in before.top_columns.items()}
    missing = entry.fit_columns({old: new for old, new in moved.items() if new is not None})
    if missing:
        raise InvalidInputError(
            "the rows of this table's log are divided by a column that the new rows lack: keep "
            "it, or create another table",
            column=before.columns[missing[0]].name if missing[0] in before.columns else missing[0],
        )
    now = entry.log_id if same and entry.log_id is not None else log_id
    entry.give_id(now)
    if not same and not head.restores:
        manifest = head.with_new_columns(before, replaced=True)
    return edit_config(put_log_entry(manifest, entry), {LOG_ID_KEY: now})
