"""Sending an answer to a client that may read slowly, or not at all.

A large answer goes out in pieces, each when the one before has left, and counts as memory until
the last of them. A client that reads nothing for a while loses its connection: what waits for
it would stay in memory as long as it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Send

from holdfast._clock import Clock
from holdfast.server._answers import Answer

PIECE_BYTES = 64 * 1024
_SLOWEST_BYTES = 32_768  # a client reads at least so many bytes per second

Abort = Callable[[], None]


async def send_answer(
    send: Send,
    answer: Answer,
    headers: dict[str, str],
    *,
    patience: float,
    clock: Clock,
    abort: Abort,
    head_only: bool,
) -> bool:
    """Send an answer; tell whether the client took it in time.

    Args:
        send: ASGI's.
        answer: what to send.
        headers: all of its headers but the length.
        patience: how many seconds a client may read nothing.
        clock: for the patience.
        abort: ends the connection without waiting for the client.
        head_only: leave the body out.
    """
    fields = {
        **headers,
        "content-type": answer.content_type,
        "content-length": str(len(answer.body)),
    }
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    body = b"" if head_only else answer.body
    begun = clock.elapsed()
    for start in range(0, max(len(body), 1), PIECE_BYTES):
        end = start + PIECE_BYTES
        message = {
            "type": "http.response.body",
            "body": body[start:end] if start or end < len(body) else body,
            "more_body": end < len(body),
        }
        left = begun + patience + start / _SLOWEST_BYTES - clock.elapsed()
        try:
            if start:
                await asyncio.wait_for(send(message), max(min(left, patience), 0.001))
            else:
                await send(message)  # nothing is waiting yet: no timer for small answers
        except TimeoutError:
            abort()
            await asyncio.sleep(0)  # the connection learns of it before the request ends
            return False
    return True
