"""S3's operations over `Objects`: what a request means and how its answer looks.

No sockets and no faults here: `Service.handle` takes a whole request and returns a whole
response. Only what obstore and Lance's own client use is spoken, path-style.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from html import escape, unescape
from typing import Final
from urllib.parse import quote, unquote

from holdfast.testing._s3_http import Request, Response
from holdfast.testing._s3_objects import Condition, Cursor, Objects, RefusedError, Stored

_XML: Final = {"Content-Type": "application/xml"}
_NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
_MAX_KEYS: Final = 1000
# (method, what must be in the query or the headers, name); the first match counts.
_OBJECT_OPERATIONS: Final = (
    ("PUT", "partNumber", "multipart_part"),
    ("PUT", "x-amz-copy-source", "copy"),
    ("PUT", "", "put"),
    ("GET", "", "get"),
    ("HEAD", "", "head"),
    ("POST", "uploads", "multipart_create"),
    ("POST", "uploadId", "multipart_complete"),
    ("DELETE", "uploadId", "multipart_abort"),
    ("DELETE", "", "delete"),
)
_BUCKET_OPERATIONS: Final = (
    ("PUT", "versioning", "set_versioning"),
    ("PUT", "", "create_bucket"),
    ("GET", "versioning", "get_versioning"),
    ("GET", "", "list"),
    ("HEAD", "", "head_bucket"),
    ("POST", "delete", "delete_batch"),
    ("DELETE", "", "delete_bucket"),
)
_MESSAGES: Final = {
    "ConditionalRequestConflict": "A conflicting operation occurred, try again.",
    "InternalError": "We encountered an internal error. Please try again.",
    "NoSuchKey": "The specified key does not exist.",
    "NotImplemented": "A header you provided implies functionality that is not implemented.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold.",
    "SlowDown": "Please reduce your request rate.",
}
_CODES: Final = {
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    501: "NotImplemented",
    503: "SlowDown",
}


def operation_of(request: Request) -> str:
    """Return the operation's name, which is also its name in the request log."""
    for method, marker, name in _OBJECT_OPERATIONS if request.key else _BUCKET_OPERATIONS:
        if method == request.method and (
            not marker or marker in request.query or marker in request.headers
        ):
            return name
    return "unknown"


def error_response(status: int, code: str | None = None) -> Response:
    """Return S3's answer for an error."""
    code = code or _CODES.get(status, "InternalError")
    message = _MESSAGES.get(code, code)
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return _xml(body, status=status)


