"""`VendorStore`: Tencent COS and Alibaba OSS by their own protocols, through OpenDAL.

Lance reaches `cos://` and `oss://` by the vendor's protocol, with the bucket in the host's name.
So do we: one table, one dialect, one set of permissions. Options and environment variables are
those that Lance reads.

Both services have a header that forbids to overwrite an object. Both ignore it once versioning
was ever enabled on the bucket, also after it was suspended: so these stores never decide
(`distrust`), whatever a probe finds today.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    InvalidInputError,
    MissingExtraError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.formats import check_path
from holdfast.options import ClientSettings
from holdfast.storage._endpoint import host_of
from holdfast.storage._handle import Handle
from holdfast.storage._port import ObjectInfo, check_range

try:
    import opendal
    from opendal import exceptions as theirs
    from opendal.layers import RetryLayer, TimeoutLayer
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "cos:// and oss:// need a package that is not installed: pip install 'holdfast[cos]'",
        package=error.name,
    ) from error

_PAGE = 1000
_CHUNK_BYTES = 16 << 20
_DELETERS = 8
_MAX_RETRIES = 3
_TIMEOUT_SECONDS = 30.0
_STATUS = re.compile(r"\bstatus: (\d{3})\b")
_CODE = re.compile(r'<Code>(\w{1,64})</Code>|code: "(\w{1,64})"')
_REFUSED = {"401", "403"}
_PAST_THE_END = "416"
_SECONDS = re.compile(r"(\d+) *(ms|s|m)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vendor:
    """How a vendor's options and variables are called, and what its service can do."""

    name: str
    options: Mapping[str, str]  # ours and Lance's -> the client's
    variables: tuple[str, ...]  # prefixes of environment variables, the stronger one first
    example: str
    max_copy_bytes: int
    header: str


_VENDORS = {
    "cos": _Vendor(
        name="Tencent COS",
        options={
            "cos_endpoint": "endpoint",
            "cos_secret_id": "secret_id",
            "cos_secret_key": "secret_key",
            "cos_enable_versioning": "enable_versioning",
        },
        variables=("COS_", "TENCENTCLOUD_"),
        example="https://cos.REGION.myqcloud.com",
        max_copy_bytes=5 << 30,
        header="x-cos-forbid-overwrite",
    ),
    "oss": _Vendor(
        name="Alibaba OSS",
        options={
            "oss_endpoint": "endpoint",
            "oss_access_key_id": "access_key_id",
            "oss_secret_access_key": "access_key_secret",
            "oss_region": "region",
            "oss_security_token": "security_token",
        },
        variables=("OSS_", "ALIBABA_CLOUD_"),
        example="https://oss-REGION.aliyuncs.com",
        max_copy_bytes=1 << 30,
        header="x-oss-forbid-overwrite",
    ),
}
_FROM_VARIABLES = (
    "endpoint",
    "secret_id",
    "secret_key",
    "security_token",
    "access_key_id",
    "access_key_secret",
    "region",
)
_MIXED_IN_BY_LANCE = ("endpoint", "access_key_id", "access_key_secret", "region", "security_token")


def open_vendor_store(
    scheme: str, bucket: str, prefix: str, settings: ClientSettings
) -> VendorStore:
    """Return the store below `prefix` of a bucket; nothing is contacted.

    Raises:
        InvalidInputError: no endpoint, or settings that describe no usable store.
    """
    vendor = _VENDORS[scheme]
    config = _config(scheme, vendor, settings)
    location = f"{scheme}://{bucket}/{prefix}".rstrip("/")
    endpoint = config.get("endpoint")
    if not endpoint:
        raise InvalidInputError(
            f"a {scheme}:// store needs its endpoint: set {scheme}_endpoint={vendor.example}, "
            f"or {scheme.upper()}_ENDPOINT in the environment"
        )
    config.pop("region", None)  # part of the endpoint; Lance's client wants it for signatures
    timeout = _seconds(settings.client.get("timeout"))
    retries = _MAX_RETRIES if settings.max_retries is None else settings.max_retries
    try:
        client = opendal.Operator(scheme, bucket=bucket, root=f"/{prefix}/", **config)
        # The timeout inside, the retries outside: each try gets the whole time.
        client = client.layer(TimeoutLayer(timeout=timeout, io_timeout=timeout))
        if retries:
            client = client.layer(RetryLayer(max_times=retries, min_delay=0.1, max_delay=2.0))
    except Exception as error:  # noqa: BLE001 - whatever the client dislikes, it is the options
        # Not chained: the client's text may hold an option's value.
        raise InvalidInputError(
            f"the options do not describe a usable {scheme} store",
            location=location,
            reason=type(error).__name__,
        ) from None
    return VendorStore(client, vendor, location=location, endpoint=host_of(endpoint))


