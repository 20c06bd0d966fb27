"""`Pin`: the small object in a table that ties it to its arbiter.

It names the table by a random id and the commit store by *its* random id, never by an
address: one bucket may have two endpoints, one database two host names. The location and
the URL (without credentials) are kept to find and to explain.

`v` is the number of the format in which the whole table is written: what Holdfast keeps in
its folder, in the config of its versions, in its logs and in the commit store. Whoever opens
a table must know it. A change that an older Holdfast would misread or undo raises the number.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from holdfast.errors import CorruptError, UpgradeError

FORMAT = 1
"""The newest format of a table that this Holdfast reads and writes."""


class ArbiterKind(StrEnum):
    """Who decides the names of a table."""

    CONDITIONAL_PUT = "conditional-put"
    COMMIT_STORE = "commit-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What a table says about who decides for it."""

    table_id: str
    arbiter: ArbiterKind
    location: str
    store_id: str | None = None
    store_url: str | None = None


def encode_pin(pin: Pin) -> bytes:
    """Return the bytes of a pin; equal pins give equal bytes."""
    return json.dumps({"v": FORMAT, **asdict(pin)}, indent=1, sort_keys=True).encode()


def decode_pin(body: bytes) -> Pin:
    """Return the pin behind its bytes.

    Raises:
        UpgradeError: a newer Holdfast wrote the table.
        CorruptError: they are no pin.
    """
    try:
        fields = json.loads(body)
        number = fields.pop("v")
        if isinstance(number, int) and number > FORMAT:
            raise UpgradeError(
                "this table was written by a newer Holdfast: upgrade", format=number, known=FORMAT
            )
        if number != FORMAT or isinstance(number, bool):
            raise CorruptError("the table's pin cannot be read", format=repr(number)[:40])
        pin = Pin(**{**fields, "arbiter": ArbiterKind(fields["arbiter"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError("the table's pin cannot be read") from error
    if not all(isinstance(v, str) or v is None for v in asdict(pin).values()):
        raise CorruptError("the table's pin cannot be read")
    if pin.arbiter is ArbiterKind.COMMIT_STORE and not (pin.store_id and pin.store_url):
        raise CorruptError("the table's pin names no commit store")
    return pin
