"""Every object name and path on storage is built or checked here.

A path is relative to its table: segments of letters, digits and `. _ - = +`, each beginning
with a letter, a digit or `_`, or with a dot before one of these. So `..`, absolute paths,
percent-encoding, control characters and look-alike letters never reach a store.

A `Name` is a path that is decided once, with its place in a series of such paths.
"""

from __future__ import annotations

import functools
import re
import uuid
from dataclasses import dataclass

from holdfast.errors import InvalidInputError

HOME = "_holdfast"
"""The folder of our own objects in a table; Lance never lists it."""

PIN_PATH = f"{HOME}/pin.json"
EMBEDDED_PATH = f"{HOME}/commits.db"
QUEUE_PATH = f"{HOME}/queue"
STAGED_FOLDER = f"{HOME}/staged"
TEMPORARY_FOLDER = f"{HOME}/temporary"
PROBE_FOLDER = f"{HOME}/probe"
BOUNDARY_FOLDER = f"{HOME}/boundary"

TABLE_SUFFIX = ".lance"
"""The end of a table's folder below the root of a namespace."""
NAMESPACE_MARKER = "_namespace"
"""The object that keeps a namespace without tables in being."""
UPKEEP_LEASE_PATH = f"{HOME}/upkeep-lease.json"
"""Below the root of served tables: who looks after them, and until when."""
LOG_OWNER_PATH = f"{HOME}/log-owner.json"
"""In a table: which server takes rows for its log, and until when."""

MAX_NUMBER = 2**63 - 1
_U64_MAX = 2**64 - 1
_MAX_PATH_CHARS = 350
_FOLDERS = frozenset(
    ("data", "_versions", "_transactions", "_deletions", "_indices", "_mem_wal", "_refs", "tree")
) | {HOME}
_PART = "[.]?[A-Za-z0-9_][A-Za-z0-9._=+-]{0,254}"
_SEGMENT = re.compile(_PART)
_PATH = re.compile(f"{_PART}(?:/{_PART})*")
_VERSION = re.compile(r"_versions/([0-9]{20})\.manifest")
_BOUNDARY = re.compile(rf"{BOUNDARY_FOLDER}/versions-([0-9]{{20}})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHARD_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@functools.lru_cache(maxsize=4096)
def check_path(path: str) -> str:
    """Return `path` if it is a safe relative path.

    Raises:
        InvalidInputError: it is not; the message names the bad part.
    """
    if not path or len(path) > _MAX_PATH_CHARS:
        raise InvalidInputError(
            f"an object path has 1 to {_MAX_PATH_CHARS} characters", path=repr(path[:80])
        )
    if _PATH.fullmatch(path):
        return path
    bad = next(part for part in path.split("/") if not _SEGMENT.fullmatch(part))
    raise InvalidInputError(
        "an object path is made of letters, digits and . _ - = + between slashes, "
        "each part beginning with a letter, a digit or _, or with a dot before one of these",
        part=repr(bad[:80]),
        path=repr(path[:120]),
    )


def is_path(path: str) -> bool:
    """Tell whether a listed object has a name that Holdfast can speak of; others pass it over."""
    return len(path) <= _MAX_PATH_CHARS and _PATH.fullmatch(path) is not None


def set_aside_path(path: str, token: str) -> str:
    """Return where a repair keeps the bytes that were at a path."""
    return check_path(f"{HOME}/quarantine/{path.replace('/', '-')}-{token}")


def belongs_to_table(path: str) -> bool:
    """Tell whether Lance or Holdfast gives objects of a table such a name, as far as it shows."""
    folder, slash, rest = path.partition("/")
    file = rest.rpartition("/")[2]
    return is_path(path) and bool(slash) and folder in _FOLDERS and not file.startswith(".")


def check_name(name: str, what: str = "a name") -> str:
    """Return `name` if it may become part of a path: letters, digits, dot, dash, underscore.

    Raises:
        InvalidInputError: it may not.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{what} starts with a letter or digit and has up to 128 letters, digits, . _ -",
            name=repr(name[:80]),
        )
    return name


def check_shard_id(shard_id: str) -> str:
    """Return a shard id in its one spelling, a lower-case UUID with dashes.

    Raises:
        InvalidInputError: it is no UUID.
    """
    try:
        if _SHARD_ID.fullmatch(shard_id):
            return shard_id
        parsed = uuid.UUID(shard_id)
    except (ValueError, AttributeError, TypeError):
        raise InvalidInputError("a shard id is a UUID", shard_id=repr(shard_id)[:80]) from None
    if str(parsed) != shard_id.lower():
        raise InvalidInputError(
            "write a shard id as 8-4-4-4-12 digits", shard_id=repr(shard_id)[:80]
        )
    return str(parsed)


@dataclass(frozen=True, slots=True)
class Name:
    """A path that is decided once, and its place among the names decided in order.

    Attributes:
        path: where the winning bytes are found.
        series: which names are decided one after the other.
        number: the place in the series; `number - 1` is decided before it.
        previous: the path of `number - 1`, to look for bytes that nobody decided.
    """

    path: str
    series: str
    number: int
    previous: str | None = None

    def __post_init__(self) -> None:
        """Refuse a path or number that no store could keep."""
        check_path(self.path)
        if not 0 <= self.number <= MAX_NUMBER:
            raise InvalidInputError("a number in a series is 0 to 2**63-1", number=self.number)

    @property
    def stands_alone(self) -> bool:
        """Tell whether nothing is decided before this name."""
        return self.series == _single_series(self.path)

    @classmethod
    def single(cls, path: str) -> Name:
        """Return a name that stands alone, such as a plan or a marker."""
        return cls(path, _single_series(path), 0)

    def __str__(self) -> str:
        """Return the path."""
        return self.path


def _single_series(path: str) -> str:
    return f"one/{path}"


VERSIONS_SERIES = "versions"


def version_name(version: int) -> Name:
    """Return the name of a table version's manifest (Lance's V2 naming: newest listed first)."""
    previous = _version_path(version - 1) if version > 1 else None
    return Name(_version_path(version), VERSIONS_SERIES, version, previous)


def _version_path(version: int) -> str:
    return f"_versions/{_U64_MAX - version:020d}.manifest"


def staged_path(token: str) -> str:
    """Return where the bytes of one attempt wait for their decision."""
    return check_path(f"{STAGED_FOLDER}/{token}")


def temporary_path(token: str) -> str:
    """Return where a local file is written before it gets its name."""
    return check_path(f"{TEMPORARY_FOLDER}/{token}")


def probe_path(token: str, step: str) -> str:
    """Return an object name of one probe."""
    return check_path(f"{PROBE_FOLDER}/{token}/{step}")


def version_of(path: str) -> int | None:
    """Return the version whose manifest has this path; None for any other path."""
    match = _VERSION.fullmatch(path)
    version = -1 if match is None else _U64_MAX - int(match[1])
    return version if version >= 0 else None


def is_left_by_lance(path: str) -> bool:
    """Tell whether Lance was writing this local file when it was killed; it has no name yet."""
    return path.rpartition("/")[2].startswith(".tmp")


def is_staged_manifest(path: str) -> bool:
    """Tell whether a file among the versions is one that Lance staged, and no version yet."""
    return ".manifest-" in path


def versions_boundary_path(through: int) -> str:
    """Return where it is kept that versions up to this one may be gone."""
    return check_path(f"{BOUNDARY_FOLDER}/versions-{through:020d}")


def versions_boundary_of(path: str) -> int | None:
    """Return up to which version such an object says that they may be gone."""
    match = _BOUNDARY.fullmatch(path)
    return None if match is None else int(match[1])