def _config(scheme: str, vendor: _Vendor, settings: ClientSettings) -> dict[str, str]:
    """Return the client's settings: options first, then the vendor's variables.

    Raises:
        InvalidInputError: Lance would take a setting of another cloud.
    """
    config: dict[str, str] = {}
    for prefix in reversed(vendor.variables):
        for name in _FROM_VARIABLES:
            value = os.environ.get(f"{prefix}{name.upper()}")
            if value:
                config[name] = value
    if scheme == "oss":
        _refuse_mixture(vendor, settings)
    given = {vendor.options[key]: value for key, value in settings.config.items()}
    return {**config, **given}


def _refuse_mixture(vendor: _Vendor, settings: ClientSettings) -> None:
    """Refuse settings that Lance would take from AWS's variables instead of OSS's.

    Lance reads both kinds for `oss://` and lets either win.
    """
    given = {vendor.options[key] for key in settings.config}
    for name in _MIXED_IN_BY_LANCE:
        if name not in given and os.environ.get(f"AWS_{name.upper()}"):
            option = next(key for key, theirs_ in vendor.options.items() if theirs_ == name)
            raise InvalidInputError(
                f"Lance would take this setting of oss:// from AWS's environment variable: give "
                f"{option} as a storage option, or unset the variable",
                variable=f"AWS_{name.upper()}",
            )


