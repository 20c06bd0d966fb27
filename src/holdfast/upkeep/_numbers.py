"""The number of vacuum: no file goes that a commit may still bring, by no clock.

What a commit brings was written before, so "no version shows it" is not enough to delete a
file. `commits._floor` has the rule and why it holds; here are vacuum's steps:

| step                                             | left behind by a crash                   |
|--------------------------------------------------|------------------------------------------|
| 1 put a list of everything that no version shows | a list that no version names             |
| 2 raise the number, naming the list: one commit  | a raised number; the next vacuum goes on |
| 3 read every version once more                   | the same                                 |
| 4 delete what the list before names and still no | the rest; the next list has it           |
|   version shows                                  |                                          |

Step 2 is the decision. Two vacuums at the same time both put lists; one raises the number, the
other one goes on with the number that it finds. A list is never changed; one that is lost or
damaged deletes nothing. The list is of all ages and kinds, whatever vacuum was asked for: that
a file is not on it says that it came later, or that `rescue` may bring it back.

The number rises at most once per grace period, by the store's own stamp of the last list. If
that stamp is wrong, work is refused too early; none is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from holdfast.commits import Edit
from holdfast.errors import CommitUnknownError, ConflictError, CorruptError, NotFoundError
from holdfast.formats import (
    BUILDS_FOLDER,
    DATA_FOLDER,
    DELETIONS_FOLDER,
    INDICES_FOLDER,
    TRANSACTIONS_FOLDER,
    TXNS_FOLDER,
    Head,
    VacuumMark,
    decode_list,
    encode_list,
    read_mark,
)
from holdfast.upkeep._leftovers import Contents
from holdfast.upkeep._vacuum_files import rescuable

log = logging.getLogger("holdfast.upkeep")

NUMBERED = (
    DATA_FOLDER,
    DELETIONS_FOLDER,
    TRANSACTIONS_FOLDER,
    TXNS_FOLDER,
    INDICES_FOLDER,
    BUILDS_FOLDER,
)
"""The folders of files that commits bring."""

Touch = Callable[[Edit], object]
"""Makes a version that changes nothing but what an edit does; see `commits.touch`."""


class _OvertakenError(ConflictError):
    """Another vacuum raised the number meanwhile."""


def is_numbered(path: str) -> bool:
    """Tell whether an object is one that a commit may bring."""
    return path.startswith(tuple(f"{folder}/" for folder in NUMBERED))


def may_rise(contents: Contents) -> bool:
    """Tell whether the number may rise: the last list is as old as the grace period, or lost."""
    info = contents.objects.get(contents.mark.listed or "")
    return info is None or contents.is_old(info)


def read_due(contents: Contents, mark: VacuumMark, *, rising: bool = False) -> frozenset[str]:
    """Return what may be deleted at a mark, or once its number has risen.

    Raises:
        UnavailableError, PermissionDeniedError: the store did not tell.
    """
    path = mark.listed if rising else mark.due
    if path is None:
        return frozenset()
    try:
        return decode_list(path, contents.core.store.get(path))
    except (NotFoundError, CorruptError) as error:
        log.warning("nothing goes by a list of vacuum that cannot be read: %s", error)
        return frozenset()


def raise_number(contents: Contents, touch: Touch) -> None:
    """List what no version shows, and raise the number, unless somebody else did so.

    Whether it was raised, and by whom, the newest version tells: read it afterwards.

    Raises:
        HoldfastError: a store did not do its part; nothing was deleted.
    """
    mark = contents.mark
    unshown = {
        p: i for p, i in contents.objects.items() if is_numbered(p) and not contents.is_shown(p)
    }
    kept = rescuable(contents, unshown.values())  # they stay, so they may be committed any time
    path, body = encode_list(mark.number + 1, unshown.keys() - kept)
    # The list before the version that names it: a crash leaves a list that nobody follows.
    contents.core.store.put(path, body)

    def edit(manifest: bytes) -> bytes:
        head = Head(manifest)
        # Compared inside the version that is being decided: of two vacuums at the same time one
        # raises it.
        if read_mark(head.config) != mark:
            raise _OvertakenError("another vacuum raised the number meanwhile")
        return head.with_config(mark.next(head.version, path).entry)

    with suppress(ConflictError, CommitUnknownError):
        touch(edit)
