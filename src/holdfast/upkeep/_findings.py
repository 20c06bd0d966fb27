"""What `doctor` finds: kinds, how bad each is, and one finding."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from holdfast.storage import ObjectInfo
from holdfast.upkeep._candidates import Candidate


class FindingKind(StrEnum):
    """What kind of thing was found. Append-only."""

    UNFINISHED = "unfinished_decision"
    STRAY = "stray_objects"
    FOREIGN = "foreign_version"
    MISSING = "missing_file"
    REGRESSED = "commit_store_regressed"
    PIN = "pin_problem"
    LOST_APPEND = "lost_append"
    ORPHANED_CHANGE = "orphaned_change"
    UNREADABLE = "unreadable_object"
    LOG_LOST = "log_lost"
    PAST_LOG = "written_past_log"
    COMMIT_STORE = "commit_store_problem"
    SHARD = "shard_problem"
    LOG = "log_problem"


class Severity(StrEnum):
    """How bad it is: a note needs nobody, a warning somebody, a problem somebody now."""

    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found.

    Attributes:
        kind: a stable code.
        severity: how bad it is.
        what: what was found, in words.
        advice: what to do.
        command: the one command that helps, to be run as it is; None where only a backup, or a
            file that somebody removes by hand, does.
        since: since when at the earliest, as far as the stamps of the store's objects tell, UTC.
        path: the object or folder it is about, or the address of the commit store.
        version: the version it is about.
        shard: the shard it is about.
        candidate: for `lost_append`, the append.
    """

    kind: FindingKind
    severity: Severity
    what: str
    advice: str
    command: str | None = None
    since: datetime | None = None
    path: str | None = None
    version: int | None = None
    shard: str | None = None
    candidate: Candidate | None = None


def stamp_of(info: ObjectInfo | None) -> datetime | None:
    """Return when an object was written, by its store's clock."""
    return None if info is None else datetime.fromtimestamp(info.modified, UTC)