class VendorStore(Handle):
    """Objects below a prefix of a COS or OSS bucket."""

    copies_if_absent = False
    reads_ahead = True

    def __init__(
        self, client: opendal.Operator, vendor: _Vendor, *, location: str, endpoint: str
    ) -> None:
        self._client = client
        self._vendor = vendor
        self._location = location
        self._endpoint = endpoint
        self.max_copy_bytes = vendor.max_copy_bytes

    def __repr__(self) -> str:
        return f"VendorStore({self._location})"

    @property
    def location(self) -> str:
        """Return bucket and prefix as a URL, without endpoint or credentials."""
        return self._location

    @property
    def endpoint(self) -> str:
        """Return the server's host and port."""
        return self._endpoint

    @property
    def distrust(self) -> str:
        """Return why this store must never decide."""
        return (
            f"{self._vendor.name} ignores {self._vendor.header} once versioning was ever enabled "
            "on the bucket, which anybody may do later and no probe foresees"
        )

    def get(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes, or those in [start, end)."""
        check_range(start, end)
        check_path(path)
        with _translate_errors("read", path):
            if start == 0 and end is None:
                return bytes(self._client.read(path))
            size = self._client.stat(path).content_length
            # The size is asked for first: a range beyond the end is cut, as with every store here.
            wanted = max(0, (size if end is None else min(end, size)) - start)
            return bytes(self._client.read(path, offset=start, size=wanted)) if wanted else b""

    def head(self, path: str) -> ObjectInfo:
        """Return size and time."""
        with _translate_errors("look at", path):
            return _info(check_path(path), self._client.stat(path))

    def put(self, path: str, body: bytes) -> None:
        """Store the bytes, replacing what is there."""
        with _translate_errors("write", path):
            self._client.write(check_path(path), bytes(body))

    def put_if_absent(self, path: str, body: bytes) -> None:
        """Ask the server to keep the bytes unless something has the name."""
        with _translate_errors("create", path):
            self._client.write(check_path(path), bytes(body), if_not_exists=True)

    def list(self, prefix: str = "", *, after: str = "") -> Sequence[ObjectInfo]:
        """Return the objects below the folder `prefix`, sorted by path, beyond `after`."""
        if after:
            check_path(after)
        with _translate_errors("list", prefix or "."):
            infos = self._entries(prefix, recursive=True)
        wanted = (info for info in infos if _is_object(info) and info.path > after)
        return sorted(wanted, key=lambda info: info.path)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below `prefix`, sorted."""
        folder = _folder(prefix)
        with _translate_errors("list", prefix or "."):
            names = [info.path for info in self._entries(prefix, recursive=False)]
        below = {name.removeprefix(folder) for name in names if name.endswith("/")}
        return sorted(name.rstrip("/") for name in below if name.strip("/"))

    def first_names(self, folder: str) -> Sequence[str]:
        """Return the names of a folder's first page: both services list in order."""
        with _translate_errors("list", folder):
            first = self._entries(folder, recursive=True, limit=_PAGE)
        return [info.path.removeprefix(f"{folder}/") for info in first if _is_object(info)]

    def copy(self, source: str, target: str, *, if_absent: bool = False) -> None:
        """Copy inside the server; above `max_copy_bytes` through this process, in parts."""
        check_path(source)
        check_path(target)
        with _translate_errors("copy", source):
            if if_absent and self._client.exists(target):
                # Not atomic: callers treat it as a hint, as `copies_if_absent` tells them.
                raise AlreadyExistsError("something has this name", path=target)
            size = self._client.stat(source).content_length
            if size <= self.max_copy_bytes:
                self._client.copy(source, target)
            else:
                self._stream(source, target, size)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects, several at the same time; one that is not there is fine."""
        wanted = [check_path(path) for path in paths]
        if len(wanted) <= 1:
            for path in wanted:
                self._delete(path)
            return
        # One request per object, so they are sent side by side.
        with ThreadPoolExecutor(_DELETERS, thread_name_prefix="holdfast-delete") as threads:
            for done in [threads.submit(self._delete, path) for path in wanted]:
                done.result()

    def _delete(self, path: str) -> None:
        with contextlib.suppress(NotFoundError), _translate_errors("delete", path):
            self._client.delete(path)

    def _entries(
        self, prefix: str, *, recursive: bool, limit: int | None = None
    ) -> Sequence[ObjectInfo]:
        """Return what a listing shows, folders too; their names end with a slash.

        The client's plain iterator would hold the interpreter while it waits for a page. Its
        other one wants an event loop, and the caller's thread may run one already.
        """

        async def collect() -> list[ObjectInfo]:
            infos: list[ObjectInfo] = []
            client = self._client.to_async_operator()
            async for entry in await client.list(_folder(prefix) or "/", recursive=recursive):
                infos.append(_info(entry.path, entry.metadata))
                if len(infos) == limit:
                    break
            return infos

        with ThreadPoolExecutor(1, thread_name_prefix="holdfast-list") as thread:
            return thread.submit(lambda: asyncio.run(collect())).result()

    def _stream(self, source: str, target: str, size: int) -> None:
        # The target appears when it is closed; a process that dies before leaves parts only.
        writer = self._client.open(target, "wb")
        copied = 0
        while copied < size:
            wanted = min(_CHUNK_BYTES, size - copied)
            chunk = bytes(self._client.read(source, offset=copied, size=wanted))
            if not chunk:
                raise UnavailableError("cannot copy: the source changed meanwhile", path=source)
            writer.write(chunk)
            copied += len(chunk)
        writer.close()


def _is_object(info: ObjectInfo) -> bool:
    return not info.path.endswith("/")


def _folder(prefix: str) -> str:
    return f"{check_path(prefix)}/" if prefix else ""


def _seconds(text: str | bool | None) -> float:  # noqa: FBT001 - as options are typed
    match = _SECONDS.fullmatch(str(text)) if text is not None else None
    if text is not None and match is None:
        raise InvalidInputError("option timeout is a number of ms, s or m here, such as 30s")
    return _TIMEOUT_SECONDS if match is None else int(match[1]) * _UNITS[match[2]]


def _info(path: str, metadata: opendal.types.Metadata) -> ObjectInfo:
    modified = metadata.last_modified
    return ObjectInfo(
        path=path,
        size=metadata.content_length,
        modified=0.0 if modified is None else modified.timestamp(),
        tag=metadata.etag or None,
    )


@contextlib.contextmanager
def _translate_errors(action: str, path: str) -> Iterator[None]:
    """Turn OpenDAL's errors into ours, in this one place; not chained, they hold addresses."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "opendal" and not isinstance(error, OSError):
            raise
        raise _meaning(action, path, error) from None


def _meaning(action: str, path: str, error: Exception) -> HoldfastError:
    text = str(error)
    status = match[1] if (match := _STATUS.search(text)) else ""
    if isinstance(error, theirs.PermissionDenied) or status in _REFUSED:
        return PermissionDeniedError(
            f"cannot {action}: the store refused these credentials", path=path
        )
    if isinstance(error, theirs.AlreadyExists | theirs.ConditionNotMatch) and action == "create":
        return AlreadyExistsError("something may have this name", path=path)
    if isinstance(error, theirs.NotFound):
        bucket = "NoSuchBucket" in text
        return NotFoundError(
            f"cannot {action}: {'no such bucket' if bucket else 'nothing is there'}", path=path
        )
    if isinstance(error, theirs.Unsupported):
        return UnsupportedError(f"cannot {action}: the server does not offer it", path=path)
    # The server's words may hold addresses and signatures: only its status and code are shown.
    code = next((c for c in (m.groups() for m in _CODE.finditer(text)) if any(c)), ())
    reason = " ".join([type(error).__name__, status, *(part for part in code if part)]).strip()
    return UnavailableError(f"cannot {action}: no usable answer", path=path, reason=reason)
