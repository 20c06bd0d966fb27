"""Manifests of one table repeat each other: leave out the fragments that another one has, too.

A version after an append has all fragments of the one before it, byte by byte, and one more behind
them. So who reads thousands of versions notes the fragments of one, the *reference*, and of every
other manifest only what is not the same there. `without_known` cuts the longest run of whole
fragments that both begin with; what is left is a manifest like any other, and whoever reads it and
the reference has seen every fragment.

    reference = Reference(newest)
    small = reference.without_known(older)      # often without a single fragment
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator

from holdfast.errors import CorruptError
from holdfast.formats._protobuf import FOOTER, LENGTH, main_section

_FRAGMENT_TAG = 0x12  # field 2 of Lance's Manifest, length-delimited
_LENGTH_DELIMITED = 2
_MORE = 0x80


class Reference:
    """The fragments of one manifest, to be left out of others.

    One that cannot be read knows no fragments.
    """

    def __init__(self, manifest: bytes) -> None:
        first, self._ends = None, list[int]()
        try:
            first = _first_fragment(manifest, main_section(manifest))
            self._ends = list(_ends(manifest, first)) if first is not None else []
        except (CorruptError, ValueError, IndexError, struct.error):
            self._ends = []
        size = self._ends[-1] if self._ends else 0
        self._run = b"" if first is None else manifest[first : first + size]

    @property
    def size(self) -> int:
        """Return how many bytes its fragments have."""
        return len(self._run)

    def without_known(self, manifest: bytes) -> bytes:
        """Return a manifest without the fragments that it begins with as this one does.

        One that is no Lance file, or is laid out in another way, is returned as it is.
        """
        try:
            start = main_section(manifest)
            first = _first_fragment(manifest, start)
        except (CorruptError, ValueError, IndexError, struct.error):
            return manifest  # whoever reads it finds out
        if first is None or not self._ends:
            return manifest
        (length,) = LENGTH.unpack_from(manifest, start)
        room = start + LENGTH.size + length - first
        cut = self._same(manifest, first, room)
        if not cut or first + cut > len(manifest) - FOOTER.size:
            return manifest
        # What the sections before the message are at stays as it is; only its length changes.
        return b"".join(
            (
                manifest[:start],
                LENGTH.pack(length - cut),
                manifest[start + LENGTH.size : first],
                manifest[first + cut :],
            )
        )

    def _same(self, manifest: bytes, first: int, room: int) -> int:
        """Return how many bytes of whole fragments are the same at the beginning."""
        low, high = 0, bisect_right(self._ends, room)
        step = 1
        while low < high:  # the first `low` are the same, those beyond `high` are not
            probe = max(low + 1, high - step + 1)
            end = self._ends[probe - 1]
            if manifest[first : first + end] == self._run[:end]:
                if probe == high:
                    return end
                low, step = probe, max(1, (high - probe) // 2)
            else:
                high, step = probe - 1, step * 4
        return self._ends[low - 1] if low else 0


def _first_fragment(manifest: bytes, start: int) -> int | None:
    """Return where the first fragment's field begins; None if there is none.

    Raises:
        ValueError, IndexError: this is no message.
    """
    (length,) = LENGTH.unpack_from(manifest, start)
    at, end = start + LENGTH.size, start + LENGTH.size + length
    if end > len(manifest) - FOOTER.size:
        raise ValueError(end)
    while at < end:
        if manifest[at] == _FRAGMENT_TAG:
            return at
        tag, at = _varint(manifest, at)
        if tag & 7 == _LENGTH_DELIMITED:
            size, at = _varint(manifest, at)
            at += size
        elif tag & 7 == 0:
            _, at = _varint(manifest, at)
        else:
            raise ValueError(tag)
    return None


def _ends(manifest: bytes, first: int) -> Iterator[int]:
    """Yield where each fragment of the first run ends, counted from its beginning."""
    at, last = first, len(manifest) - FOOTER.size
    while at < last and manifest[at] == _FRAGMENT_TAG:
        size, at = _varint(manifest, at + 1)
        at += size
        if at > last:
            return
        yield at - first


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, at
        shift += 7
