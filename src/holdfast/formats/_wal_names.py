"""Names of a shard's log and manifests, as stock Lance calls them, and of our boundary beside it.

    _mem_wal/<shard>/wal/<64 bits>.arrow          one log entry per position: 1, 2, 3 ...
    _mem_wal/<shard>/manifest/<64 bits>.binpb     one per version: 1, 2, 3 ...
    _holdfast/boundary/<shard>/log-<20 digits>    entries up to this position may be gone

The 64 bits are the number in binary, lowest bit first, so that neighbours lie far apart. Only
names that match exactly count: a left-over `<64 bits>.arrow.tmp` is no entry.
"""

from __future__ import annotations

import re
from enum import StrEnum

from holdfast.errors import InvalidInputError
from holdfast.formats._names import HOME, Name, check_path, check_shard_id, version_of

MEM_WAL_FOLDER = "_mem_wal"
_BOUNDARIES = f"{HOME}/boundary"
_QUARANTINE = f"{HOME}/quarantine"
_MAX = 2**63 - 1
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SHARD = re.compile(rf"{MEM_WAL_FOLDER}/({_UUID})/.+")
_ENTRY = re.compile(rf"{MEM_WAL_FOLDER}/{_UUID}/wal/([01]{{64}})\.arrow")
_MANIFEST = re.compile(rf"{MEM_WAL_FOLDER}/{_UUID}/manifest/([01]{{64}})\.binpb")
_BOUNDARY = re.compile(rf"{_BOUNDARIES}/{_UUID}/(log|manifest)-([0-9]{{20}})")


class BoundaryKind(StrEnum):
    """What a boundary bounds; the strings are in object names."""

    LOG = "log"
    MANIFEST = "manifest"


def shard_folder(shard_id: str) -> str:
    """Return the folder of everything that belongs to a shard.

    Raises:
        InvalidInputError: the shard id is no UUID; so for every function here.
    """
    return f"{MEM_WAL_FOLDER}/{check_shard_id(shard_id)}"


def shard_of(path: str) -> str | None:
    """Return the shard whose folder holds this path; None for any other path."""
    match = _SHARD.fullmatch(path)
    return match[1] if match else None


def log_folder(shard_id: str) -> str:
    """Return the folder of a shard's log."""
    return f"{shard_folder(shard_id)}/wal"


def entry_name(shard_id: str, position: int) -> Name:
    """Return the name of a log entry."""
    folder = log_folder(shard_id)
    previous = f"{folder}/{_reverse_bits(position - 1)}.arrow" if position > 1 else None
    return Name(f"{folder}/{_reverse_bits(position)}.arrow", f"log/{shard_id}", position, previous)


def position_of(path: str) -> int | None:
    """Return the position of the log entry with this path; None for any other path."""
    return _number(_ENTRY.fullmatch(path))


def shard_manifest_folder(shard_id: str) -> str:
    """Return the folder of a shard's manifests."""
    return f"{shard_folder(shard_id)}/manifest"


def shard_manifest_name(shard_id: str, version: int) -> Name:
    """Return the name of one version of a shard's manifest."""
    folder = shard_manifest_folder(shard_id)
    previous = f"{folder}/{_reverse_bits(version - 1)}.binpb" if version > 1 else None
    return Name(f"{folder}/{_reverse_bits(version)}.binpb", f"shard/{shard_id}", version, previous)


def shard_version_of(path: str) -> int | None:
    """Return the version of the shard manifest with this path; None for any other path."""
    return _number(_MANIFEST.fullmatch(path))


def version_hint_path(shard_id: str) -> str:
    """Return where stock Lance keeps a guess at the newest version."""
    return f"{shard_manifest_folder(shard_id)}/version_hint.json"


def number_of(path: str) -> int | None:
    """Return the number of a version, shard manifest or log entry; None for any other path."""
    numbers = (find(path) for find in (version_of, position_of, shard_version_of))
    return next((number for number in numbers if number is not None), None)


def boundary_folder(shard_id: str) -> str:
    """Return the folder of a shard's boundaries."""
    return f"{_BOUNDARIES}/{check_shard_id(shard_id)}"


def boundary_path(shard_id: str, kind: BoundaryKind, through: int) -> str:
    """Return the object whose presence says: numbers up to `through` may be gone."""
    return check_path(f"{boundary_folder(shard_id)}/{kind.value}-{through:020d}")


def boundary_of(path: str) -> tuple[BoundaryKind, int] | None:
    """Return what a boundary object says; None for any other path."""
    match = _BOUNDARY.fullmatch(path)
    return (BoundaryKind(match[1]), int(match[2])) if match else None


def boundary_stamp_path(shard_id: str, token: str) -> str:
    """Return an object that only asks the store for the time."""
    return check_path(f"{boundary_folder(shard_id)}/now-{token}")


def quarantine_path(shard_id: str, position: int, token: str) -> str:
    """Return where a repair keeps the bytes of a damaged entry."""
    return check_path(f"{_QUARANTINE}/{check_shard_id(shard_id)}/{position:020d}-{token}")


def quarantine_folder(shard_id: str, generation: int, token: str) -> str:
    """Return where a repair keeps the files of a damaged SSTable."""
    return check_path(
        f"{_QUARANTINE}/{check_shard_id(shard_id)}/generation-{generation:020d}-{token}"
    )


def _reverse_bits(number: int) -> str:
    if not 0 <= number <= _MAX:
        raise InvalidInputError("a position or version is 0 to 2**63-1", number=number)
    return format(number, "064b")[::-1]


def _number(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    number = int(match[1][::-1], 2)
    return number if number <= _MAX else None
