"""Is a version that put-if-absent just gave us the newest, or below one that builds on it?

Put-if-absent gives a name away again once its object was deleted. A writer that stops before
its put, while others commit and `vacuum` or pylance's `cleanup_old_versions` removes old
manifests, wins the name of an old version: a version that nobody will ever read. So whoever
wins lists the versions before it acknowledges; no clock takes part.

The newest version is never deleted. So when a version was decided above ours before our put,
that one or a newer one is in the listing. Then ours counts only if it is shown to be below:

| what the version above ours, or the newest, has    | outcome                                  |
|-----------------------------------------------------|------------------------------------------|
| our token: as the one before it, or carried on      | acknowledged                             |
| all the files that we added                         | acknowledged                             |
| our transactions, or some of them                   | these are applied; the others try again  |
| none of them, and we have transactions              | a conflict: we try again on the newest   |
| nothing, and we have no transaction                 | unknown                                  |

Nothing is written here, so a crash leaves what was there: a version, or a manifest at an old
name that the next clean-up takes.

What is assumed: a listing shows what was put before it began. One page of an object store's
listing is taken for one moment. A local folder is read in several steps, in which a version
may come and its predecessor go; `vacuum` raises its boundary before it deletes, so that is
noticed; for pylance's clean-up it is assumed not to happen within one listing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from holdfast.commits._boundary import VersionsBoundary
from holdfast.errors import CommitUnknownError, HoldfastError, NotFoundError
from holdfast.formats import (
    VERSIONS_FOLDER,
    Name,
    carries_mark,
    newest_version,
    read_config,
    shown_files,
    version_name,
)
from holdfast.storage import (
    ObjectInfo,
    ObjectStore,
    SupportsFirstNames,
    SupportsFirstObjects,
    SupportsLocalFiles,
)

_TRIES = 5


class Overtaking(NamedTuple):
    """The newest version, above ours, with nothing that shows ours to be below.

    Attributes:
        version: which one.
        manifest: its bytes.
        alone: the version next to ours is gone, so nobody can have built on ours.
    """

    version: int
    manifest: bytes
    alone: bool


def find_newest(store: ObjectStore) -> int | None:
    """Return the newest version that is there, by listing; None if there is none.

    Version names sort newest first: one page of a listing is enough where it comes in order.

    Raises:
        HoldfastError: the store did not tell.
    """
    newest = find_newest_object(store)
    return None if newest is None else newest.version


class Newest(NamedTuple):
    """The newest version that is there, and what the listing told beside it.

    Attributes:
        version: which one.
        md5: the digest of its bytes, where the store told it.
        listed: what is there, by its file's name; nothing where the store told names only.
    """

    version: int
    md5: str | None
    listed: Mapping[str, ObjectInfo] = MappingProxyType({})

    def md5_of(self, version: int) -> str | None:
        """Return the digest of any version's bytes; None where the listing does not tell it."""
        info = self.listed.get(posixpath.basename(version_name(version).path))
        return None if info is None else info.md5


def find_newest_object(store: ObjectStore) -> Newest | None:
    """Return the newest version that is there, and what a listing tells of it; None without one.

    Raises:
        HoldfastError: the store did not tell.
    """
    if isinstance(store, SupportsFirstNames):
        number = newest_version(store.first_names(VERSIONS_FOLDER))
        if number is not None:
            return Newest(number, None)
    if isinstance(store, SupportsFirstObjects):
        newest = _newest_of(store.first_objects(VERSIONS_FOLDER))
        if newest is not None:
            return newest  # else there may be a page of names that are no version's
    return _newest_of(store.list(VERSIONS_FOLDER))


def _newest_of(listed: Sequence[ObjectInfo]) -> Newest | None:
    by_name = {posixpath.basename(info.path): info for info in listed}
    number = newest_version(list(by_name))
    if number is None:
        return None
    return Newest(number, by_name[posixpath.basename(version_name(number).path)].md5, by_name)


def find_overtaking(
    store: ObjectStore,
    name: Name,
    token: str,
    files: Collection[str] = (),
    look: Callable[[Newest], None] | None = None,
) -> Overtaking | None:
    """Return what overtook the version that we just decided; None if ours counts.

    Args:
        store: where the versions are.
        name: the name that was won.
        token: what marks our manifest.
        files: data files that our version added, as paths in the table.
        look: is given what was listed; its errors are raised.

    Raises:
        CommitUnknownError: the store did not tell.
    """
    for _ in range(_TRIES):
        try:
            newest_object = find_newest_object(store)
            newest = 0 if newest_object is None else newest_object.version
            ours = newest == name.number and not _is_collected(store, name)
            overtaking = None
            if newest > name.number:
                overtaking = _compare(store, name, newest, token, files)
        except NotFoundError:
            continue  # it was collected meanwhile, so there is a newer one
        except HoldfastError as error:
            raise _unclear(name) from error
        if newest_object is not None and (ours or newest > name.number):
            if look is not None:
                look(newest_object)
            return overtaking
    raise _unclear(name)


def _compare(
    store: ObjectStore, name: Name, newest: int, token: str, files: Collection[str]
) -> Overtaking | None:
    above = _manifest(store, name.number + 1)
    if above is not None and _builds_on(above, token, files):
        return None
    last = above if newest == name.number + 1 else None
    manifest = last or store.get(version_name(newest).path)
    if _builds_on(manifest, token, files):
        return None
    return Overtaking(newest, manifest, alone=above is None)


def _builds_on(manifest: bytes, token: str, files: Collection[str]) -> bool:
    if carries_mark(read_config(manifest), token):
        return True
    return bool(files) and shown_files(manifest).issuperset(files)


def _manifest(store: ObjectStore, version: int) -> bytes | None:
    try:
        return store.get(version_name(version).path)
    except NotFoundError:
        return None


def _is_collected(store: ObjectStore, name: Name) -> bool:
    """Tell whether a local folder, read in several steps, may have hidden a newer version."""
    return isinstance(store, SupportsLocalFiles) and VersionsBoundary(store).read() >= name.number


def _unclear(name: Name) -> CommitUnknownError:
    return CommitUnknownError(
        "decided, but not shown to be the newest version or below it: repeat it with the same txn",
        name=name.path,
        decided=True,
    )
