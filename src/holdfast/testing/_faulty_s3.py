"""A small S3 server on loopback that misbehaves on request.

It keeps objects in memory and speaks enough S3 for obstore and for Lance's own client. How it
treats put-if-absent is chosen with `conditions` (see `_s3_objects`), single requests are
broken with `faults` (see `_s3_faults`), and `requests` counts what came in.

    with FaultyS3(conditions="ignoring") as s3:
        s3.faults.add(Fault(kind="drop_after", method="PUT", conditional=True))
        lance.write_dataset(rows, s3.url("bucket", "t"), storage_options=s3.storage_options())

It binds to loopback only, checks no signatures, and is for tests and demonstrations.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import socket
import socketserver
import threading
from dataclasses import asdict
from typing import Any, Final, Self

from holdfast._clock import SystemClock
from holdfast.errors import InvalidInputError
from holdfast.testing._s3_faults import Fault, Faults, Requests, Seen
from holdfast.testing._s3_http import Connection, MalformedRequestError, Request, Response
from holdfast.testing._s3_objects import Conditions, Objects
from holdfast.testing._s3_service import Service, error_response, operation_of

CONTROL: Final = "_control"
"""The path under which other processes set conditions, add faults and read counters."""

_STOP_SECONDS: Final = 5.0
_ACCESS_KEY: Final = "holdfast"


class S3Endpoint:
    """Where an S3 server listens, in the words of its clients."""

    def __init__(self, endpoint: str, *, access_key: str, secret_key: str) -> None:
        self.endpoint = endpoint
        self._access_key = access_key
        self._secret_key = secret_key

    def storage_options(self, _bucket: str = "") -> dict[str, str]:
        """Return pylance's storage options; they are the same for every bucket."""
        return {
            "aws_access_key_id": self._access_key,
            "aws_secret_access_key": self._secret_key,
            "aws_region": "us-east-1",
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
        }

    def url(self, bucket: str, path: str = "") -> str:
        """Return the `s3://` URL of a path."""
        return f"s3://{bucket}/{path}".rstrip("/")


class _Server(socketserver.ThreadingTCPServer):
    request_queue_size = 1024
    allow_reuse_address = True
    daemon_threads = True
    faulty: FaultyS3


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        self.server.faulty._converse(self.request)  # noqa: SLF001 - the other half of one thing


