"""Transaction ids of a shard's log: a tag of its entries, and the memory of old ones.

    _holdfast/log-txns/<shard>/at-<20 digits>     which ids the entries up to a position have
    _holdfast/log-txns/<shard>/<file of strings>  older strings, which a memory names

A memory has the entries of a table's ledger (`_ledger`). Which ids the log has up to a position
never changes, so neither does what a memory says, whoever writes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats._ledger import forget_history
from holdfast.formats._names import HOME, check_path, check_shard_id
from holdfast.txn import AppTxn, FreeTxn, OwnTxn, Txn, parse_txn

TXNS_TAG = "txns"
"""The tag of a log entry that holds the ids of its rows."""

_MEMORY = re.compile(rf"{HOME}/log-txns/[0-9a-f-]{{36}}/at-([0-9]{{20}})")
_SUM_CHARS = 32


def log_txns_folder(shard_id: str) -> str:
    """Return the folder of what is remembered of a shard's ids.

    Raises:
        InvalidInputError: the shard id is no UUID.
    """
    return f"{HOME}/log-txns/{check_shard_id(shard_id)}"


def memory_path(shard_id: str, position: int) -> str:
    """Return where the memory of a position is."""
    return check_path(f"{log_txns_folder(shard_id)}/at-{position:020d}")


def memory_position(path: str) -> int | None:
    """Return the position of the memory with this path; None for any other path."""
    match = _MEMORY.fullmatch(path)
    return int(match[1]) if match else None


def encode_memory(entries: Mapping[str, str]) -> bytes:
    """Return the bytes of a memory."""
    body = json.dumps(dict(entries), sort_keys=True).encode()
    return _checksum(body) + b"\n" + body


def decode_memory(path: str, body: bytes) -> dict[str, str]:
    """Return what a memory holds.

    Raises:
        CorruptError: these are not the bytes of one.
    """
    checksum, _, rest = body.partition(b"\n")
    if checksum != _checksum(rest):
        raise CorruptError(
            "the memory of a log's transaction ids is damaged, so nobody knows whether an id was "
            "applied: put the object back from a backup",
            path=path,
        )
    entries: dict[str, str] = json.loads(rest)
    return entries


def merge_memory(entries: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    """Return the entries of a memory with what a ledger changed in them."""
    merged = {**entries, **forget_history(changed)}
    return {key: value for key, value in merged.items() if value is not None}


def txns_tag(txns: Sequence[Txn]) -> str:
    """Return the tag of an entry that applies these transactions."""
    return json.dumps([_spell_txn(txn) for txn in txns], ensure_ascii=False)


def txns_of(tags: Mapping[str, str], *, shard_id: str, position: int) -> tuple[Txn, ...]:
    """Return the transactions that an entry with these tags applies.

    Raises:
        CorruptError: the tag cannot be read.
    """
    text = tags.get(TXNS_TAG)
    if text is None:
        return ()
    try:
        return tuple(_parse_spelling(one) for one in json.loads(text))
    except (InvalidInputError, TypeError, ValueError, KeyError) as error:
        raise CorruptError(
            "the transaction ids of a log entry cannot be read",
            shard_id=shard_id,
            position=position,
        ) from error


def _spell_txn(txn: Txn) -> object:
    match txn:
        case AppTxn(app, number, True):
            return [app, number, "in order"]
        case AppTxn(app, number):
            return [app, number]
        case OwnTxn(text):
            return {"own": text}
        case FreeTxn(text):
            return text


def _parse_spelling(one: object) -> Txn:
    match one:
        case str():
            return parse_txn(one)
        case {"own": str() as text}:
            return OwnTxn(text)
        case [str() as app, int() as number]:
            return parse_txn((app, number))
        case [str() as app, int() as number, "in order"]:
            return parse_txn(AppTxn(app, number, in_order=True))
    raise ValueError(repr(one)[:80])


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_SUM_CHARS].encode()
