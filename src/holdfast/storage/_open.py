"""From a URL and options to an `ObjectStore`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from holdfast._ids import Ids
from holdfast.errors import InvalidInputError
from holdfast.formats import check_name, check_path
from holdfast.options import ClientSettings, StorageOptions, resolve, suggestion, translate
from holdfast.storage._endpoint import remote_endpoint
from holdfast.storage._local import LocalStore
from holdfast.storage._memory import MemoryStore
from holdfast.storage._port import ObjectStore
from holdfast.storage._registry import find_object_store, registered_schemes
from holdfast.storage._remote import RemoteStore

_BUILT_IN = ("az", "cos", "file", "gs", "memory", "oss", "s3")
_MAX_RETRIES = 3
_RETRY_SECONDS = 20.0
_TIMEOUTS = {"timeout": "30s", "connect_timeout": "5s"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def open_store(
    url: str | Path,
    options: Mapping[str, str] | None = None,
    *,
    fsync: bool = True,
    ids: Ids | None = None,
) -> ObjectStore:
    """Open the store at `url`: a path, `file://`, `memory://`, or a URL of an object store.

    Known are `s3://`, `gs://`, `az://`, `cos://`, `oss://` and what was registered
    (`register_object_store`). Nothing is contacted yet. Every call gives an independent client.

    Args:
        url: where the table is, or will be.
        options: pylance's storage options; values `env:NAME` come from the environment.
        fsync: off makes a local store quick and not durable; for tests.
        ids: where temporary names come from.

    Raises:
        InvalidInputError: an unknown scheme or option, or a malformed URL.
        MissingExtraError: the client of this kind of store is not installed.
    """
    given = options if isinstance(options, StorageOptions) else StorageOptions(options)
    scheme, place = _split(url)
    registered = find_object_store(scheme)
    if registered is not None:
        values = {key: resolve(key, value) for key, value in given.items()}
        return registered(f"{scheme}://{place}", values)
    settings = translate(scheme, given)
    if scheme == "file":
        return LocalStore(Path(place), fsync=fsync, ids=ids)
    if scheme == "memory":
        return MemoryStore(f"memory://{place}")
    if scheme in {"cos", "oss"}:
        return _by_vendor_protocol(scheme, place, settings)
    return _remote(scheme, place, settings)


def backend_of(url: str | Path) -> str:
    """Return which kind of store serves a URL: file, memory, s3, gs, az, or its own scheme.

    Raises:
        InvalidInputError: an unknown scheme or a malformed URL.
    """
    return _split(url)[0]


def _address_text(url: object) -> str:
    # An unset variable is no folder of the name `None`.
    text = str(url) if isinstance(url, str | Path) else ""
    if not text.strip() or _CONTROL.search(text):
        raise InvalidInputError(
            "a store needs a path or a URL, without control characters", type=type(url).__name__
        )
    return text


def _split(url: str | Path) -> tuple[str, str]:
    """Return (scheme, bucket/prefix or absolute path)."""
    text = _address_text(url)
    if isinstance(url, Path) or "://" not in text:
        return "file", _folder(text)
    try:
        parts = urlsplit(text)
    except ValueError:  # its text repeats the URL
        raise InvalidInputError("this store URL cannot be read") from None
    if parts.scheme == "s3+ddb":
        raise InvalidInputError(
            "a table on s3+ddb:// is decided by Lance's own DynamoDB store: take it over with "
            "`holdfast adopt URI --confirm` (adopt_table), then give it as s3://"
        )
    if parts.scheme not in _BUILT_IN and find_object_store(parts.scheme) is None:
        known = sorted({*_BUILT_IN, *registered_schemes()})
        raise InvalidInputError(
            f"unknown store scheme {parts.scheme!r}{suggestion(parts.scheme, known)}; "
            f"known are {', '.join(known)}"
        )
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidInputError(
            "a store URL is only scheme, bucket and path; credentials go into the options"
        )
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"}:
            raise InvalidInputError("a file URL has three slashes: file:///folder")
        return "file", _folder(unquote(parts.path))
    place = f"{parts.netloc}{parts.path}".rstrip("/")
    if not parts.netloc:
        raise InvalidInputError(f"a {parts.scheme}:// URL names a bucket first")
    return parts.scheme, place


def _folder(text: str) -> str:
    """Return a folder by its one name, so that `..` and links do not look like a move."""
    if not text or _CONTROL.search(text):
        raise InvalidInputError("a file URL names a folder: file:///folder")
    try:
        return os.path.realpath(Path(text).expanduser())
    except RuntimeError as error:
        raise InvalidInputError("the home folder of this path is not known") from error


def _by_vendor_protocol(scheme: str, place: str, settings: ClientSettings) -> ObjectStore:
    bucket, _, prefix = place.partition("/")
    check_name(bucket, "a bucket's name")
    # Imported late: its client is in an extra.
    from holdfast.storage._opendal import open_vendor_store  # noqa: PLC0415

    return open_vendor_store(scheme, bucket, check_path(prefix) if prefix else "", settings)


def _remote(scheme: str, place: str, settings: ClientSettings) -> RemoteStore:
    bucket, _, prefix = place.partition("/")
    check_name(bucket, "a bucket's name")
    # Any: obstore types each option by its own literal, and ours were checked by the table.
    retry_seconds = settings.retry_timeout_seconds
    shared: dict[str, Any] = {
        "prefix": check_path(prefix) if prefix else None,
        "config": dict(settings.config) or None,
        "client_options": {**_TIMEOUTS, **settings.client},
        "retry_config": {
            "max_retries": _MAX_RETRIES if settings.max_retries is None else settings.max_retries,
            "retry_timeout": timedelta(
                seconds=_RETRY_SECONDS if retry_seconds is None else retry_seconds
            ),
        },
    }
    location = f"{scheme}://{place}"
    try:
        if scheme == "s3":
            client: S3Store | GCSStore | AzureStore = S3Store(bucket, **shared)
        elif scheme == "gs":
            client = GCSStore(bucket, **shared)
        else:
            client = AzureStore(bucket, **shared)
    except Exception as error:  # noqa: BLE001 - whatever the client dislikes, it is the options
        # Not chained: the client's text may hold an option's value.
        raise InvalidInputError(
            f"the options do not describe a usable {scheme} store",
            location=location,
            reason=_without_values(str(error), settings),
        ) from None
    return RemoteStore(
        client,
        location=location,
        endpoint=remote_endpoint(scheme, settings.config),
        copies_if_absent=scheme != "s3",
    )


def _without_values(text: str, settings: ClientSettings) -> str:
    text = text.partition("\n")[0]
    values = {str(value) for value in (*settings.config.values(), *settings.client.values())}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "***") if value else text
    return text
