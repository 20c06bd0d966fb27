"""`metadata.lance`, the marker of a complete index, as bytes.

It is a small Lance file: its schema metadata names the parts and how they were made. Ours
also holds the token of its decision there, which Lance ignores.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter

from holdfast.errors import CorruptError
from holdfast.formats import TOKEN_KEY

_PARTITIONS = "partitions"
_OF_ONE_BUILD = {_PARTITIONS, TOKEN_KEY, "build_num_workers", "build_memory_limit_mb"}
_NO_FRAGMENTS = b":0\x00\x00\x00\x00\x00\x00"  # an empty bitmap, as Lance writes it
_SCHEMA = pa.schema([pa.field("deleted_fragments", pa.binary(), nullable=False)])
_FILE_VERSION = "2.2"
_FOOTER_BYTES = 40
_MAGIC = b"LANC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What a marker says: the numbers of the parts, and how they were made."""

    parts: tuple[int, ...]
    properties: Mapping[str, str]


class Markers(Protocol):
    """Turns markers into bytes and back."""

    def encode(self, marker: Marker, token: str) -> bytes:
        """Return the bytes, with the token in them."""
        ...

    def decode(self, body: bytes) -> Marker:
        """Return the marker.

        Raises:
            CorruptError: these bytes are none.
        """
        ...


class LanceMarkers:
    """Markers as Lance reads them."""

    def encode(self, marker: Marker, token: str) -> bytes:
        """Return the bytes of `metadata.lance`."""
        parts = json.dumps(list(marker.parts), separators=(",", ":"))
        said = {**marker.properties, _PARTITIONS: parts, TOKEN_KEY: token}
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            path = Path(folder) / "marker.lance"
            with LanceFileWriter(str(path), _SCHEMA, version=_FILE_VERSION) as writer:
                for key, value in sorted(said.items()):
                    writer.add_schema_metadata(key, value)
                writer.write_batch(pa.record_batch([[_NO_FRAGMENTS]], schema=_SCHEMA))
            return path.read_bytes()

    def decode(self, body: bytes) -> Marker:
        """Return what `metadata.lance`, or a part's own metadata file, says."""
        try:
            said = _schema_metadata(body)
            parts = tuple(int(part) for part in json.loads(said[_PARTITIONS]))
        except BaseException as error:
            # Lance's panics are no `Exception`s: of what is not ours, only they are taken.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise CorruptError(
                "an index's metadata.lance is no such file: the index is not complete",
                size=len(body),
            ) from error
        kept = {key: value for key, value in said.items() if key not in _OF_ONE_BUILD}
        return Marker(parts=parts, properties=kept)


def _schema_metadata(body: bytes) -> dict[str, str]:
    if len(body) < _FOOTER_BYTES or not body.endswith(_MAGIC):
        raise ValueError("no Lance file")  # Lance itself would panic
    with tempfile.NamedTemporaryFile(prefix="holdfast-", suffix=".lance") as file:
        file.write(body)
        file.flush()
        metadata = LanceFileReader(file.name).metadata().schema.metadata or {}
    return {key.decode(): value.decode() for key, value in metadata.items()}
