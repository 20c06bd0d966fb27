"""The part of Google Cloud Storage's XML interface that obstore and Lance use, as a fake.

No emulator that can be installed here speaks that interface. So this shows the shape of requests
and what becomes of the answers, and nothing about the service: whether Google enforces the
condition is for the probe on a real bucket.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.testing import FaultyS3
from holdfast.testing._s3_http import Connection, Request, Response

_NAMES = {
    "x-goog-copy-source": "x-amz-copy-source",
    "x-goog-if-generation-match": "if-none-match",
}


class GcsConnection(Connection):
    """Translates requests into S3's words, and gives every answer a generation."""

    def __init__(self, *arguments: Any, seen: list[Mapping[str, str]]) -> None:
        super().__init__(*arguments)
        self._seen = seen

    def read_request(self) -> Request | None:
        request = super().read_request()
        if request is None:
            return None
        if request.method == "PUT":
            self._seen.append(request.headers)
        headers = {_NAMES.get(name, name): value for name, value in request.headers.items()}
        if headers.get("if-none-match") == "0":
            headers["if-none-match"] = "*"
        return replace(request, headers=headers)

    def send(self, response: Response, *, with_body: bool = True) -> int:
        headers = {**response.headers, "x-goog-generation": "1"}
        return super().send(replace(response, headers=headers), with_body=with_body)


class FakeGcs(FaultyS3):
    """A server for `gs://` addresses.

    Attributes:
        headers: of each PUT, as they came.
    """

    def __init__(self, *, conditions: str = "honest") -> None:
        self.headers: list[Mapping[str, str]] = []
        self.connection_class = partial(GcsConnection, seen=self.headers)  # type: ignore[assignment]
        super().__init__(conditions=conditions)

    def url(self, bucket: str, path: str = "") -> str:
        return f"gs://{bucket}/{path}".rstrip("/")

    def storage_options(self, _bucket: str = "") -> dict[str, str]:
        """Return options that send the real clients here: an account with another base URL."""
        account = {
            "gcs_base_url": self.endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"google_service_account_key": json.dumps(account), "allow_http": "true"}
