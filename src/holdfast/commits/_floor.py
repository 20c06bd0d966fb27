"""No version shows a file that vacuum may have taken: decided without a clock or a request.

Whoever writes files has read a version before; files and commit are one piece of *work* that
was begun on that version. Vacuum lists what no version shows and raises a number in the table's
config, naming the list. Only after the number was raised once more does it delete by that list,
and only what still no version shows. The mark (`formats._vacuum_mark`) says which version raised
the number the time before: the floor.

- A file on the list was there before the version that closed the list, so its work was begun
  on an older version. When vacuum deletes by the list, that version is the floor: the work is
  refused.
- Work that was decided before the number was raised the second time is in a version that
  vacuum reads before it deletes: its files stay.

The floor is read in the very bytes that are decided. Work survives one raise of the number, so
it has at least the grace period, by which the number rises at most once.

A restore brings the config of an older version, and a change of the config may drop any entry:
there the mark of the version below is carried on. Stock's own restore asks nobody. So upon a
version that Holdfast did not make (the config says which ones it made), the lists are looked
for: a list with a higher number than the config's was put before that number was raised, so
the versions below are asked for their mark (`mark_above`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.arbiter import Arbiter
from holdfast.core import TableCore
from holdfast.errors import CorruptError, NotFoundError, StaleWorkError
from holdfast.formats import (
    VACUUM_FOLDER,
    Head,
    VacuumMark,
    decode_list,
    is_made_here,
    number_of_list,
    read_mark,
    version_name,
)
from holdfast.storage import ObjectStore

_MOST_READ = 64  # versions of strangers in a row; beyond them work is refused, not lost


def config_below(arbiter: Arbiter, head: Head) -> Mapping[str, str]:
    """Return the config of the version below; the version's own if there is none.

    Raises:
        CorruptError: it is no manifest.
        HoldfastError: the version below cannot be read; nothing is decided.
    """
    below = arbiter.read(version_name(head.version - 1)) if head.version > 1 else None
    return head.config if below is None else Head(below).config


def carried_mark(config: Mapping[str, str], above: VacuumMark) -> VacuumMark:
    """Return the mark that a version must have: its own, or the higher one that holds there.

    Raises:
        CorruptError: a mark cannot be read.
    """
    return max(read_mark(config), above, key=lambda one: one.number)


def mark_above(core: TableCore, config: Mapping[str, str], version: int) -> VacuumMark:
    """Return the mark that holds above a version, also if a stock writer took it back.

    Costs nothing upon a version that Holdfast made, and one listing upon another one.

    Raises:
        CorruptError: a mark or a version cannot be read.
        HoldfastError: a store gave no answer; nothing is decided.
    """
    mark = read_mark(config)
    if not version or is_made_here(config, version):
        return mark
    highest = max((number_of_list(info.path) for info in core.store.list(VACUUM_FOLDER)), default=0)
    if highest <= mark.number:
        return mark
    for below in range(version - 1, max(0, version - 1 - _MOST_READ), -1):
        body = core.arbiter.read(version_name(below))
        if body is None:
            break
        config_there = Head(body).config
        mark = max(mark, read_mark(config_there), key=lambda one: one.number)
        if is_made_here(config_there, below) or below == 1:
            return mark
    # Nobody knows how far vacuum came, so only what is begun from here on is surely not listed.
    return VacuumMark(number=highest, version=version, floor=version)


def check_floor(mark: VacuumMark, begun_on: int | None) -> None:
    """Refuse work whose files vacuum may have taken.

    Args:
        mark: of the version that is about to be decided.
        begun_on: the version that was read before the first file was written.

    Raises:
        StaleWorkError: it was begun too long ago, or nothing tells when.
    """
    if mark.floor and (begun_on is None or begun_on < mark.floor):
        raise StaleWorkError(
            "vacuum ran twice since this work was begun, so its files may be gone; nothing was "
            "committed: read the table again and write the files anew. Choose a grace period "
            "longer than your longest job",
            begun_on=begun_on,
            floor=mark.floor,
        )


def check_not_due(store: ObjectStore, mark: VacuumMark, files: Sequence[str]) -> None:
    """Refuse files of which nobody knows when they were written, if vacuum may take them now.

    What vacuum deletes at this number is on the list that is due; what it deleted before is
    not there any more. To be called with the mark that is about to be decided.

    Raises:
        StaleWorkError: a file is on the list, or gone.
        HoldfastError: the store gave no answer; nothing is decided.
    """
    if not files or (mark.due is None and not mark.floor):
        return
    if mark.due is None:
        raise StaleWorkError(
            "a restore by another program took back how far vacuum came, so nobody knows whether "
            "these files stay; nothing was committed: say for which read_version they were "
            "written, or write the rows anew",
            floor=mark.floor,
        )
    try:
        due = decode_list(mark.due, store.get(mark.due))
    except (NotFoundError, CorruptError) as error:
        raise StaleWorkError(
            "the list that vacuum deletes by cannot be read, so nobody knows whether these files "
            "stay; nothing was committed: say for which read_version they were written",
            path=mark.due,
        ) from error
    for path in files:
        if path in due or not _is_there(store.head, path):
            raise StaleWorkError(
                "vacuum takes this file, or has taken it: write the rows anew; nothing was "
                "committed",
                path=path,
            )


def _is_there(head: Callable[[str], object], path: str) -> bool:
    try:
        head(path)
    except NotFoundError:
        return False
    return True
