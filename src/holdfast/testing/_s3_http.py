"""The little HTTP/1.1 that S3 clients speak, over a bare socket.

`http.server` parses headers with the e-mail parser and writes answers in several pieces; here
a request costs one search for the blank line and an answer is one write. A `Connection` reads
requests one after the other, sends answers, and can end in the two ways that matter to a
client: in the middle of an answer, or without any.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

_MAX_HEAD_BYTES = 64 * 1024
_MAX_BODY_BYTES = 1024**3
_CHUNK_BYTES = 64 * 1024
_REASONS = {int(status): status.phrase for status in HTTPStatus}


class MalformedRequestError(ValueError):
    """What came in is not HTTP as S3 clients send it; the connection is of no further use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, wholly read. Header names are lower case, the path is decoded."""

    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """Return `/bucket/key`."""
        return f"/{self.bucket}/{self.key}"

    @property
    def conditional(self) -> bool:
        """Say whether this would write, and only under a condition."""
        return self.method in ("PUT", "POST") and (
            "if-none-match" in self.headers or "if-match" in self.headers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One answer. `length` replaces the body's own length where no body is sent (HEAD)."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None


class Connection:
    """One client's connection; used by one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()

    def read_request(self) -> Request | None:
        """Return the next request, or None when the client is done.

        Raises:
            MalformedRequestError: what came in is not a request.
            OSError: the connection broke.
        """
        head = self._read_head()
        if head is None:
            return None
        start, *lines = head.split("\r\n")
        try:
            method, target, _version = start.split(" ")
        except ValueError:
            raise MalformedRequestError(f"not a request line: {start[:80]!r}") from None
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        path, _, query = target.partition("?")
        bucket, key = self.locate(path)
        return Request(
            method=method,
            bucket=unquote(bucket),
            key=unquote(key),
            query=dict(parse_qsl(query, keep_blank_values=True)) if query else {},
            headers=headers,
            body=self._read_body(headers),
        )

    def locate(self, path: str) -> tuple[str, str]:
        """Return bucket and key of a request's path, still encoded: path-style."""
        bucket, _, key = path.removeprefix("/").partition("/")
        return bucket, key

    def send(self, response: Response, *, with_body: bool = True) -> int:
        """Send an answer and return how many bytes went out."""
        head = _head(response)
        body = response.body if with_body else b""
        if len(body) <= _CHUNK_BYTES:
            self._socket.sendall(head + body)
        else:
            self._socket.sendall(head)
            self._socket.sendall(body)
        return len(head) + len(body)

    def send_truncated(self, response: Response, length: int) -> int:
        """Announce the whole body, send its first `length` bytes, and close."""
        head = _head(response)
        body = response.body[:length]
        self._socket.sendall(head + body)
        self._socket.shutdown(socket.SHUT_RDWR)
        return len(head) + len(body)

    def abort(self) -> None:
        """Close without an answer; the client sees a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _read_head(self) -> str | None:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise MalformedRequestError("the request's head does not end")
            if not self._receive():
                return None
        head = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + 4]
        return head

    def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("expect", "").lower() == "100-continue":
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = self._read_chunks()
        else:
            body = self._read_exactly(_length(headers.get("content-length", "0")))
        if "aws-chunked" in headers.get("content-encoding", "") or headers.get(
            "x-amz-content-sha256", ""
        ).startswith("STREAMING"):
            return _decode_aws_chunks(body)
        return body

    def _read_exactly(self, length: int) -> bytes:
        have = len(self._buffer)
        if have >= length:
            body = bytes(self._buffer[:length])
            del self._buffer[:length]
            return body
        whole = bytearray(length)
        whole[:have] = self._buffer
        self._buffer.clear()
        with memoryview(whole) as view:
            while have < length:
                got = self._socket.recv_into(view[have:])
                if not got:
                    raise ConnectionResetError("the client left in the middle of a body")
                have += got
        return bytes(whole)

    def _read_chunks(self) -> bytes:
        pieces: list[bytes] = []
        while size := _size_of_chunk(self._read_line()):
            pieces.append(self._read_exactly(size))
            self._read_line()
        while self._read_line():
            pass  # trailers
        return b"".join(pieces)

    def _read_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise MalformedRequestError("a line does not end")
            if not self._receive():
                raise ConnectionResetError("the client left in the middle of a body")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _receive(self) -> bool:
        piece = self._socket.recv(_CHUNK_BYTES)
        self._buffer += piece
        return bool(piece)


def _head(response: Response) -> bytes:
    length = len(response.body) if response.length is None else response.length
    lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Status')}"]
    lines.extend(f"{name}: {value}" for name, value in response.headers.items())
    # A 204 must not announce a length (RFC 9110, 8.6).
    if response.status != HTTPStatus.NO_CONTENT:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _length(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_BODY_BYTES:
        raise MalformedRequestError(f"unusable content-length {text[:40]!r}")
    return int(text)


def _size_of_chunk(line: bytes) -> int:
    try:
        size = int(line.partition(b";")[0], 16)
    except ValueError:
        raise MalformedRequestError(f"not a chunk size: {line[:40]!r}") from None
    if not 0 <= size <= _MAX_BODY_BYTES:
        raise MalformedRequestError(f"unusable chunk size {size}")
    return size


def _decode_aws_chunks(body: bytes) -> bytes:
    """Take the payload out of AWS's own framing; signatures and trailers are not checked."""
    pieces: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\r\n", at)
        if end < 0:
            raise MalformedRequestError("an aws-chunked body does not end")
        size = _size_of_chunk(body[at:end])
        if not size:
            return b"".join(pieces)
        at = end + 2 + size + 2
        pieces.append(body[end + 2 : at - 2])
