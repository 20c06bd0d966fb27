"""Transaction ids: a write repeated under the same id is applied once.

- `("app", number)`: one number is kept per app, for ever. A number that is not greater
  than the one kept was applied. For jobs and streams that count their batches.
- a free string: kept among the newest 256 of the table. For one-off jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import InvalidInputError

_MAX_CHARS = 200
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AppTxn:
    """The n-th write of an application."""

    app: str
    number: int

    def __str__(self) -> str:
        return f"{self.app}:{self.number}"


@dataclass(frozen=True, slots=True)
class FreeTxn:
    """One write, by a name of its own."""

    text: str

    def __str__(self) -> str:
        return self.text


Txn = AppTxn | FreeTxn
TxnLike = Txn | tuple[str, int] | str
"""What users may give: a pair, a string, or one of the classes above."""


def parse_txn(value: TxnLike) -> Txn:
    """Return the transaction id behind what a user gave.

    Raises:
        InvalidInputError: it is neither a pair (app, number) nor a string.
    """
    match value:
        case AppTxn(app, number):
            return parse_txn((app, number))
        case FreeTxn(text):
            return parse_txn(text)
        case str():
            return FreeTxn(_checked(value, "a transaction id"))
        case (str() as app, int() as number) if not isinstance(number, bool):
            if not 0 <= number <= _MAX_NUMBER:
                raise InvalidInputError("a transaction number is 0 to 2**63-1", number=number)
            return AppTxn(_checked(app, "an application's name"), number)
    raise InvalidInputError(
        "a transaction id is a pair (app, number) or a string", given=repr(value)[:80]
    )


def _checked(text: str, what: str) -> str:
    if not 0 < len(text) <= _MAX_CHARS or not text.isprintable():
        raise InvalidInputError(f"{what} has 1 to {_MAX_CHARS} printable characters")
    return text