class FaultyS3(S3Endpoint):
    """The server, listening from construction until `stop`.

    Attributes:
        endpoint: its URL.
        objects: what it stores, to look at or to change behind the clients' backs.
        faults: rules that break single requests.
        requests: the log, with totals per operation.
        latency_seconds: added to every request.
    """

    connection_class: type[Connection] = Connection

    def __init__(
        self,
        *,
        conditions: Conditions | str = "honest",
        latency_seconds: float = 0.0,
        seed: int = 0,
        access_key: str = _ACCESS_KEY,
        secret_key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Bind and begin to serve.

        Args:
            conditions: a `Conditions`, or its text, such as `ignoring` or `sometimes:0.3:7`.
            latency_seconds: added to every request.
            seed: of the faults that have a probability.
            access_key: the only access key that is let in, if there is a `secret_key`.
            secret_key: turns on the check of the access key. Signatures are never checked.
            host: a loopback address.
            port: 0 takes a free one.

        Raises:
            InvalidInputError: `host` is not an IPv4 loopback address, or unknown conditions.
            OSError: the port is taken.
        """
        _refuse_unless_loopback(host)
        self._stopping = threading.Event()
        self.objects = Objects(
            clock=SystemClock(), wait=self._wait, conditions=_conditions(conditions)
        )
        self.faults = Faults(seed=seed)
        self.requests = Requests()
        self.latency_seconds = latency_seconds
        self._service = Service(self.objects)
        self._guarded = secret_key is not None
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._idle = threading.Condition(self._lock)
        self._server = _Server((host, port), _Handler)
        self._server.faulty = self
        super().__init__(
            f"http://{host}:{self._server.server_address[1]}",
            access_key=access_key,
            secret_key=secret_key or "not-checked",
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="faulty-s3", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def conditions(self) -> Conditions:
        """Return how conditions are treated now."""
        return self.objects.conditions

    @conditions.setter
    def conditions(self, conditions: Conditions | str) -> None:
        self.objects.conditions = _conditions(conditions)

    def stop(self) -> None:
        """Close all connections and wait until nothing is served. Safe to call again."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_SECONDS)
        with self._idle:
            for sock in self._sockets:
                _hang_up(sock)
            self._idle.wait_for(lambda: not self._sockets, _STOP_SECONDS)

    def _wait(self, seconds: float) -> None:
        # Unlike a sleep, this ends when the server stops.
        if seconds > 0:
            self._stopping.wait(seconds)

    def _converse(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.add(sock)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self.connection_class(sock)
            while not self._stopping.is_set():
                request = connection.read_request()
                if request is None or not self._answer(connection, request):
                    break
        except (OSError, MalformedRequestError):
            pass  # the client left, or is none: nobody is there to be told
        finally:
            sock.close()
            with self._idle:
                self._sockets.discard(sock)
                self._idle.notify_all()

    def _answer(self, connection: Connection, request: Request) -> bool:
        """Serve one request; False when its connection is over."""
        if request.bucket == CONTROL:
            connection.send(self._control(request))
            return True
        operation = operation_of(request)
        struck = self.faults.strike(request)
        delay_before = sum(f.seconds for f in struck if f.kind == "delay_before")
        self._wait(self.latency_seconds + delay_before)
        if self._stopping.is_set():
            return False
        fault = next((f for f in struck if not f.kind.startswith("delay")), None)
        response = self._respond(operation, request, fault)
        self._wait(sum(f.seconds for f in struck if f.kind == "delay_after"))
        self.requests.add(_seen_request(operation, request, response, struck))
        if response is None:
            connection.abort()
            return False
        if fault is not None and fault.kind == "truncate":
            connection.send_truncated(response, fault.length)
            return False
        connection.send(response, with_body=request.method != "HEAD")
        return request.headers.get("connection", "").lower() != "close"

    def _respond(self, operation: str, request: Request, fault: Fault | None) -> Response | None:
        """Apply a request unless a fault forbids it; None when nothing shall be answered."""
        if self._guarded and not self._is_allowed(request):
            return error_response(403, "InvalidAccessKeyId")
        kind = None if fault is None else fault.kind
        if kind == "drop_before":
            return None
        if fault is not None and kind == "status_before":
            return error_response(fault.status)
        response = self._service.handle(operation, request)
        if kind == "drop_after":
            return None
        if fault is not None and kind == "status_after":
            return error_response(fault.status)
        return response

    def _is_allowed(self, request: Request) -> bool:
        match = re.search(r"Credential=([^/]+)/", request.headers.get("authorization", ""))
        return match is not None and match.group(1) == self._access_key

    def _control(self, request: Request) -> Response:
        try:
            if request.method == "POST":
                self._apply_control(json.loads(request.body))
        except (ValueError, TypeError, AttributeError) as error:
            return _json({"error": str(error)}, status=400)
        return _json(
            {
                "conditions": str(self.conditions),
                "latency_seconds": self.latency_seconds,
                "fired": self.faults.fired,
                "requests": {name: asdict(t) for name, t in self.requests.totals().items()},
            }
        )

    def _apply_control(self, order: dict[str, Any]) -> None:  # Any: parsed JSON
        unknown = order.keys() - {
            "clear_faults",
            "clear_requests",
            "conditions",
            "faults",
            "latency_seconds",
        }
        if unknown:
            raise InvalidInputError("unknown orders", orders=sorted(unknown))
        faults = [Fault(**fault) for fault in order.get("faults", [])]
        if "conditions" in order:
            self.conditions = Conditions.parse(order["conditions"])
        if "latency_seconds" in order:
            self.latency_seconds = float(order["latency_seconds"])
        if order.get("clear_faults"):
            self.faults.clear()
        if order.get("clear_requests"):
            self.requests.clear()
        for fault in faults:
            self.faults.add(fault)


def _conditions(conditions: Conditions | str) -> Conditions:
    return Conditions.parse(conditions) if isinstance(conditions, str) else conditions


def _refuse_unless_loopback(host: str) -> None:
    try:
        is_loopback = ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise InvalidInputError(
            "the faulty server binds to loopback only; use 127.0.0.1", host=host
        )


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be gone already
        sock.shutdown(socket.SHUT_RDWR)


def _json(answer: dict[str, Any], *, status: int = 200) -> Response:  # Any: JSON
    return Response(
        status=status,
        headers={"Content-Type": "application/json"},
        body=json.dumps(answer).encode(),
    )


def _seen_request(
    operation: str, request: Request, response: Response | None, struck: list[Fault]
) -> Seen:
    return Seen(
        operation,
        request.method,
        request.bucket,
        request.key,
        request.conditional,
        0 if response is None else response.status,
        tuple(fault.label for fault in struck),
        len(request.body),
        0 if response is None else len(response.body),
    )
