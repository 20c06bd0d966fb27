"""The folder in which Lance keeps the manifests of a table's versions."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from holdfast.formats._names import version_name, version_of

VERSIONS_FOLDER = posixpath.dirname(version_name(1).path)

HINT_PATH = f"{VERSIONS_FOLDER}/latest_version_hint.json"
"""Where Lance keeps which version was newest a moment ago, to look on from there."""

_LENGTH = len(posixpath.basename(version_name(1).path))


def newest_version(files: Sequence[str]) -> int | None:
    """Return the newest version among the names of the files there; None if there is none.

    The newest sorts first, so ten thousand names need not be taken apart.
    """
    first = min(files, default="")
    if not _is_whole(first):  # something that is being written
        first = min(filter(_is_whole, files), default="")
    return version_of(f"{VERSIONS_FOLDER}/{first}")


def _is_whole(file: str) -> bool:
    return len(file) == _LENGTH and file.endswith(".manifest") and file.isascii()


def hint_of(version: int) -> bytes:
    """Return what Lance's hint says."""
    return b'{"version":%d}' % version
