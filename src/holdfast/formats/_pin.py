"""`Pin`: the small object in a table that ties it to its arbiter.

It names the table by a random id and the commit store by *its* random id, never by an
address: one bucket may have two endpoints, one database two host names. The location and
the URL (without credentials) are kept to find and to explain.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from holdfast.errors import CorruptError

_FORMAT = 1


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
    return json.dumps({"v": _FORMAT, **asdict(pin)}, indent=1, sort_keys=True).encode()


def decode_pin(body: bytes) -> Pin:
    """Return the pin behind its bytes.

    Raises:
        CorruptError: they are not a pin of a known format.
    """
    try:
        fields = json.loads(body)
        if fields.pop("v") != _FORMAT:
            raise CorruptError("a pin of a newer format: upgrade Holdfast")
        pin = Pin(**{**fields, "arbiter": ArbiterKind(fields["arbiter"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError("the table's pin cannot be read") from error
    if not all(isinstance(v, str) or v is None for v in asdict(pin).values()):
        raise CorruptError("the table's pin cannot be read")
    if pin.arbiter is ArbiterKind.COMMIT_STORE and not (pin.store_id and pin.store_url):
        raise CorruptError("the table's pin names no commit store")
    return pin
