"""Which table is in a place now, and what a stale handle of an earlier one left there.

A table that is removed and made anew gets a new id, and the old id is retired in the commit
store first. So a handle of the old table can decide, read and confirm nothing any more. One
thing is left to it: a copy to a name whose record it read before. What comes of that:

| the stale handle stalls ...        | then                                                |
|------------------------------------|-----------------------------------------------------|
| before it looks at the pin         | it finds another table's pin, or none: no copy      |
| between the look and the copy      | old bytes at a name; the record of the retired      |
|                                    | table tells whose they are (`is_stale_copy`), and   |
|                                    | whoever meets them puts the decided bytes back      |
| after the copy                     | its confirmation is refused: nothing is promised    |
"""

from __future__ import annotations

from holdfast.arbiter._addresses import location_series
from holdfast.arbiter._commit_store import CommitStore, Key
from holdfast.formats import Name, Pin, decode_pin, decode_record
from holdfast.storage import ObjectStore


def is_stale_copy(
    store: ObjectStore, commit_store: CommitStore, pin: Pin, name: Name, body: bytes
) -> bool:
    """Tell whether the bytes at a name were decided for a table that was here before this one.

    Raises:
        UnavailableError, PermissionDeniedError: the commit store did not tell.
    """
    for entry in commit_store.scan(location_series(store)):
        earlier = decode_pin(entry.value).table_id
        key = Key(f"{earlier}/{name.series}", name.number)
        if earlier == pin.table_id:
            continue
        # Retiring keeps the records: they alone prove whose bytes these are.
        value = commit_store.get(key, retired=True)
        if value is not None and decode_record(value).matches(body):
            return True
    return False
