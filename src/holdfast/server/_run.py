"""Running a server: uvicorn with our limits, JSON logs, and an end that drains."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from holdfast.errors import MissingExtraError, UnavailableError
from holdfast.server._settings import ServerSettings

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from holdfast.server._app import App
    from holdfast.server._cork import Corked
    from holdfast.server._service import Service
except ImportError as error:
    raise MissingExtraError(
        "the server's packages are not installed: pip install 'holdfast[server]'",
        package=error.name,
    ) from None

_MAX_HEAD_BYTES = 64 * 1024
_MAX_CONNECTIONS = 2048
_BACKLOG = 1024
_PLAIN = {*logging.makeLogRecord({}).__dict__, "message", "color_message"}


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's text and fields as JSON."""
        fields: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update((key, value) for key, value in vars(record).items() if key not in _PLAIN)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class Server(uvicorn.Server):
    """A uvicorn whose end is seen by balancers before it comes."""

    drain: Callable[[], None]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end at a signal; at the second one, without waiting for requests.

        The signal is not raised again afterwards: an end that was asked for is no failure.
        """
        del sig, frame
        self.drain()
        self.force_exit = self.should_exit
        self.should_exit = True


def serve(settings: ServerSettings, *, listening: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are answered first.

    Args:
        settings: what to serve, to whom.
        listening: is called with the server's address once it listens.

    Raises:
        UnavailableError: the address is taken.
        InvalidInputError: the root or the options are not usable.
    """
    log_as_json()
    service = Service(settings)
    listener = _listen(settings)
    config = uvicorn.Config(
        App(service),
        http=_protocol(settings),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain.total_seconds()),
        ssl_certfile=None if settings.certificate is None else str(settings.certificate),
        ssl_keyfile=None if settings.key is None else str(settings.key),
    )
    server = Server(config)
    server.drain = service.drain
    scheme = "http" if settings.certificate is None else "https"
    host, port = listener.getsockname()[:2]
    listening(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{settings.root_path}")
    with asyncio.Runner() as runner:
        runner.run(server.serve(sockets=[listener]))


def log_as_json() -> None:
    """Send all logs to stderr, a JSON object per line, in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonLines()
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.INFO)


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # By its protocol asyncio knows a connection that must not wait for acknowledgements: of a
    # large answer, which goes out in pieces, the second would be 40 ms late.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise UnavailableError(
            "cannot listen there: choose another address or port",
            bind=f"{settings.host}:{settings.port}",
            reason=getattr(error, "strerror", None) or str(error),
        ) from None
    return listener


def _protocol(settings: ServerSettings) -> type[asyncio.Protocol]:
    """Return HTTP/1.1 as uvicorn speaks it, for clients that send a request's head in time."""
    patience = settings.header_timeout.total_seconds()

    class Bounded(H11Protocol):
        """Ends a connection whose next request does not begin to come in whole."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Begin to wait for the first request."""
            corked: Any = Corked(transport, self.loop)  # Any: it is one, but for its class
            super().connection_made(corked)
            self.app = partial(self.app, abort=transport.abort)
            self._deadline = self.loop.call_later(patience, self._check_head)

        def connection_lost(self, exc: Exception | None) -> None:
            """Stop waiting."""
            self._deadline.cancel()
            super().connection_lost(exc)

        def _check_head(self) -> None:
            """Close a connection on which nothing but a piece of a head came for a while.

            One that is being closed waits for a client that reads nothing: it is cut.
            """
            if self.transport.is_closing():
                self.transport.abort()
                return
            cycle: Any = self.cycle  # Any: None before the first request, whatever uvicorn says
            unfinished = bool(self.conn.trailing_data[0])
            if cycle is None or (cycle.response_complete and unfinished):
                self.transport.close()
            self._deadline = self.loop.call_later(patience, self._check_head)

    return Bounded


__all__ = ["serve"]
