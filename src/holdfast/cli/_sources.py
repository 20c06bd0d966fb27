"""Where `ingest` reads rows from: files that tell how far they are read, and whole CSV only."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO

from holdfast.errors import InvalidInputError

_QUOTE = b'"'


class Counted(io.RawIOBase):
    """A file that tells how many bytes were read of it.

    With `quoted`, its quotes are counted, too: a field whose quote is never closed would swallow
    every row behind it, and the parser takes that for a long text. Two quotes in a row, as CSV
    writes one inside a text, leave the count as it is.
    """

    def __init__(
        self, source: IO[bytes], tell: Callable[[int], None], *, quoted: bool = False
    ) -> None:
        self._source = source
        self._tell = tell
        self._quoted = quoted
        self._lines = 1
        self._open_since: int | None = None  # the line of a quote that is not closed yet

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read some bytes.

        Raises:
            InvalidInputError: the file ends inside a quoted field.
        """
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._source.read(len(view))
        view[: len(data)] = data
        self._tell(len(data))
        if self._quoted:
            self._count_quotes(data)
        return len(data)

    def _count_quotes(self, data: bytes) -> None:
        if not data and self._open_since is not None:
            raise InvalidInputError(
                "a quote is never closed, so nobody knows where its row ends: close it, or write "
                "it twice if it is part of a text",
                line=self._open_since,
            )
        lines = data.split(b"\n")
        for number, line in enumerate(lines):
            if line.count(_QUOTE) % 2:
                is_open = self._open_since is not None
                self._open_since = None if is_open else self._lines + number
        self._lines += len(lines) - 1
