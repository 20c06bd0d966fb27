"""`RemoteStore`: S3, Google Cloud Storage or Azure Blob through obstore.

Adds to obstore: one error tree with clean texts, checked paths, create-puts that are never
split into parts (a multipart upload would lose the condition), and copies beyond 5 GiB.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence

import obstore
from obstore import exceptions as theirs
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.formats import check_path
from holdfast.storage._handle import Handle
from holdfast.storage._port import ObjectInfo

Client = S3Store | GCSStore | AzureStore

_DELETE_BATCH = 1000
_MULTIPART_ABOVE_BYTES = 64 << 20
_STATUS = re.compile(r"(?:status(?: code)?[:\s]*|\b)([45]\d\d) [A-Z][a-z]")
_QUERY = re.compile(r"\?[^\s\"'<>)]*")
_NOT_OFFERED = {"400", "405", "501"}


class RemoteStore(Handle):
    """Objects below a prefix of a bucket."""

    max_copy_bytes = 5 << 30
    """Above this a server refuses to copy in one request, and the bytes are streamed."""

    def __init__(self, client: Client, *, location: str, copies_if_absent: bool) -> None:
        self._client = client
        self._location = location
        self._copies_if_absent = copies_if_absent

    def __repr__(self) -> str:
        return f"RemoteStore({self._location})"

    @property
    def location(self) -> str:
        """Return bucket and prefix as a URL, without endpoint or credentials."""
        return self._location

    @property
    def copies_if_absent(self) -> bool:
        """Tell whether a conditional copy is enforced: Google and Azure do, S3 has none."""
        return self._copies_if_absent

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes, or those in [start, end)."""
        with _translated("read", path):
            if end is not None:
                if end <= start:
                    return b""
                return bytes(
                    obstore.get_range(self._client, check_path(path), start=start, end=end)
                )
            if start:
                result = obstore.get(
                    self._client, check_path(path), options={"range": {"offset": start}}
                )
            else:
                result = obstore.get(self._client, check_path(path))
            return bytes(result.bytes())

    def head(self, path: str) -> ObjectInfo:
        """Return size and time."""
        with _translated("look at", path):
            return _info(obstore.head(self._client, check_path(path)))

    def put(self, path: str, body: bytes) -> None:
        """Store the bytes, replacing what is there."""
        with _translated("write", path):
            obstore.put(
                self._client,
                check_path(path),
                body,
                use_multipart=len(body) > _MULTIPART_ABOVE_BYTES,
            )

    def put_if_absent(self, path: str, body: bytes) -> None:
        """Ask the server to keep the bytes unless something has the name."""
        with _translated("create", path):
            obstore.put(self._client, check_path(path), body, mode="create", use_multipart=False)

    def list(self, prefix: str = "", *, after: str = "") -> Sequence[ObjectInfo]:
        """Return the objects below the folder `prefix`, sorted by path, beyond `after`."""
        with _translated("list", prefix or "."):
            stream = obstore.list(
                self._client,
                check_path(prefix) if prefix else None,
                offset=after or None,
                chunk_size=1000,
            )
            found = [_info(meta) for chunk in stream for meta in chunk]
        return sorted((f for f in found if f.path > after), key=lambda info: info.path)

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> None:
        """Copy inside the server; above `max_copy_bytes` through this process, in parts."""
        with _translated("copy", source):
            if if_absent and self._copies_if_absent:
                obstore.copy(self._client, check_path(source), check_path(target), overwrite=False)
                return
            if if_absent:
                self._refuse_taken(target)
            if obstore.head(self._client, check_path(source))["size"] <= self.max_copy_bytes:
                obstore.copy(self._client, check_path(source), check_path(target))
            else:
                stream = obstore.get(self._client, source).stream(min_chunk_size=16 << 20)
                obstore.put(self._client, check_path(target), stream, use_multipart=True)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects in batches; one that is not there is fine."""
        wanted = [check_path(path) for path in paths]
        for first in range(0, len(wanted), _DELETE_BATCH):
            batch = wanted[first : first + _DELETE_BATCH]
            with _translated("delete", batch[0]), contextlib.suppress(theirs.NotFoundError):
                obstore.delete(self._client, batch)

    def _refuse_taken(self, target: str) -> None:
        # Not atomic: callers treat it as a hint, as `copies_if_absent` tells them.
        with contextlib.suppress(theirs.NotFoundError, FileNotFoundError):
            obstore.head(self._client, check_path(target))
            raise AlreadyExistsError("something has this name", path=target)


def _info(meta: obstore.ObjectMeta) -> ObjectInfo:
    return ObjectInfo(
        path=meta["path"], size=meta["size"], modified=meta["last_modified"].timestamp()
    )


@contextlib.contextmanager
def _translated(action: str, path: str) -> Iterator[None]:
    """Turn obstore's errors into ours, in this one place."""
    try:
        yield
    except HoldfastError:
        raise
    except (theirs.AlreadyExistsError, theirs.PreconditionError, FileExistsError) as error:
        raise AlreadyExistsError("something may have this name", path=path) from error
    except (theirs.NotFoundError, FileNotFoundError) as error:
        raise NotFoundError(f"cannot {action}: nothing is there", path=path) from error
    except (theirs.PermissionDeniedError, theirs.UnauthenticatedError, PermissionError) as error:
        raise PermissionDeniedError(
            f"cannot {action}: the store refused these credentials", path=path
        ) from error
    except (theirs.NotSupportedError, NotImplementedError) as error:
        raise UnsupportedError(f"cannot {action}: not offered here", path=path) from error
    except (theirs.BaseError, OSError) as error:
        raise _unanswered(action, path, error) from None


def _unanswered(action: str, path: str, error: Exception) -> HoldfastError:
    """Tell "the server has no such operation" from "no usable answer"."""
    text = _QUERY.sub("?...", " ".join(str(error).split()))
    status = _STATUS.search(text)
    if status and status[1] in _NOT_OFFERED:
        return UnsupportedError(
            f"cannot {action}: the server answered {status[1]}", path=path, reason=text[:300]
        )
    return UnavailableError(f"cannot {action}: no usable answer", path=path, reason=text[:300])
