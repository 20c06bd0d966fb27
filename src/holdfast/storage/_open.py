"""From a URL and options to an `ObjectStore`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from holdfast._ids import Ids
from holdfast.errors import InvalidInputError
from holdfast.formats import check_path
from holdfast.options import ClientSettings, StorageOptions, suggestion, translate
from holdfast.storage._local import LocalStore
from holdfast.storage._memory import MemoryStore
from holdfast.storage._port import ObjectStore
from holdfast.storage._remote import RemoteStore

# What each URL scheme is served by. COS speaks S3 when given its S3 endpoint.
_BACKENDS = {
    "file": "file",
    "memory": "memory",
    "s3": "s3",
    "cos": "s3",
    "gs": "gs",
    "az": "az",
}
_MAX_RETRIES = 3
_RETRY_SECONDS = 20.0
_TIMEOUTS = {"timeout": "30s", "connect_timeout": "5s"}


def open_store(
    url: str | Path,
    options: Mapping[str, str] | None = None,
    *,
    fsync: bool = True,
    ids: Ids | None = None,
) -> ObjectStore:
    """Open the store at `url`: a path, `file://`, `memory://`, `s3://`, `gs://`, `az://`, `cos://`.

    Nothing is contacted yet. Every call gives an independent client.

    Args:
        url: where the table is, or will be.
        options: pylance's storage options; values `env:NAME` come from the environment.
        fsync: off makes a local store quick and not durable; for tests.
        ids: where temporary names come from.

    Raises:
        InvalidInputError: an unknown scheme or option, or a malformed URL.
    """
    given = options if isinstance(options, StorageOptions) else StorageOptions(options)
    scheme, place = _split(url)
    settings = translate(_BACKENDS[scheme], given)
    if scheme == "file":
        return LocalStore(Path(place), fsync=fsync, ids=ids)
    if scheme == "memory":
        return MemoryStore(f"memory://{place}")
    return _remote(scheme, place, settings)


def backend_of(url: str | Path) -> str:
    """Return which kind of store serves a URL: file, memory, s3, gs or az.

    Raises:
        InvalidInputError: an unknown scheme or a malformed URL.
    """
    return _BACKENDS[_split(url)[0]]


def _split(url: str | Path) -> tuple[str, str]:
    """Return (scheme, bucket/prefix or absolute path)."""
    text = str(url)
    if isinstance(url, Path) or "://" not in text:
        if not text.strip() or "\0" in text:
            raise InvalidInputError("a store needs a path or a URL", url=repr(text[:80]))
        return "file", str(Path(text).expanduser().absolute())
    parts = urlsplit(text)
    if parts.scheme not in _BACKENDS:
        raise InvalidInputError(
            f"unknown store scheme {parts.scheme!r}{suggestion(parts.scheme, list(_BACKENDS))}; "
            f"known are {', '.join(sorted(_BACKENDS))}"
        )
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidInputError(
            "a store URL is only scheme, bucket and path; credentials go into the options"
        )
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"}:
            raise InvalidInputError("a file URL has three slashes: file:///folder")
        return "file", unquote(parts.path)
    place = f"{parts.netloc}{parts.path}".rstrip("/")
    if not parts.netloc:
        raise InvalidInputError(f"a {parts.scheme}:// URL names a bucket first")
    return parts.scheme, place


def _remote(scheme: str, place: str, settings: ClientSettings) -> RemoteStore:
    bucket, _, prefix = place.partition("/")
    # Any: obstore types each option by its own literal, and ours were checked by the table.
    shared: dict[str, Any] = {
        "prefix": check_path(prefix) if prefix else None,
        "config": dict(settings.config) or None,
        "client_options": {**_TIMEOUTS, **settings.client},
        "retry_config": {
            "max_retries": _MAX_RETRIES if settings.max_retries is None else settings.max_retries,
            "retry_timeout": timedelta(seconds=settings.retry_timeout_seconds or _RETRY_SECONDS),
        },
    }
    location = f"{scheme}://{place}"
    backend = _BACKENDS[scheme]
    try:
        if backend == "s3":
            client: S3Store | GCSStore | AzureStore = S3Store(bucket, **shared)
        elif backend == "gs":
            client = GCSStore(bucket, **shared)
        else:
            client = AzureStore(bucket, **shared)
    except Exception as error:
        raise InvalidInputError(
            f"the options do not describe a usable {backend} store", location=location
        ) from error
    return RemoteStore(client, location=location, copies_if_absent=backend != "s3")
