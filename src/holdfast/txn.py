"""Transaction ids: a write repeated under the same id is applied once, whenever it is repeated.

- `("app", number)`: for jobs and streams that count their batches. The numbers of each app are
  kept for ever, as ranges, so they may come in any order. They should follow each other: an app
  whose numbers have more than 255 gaps gets an `InvalidInputError` before anything is written.
- a free string: for everything else. Kept for ever, too: the newest 256 in the table's config,
  all older ones in files that it names.

Ids are part of a version: `restore` takes them back together with the rows that they speak of.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.errors import InvalidInputError

_MAX_CHARS = 200
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AppTxn:
    """The n-th write of an application.

    Attributes:
        app: whose.
        number: which one.
        in_order: the application never comes back to a number below this one, so all of them
            count as applied; for streams, whose empty batches make no version.
    """

    app: str
    number: int
    in_order: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.app}:{self.number}"


@dataclass(frozen=True, slots=True)
class FreeTxn:
    """One write, by a name of its own."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class OwnTxn:
    """One write, by a name that Holdfast made up for it; no user's string is the same."""

    text: str

    def __str__(self) -> str:
        return self.text


Txn = AppTxn | FreeTxn | OwnTxn
TxnLike = Txn | tuple[str, int] | str
"""What users may give: a pair, a string, or one of the classes above."""


def parse_txn(value: TxnLike) -> Txn:
    """Return the transaction id behind what a user gave.

    Raises:
        InvalidInputError: it is neither a pair (app, number) nor a string.
    """
    match value:
        case AppTxn(app, number, in_order):
            parse_txn((app, number))
            return AppTxn(app, number, bool(in_order))
        case FreeTxn(text):
            return parse_txn(text)
        case OwnTxn(text):
            return OwnTxn(_check_text(text, "a transaction id"))
        case str():
            return FreeTxn(_check_text(value, "a transaction id"))
        case (str() as app, int() as number) if not isinstance(number, bool):
            if not 0 <= number <= _MAX_NUMBER:
                raise InvalidInputError("a transaction number is 0 to 2**63-1", number=number)
            return AppTxn(_check_text(app, "an application's name"), number)
    raise InvalidInputError(
        "a transaction id is a pair (app, number) or a string", given=repr(value)[:80]
    )


def _check_text(text: str, what: str) -> str:
    if not 0 < len(text) <= _MAX_CHARS or not text.isprintable():
        raise InvalidInputError(f"{what} has 1 to {_MAX_CHARS} printable characters")
    return text
