"""`RemoteStore`: S3, Google Cloud Storage or Azure Blob through obstore.

Adds to obstore: one error tree with clean texts, checked paths, create-puts that are never
split into parts (a multipart upload would lose the condition), and copies beyond 5 GiB.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import obstore
from obstore import exceptions as theirs
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.errors import (
    AlreadyExistsError,
    CorruptError,
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.formats import check_path
from holdfast.storage._handle import Handle
from holdfast.storage._port import ObjectInfo, check_range

Client = S3Store | GCSStore | AzureStore

_DELETE_BATCH = 1000
_PAGE = 1000
_MULTIPART_ABOVE_BYTES = 64 << 20
_PART_BYTES = 16 << 20
_PAST_THE_END = "416"
_ONLY_SO_LONG = re.compile(r"Wanted range starting at \d+, but object was only \d+ bytes long")
_UNAUTHORISED = {"401", "403"}
_MISSING = "404"
_NOT_IMPLEMENTED = "501"
_NOT_OFFERED = {"400", "405", "501"}
_TAKEN = (theirs.AlreadyExistsError, theirs.PreconditionError, FileExistsError)
_MAKES_A_NAME = {"create", "copy"}
_NEEDS_BUCKET = {"create", "list", "write"}

# How obstore words an answer, and S3's codes in its body.
_MD5 = re.compile(r"[0-9a-f]{32}")  # S3's tag of an object that was put in one piece
_STATUS = re.compile(r"status code: ([1-5]\d\d)[^:]*")
_RETRIED = re.compile(r"after [1-9]\d* retries")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_ADDRESS = re.compile(r"https?://\S+")
_USER_INFO = re.compile(r"//[^/@\s]*@")
_QUERY = re.compile(r"\?[^\s\"'<>)]*")
_UNLISTED = re.compile(r'object with invalid path: [^"]*"([^"]*)"')
_METADATA_SERVICE = re.compile(r"//(169\.254\.169\.254|metadata\.google\.internal)[:/]")
_REFUSAL_CODES = re.compile(
    r"\b(AccessDenied|AuthorizationHeaderMalformed|ExpiredToken|InvalidAccessKeyId|InvalidToken"
    r"|RequestTimeTooSkewed|SignatureDoesNotMatch|TokenRefreshRequired)\b"
)
_TRANSIENT_CODES = {"BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"}


class RemoteStore(Handle):
    """Objects below a prefix of a bucket."""

    reads_ahead = True

    max_copy_bytes = 5 << 30
    """Above this a server refuses to copy in one request, and the bytes are streamed."""

    def __init__(
        self, client: Client, *, location: str, endpoint: str, copies_if_absent: bool
    ) -> None:
        self._client = client
        self._location = location
        self._endpoint = endpoint
        self._copies_if_absent = copies_if_absent

    def __repr__(self) -> str:
        return f"RemoteStore({self._location})"

    @property
    def location(self) -> str:
        """Return bucket and prefix as a URL, without endpoint or credentials."""
        return self._location

    @property
    def endpoint(self) -> str:
        """Return the server's host and port; one name for all of AWS."""
        return self._endpoint

    @property
    def copies_if_absent(self) -> bool:
        """Tell whether a conditional copy is enforced: Google and Azure do, S3 has none."""
        return self._copies_if_absent

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes, or those in [start, end)."""
        check_range(start, end)
        with _translate_errors("read", path):
            try:
                return self._read(check_path(path), start, end)
            except theirs.GenericError as error:
                # Servers answer a range behind the last byte with 416; the port promises no bytes
                # instead of an error.
                whole = start == 0 and end is None
                if whole or not _is_past_the_end(str(error)):
                    raise
                return b""

    def head(self, path: str) -> ObjectInfo:
        """Return size and time."""
        with _translate_errors("look at", path):
            return _info(obstore.head(self._client, check_path(path)))

    def put(self, path: str, body: bytes) -> None:
        """Store the bytes, replacing what is there."""
        with _translate_errors("write", path):
            obstore.put(
                self._client,
                check_path(path),
                body,
                # Below it one request is atomic and cheaper. Above it S3 refuses single puts from 5
                # GiB on, and a retry would send everything again.
                use_multipart=len(body) > _MULTIPART_ABOVE_BYTES,
            )

    def put_if_absent(self, path: str, body: bytes) -> None:
        """Ask the server to keep the bytes unless something has the name."""
        with _translate_errors("create", path):
            # In one piece: obstore drops the condition of a multipart upload, and the put would
            # overwrite.
            obstore.put(self._client, check_path(path), body, mode="create", use_multipart=False)

    def list(self, prefix: str = "", *, after: str = "") -> Sequence[ObjectInfo]:
        """Return the objects below the folder `prefix`, sorted by path, beyond `after`."""
        with _translate_errors("list", prefix or "."):
            stream = obstore.list(
                self._client,
                check_path(prefix) if prefix else None,
                offset=check_path(after) if after else None,
                chunk_size=_PAGE,
            )
            infos = [_info(meta) for chunk in stream for meta in chunk]
        # Sorted here, too: S3's directory buckets list in no order.
        return sorted((f for f in infos if f.path > after), key=lambda info: info.path)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below `prefix`, sorted."""
        with _translate_errors("list", prefix or "."):
            listing = obstore.list_with_delimiter(
                self._client, check_path(prefix) if prefix else None
            )
        return sorted(posixpath.basename(folder) for folder in listing["common_prefixes"])

    def first_objects(self, folder: str) -> Sequence[ObjectInfo]:
        """Return the objects of a folder's first page; all of them where pages have no order."""
        infos: list[ObjectInfo] = []
        with _translate_errors("list", folder):
            for chunk in obstore.list(self._client, check_path(folder), chunk_size=_PAGE):
                infos += [_info(meta) for meta in chunk]
                # S3's directory buckets list in no order; their first page shows it.
                if all(one.path <= other.path for one, other in pairwise(infos)):
                    break
        return infos

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> None:
        """Copy inside the server; above `max_copy_bytes` through this process, in parts."""
        check_path(source)
        check_path(target)
        with _translate_errors("copy", source):
            if if_absent and self._copies_if_absent:
                obstore.copy(self._client, source, target, overwrite=False)
                return
            if if_absent:
                self._refuse_taken(target)
            size = obstore.head(self._client, source)["size"]
            if size <= self.max_copy_bytes:
                obstore.copy(self._client, source, target)
            else:
                self._stream(source, target, size)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects in batches; one that is not there is fine."""
        wanted = [check_path(path) for path in paths]
        for first in range(0, len(wanted), _DELETE_BATCH):
            batch = wanted[first : first + _DELETE_BATCH]
            try:
                with _translate_errors("delete", batch[0]):
                    # Up to 1,000 names per request, as S3 allows.
                    obstore.delete(self._client, batch)
            except NotFoundError:
                self._delete_each(batch)

    def _read(self, path: str, start: int, end: int | None) -> bytes:
        if end is not None and end <= start:
            obstore.head(self._client, path)  # a missing object is missing in every range
            return b""
        if end is not None:
            return bytes(obstore.get_range(self._client, path, start=start, end=end))
        if start:
            tail = obstore.get(self._client, path, options={"range": {"offset": start}})
            return bytes(tail.bytes())
        return bytes(obstore.get(self._client, path).bytes())

    def _stream(self, source: str, target: str, size: int) -> None:
        # The target appears at `close`; after an error before it there is none, only parts
        # that a lifecycle rule of the bucket removes. So no `with`, which closes in any case.
        writer = obstore.open_writer(self._client, target, buffer_size=_PART_BYTES)
        copied = 0
        for chunk in obstore.get(self._client, source).stream(min_chunk_size=_PART_BYTES):
            writer.write(chunk)
            copied += len(chunk)
        # Before `close`, which makes the target: half a copy must not get the name.
        if copied != size:
            raise UnavailableError("cannot copy: the source changed meanwhile", path=source)
        writer.close()

    def _delete_each(self, paths: Iterable[str]) -> None:
        # Stores without batches stop at the first name that is not there.
        for path in paths:
            with contextlib.suppress(NotFoundError), _translate_errors("delete", path):
                obstore.delete(self._client, path)

    def _refuse_taken(self, target: str) -> None:
        # Not atomic: callers treat it as a hint, as `copies_if_absent` tells them.
        with contextlib.suppress(theirs.NotFoundError, FileNotFoundError):
            obstore.head(self._client, target)
            raise AlreadyExistsError("something has this name", path=target)


def _info(meta: obstore.ObjectMeta) -> ObjectInfo:
    tag = (meta["e_tag"] or "").strip('"')
    return ObjectInfo(
        path=meta["path"],
        size=meta["size"],
        modified=meta["last_modified"].timestamp(),
        # An ETag is the MD5 only of an object that was put in one piece without KMS; others have a
        # dash and a count of parts, or something else altogether.
        md5=tag if _MD5.fullmatch(tag) else None,
        tag=tag or None,
    )


@contextlib.contextmanager
def _translate_errors(action: str, path: str) -> Iterator[None]:
    """Turn obstore's errors into ours, in this one place.

    They are not chained: their texts hold the server's answer and the request's address, and
    in those there may be session tokens and signatures.
    """
    try:
        yield
    except HoldfastError:
        raise
    except (theirs.BaseError, OSError, NotImplementedError) as error:
        raise _meaning(action, path, error) from None


def _meaning(action: str, path: str, error: Exception) -> HoldfastError:
    text = str(error).partition("Debug source:")[0]
    unclear = UnavailableError(
        f"cannot {action}: no usable answer", path=path, reason=_reason(text)
    )
    # Before anything else: after a retry inside the client even "permission denied" is only the
    # answer to its last try.
    if action in _MAKES_A_NAME and _may_have_landed(error, text):
        return unclear
    unlisted = _UNLISTED.search(text) if action == "list" else None
    if unlisted:
        return CorruptError(
            "cannot list: an object here has a name that no Lance client can list, stock readers "
            "neither: remove or rename it",
            path=path,
            name=unlisted[1],
        )
    return _clear_answer(action, path, error, text) or unclear


def _clear_answer(action: str, path: str, error: Exception, text: str) -> HoldfastError | None:
    """Return what the server said, if it said something clear."""
    if _is_refusal(error, text):
        return PermissionDeniedError(
            f"cannot {action}: the store refused these credentials", path=path
        )
    if _METADATA_SERVICE.search(text):
        return PermissionDeniedError(
            f"cannot {action}: no credentials in the options, and none on this machine", path=path
        )
    status = _status(text)
    if isinstance(error, theirs.NotFoundError | FileNotFoundError) or status == _MISSING:
        # Writing and listing need no object, so what is missing there is the bucket.
        what = "no such bucket" if action in _NEEDS_BUCKET else "nothing is there"
        return NotFoundError(f"cannot {action}: {what}", path=path)
    # "May": 412 comes for a taken name and for our own object after a hidden retry, 409 for a
    # racing put with nothing stored. The arbiter reads back.
    if isinstance(error, _TAKEN) and action in _MAKES_A_NAME:
        return AlreadyExistsError("something may have this name", path=path)
    code = _CODE.search(text)
    not_offered = status in _NOT_OFFERED and not (code and code[1] in _TRANSIENT_CODES)
    if not_offered or isinstance(error, theirs.NotSupportedError | NotImplementedError):
        return UnsupportedError(
            f"cannot {action}: the server does not offer it", path=path, reason=_reason(text)
        )
    return None


def _may_have_landed(error: Exception, text: str) -> bool:
    """Tell whether the client library retried by itself: then its last answer is not the whole.

    A first try may have been applied though its answer was a 500. "Exists" is read back by
    the arbiter anyway, and 501 is what a server says to every try.
    """
    retried = _RETRIED.search(text) is not None
    return retried and not isinstance(error, _TAKEN) and _status(text) != _NOT_IMPLEMENTED


def _is_refusal(error: Exception, text: str) -> bool:
    refused = theirs.PermissionDeniedError | theirs.UnauthenticatedError | PermissionError
    # Some refusals come as 400, or inside the answer to a batch.
    named = _REFUSAL_CODES.search(_ADDRESS.sub("", text))
    return isinstance(error, refused) or named is not None or _status(text) in _UNAUTHORISED


def _is_past_the_end(text: str) -> bool:
    """Tell whether a range began beyond the last byte: by the server's word, or the client's."""
    return _status(text) == _PAST_THE_END or _ONLY_SO_LONG.search(text) is not None


def _status(text: str) -> str:
    match = _STATUS.search(text)
    return match[1] if match else ""


def _reason(text: str) -> str:
    """Return the client's words without the server's body, user info and query strings."""
    status, code = _STATUS.search(text), _CODE.search(text)
    shown = " ".join((text[: status.end()] if status else text).split())
    shown = _QUERY.sub("?...", _USER_INFO.sub("//", shown))[:300]
    return f"{shown} {code[1]}" if code else shown
