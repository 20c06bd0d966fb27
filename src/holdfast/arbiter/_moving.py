"""The record of a table's move to another commit store, kept in the one that it leaves.

It stands outside the table's scope, so that it can be read when the table's id is retired.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from holdfast.arbiter._commit_store import CommitStore, Key
from holdfast.errors import CorruptError
from holdfast.formats import Pin, decode_pin, encode_pin


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Where a table goes: its next pin, and the place in which that pin will be."""

    pin: Pin
    place: str


def move_key(pin: Pin) -> Key:
    """Return where the move of the table that `pin` names is decided."""
    return Key(f"move/{pin.table_id}", 0)


def read_move(commit_store: CommitStore, pin: Pin) -> Move | None:
    """Return where the table is moving, or has moved; None if nobody ever moved it.

    Raises:
        CorruptError: the record cannot be read.
        UnavailableError, PermissionDeniedError: the commit store did not tell.
    """
    value = commit_store.get(move_key(pin))
    return None if value is None else decode_move(value)


def encode_move(move: Move) -> bytes:
    """Return the bytes of a move."""
    return json.dumps({"place": move.place, "pin": encode_pin(move.pin).decode()}).encode()


def decode_move(value: bytes) -> Move:
    """Return the move behind its bytes.

    Raises:
        CorruptError: they are none.
    """
    try:
        fields = json.loads(value)
        return Move(pin=decode_pin(str(fields["pin"]).encode()), place=str(fields["place"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError("the record of a move cannot be read") from error
