"""Bytes and names only, no I/O: how everything on storage is called and laid out."""

from holdfast.formats._ledger import RECENT_KEPT, is_applied, record_txns
from holdfast.formats._manifest import TOKEN_KEY, edit_config, read_config
from holdfast.formats._names import (
    EMBEDDED_PATH,
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
    version_of,
)
from holdfast.formats._pin import (
    ArbiterKind,
    Pin,
    decode_pin,
    encode_pin,
)
from holdfast.formats._record import (
    Record,
    RecordState,
    decode_record,
    encode_record,
    make_record,
)

__all__ = [
    "EMBEDDED_PATH",
    "PIN_PATH",
    "PROBE_FOLDER",
    "RECENT_KEPT",
    "STAGED_FOLDER",
    "TEMPORARY_FOLDER",
    "TOKEN_KEY",
    "VERSIONS_SERIES",
    "ArbiterKind",
    "Name",
    "Pin",
    "Record",
    "RecordState",
    "check_name",
    "check_path",
    "check_shard_id",
    "decode_pin",
    "decode_record",
    "edit_config",
    "encode_pin",
    "encode_record",
    "is_applied",
    "make_record",
    "probe_path",
    "read_config",
    "record_txns",
    "staged_path",
    "temporary_path",
    "version_name",
    "version_of",
]
