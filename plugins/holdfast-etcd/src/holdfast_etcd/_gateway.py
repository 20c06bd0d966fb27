"""etcd's JSON gateway over plain HTTP connections: one request, one answer, never sent twice."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections import deque
from typing import Any, NoReturn

from holdfast.arbiter import StoreUrl
from holdfast.errors import HoldfastError, PermissionDeniedError, UnavailableError

_TIMEOUT_SECONDS = 30.0
_MAX_IDLE = 32
_DEFAULT_PORT = 2379
_OK = 200
_REFUSED = {401, 403}
# Codes of gRPC, which the gateway repeats.
_PERMISSION_DENIED, _UNAUTHENTICATED, _INVALID = 7, 16, 3
_AUTH_WORDS = (
    "invalid auth token",
    "authentication failed",
    "user name is empty",
    "permission denied",
)


class Gateway:
    """Sends requests on pooled connections; a forked child opens its own."""

    def __init__(self, url: StoreUrl, *, plain: bool) -> None:
        self._address = (url.host.strip("[]") or "127.0.0.1", url.port or _DEFAULT_PORT)
        self._credentials = (url.username, url.password or "") if url.username else None
        self._context = (
            None if plain else ssl.create_default_context(cafile=url.options.get("ssl_ca"))
        )
        self._shown = url.public()
        self._idle: dict[int, deque[http.client.HTTPConnection]] = {}
        self._token: str | None = None

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request.

        Raises:
            UnavailableError: no usable answer; it may or may not have been applied.
            PermissionDeniedError: etcd refused the user.
        """
        if self._credentials is None:
            return self._send(path, body)
        if self._token is None:
            self._authenticate(*self._credentials)
        try:
            return self._send(path, body)
        except _TokenExpired:
            # Checked before anything is applied: so it is safe to send it again.
            self._authenticate(*self._credentials)
            return self._send(path, body)

    def close(self) -> None:
        """Close the idle connections of this process."""
        for connection in self._idle.pop(os.getpid(), ()):
            connection.close()

    def _authenticate(self, name: str, password: str) -> None:
        self._token = None
        try:
            answer = self._send("/v3/auth/authenticate", {"name": name, "password": password})
        except _TokenExpired:
            self._refuse("user or password")
        self._token = str(answer["token"])

    def _send(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        idle = self._idle.setdefault(os.getpid(), deque())
        try:
            connection = idle.pop()
        except IndexError:
            connection = self._open()
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = self._token
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            status, text = response.status, response.read()
            answer = json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            # The idle ones are dead as well, in all likelihood: each would cost a caller a try.
            self.close()
            raise self._silence(type(error).__name__) from None
        if len(idle) < _MAX_IDLE:
            idle.append(connection)
        else:
            connection.close()
        if status != _OK:
            raise self._meaning(status, answer)
        return dict(answer)

    def _open(self) -> http.client.HTTPConnection:
        host, port = self._address
        if self._context is None:
            return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(
            host, port, timeout=_TIMEOUT_SECONDS, context=self._context
        )

    def _meaning(self, status: int, answer: dict[str, Any]) -> Exception:
        code = answer.get("code")
        words = " ".join(str(answer.get("message") or answer.get("error") or "").split())[:200]
        for secret in (self._credentials or ("", ""))[1:]:
            words = words.replace(secret, "***") if secret else words
        if code == _UNAUTHENTICATED or (self._token and "invalid auth token" in words):
            return _TokenExpired()
        refused = code == _PERMISSION_DENIED or status in _REFUSED
        if refused or (code == _INVALID and any(word in words for word in _AUTH_WORDS)):
            return PermissionDeniedError(
                "etcd refused: check user, password and rights", store=self._shown, reason=words
            )
        return self._silence(words or f"status {status}")

    def _refuse(self, what: str) -> NoReturn:
        raise PermissionDeniedError(f"etcd refused: check {what}", store=self._shown)

    def _silence(self, reason: str) -> HoldfastError:
        return UnavailableError("etcd gave no usable answer", store=self._shown, reason=reason)


class _TokenExpired(Exception):  # noqa: N818 - a word between two functions here
    """The token is not known to the server (any more)."""
