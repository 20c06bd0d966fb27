"""Every error Holdfast raises, grouped by what the caller does next.

Each carries a stable `kind`, its details as attributes (`details`), and derives from the
builtin a user would expect. Errors pickle, so they cross Spark workers, and hold no secret.

| the caller ...                                  | class                                    |
|-------------------------------------------------|------------------------------------------|
| reads again, rebuilds and tries again           | `ConflictError`, `AlreadyExistsError`,   |
|                                                 | `CollectedError`, `StaleWorkError`,      |
|                                                 | `RowConflictError`                       |
| retries the same call with the same token       | `CommitUnknownError`                     |
| waits and tries again                           | `UnavailableError`, `BackpressureError`, |
|                                                 | `BusyError`                              |
| takes a new snapshot and reads again            | `SnapshotExpiredError`                   |
| opens the table again                           | `StaleHandleError`                       |
| opens the shard again, then sends it again      | `FencedError`, `PoisonedError`           |
| writes to another shard                         | `SealedError`                            |
| corrects the call                               | `InvalidInputError`, `NotFoundError`,    |
|                                                 | `PermissionDeniedError`, `MissingExtraError` |
| installs a newer Holdfast                       | `UpgradeError`                           |
| chooses another way of deciding                 | `UnsafeStoreError`, `UnsupportedError`   |
| stops, and lets an operator look                | `CommitStoreRegressedError`,             |
|                                                 | `ForeignVersionError`, `PinMismatchError`, |
|                                                 | `CorruptError`, `WalGapError`            |
| says what becomes of rows that wait in the log  | `LogLostError`                           |
| merges the log, rebuilds and tries again        | `LogWaitsError`                          |
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self


class ErrorKind(StrEnum):
    """Stable codes to branch on. Append-only."""

    ALREADY_EXISTS = "already_exists"
    BACKPRESSURE = "backpressure"
    BUSY = "busy"
    COLLECTED = "collected"
    COMMIT_STORE_REGRESSED = "commit_store_regressed"
    COMMIT_UNKNOWN = "commit_unknown"
    CONFLICT = "conflict"
    CORRUPT = "corrupt"
    FENCED = "fenced"
    FOREIGN_VERSION = "foreign_version"
    INTERNAL = "internal"
    INVALID_INPUT = "invalid_input"
    LOG_LOST = "log_lost"
    LOG_WAITS = "log_waits"
    MISSING_EXTRA = "missing_extra"
    NOT_FOUND = "not_found"
    PERMISSION_DENIED = "permission_denied"
    PIN_MISMATCH = "pin_mismatch"
    POISONED = "poisoned"
    ROW_CONFLICT = "row_conflict"
    SEALED = "sealed"
    SNAPSHOT_EXPIRED = "snapshot_expired"
    STALE_HANDLE = "stale_handle"
    STALE_WORK = "stale_work"
    UNAVAILABLE = "unavailable"
    UNSAFE_STORE = "unsafe_store"
    UNSUPPORTED = "unsupported"
    UPGRADE = "upgrade"
    WAL_GAP = "wal_gap"


class NextStep(StrEnum):
    """What to do after a conflict, for whoever made the commit."""

    AGAIN = "again"
    """Others were merely faster: the same may be tried as it is, on the newest version."""
    REBUILD = "rebuild"
    """Others changed what it is based on: read again and build it anew."""
    NEVER = "never"
    """As things are, neither helps."""


class HoldfastError(Exception):
    """The base of all errors here.

    Attributes:
        kind: a stable code.
        message: what happened and the way out, without the details.
        details: the facts behind it, each also readable as an attribute.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL

    def __init__(self, message: str, **details: object) -> None:
        """Keep the message and its details."""
        super().__init__(message)
        self.message = message
        self.details = details

    def __getattr__(self, name: str) -> object:
        """Return the detail of that name."""
        details = self.__dict__.get("details", {})
        if name in details:
            return details[name]
        msg = f"{type(self).__name__} has no attribute {name!r}"
        raise AttributeError(msg)

    def __str__(self) -> str:
        """Return the message followed by `key=value` details."""
        shown = " ".join(
            f"{k}={v}" for k, v in self.details.items() if v is not None and k != "unacknowledged"
        )
        return f"{self.message} ({shown})" if shown else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by message and details; a `__cause__` stays behind."""
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[HoldfastError], message: str, details: dict[str, object]) -> HoldfastError:
    return cls(message, **details)


class ConflictError(HoldfastError):
    """Another writer was first: read the winner, rebuild on it, try again.

    Attributes:
        next_step: what helps: `again`, `rebuild` or `never`.
    """

    kind = ErrorKind.CONFLICT
    next_step: NextStep = NextStep.AGAIN

    def leading_to(self, next_step: NextStep) -> Self:
        """Return this error, with another next step than its class has."""
        self.next_step = next_step
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the next step as well."""
        return (*super().__reduce__(), {"next_step": self.next_step})


class LogWaitsError(ConflictError):
    """Rows of the table's log wait, and would win over this change of the base: merge them first.

    Nothing was committed. `Table.merge_log` merges all that waits; then read again and rebuild.
    """

    kind = ErrorKind.LOG_WAITS
    next_step = NextStep.REBUILD


class RowConflictError(ConflictError):
    """Other writers changed the same rows first, each time: try again.

    Nothing was changed. `reason` tells what they did, `version` and `operation` where.
    """

    kind = ErrorKind.ROW_CONFLICT


class StaleWorkError(ConflictError):
    """The work was begun before the last two vacuums, so its files may be gone: begin it anew.

    Nothing was committed. `begun_on` is the version it was begun on, `floor` the oldest that
    would do.
    """

    kind = ErrorKind.STALE_WORK
    next_step = NextStep.REBUILD


