"""Which table is in a place: what its pin says.

A table that is removed and made anew has another pin. So a handle of the old one looks at the
pin where it writes: a commit store's arbiter as `_stale` says, and with put-if-absent, which
knows no table ids, around each decision of a version or a shard's manifest:

| the handle's table was made anew ...  | then                                                |
|---------------------------------------|-----------------------------------------------------|
| before the first look                 | refused, and nothing is written                     |
| between the look and the put          | the second look finds it: the handle takes its own  |
|                                       | object back and is refused, so nothing is promised  |
| after the second look                 | what was acknowledged went with the old table       |

What is assumed: between the put and the second look nobody builds on that object, and the
handle's process does not end there. A commit store assumes neither.

A plain append pays no request for its looks. On local disk none is one. On an object store each
version says in its config of which table it is, so the version that is built on is the first look;
and the listing after the put, which is made anyway, has the digest of that version: if it is
another one by then, or not told, the pin is looked at. What pylance stages upon a version that this
process decided for it is spared the second look in the same way. Log entries are looked at only
before the put, and only on local disk: on an object store that decides by put-if-absent, nobody may
make a table anew under a running writer of its log.
"""

from __future__ import annotations

from holdfast.errors import NotFoundError, StaleHandleError
from holdfast.formats import PIN_PATH, Pin, decode_pin
from holdfast.storage import ObjectStore


def read_pin(store: ObjectStore) -> Pin | None:
    """Return the pin of the table in `store`, or None.

    Raises:
        CorruptError: it cannot be read.
    """
    try:
        return decode_pin(store.get(PIN_PATH))
    except NotFoundError:
        return None


def refuse_replaced(store: ObjectStore, pin: Pin) -> None:
    """Return if the table that `pin` names is still the one in `store`.

    Raises:
        StaleHandleError: another one is there, or none.
        CorruptError, UpgradeError: the pin there cannot be read.
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    # No pin at all is refused like another one: a table that was dropped or released has no
    # writers.
    there = read_pin(store)
    if there is None or there.table_id != pin.table_id:
        raise StaleHandleError(
            "the table of this handle was removed, made anew or released since: open it again",
            location=store.location,
            opened=pin.table_id,
            there=None if there is None else there.table_id,
        )
