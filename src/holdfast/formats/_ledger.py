"""The ledger: which transactions a table version has applied, kept in its table config.

| entry                    | holds                                                            |
|--------------------------|------------------------------------------------------------------|
| `holdfast.txn.app.NAME`  | the numbers of an application, as ranges: `0-41,43`              |
| `holdfast.txn.recent`    | digests of the newest free strings, oldest first                 |
| `holdfast.txn.own`       | the same of ids that Holdfast made up for its own commits        |
| `holdfast.txn.older`     | names of files with all older digests, largest first             |
| `holdfast.txn.here`      | what this very version applied, for its history                  |
| `holdfast.txn.created`   | the digest of the string or number that created the table        |

Nothing is forgotten and nothing is guessed. Stock writers carry the config on, `restore` rolls
it back with the rows it speaks of. What is not in the config is in the files that it names
(`_txn_file`); who reads and writes those is `holdfast.commits`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats._ranges import Ranges
from holdfast.formats._txn_file import TxnFile, digest_of, spell, unspell
from holdfast.txn import AppTxn, FreeTxn, OwnTxn, Txn

RECENT_KEPT = 256
"""How many free strings are in the config at most; half of them move to a file then."""
OWN_KEPT = 32
MOST_RANGES = 256
"""Of how many ranges the numbers of one application may be made."""

_PREFIX = "holdfast.txn."
_APP = f"{_PREFIX}app."
_RECENT = f"{_PREFIX}recent"
_OWN = f"{_PREFIX}own"
_OLDER = f"{_PREFIX}older"
_HERE = f"{_PREFIX}here"
_CREATED = f"{_PREFIX}created"
_KEPT = {_RECENT: RECENT_KEPT, _OWN: OWN_KEPT}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the version that applies transactions gets.

    Attributes:
        entries: the config entries to set, or to remove where the value is None.
        moved: the digests that must be in files, since the config has no room for them.
    """

    entries: dict[str, str | None]
    moved: bytes


def is_in_config(config: Mapping[str, str], txn: Txn) -> bool:
    """Tell whether the config itself says that a transaction is applied.

    It always does for a pair (app, number). A string may be in the files that it names, too.

    Raises:
        CorruptError: the config's entry cannot be read.
    """
    if isinstance(txn, AppTxn):
        return txn.number in numbers_of(config, txn.app)
    return spell(digest_txn(txn)) in config.get(_ring(txn), "").split()


def older_files(config: Mapping[str, str]) -> list[TxnFile]:
    """Return the files that hold what is not in the config any more, largest first.

    Raises:
        CorruptError: the config's entry cannot be read.
    """
    return [TxnFile.parse(name) for name in config.get(_OLDER, "").split()]


def name_older(files: Sequence[TxnFile]) -> dict[str, str | None]:
    """Return the config entry that names these files."""
    return {_OLDER: " ".join(file.name for file in files) or None}


def applied_here(config: Mapping[str, str]) -> tuple[str, ...]:
    """Return the transactions that this very version applied.

    Raises:
        CorruptError: the config's entry cannot be read.
    """
    try:
        txns = json.loads(config.get(_HERE, "[]"))
    except ValueError as error:
        raise CorruptError("the list of applied transactions cannot be read") from error
    if not isinstance(txns, list) or not all(isinstance(txn, str) for txn in txns):
        raise CorruptError("the list of applied transactions cannot be read")
    return tuple(txns)


def record_txns(config: Mapping[str, str], txns: Sequence[Txn]) -> Recorded:
    """Return what the version gets that applies `txns`, none of which is applied yet.

    Raises:
        CorruptError: an entry of the config cannot be read.
        InvalidInputError: the numbers of an application have too many gaps.
    """
    entries: dict[str, str | None] = {_HERE: None}
    if txns:
        entries[_HERE] = json.dumps([str(txn) for txn in txns])
    entries.update(_app_entries(config, [txn for txn in txns if isinstance(txn, AppTxn)]))
    moved = b""
    for ring, kept in _KEPT.items():
        added = [
            spell(digest_txn(t)) for t in txns if not isinstance(t, AppTxn) and _ring(t) == ring
        ]
        if added:
            digests = [*config.get(ring, "").split(), *added]
            stay = digests if len(digests) <= kept else digests[len(digests) - kept // 2 :]
            entries[ring] = " ".join(stay)
            moved += b"".join(_unspell(one) for one in digests[: len(digests) - len(stay)])
    return Recorded(entries, moved)


def carried_ledger(config: Mapping[str, str], below: Mapping[str, str]) -> dict[str, str | None]:
    """Return the entries that a changed config must get back from the version below it."""
    names = {key for key in (*config, *below) if key.startswith(_PREFIX) and key != _HERE}
    return {key: below.get(key) for key in names if config.get(key) != below.get(key)}


def forget_history(entries: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return entries without what one version applied, for a ledger that has no versions."""
    return {key: value for key, value in entries.items() if key != _HERE}


def check_gaps(app: str, numbers: Ranges) -> None:
    """Refuse numbers of an application that are too many ranges to remember.

    Raises:
        InvalidInputError: they are.
    """
    if len(numbers) > MOST_RANGES:
        raise InvalidInputError(
            "the numbers of this app have too many gaps to remember each of them; nothing was "
            "committed: commit the numbers that are missing first, go on under another app "
            "name, or use strings as transaction ids where numbers do not follow each other",
            app=app,
            ranges=len(numbers),
            most=MOST_RANGES,
        )


def creation_mark(txn: Txn) -> dict[str, str | None]:
    """Return the config entry of a table that a transaction creates."""
    return {_CREATED: spell(digest_txn(txn))}


def is_created_by(config: Mapping[str, str], txn: Txn) -> bool:
    """Tell whether a transaction created the table."""
    return config.get(_CREATED) == spell(digest_txn(txn))


def digest_txn(txn: Txn) -> bytes:
    """Return what stands for a transaction where there is little room."""
    match txn:
        case AppTxn(app, number):
            return digest_of("app", json.dumps([app, number]))
        case FreeTxn(text):
            return digest_of("free", text)
        case OwnTxn(text):
            return digest_of("own", text)


def _app_entries(config: Mapping[str, str], txns: Sequence[AppTxn]) -> dict[str, str]:
    changed: dict[str, Ranges] = {}
    for txn in txns:
        numbers = changed.get(txn.app) or numbers_of(config, txn.app)
        changed[txn.app] = numbers.with_range(0 if txn.in_order else txn.number, txn.number)
    for app, numbers in changed.items():
        check_gaps(app, numbers)
    return {_APP + app: str(numbers) for app, numbers in changed.items()}


def numbers_of(config: Mapping[str, str], app: str) -> Ranges:
    """Return the numbers of an application that are applied.

    Raises:
        CorruptError: the config's entry cannot be read.
    """
    text = config.get(_APP + app)
    if text is None:
        return Ranges()
    try:
        return Ranges.parse(text)
    except ValueError as error:
        raise CorruptError("a transaction entry cannot be read", app=app) from error


def _ring(txn: FreeTxn | OwnTxn) -> str:
    return _OWN if isinstance(txn, OwnTxn) else _RECENT


def _unspell(text: str) -> bytes:
    try:
        return unspell(text)
    except ValueError as error:
        raise CorruptError("the newest transaction ids cannot be read", entry=text[:80]) from error
