"""The ASGI application: who may ask, how much, in which thread, and what comes back.

Every request has an id, one line in the log and one answer. A client that goes away cancels
nothing: what was begun is brought to its end. Nothing that a handler raises reaches a client
with a stack trace, and no answer may be kept by a cache or shown inside another page.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from holdfast.errors import BackpressureError, HoldfastError, InvalidInputError, StaleHandleError
from holdfast.options import is_loopback
from holdfast.server import _routes as routes
from holdfast.server import _rows as rows
from holdfast.server._answers import (
    DENIED,
    INTERNAL,
    INVALID,
    UNAUTHENTICATED,
    UNSUPPORTED,
    Answer,
    Call,
    problem,
    problem_of,
)
from holdfast.server._catalog import ProtocolError
from holdfast.server._lanes import Lane
from holdfast.server._routes import RestOperation
from holdfast.server._sending import Abort, send_answer
from holdfast.server._service import Service
from holdfast.server._tables import CURRENT
from holdfast.server._tokens import ANYONE, Principal

log = logging.getLogger("holdfast.server")

CSP = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Mapping[str, str] = {
    "cache-control": "no-store",
    "content-security-policy": CSP,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # without one, a form would not say where it came from
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_MAX_PARAMETERS = 100
_SLOWEST_BYTES = 32_768  # a body comes at least at so many bytes per second


def _nothing() -> None:
    pass


class RefusedError(Exception):
    """A request that ends before a handler sees it."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class GoneError(Exception):
    """The client went away before its request was whole: nothing was begun."""


