"""Bytes and names only, no I/O: how everything on storage is called and laid out."""

from holdfast.formats._names import (
    PIN_PATH,
    PROBE_FOLDER,
    STAGED_FOLDER,
    TEMPORARY_FOLDER,
    VERSIONS_SERIES,
    Name,
    check_name,
    check_path,
    check_shard_id,
    probe_path,
    staged_path,
    temporary_path,
    version_name,
)

__all__ = [
    "PIN_PATH",
    "PROBE_FOLDER",
    "STAGED_FOLDER",
    "TEMPORARY_FOLDER",
    "VERSIONS_SERIES",
    "Name",
    "check_name",
    "check_path",
    "check_shard_id",
    "probe_path",
    "staged_path",
    "temporary_path",
    "version_name",
]