class Service:
    """Answers requests. Safe to use from many threads."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._upload_ids = itertools.count(1)
        # The lock guards the uploads: their parts, and the ETag of those completed.
        self._lock = threading.Lock()
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._completed: dict[str, str] = {}
        self._operations: dict[str, Callable[[Request], Response]] = {
            "copy": self._copy,
            "create_bucket": lambda _: Response(),
            "delete": self._delete,
            "delete_batch": self._delete_batch,
            "delete_bucket": lambda _: Response(status=204),
            "get": self._get,
            "get_versioning": lambda _: _xml("<VersioningConfiguration/>"),
            "head": self._get,
            "head_bucket": lambda _: Response(),
            "list": self._list,
            "multipart_abort": self._multipart_abort,
            "multipart_complete": self._multipart_complete,
            "multipart_create": self._multipart_create,
            "multipart_part": self._multipart_part,
            "put": self._put,
            "set_versioning": self._set_versioning,
        }

    def handle(self, operation: str, request: Request) -> Response:
        """Apply a request and return its answer."""
        apply = self._operations.get(operation)
        if apply is None:
            return error_response(400, "InvalidRequest")
        try:
            return apply(request)
        except RefusedError as refused:
            return error_response(refused.status, refused.code)

    def _put(self, request: Request) -> Response:
        stored = self._objects.put(
            request.bucket, request.key, request.body, condition=_condition(request)
        )
        return Response(headers={"ETag": stored.etag})

    def _copy(self, request: Request) -> Response:
        body = self._copy_source(request)
        stored = self._objects.put(request.bucket, request.key, body, condition=_condition(request))
        return _xml(
            f"<CopyObjectResult><ETag>{escape(stored.etag)}</ETag>"
            f"<LastModified>{_iso(stored)}</LastModified></CopyObjectResult>"
        )

    def _copy_source(self, request: Request) -> bytes:
        bucket, _, key = unquote(request.headers["x-amz-copy-source"]).lstrip("/").partition("/")
        source = self._objects.get(bucket, key)
        if source is None:
            raise RefusedError(404, "NoSuchKey")
        if wanted := request.headers.get("x-amz-copy-source-range"):
            first, last = _range(wanted, len(source.body))
            return source.body[first : last + 1]
        return source.body

    def _get(self, request: Request) -> Response:
        stored = self._objects.get(request.bucket, request.key)
        if stored is None:
            return error_response(404)
        headers = {
            "ETag": stored.etag,
            "Last-Modified": formatdate(stored.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "binary/octet-stream",
        }
        if (wanted := request.headers.get("if-match")) and wanted not in ("*", stored.etag):
            return error_response(412)
        if request.headers.get("if-none-match") in ("*", stored.etag):
            return Response(status=304, headers=headers)
        if request.method == "HEAD":
            return Response(headers=headers, length=len(stored.body))
        if "range" not in request.headers:
            return Response(headers=headers, body=stored.body)
        first, last = _range(request.headers["range"], len(stored.body))
        headers["Content-Range"] = f"bytes {first}-{last}/{len(stored.body)}"
        return Response(status=206, headers=headers, body=stored.body[first : last + 1])

    def _delete(self, request: Request) -> Response:
        self._objects.remove(request.bucket, request.key)
        return Response(status=204)

    def _delete_batch(self, request: Request) -> Response:
        keys = [unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", request.body.decode())]
        for key in keys:
            self._objects.remove(request.bucket, key)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _xml(f'<DeleteResult xmlns="{_NAMESPACE}">{deleted}</DeleteResult>')

    def _list(self, request: Request) -> Response:
        query = request.query
        url_encoded = query.get("encoding-type") == "url"
        token = query.get("continuation-token")
        page = self._objects.page(
            request.bucket,
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            after=_cursor(token) if token else _start(query),
            max_keys=_max_keys(query.get("max-keys")),
        )

        def shown(name: str) -> str:
            return quote(name) if url_encoded else escape(name)

        parts = [
            f"<Name>{escape(request.bucket)}</Name>",
            f"<Prefix>{shown(query.get('prefix', ''))}</Prefix>",
            f"<KeyCount>{len(page.objects) + len(page.prefixes)}</KeyCount>",
            f"<IsTruncated>{'false' if page.resume is None else 'true'}</IsTruncated>",
        ]
        if page.resume is not None:
            parts.append(f"<NextContinuationToken>{_token(page.resume)}</NextContinuationToken>")
            parts.append(f"<NextMarker>{shown(page.resume.last)}</NextMarker>")
        parts.extend(
            f"<Contents><Key>{shown(key)}</Key><LastModified>{_iso(stored)}</LastModified>"
            f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.body)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key, stored in page.objects
        )
        parts.extend(
            f"<CommonPrefixes><Prefix>{shown(prefix)}</Prefix></CommonPrefixes>"
            for prefix in page.prefixes
        )
        return _xml(f'<ListBucketResult xmlns="{_NAMESPACE}">{"".join(parts)}</ListBucketResult>')

    def _set_versioning(self, request: Request) -> Response:
        if b"Enabled" in request.body:
            self._objects.set_versioning(request.bucket)
        return Response()

    def _multipart_create(self, request: Request) -> Response:
        upload_id = f"upload-{next(self._upload_ids)}"
        with self._lock:
            self._uploads[upload_id] = {}
        return _xml(
            f"<InitiateMultipartUploadResult><Bucket>{escape(request.bucket)}</Bucket>"
            f"<Key>{escape(request.key)}</Key><UploadId>{upload_id}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )

    def _multipart_part(self, request: Request) -> Response:
        copied = "x-amz-copy-source" in request.headers
        body = self._copy_source(request) if copied else request.body
        with self._lock:
            parts = self._uploads.get(request.query.get("uploadId", ""))
            if parts is None:
                raise RefusedError(404, "NoSuchUpload")
            parts[_number(request.query["partNumber"])] = body
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        if copied:
            return _xml(f"<CopyPartResult><ETag>{escape(etag)}</ETag></CopyPartResult>")
        return Response(headers={"ETag": etag})

    def _multipart_complete(self, request: Request) -> Response:
        upload_id = request.query["uploadId"]
        with self._lock:
            etag = self._completed.get(upload_id)
            parts = dict(self._uploads.get(upload_id, {}))
        # Completing again what is complete succeeds, as on S3: clients retry after a 5xx.
        if etag is None:
            numbers = re.findall(r"<PartNumber>\s*(\d+)\s*</PartNumber>", request.body.decode())
            try:
                body = b"".join(parts[int(number)] for number in numbers)
            except KeyError:
                code = "InvalidPart" if parts else "NoSuchUpload"
                raise RefusedError(400 if parts else 404, code) from None
            digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
            etag = f'"{digest}-{len(numbers)}"'
            self._objects.put(
                request.bucket, request.key, body, condition=_condition(request), etag=etag
            )
            with self._lock:
                self._completed[upload_id] = etag
                self._uploads.pop(upload_id, None)
        return _xml(
            f"<CompleteMultipartUploadResult><Bucket>{escape(request.bucket)}</Bucket>"
            f"<Key>{escape(request.key)}</Key><ETag>{escape(etag)}</ETag>"
            "</CompleteMultipartUploadResult>"
        )

    def _multipart_abort(self, request: Request) -> Response:
        with self._lock:
            self._uploads.pop(request.query["uploadId"], None)
        return Response(status=204)


def _condition(request: Request) -> Condition | None:
    if request.headers.get("if-none-match") == "*":
        return Condition()
    if "if-match" in request.headers:
        return Condition(etag=request.headers["if-match"])
    return None


def _range(text: str, size: int) -> tuple[int, int]:
    """Return the first and last byte that a Range header asks for."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if match is None or match.groups() == ("", ""):
        raise RefusedError(400, "InvalidArgument")
    first, last = match.groups()
    if not first:
        begin, end = max(0, size - int(last)), size - 1
    else:
        begin, end = int(first), min(int(last), size - 1) if last else size - 1
    if begin >= size or begin > end:
        raise RefusedError(416, "InvalidRange")
    return begin, end


def _number(text: str) -> int:
    if not text.isdecimal():
        raise RefusedError(400, "InvalidArgument")
    return int(text)


def _max_keys(text: str | None) -> int:
    return _MAX_KEYS if text is None else min(_number(text), _MAX_KEYS)


def _start(query: Mapping[str, str]) -> Cursor:
    """Return where a listing begins, by either version of the request."""
    marker, delimiter = query.get("marker", ""), query.get("delimiter", "")
    if marker:
        return Cursor(marker, is_prefix=bool(delimiter) and marker.endswith(delimiter))
    return Cursor(query.get("start-after", ""))


def _token(cursor: Cursor) -> str:
    text = f"{'p' if cursor.is_prefix else 'k'}{cursor.last}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def _cursor(token: str) -> Cursor:
    try:
        text = base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise RefusedError(400, "InvalidArgument") from None
    return Cursor(text[1:], is_prefix=text[:1] == "p")


def _iso(stored: Stored) -> str:
    moment = datetime.fromtimestamp(stored.modified, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _xml(body: str, *, status: int = 200) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n{body}'
    return Response(status=status, headers=_XML, body=text.encode())