class App:
    """One server's application."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._settings = service.settings

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, abort: Abort = _nothing
    ) -> None:
        """Answer one request; ASGI's entry. `abort` ends the connection without waiting."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send, abort)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._service.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self._service.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send, abort: Abort) -> None:
        request = Request(scope, receive)
        request_id = self._service.ids.token()[3:19]
        begun = self._service.clock.elapsed()
        seen = _Seen(name="other")
        with ExitStack() as places:
            try:
                answer = await self._answer(request, request_id, seen)
                self._hold(answer, places)
            except GoneError:
                return
            except RefusedError as refused:
                answer = refused.answer
            except ProtocolError as error:
                answer = problem(error.code, str(error), kind=error.kind, request_id=request_id)
            except HoldfastError as error:
                answer = problem_of(error, request_id)
            except Exception as error:  # noqa: BLE001 - the last resort: no trace reaches a client
                answer = _defect(error, request_id)
            seconds = self._service.clock.elapsed() - begun
            self._note(request, answer, request_id, seen, seconds)
            whole = await send_answer(
                send,
                answer,
                {**SECURITY_HEADERS, **answer.headers, "x-request-id": request_id},
                patience=self._settings.body_timeout.total_seconds(),
                clock=self._service.clock,
                abort=abort,
                head_only=request.method == "HEAD",
            )
        if not whole:
            log.warning("the client did not read its answer", extra={"request_id": request_id})

    def _hold(self, answer: Answer, places: ExitStack) -> None:
        """Count an answer as memory until it has been sent."""
        try:
            self._service.outgoing.take(len(answer.body))
        except BackpressureError:
            self._service.metrics.count_refused("answers")
            raise
        places.callback(self._service.outgoing.give_back, len(answer.body))

    def _note(
        self, request: Request, answer: Answer, request_id: str, seen: _Seen, seconds: float
    ) -> None:
        """Count a request, and write its line into the log."""
        self._service.metrics.observe_request(seen.name, answer.status, seconds)
        log.info(
            "request",
            extra={
                "request_id": request_id,
                "method": request.method,
                "path": request.scope["path"][:300],
                "operation": seen.name,
                "status": answer.status,
                "ms": round(seconds * 1000, 2),
                "bytes_in": seen.size,
                "bytes_out": len(answer.body),
                "who": seen.who,
            },
        )

    async def _answer(self, request: Request, request_id: str, seen: _Seen) -> Answer:
        raw = _raw_path(request.scope, self._settings.root_path)
        self._check_origin(request)
        open_to_all = self._service.public.get((request.method, raw))
        if open_to_all is not None:
            seen.name = raw.decode().strip("/")
            return open_to_all()
        if raw == b"/metrics" and request.method == "GET":
            seen.name, seen.who = "metrics", self._principal(request).name
            return self._service.metrics.answer()
        found = routes.find(raw)
        if found is None:
            if not raw.startswith(b"/v1/"):
                return await self._page(request, raw, request_id, seen)
            self._principal(request)
            raise RefusedError(
                problem(UNSUPPORTED, "this server does not do that", kind="unsupported")
            )
        operation, raw_id = found
        seen.name = operation.name
        if request.method not in operation.methods:
            allowed = {"allow": ", ".join(sorted(operation.methods))}
            refused = problem(INVALID, "not by this method", kind="invalid_input", status=405)
            raise RefusedError(
                Answer(status=405, body=refused.body, headers={**refused.headers, **allowed})
            )
        principal = self._principal(request)
        seen.who = principal.name
        if principal.role < operation.role:
            raise RefusedError(
                problem(
                    DENIED,
                    f"this token may not do that: it needs the role {operation.role.name.lower()}",
                    kind="permission_denied",
                    request_id=request_id,
                )
            )
        call = Call(id=(), principal=principal, request_id=request_id)
        return await self._run(request, operation, raw_id, call, seen)

    async def _run(
        self,
        request: Request,
        operation: RestOperation,
        raw_id: bytes,
        known: Call,
        seen: _Seen,
    ) -> Answer:
        lane = self._service.lanes[operation.lane]
        query = _query(request.scope)
        parts = routes.parse_id(raw_id, query.get("delimiter", "$"))
        with ExitStack() as places:
            self._check_room(lane)
            body = await self._body(request, places)  # before it takes a place: it may be slow
            self._enter(places, lane)
            seen.size = len(body)
            headers = _headers(request)
            call = replace(known, id=parts, query=query, body=body, headers=headers)
            if operation.name == "insert" and rows.is_shared(call):
                return await rows.insert_shared(self._service, call, lane)
            return await asyncio.shield(lane.run(lambda: self._work(operation, call)))

    async def _page(self, request: Request, raw: bytes, request_id: str, seen: _Seen) -> Answer:
        """Answer a person's browser."""
        seen.name = "page"
        lane = self._service.lanes["pages"]
        with ExitStack() as places:
            body = await self._body(request, places) if request.method == "POST" else b""
            self._enter(places, lane)
            call = Call(
                query=_query(request.scope),
                body=body,
                headers=_headers(request),
                request_id=request_id,
            )
            method = request.method
            return await asyncio.shield(
                lane.run(lambda: self._service.pages.answer(method, raw, call))
            )

    def _check_room(self, lane: Lane) -> None:
        """Refuse before a body is read what would be refused afterwards."""
        with ExitStack() as places:
            self._enter(places, lane)

    def _enter(self, places: ExitStack, lane: Lane) -> None:
        try:
            lane.enter()
        except BackpressureError:
            self._service.metrics.count_refused(lane.name)
            raise
        places.callback(lane.leave)

    def _work(self, operation: RestOperation, call: Call) -> Answer:
        """Run a handler; once more if the table was made anew since its handle was opened."""
        CURRENT.set(".".join(call.id))
        try:
            return operation.handler(self._service, call)
        except StaleHandleError:
            self._service.namespace.forget(call.id)
            self._service.tables.forget(call.id)
            self._service.writers.forget(call.id)
            return operation.handler(self._service, call)

    async def _body(self, request: Request, places: ExitStack) -> bytes:
        """Read a body, not larger than allowed, from a client that goes on sending."""
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise InvalidInputError("bodies are sent as they are, without Content-Encoding")
        stated = request.headers.get("content-length", "")
        largest = self._settings.max_body_bytes
        if stated.isdecimal() and (len(stated) > 15 or int(stated) > largest):  # noqa: PLR2004
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        patience = self._settings.body_timeout.total_seconds()
        begun = self._service.clock.elapsed()
        while True:
            late = begun + patience + size / _SLOWEST_BYTES - self._service.clock.elapsed()
            try:
                message = await asyncio.wait_for(request.receive(), max(late, 0.001))
            except TimeoutError:
                raise RefusedError(
                    problem(INVALID, "the body did not come in time", kind="timeout", status=408)
                ) from None
            if message["type"] == "http.disconnect":
                raise GoneError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > largest:
                raise self._too_large()
            self._take(len(chunk), places)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _take(self, size: int, places: ExitStack) -> None:
        try:
            self._service.buffers.take(size)
        except BackpressureError:
            self._service.metrics.count_refused("memory")
            raise
        places.callback(self._service.buffers.give_back, size)

    def _too_large(self) -> RefusedError:
        return RefusedError(
            problem(
                INVALID,
                f"the body is larger than {self._settings.max_body_bytes} bytes: send less at "
                "a time",
                kind="too_large",
                status=413,
            )
        )

    def _principal(self, request: Request) -> Principal:
        """Return who sends a request, by its bearer token or API key."""
        tokens = self._settings.tokens
        if tokens is None:
            return ANYONE
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
        principal = tokens.find(given or "")
        if principal is None:
            raise RefusedError(
                problem(
                    UNAUTHENTICATED,
                    "send a token of this server: `Authorization: Bearer TOKEN`",
                    kind="unauthenticated",
                )
            )
        return principal

    def _check_origin(self, request: Request) -> None:
        """Refuse what a page of another site lets a browser send.

        Without tokens a server trusts whoever reaches it, and so it must not be reached
        through a browser on the same machine: neither by a form of another site, nor by a
        name of another site that is resolved to this machine.
        """
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise _foreign("requests from pages of other sites are not answered")
        if request.headers.get("sec-fetch-site", "") == "cross-site" and request.method != "GET":
            raise _foreign("requests from pages of other sites are not answered")
        if self._settings.tokens is None and not self._settings.insecure:
            name = _host_name(host)
            if not (is_loopback(name) or name in self._settings.hosts):
                raise _foreign("this server is not called by that name: see --host-name")


class _Seen:
    """What the log says of a request."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.who = "-"
        self.size = 0


def _foreign(text: str) -> RefusedError:
    return RefusedError(problem(DENIED, text, kind="permission_denied"))


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _raw_path(scope: Scope, root_path: str) -> bytes:
    """Return the path as it was sent, without the prefix that a proxy may have left on."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    raw, prefix = raw.partition(b"?")[0], root_path.encode()
    return raw[len(prefix) :] if prefix and raw.startswith(prefix + b"/") else raw


def _query(scope: Scope) -> dict[str, str]:
    try:
        text = scope["query_string"].decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS))
    except (ValueError, UnicodeDecodeError):
        raise InvalidInputError("the parameters behind ? cannot be read") from None


def _headers(request: Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


def _defect(error: Exception, request_id: str) -> Answer:
    """Return what a client is told of a defect; the text of a foreign error may hold a secret."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    log.error(
        "defect",
        extra={"request_id": request_id, "error": type(error).__name__, "where": where},
        exc_info=error,
    )
    text = f"a defect, please report it: {type(error).__name__} at {where}"
    return problem(INTERNAL, text, kind="internal", request_id=request_id)
