"""Branches as `vacuum` sees them: Lance keeps each in a folder of its own below `tree`.

Holdfast makes none, but a table may have some from before. What their versions show of the main
table's files stays, and so does the version that a branch began at. What is below `tree` is
theirs, except where an attempt to make a branch failed: that has no version and no entry.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from urllib.parse import unquote

from holdfast.errors import CorruptError, NotFoundError
from holdfast.formats import is_path
from holdfast.storage import ObjectInfo, ObjectStore

BRANCHES_FOLDER = "tree"
REFS_FOLDER = "_refs/branches"
_PARTS = ("_versions", "_transactions", "data", "_deletions", "_indices", "_refs")
_REF = ".json"
_REF_NAME = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9._%-]*\.json")


def branch_manifests(paths: Collection[str]) -> list[str]:
    """Return the manifests of all versions of all branches."""
    inside = (path for path in paths if path.startswith(f"{BRANCHES_FOLDER}/"))
    return [path for path in inside if "/_versions/" in path and path.endswith(".manifest")]


def failed_branches(objects: Mapping[str, ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    """Yield what belongs together of each branch that was begun and is none."""
    refs = (path for path in objects if path.startswith(f"{REFS_FOLDER}/"))
    known = {unquote(path[len(REFS_FOLDER) + 1 :].removesuffix(_REF)) for path in refs}
    folders: dict[str, list[ObjectInfo]] = defaultdict(list)
    for path, info in objects.items():
        if path.startswith(f"{BRANCHES_FOLDER}/"):
            folders[_branch_of(path)].append(info)
    for name, files in folders.items():
        versions = [info for info in files if "/_versions/" in info.path]
        if unquote(name) not in known and not versions:
            yield files


def branch_parents(store: ObjectStore) -> set[int]:
    """Return the versions that branches began at.

    Raises:
        CorruptError: a branch's entry cannot be read.
    """
    return read_references(store, REFS_FOLDER, "parentVersion")


def read_references(store: ObjectStore, folder: str, key: str) -> set[int]:
    """Return the versions that the tags or branches in a folder name under a key.

    Files with names that Lance gives to neither are passed over.

    Raises:
        CorruptError: one cannot be read.
    """
    versions: set[int] = set()
    for info in store.list(folder):
        if not _REF_NAME.fullmatch(info.path[len(folder) + 1 :]):
            continue
        if not is_path(info.path):
            raise CorruptError("a tag or branch has a name that is not read here", path=info.path)
        try:
            versions.add(int(json.loads(store.get(info.path))[key]))
        except NotFoundError:  # removed meanwhile
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError("a tag or branch cannot be read", path=info.path) from error
    return versions


def _branch_of(path: str) -> str:
    """Return the name of a branch that an object belongs to; names may have slashes."""
    parts = path.split("/")[1:]
    end = next((n for n, part in enumerate(parts) if part in _PARTS), len(parts) - 1)
    return "/".join(parts[:end])
