"""The ledger: which transactions a table version has applied, kept in its table config.

One entry per application (`holdfast.txn.app.NAME` -> number) and one for the newest free
strings (`holdfast.txn.recent`: 16-character digests, oldest first); a third
(`holdfast.txn.here`) says which of them this very version applied, for its history. Stock
writers carry the config on, `restore` rolls it back with the rows it speaks of.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence

from holdfast.errors import CorruptError
from holdfast.txn import AppTxn, FreeTxn, Txn

RECENT_KEPT = 256
_APP = "holdfast.txn.app."
_RECENT = "holdfast.txn.recent"
_HERE = "holdfast.txn.here"


def is_applied(config: Mapping[str, str], txn: Txn) -> bool:
    """Tell whether a version with this config holds the transaction.

    Raises:
        CorruptError: the config's entry cannot be read.
    """
    if isinstance(txn, FreeTxn):
        return _digest(txn) in config.get(_RECENT, "").split()
    recorded = config.get(_APP + txn.app)
    if recorded is None:
        return False
    try:
        return txn.number <= int(recorded)
    except ValueError as error:
        raise CorruptError("a transaction entry cannot be read", app=txn.app) from error


def applied_here(config: Mapping[str, str]) -> tuple[str, ...]:
    """Return the transactions that this very version applied.

    Raises:
        CorruptError: the config's entry cannot be read.
    """
    try:
        found = json.loads(config.get(_HERE, "[]"))
    except ValueError as error:
        raise CorruptError("the list of applied transactions cannot be read") from error
    if not isinstance(found, list) or not all(isinstance(txn, str) for txn in found):
        raise CorruptError("the list of applied transactions cannot be read")
    return tuple(found)


def record_txns(config: Mapping[str, str], txns: Sequence[Txn]) -> dict[str, str | None]:
    """Return the config entries to set in the version that applies `txns`."""
    entries: dict[str, str | None] = {_HERE: None}
    if txns:
        entries[_HERE] = json.dumps([str(txn) for txn in txns])
    recent = config.get(_RECENT, "").split()
    for txn in txns:
        if isinstance(txn, AppTxn):
            highest = max(txn.number, int(entries.get(_APP + txn.app) or "-1"))
            entries[_APP + txn.app] = str(highest)
        else:
            recent.append(_digest(txn))
            entries[_RECENT] = " ".join(recent[-RECENT_KEPT:])
    return entries


def _digest(txn: FreeTxn) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(txn.text.encode()).digest()[:12]).decode()
