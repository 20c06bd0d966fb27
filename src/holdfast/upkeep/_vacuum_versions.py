"""What `vacuum` takes of old versions: their manifests, and their records in a commit store.

Only when told for how long versions are kept, and from the oldest on: a version goes when a
newer one has stood for that long, so whoever reads it has been at it for longer. The newest
stays whatever its age, and so does one that has a tag, that a branch began at, or that a pinned
snapshot reads.

The order is the safety: finish what is decided and not in place, raise the boundary, durably,
drop the records behind it, and only then delete manifests. A writer that slept through it and
comes with an old name is refused by the commit store, or finds the boundary; see
`holdfast.commits._boundary`. The files that only these versions showed are leftovers of their
own kinds, taken after the manifests.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from holdfast.arbiter import SupportsSeries
from holdfast.commits import VersionsBoundary, unfinished_versions
from holdfast.errors import CorruptError
from holdfast.formats import VERSIONS_SERIES, version_name, version_of
from holdfast.read import read_pins
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.upkeep._branches import branch_parents, read_references
from holdfast.upkeep._leftovers import Contents

log = logging.getLogger("holdfast.upkeep")

TAGS_FOLDER = "_refs/tags"


def find_versions(contents: Contents) -> Iterator[tuple[ObjectInfo, str]]:
    """Manifests of versions that nobody keeps."""
    for version in sorted(contents.going):
        info = contents.objects.get(version_name(version).path)
        if info is not None:
            yield info, "a newer version came longer ago than versions are kept"


def take_versions(contents: Contents, paths: Collection[str]) -> set[str]:
    """Raise the boundary, drop the records behind it, delete the manifests; return what went."""
    wanted = {version_of(path) for path in paths}
    going = sorted(version for version in contents.going if version in wanted)
    if not going:
        return set()
    through = going[-1]
    # Below the boundary the objects count, so a decided version without its object would be gone.
    _finish(contents, through)
    # Before anything is deleted: a writer that slept for days could otherwise create the free name
    # again, far below the newest version, and take that for a commit.
    VersionsBoundary(contents.core.store).raise_to(through)
    if isinstance(contents.core.arbiter, SupportsSeries):
        contents.core.arbiter.accept(VERSIONS_SERIES, through)
    gone = [version_name(version).path for version in going]
    contents.core.store.delete(gone)
    return set(gone)


def _finish(contents: Contents, through: int) -> None:
    """Put decided versions in place: what counts behind the boundary are the objects."""
    there = (version_of(path) for path in contents.objects)
    for version in unfinished_versions(contents.records, (one for one in there if one is not None)):
        if version <= through:
            contents.core.arbiter.read(version_name(version))


def versions_that_go(contents: Contents, listed: Mapping[int, ObjectInfo]) -> set[int]:
    """Return the versions that nobody keeps.

    Pins are read after it is known what would go, as `holdfast.read._pins` asks for. While a
    tag, a branch or a pin cannot be read, all versions stay: nobody knows which one it means.
    """
    if contents.keep_versions_for is None:
        return set()
    old: list[int] = []
    # By the age of the version after it: an old version that was the newest until yesterday has
    # been read until yesterday.
    for version, newer in pairwise(sorted(listed)):
        if contents.age(listed[newer]) <= contents.keep_versions_for:
            break
        old.append(version)
    if not old:
        return set()
    pins = read_pins(contents.core.store, contents.now)
    if any(pin.record is None for pin in pins):
        return set()
    pinned = {pin.record.base_version for pin in pins if pin.record is not None}
    try:
        return (
            set(old)
            - pinned
            - tagged_versions(contents.core.store)
            - branch_parents(contents.core.store)
        )
    except CorruptError as error:
        log.warning("all versions stay: %s", error)
        return set()


def tagged_versions(store: ObjectStore) -> set[int]:
    """Return the versions that have a tag.

    Raises:
        CorruptError: a tag cannot be read.
    """
    return read_references(store, TAGS_FOLDER, "version")
