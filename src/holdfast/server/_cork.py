"""One write for an answer: its head and its body leave in one segment.

uvicorn writes them one after the other, and each write is a call of the kernel, a packet, and a
client that wakes up twice.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Corked:
    """A transport whose writes of one turn of the event loop go out together."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a transport has
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write, at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(data)

    def flush(self) -> None:
        """Write now what waits."""
        waiting, self._waiting = self._waiting, []
        if waiting and not self._transport.is_closing():
            self._transport.write(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def close(self) -> None:
        """Close, once everything is written."""
        self.flush()
        self._transport.close()
