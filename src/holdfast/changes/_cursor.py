"""`ChangeCursor`: how far a reader of changes got; text that a program keeps between two reads.

A cursor names a state of the table: base version `version`, and upon it each shard's log up to
a position. It names the table by its id, so that it cannot be used on another one, or on one
that was made anew at the same address.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from holdfast.errors import CorruptError, InvalidInputError, UpgradeError
from holdfast.formats import SnapshotRecord, check_shard_id, decode_snapshot, encode_snapshot

Followed: TypeAlias = Literal["latest", "base"]
"""What is followed: the base table and the log upon it, or the base table alone."""

FOLLOWED: tuple[Followed, ...] = ("latest", "base")
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCursor:
    """How far a reader of changes got. `str(cursor)` is JSON, which `Table.changes` takes again.

    Attributes:
        table: the table's id.
        freshness: `latest` or `base`: what is followed.
        version: the last base version whose changes were all read; 0 before the first.
        files: how many fragments of the next version were read already; of the first
            snapshot, how many of its parts.
        log: by shard, the last position of its log that was read. A shard that is not here
            is read from where the version has merged it.
        begin: the snapshot that is read before any change, while it is not read to its end.
        origin: where the reading began, in the first cursor after it: Spark asks for it again.
    """

    table: str
    freshness: Followed
    version: int
    files: int = 0
    log: Mapping[str, int] = field(default_factory=dict)
    begin: SnapshotRecord | None = None
    origin: ChangeCursor | None = None

    def __str__(self) -> str:
        """Return the cursor as JSON on one line."""
        return json.dumps(self.to_dict(), separators=(",", ":"), sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the cursor as plain values that JSON can hold."""
        plain: dict[str, Any] = {
            "format": _FORMAT,
            "table": self.table,
            "freshness": self.freshness,
            "version": self.version,
            "files": self.files,
            "log": dict(sorted(self.log.items())),
        }
        if self.begin is not None:
            plain["begin"] = json.loads(encode_snapshot(self.begin))
        if self.origin is not None:
            plain["origin"] = self.origin.to_dict()
        return plain

    @classmethod
    def parse(cls, given: str | Mapping[str, Any]) -> ChangeCursor:
        """Return the cursor behind its text or plain values.

        Raises:
            InvalidInputError: it is none.
            UpgradeError: a newer Holdfast wrote it.
        """
        try:
            plain: Any = json.loads(given) if isinstance(given, str) else given
            if plain["format"] != _FORMAT:
                raise UpgradeError(
                    "a newer Holdfast wrote this cursor: upgrade", format=plain["format"]
                )
            return _cursor(plain)
        except (ValueError, KeyError, TypeError, AttributeError, CorruptError) as error:
            raise InvalidInputError(
                "this is no cursor of changes: keep what `changes(...).cursor` gives",
                given=str(given)[:120],
            ) from error

    def started(self) -> ChangeCursor:
        """Return the same cursor without its origin."""
        return replace(self, origin=None)

    def begin_positions(self) -> dict[str, int]:
        """Return, by shard, the log position that the first snapshot reaches, if there is one."""
        shards = () if self.begin is None else self.begin.shards
        return {shard.shard_id: shard.last_position for shard in shards}


def _cursor(plain: Any) -> ChangeCursor:  # noqa: ANN401 - parsed JSON
    freshness = next((one for one in FOLLOWED if one == plain["freshness"]), None)
    if freshness is None:
        raise ValueError("freshness")
    begin, origin = plain.get("begin"), plain.get("origin")
    return ChangeCursor(
        table=_text(plain["table"]),
        freshness=freshness,
        version=_number(plain["version"]),
        files=_number(plain["files"]),
        log={check_shard_id(shard): _number(at, least=-1) for shard, at in plain["log"].items()},
        begin=None if begin is None else decode_snapshot(json.dumps(begin).encode()),
        origin=None if origin is None else ChangeCursor.parse(origin),
    )


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError("text")
    return given


def _number(given: object, least: int = 0) -> int:
    if type(given) is not int or given < least:
        raise ValueError("number")
    return given