class AlreadyExistsError(HoldfastError, FileExistsError):
    """Something has this name. Whose it is must still be read: a question, not a verdict."""

    kind = ErrorKind.ALREADY_EXISTS
    __str__ = HoldfastError.__str__


class CommitUnknownError(HoldfastError):
    """The outcome could not be learnt. Nothing was deleted; repeat the call with the same token."""

    kind = ErrorKind.COMMIT_UNKNOWN


class UnavailableError(HoldfastError, ConnectionError):
    """No usable answer: the request may or may not have been applied."""

    kind = ErrorKind.UNAVAILABLE
    __str__ = HoldfastError.__str__


class BusyError(UnavailableError):
    """Another process (`holder`) keeps a lock that is needed; this call changed nothing.

    Let that process go on, or end it: what it had begun is then undone by itself.
    """

    kind = ErrorKind.BUSY


class InvalidInputError(HoldfastError, ValueError):
    """The call is wrong; the message says how to put it right."""

    kind = ErrorKind.INVALID_INPUT


class NotFoundError(HoldfastError, FileNotFoundError):
    """There is nothing of this name."""

    kind = ErrorKind.NOT_FOUND
    __str__ = HoldfastError.__str__

    @property
    def missing_path(self) -> str:
        """Return the path of what is not there; empty if that is nothing in a store."""
        return str(self.details.get("path", ""))


class PermissionDeniedError(HoldfastError, PermissionError):
    """The store refused these credentials, or the place is read-only."""

    kind = ErrorKind.PERMISSION_DENIED
    __str__ = HoldfastError.__str__


class MissingExtraError(HoldfastError, ImportError):
    """An optional package is not installed; the message has the command."""

    kind = ErrorKind.MISSING_EXTRA
    __str__ = HoldfastError.__str__


class UnsafeStoreError(HoldfastError):
    """The store cannot, or was not shown to, decide a name once. Use a commit store."""

    kind = ErrorKind.UNSAFE_STORE


class UnsupportedError(HoldfastError, NotImplementedError):
    """The store does not offer this operation at all."""

    kind = ErrorKind.UNSUPPORTED


class UpgradeError(HoldfastError):
    """A newer Holdfast wrote this in a `format` that this one does not know: upgrade."""

    kind = ErrorKind.UPGRADE


class CommitStoreRegressedError(HoldfastError):
    """The commit store forgot a decision that the object store still shows. Stop writing."""

    kind = ErrorKind.COMMIT_STORE_REGRESSED


class ForeignVersionError(HoldfastError):
    """Somebody wrote a decided name past the arbiter. Stop writing."""

    kind = ErrorKind.FOREIGN_VERSION


class PinMismatchError(HoldfastError):
    """The table is tied to another arbiter, place or commit store than the one in hand."""

    kind = ErrorKind.PIN_MISMATCH


class CorruptError(HoldfastError):
    """Stored bytes are not what they must be."""

    kind = ErrorKind.CORRUPT


class CollectedError(HoldfastError):
    """What the caller built on or asked for was collected since it read: read again and rebuild.

    Nothing of this call was decided.
    """

    kind = ErrorKind.COLLECTED


class LogLostError(CorruptError):
    """The table no longer says how far its log is merged: somebody overwrote or restored it.

    That was done past Holdfast, so nobody knows whether the rows that wait still count. They
    are all there. Say what becomes of them with `Table.reset_log` or `holdfast wal reset`.
    """

    kind = ErrorKind.LOG_LOST


class BackpressureError(HoldfastError, TimeoutError):
    """The writer's buffer stayed full for as long as the caller would wait; nothing was taken."""

    kind = ErrorKind.BACKPRESSURE
    __str__ = HoldfastError.__str__


class FencedError(HoldfastError):
    """Another writer owns the shard now (`stored_epoch`); this one (`epoch`) is out for good.

    What was acknowledged is safe: the new owner has it. `unacknowledged` holds the rows that
    were not; send them again through a writer that is opened anew.
    """

    kind = ErrorKind.FENCED


class PoisonedError(HoldfastError):
    """The outcome of a log write is unknown, so this writer stops for good: open the shard again.

    `unacknowledged` holds the rows in question. They may be in the log: opening tells.
    """

    kind = ErrorKind.POISONED


class SnapshotExpiredError(HoldfastError):
    """What a snapshot needs was collected, or the table never stood still: read again."""

    kind = ErrorKind.SNAPSHOT_EXPIRED


class StaleHandleError(HoldfastError):
    """The table was removed, made anew or released since this handle was opened: open it again.

    Nothing of this call is in the table that is there now.
    """

    kind = ErrorKind.STALE_HANDLE


class SealedError(HoldfastError):
    """The shard is sealed: nobody writes to it any more."""

    kind = ErrorKind.SEALED


class WalGapError(HoldfastError):
    """A log entry that must be there is missing. Nothing after it is read; see `wal repair`."""

    kind = ErrorKind.WAL_GAP


__all__ = [
    "AlreadyExistsError",
    "BackpressureError",
    "BusyError",
    "CollectedError",
    "CommitStoreRegressedError",
    "CommitUnknownError",
    "ConflictError",
    "CorruptError",
    "ErrorKind",
    "FencedError",
    "ForeignVersionError",
    "HoldfastError",
    "InvalidInputError",
    "LogLostError",
    "LogWaitsError",
    "MissingExtraError",
    "NextStep",
    "NotFoundError",
    "PermissionDeniedError",
    "PinMismatchError",
    "PoisonedError",
    "RowConflictError",
    "SealedError",
    "SnapshotExpiredError",
    "StaleHandleError",
    "StaleWorkError",
    "UnavailableError",
    "UnsafeStoreError",
    "UnsupportedError",
    "UpgradeError",
    "WalGapError",
]
