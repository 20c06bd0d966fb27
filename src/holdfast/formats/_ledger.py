"""The ledger: which transactions a table version has applied, kept in its table config.

One entry per application (`holdfast.txn.app.NAME` -> number) and one for the newest free
strings (`holdfast.txn.recent`: 16-character digests, oldest first). Stock writers carry the
config on, `restore` rolls it back with the rows it speaks of.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping

from holdfast.errors import CorruptError
from holdfast.txn import AppTxn, FreeTxn, Txn

RECENT_KEPT = 256
_APP = "holdfast.txn.app."
_RECENT = "holdfast.txn.recent"


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


def record_txns(config: Mapping[str, str], txns: Iterable[Txn]) -> dict[str, str]:
    """Return the config entries to set in the version that applies `txns`."""
    entries: dict[str, str] = {}
    recent = config.get(_RECENT, "").split()
    for txn in txns:
        if isinstance(txn, AppTxn):
            highest = max(txn.number, int(entries.get(_APP + txn.app, "-1")))
            entries[_APP + txn.app] = str(highest)
        else:
            recent.append(_digest(txn))
            entries[_RECENT] = " ".join(recent[-RECENT_KEPT:])
    return entries


def _digest(txn: FreeTxn) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(txn.text.encode()).digest()[:12]).decode()
