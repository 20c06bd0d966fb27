"""Index builds that were abandoned, what finished ones left, and index files of no version.

A build is taken as a whole or not at all: if anything of it is younger than the grace
period (its record, an attempt's note, a staged or a final file), it may be running. Whoever
resumes a build writes its record again, so it is young from then on. Files of an index that
some version shows are never taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from holdfast.arbiter import SupportsSeries
from holdfast.errors import InvalidInputError
from holdfast.formats import (
    BUILDS_FOLDER,
    INDICES_FOLDER,
    Name,
    attempt_of,
    build_id_of,
    build_record_path,
    check_index_id,
)
from holdfast.storage import ObjectInfo
from holdfast.upkeep._leftovers import Contents


def find_indexes(contents: Contents) -> Iterator[tuple[ObjectInfo, str]]:
    """Objects of builds that nobody works on, and index files that no version shows."""
    for objects, of_build in _groups(contents.objects.values()):
        if not all(contents.is_old(info) for info in objects):
            continue
        for info in objects:
            if not _is_shown(contents, info.path):
                yield info, _reason(info.path, of_build=of_build)


def take_indexes(contents: Contents, paths: Collection[str]) -> set[str]:
    """Delete builds that are still as they were; records go first, so nobody resumes them."""
    now = [*contents.core.store.list(BUILDS_FOLDER), *contents.core.store.list(INDICES_FOLDER)]
    gone: set[str] = set()
    for objects, _ in _groups(now):
        if not all(info.path in contents.objects and contents.is_old(info) for info in objects):
            continue
        wanted = [info.path for info in objects if not _is_shown(contents, info.path)]
        if not set(wanted) <= set(paths):
            continue  # something of it came since
        records = [path for path in wanted if path.startswith(f"{BUILDS_FOLDER}/")]
        contents.core.store.delete([path for path in records if path.endswith("/build.json")])
        if isinstance(contents.core.arbiter, SupportsSeries):
            for path in records:
                contents.core.arbiter.accept(Name.single(path).series, 0)
        contents.core.store.delete(wanted)
        gone.update(wanted)
    return gone


def _groups(objects: Collection[ObjectInfo]) -> Iterator[tuple[list[ObjectInfo], bool]]:
    """Yield what belongs together: each build with its attempts, then folders of no build."""
    builds: dict[str, list[ObjectInfo]] = defaultdict(list)
    folders: dict[str, list[ObjectInfo]] = defaultdict(list)
    owners: dict[str, str] = {}
    for info in objects:
        build = build_id_of(info.path)
        if build is not None:
            builds[build].append(info)
            owners[build] = build
            owners[attempt_of(info.path) or build] = build
        elif info.path.startswith(f"{INDICES_FOLDER}/"):
            folders[info.path.split("/")[1]].append(info)
    for folder, files in list(folders.items()):
        if folder in owners:
            builds[owners[folder]].extend(files)
            del folders[folder]
    yield from ((files, True) for files in builds.values())
    yield from ((files, False) for folder, files in folders.items() if _is_index(folder))


def _is_index(folder: str) -> bool:
    try:
        check_index_id(folder)
    except InvalidInputError:
        return False
    return True


def _is_shown(contents: Contents, path: str) -> bool:
    """Tell whether a version shows the index that a file belongs to."""
    parts = path.split("/")
    return parts[0] == INDICES_FOLDER and f"{INDICES_FOLDER}/{parts[1]}/" in contents.needed


def _reason(path: str, *, of_build: bool) -> str:
    if not of_build:
        return "no version shows this index"
    build = build_id_of(path)
    if build is not None and path != build_record_path(build):
        return "a record of an index build that is over"
    return "of an index build that nobody works on"
