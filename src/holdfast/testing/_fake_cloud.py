"""`FakeCloud`: a small Tencent COS and Alibaba OSS on loopback, for the real clients of both.

Lance's client and OpenDAL put the bucket into the host's name, and there is no such host. So
the server is reached as an HTTP proxy, by the variables of `environment()`. They must be set
before a process uses either client for the first time: both keep one for the whole process.

    cloud = FakeCloud()
    os.environ.update(cloud.environment())
    cloud.enable_versioning("lake")  # for ever, as on the real services
    store = open_store("cos://lake/table", cloud.storage_options("cos"))

A bucket needs no creation. As long as versioning was never enabled on it, the header that forbids
to overwrite is honoured; from then on it is ignored. Single requests are broken with `faults`,
as for `FaultyS3`. It checks no signatures, and is for tests and demonstrations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from holdfast.errors import InvalidInputError
from holdfast.testing._faulty_s3 import FaultyS3
from holdfast.testing._s3_faults import Fault
from holdfast.testing._s3_http import Connection, Request, Response
from holdfast.testing._s3_service import error_response

_DOMAIN: Final = "holdfast.test"
_VENDORS: Final = ("cos", "oss")
_REFUSED: Final = 412


class _ProxyConnection(Connection):
    """Reads requests as a proxy gets them: the whole URL, with the bucket in its host."""

    def locate(self, path: str) -> tuple[str, str]:
        """Return bucket and key of `http://BUCKET.VENDOR.holdfast.test/KEY`."""
        if "://" not in path:
            return super().locate(path)
        parts = urlsplit(path)
        return parts.netloc.partition(".")[0], parts.path.removeprefix("/")

    def read_request(self) -> Request | None:
        """Return the next request in the words of S3, or None when the client is done."""
        request = super().read_request()
        return None if request is None else _as_s3(request)


class FakeCloud(FaultyS3):
    """The server, listening from construction until `stop`."""

    connection_class = _ProxyConnection

    def __init__(self, *, latency_seconds: float = 0.0, seed: int = 0, port: int = 0) -> None:
        super().__init__(
            conditions="after_versioning", latency_seconds=latency_seconds, seed=seed, port=port
        )

    def environment(self) -> dict[str, str]:
        """Return the variables by which clients find the server; other loopback traffic stays."""
        direct = "127.0.0.1,localhost"
        return {
            "http_proxy": self.endpoint,
            "HTTP_PROXY": self.endpoint,
            "no_proxy": direct,
            "NO_PROXY": direct,
        }

    def storage_options(self, vendor: str = "cos") -> dict[str, str]:
        """Return pylance's storage options for `cos` or `oss`.

        Raises:
            InvalidInputError: it is neither.
        """
        if vendor not in _VENDORS:
            raise InvalidInputError("a vendor is cos or oss", vendor=vendor)
        endpoint = f"http://{vendor}.{_DOMAIN}"
        if vendor == "cos":
            keys = {"cos_secret_id": "holdfast", "cos_secret_key": "not-checked"}
        else:
            keys = {"oss_access_key_id": "holdfast", "oss_secret_access_key": "not-checked"}
        return {f"{vendor}_endpoint": endpoint, **keys, "allow_http": "true"}

    def enable_versioning(self, bucket: str) -> None:
        """Enable versioning on a bucket: its conditions are ignored from now on, for ever."""
        self.objects.set_versioning(bucket)

    def _respond(self, operation: str, request: Request, fault: Fault | None) -> Response | None:
        response = super()._respond(operation, request, fault)
        if response is not None and response.status == _REFUSED:
            return error_response(409, "FileAlreadyExists")
        return response


def _as_s3(request: Request) -> Request:
    """Return a vendor's request in the words of S3."""
    headers = dict(request.headers)
    for vendor in _VENDORS:
        if headers.get(f"x-{vendor}-forbid-overwrite", "").lower() == "true":
            headers["if-none-match"] = "*"
        source = headers.get(f"x-{vendor}-copy-source")
        if source is not None:
            # OSS writes /bucket/key, COS writes bucket.host/key.
            bucket, _, key = source.removeprefix("/").partition("/")
            headers["x-amz-copy-source"] = f"{bucket.partition('.')[0]}/{key}"
    return replace(request, headers=headers)
