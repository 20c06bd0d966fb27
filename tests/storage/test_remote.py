"""The port over S3: the faulty server when it is honest, and real servers for the main points.

Google and Azure are only opened here, never contacted: there is no free server of theirs to
test with. What is shown for them is that their options reach the client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import s3_servers
from holdfast.errors import (
    AlreadyExistsError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.options import StorageOptions
from holdfast.storage import ObjectStore, RemoteStore, backend_of, open_store
from holdfast.testing import Fault, FaultyS3, Seen

Start = Callable[..., FaultyS3]
MIB = 1 << 20


@pytest.fixture(scope="module")
def shared() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        yield server


@pytest.fixture
def s3(shared: FaultyS3) -> FaultyS3:
    """Return the honest server, with nothing in it."""
    shared.faults.clear()
    opened(shared, "s3://b").delete(i.path for i in opened(shared, "s3://b").list())
    shared.requests.clear()
    return shared


@pytest.fixture
def store(s3: FaultyS3) -> RemoteStore:
    return opened(s3, "s3://b/some/table")


def opened(s3: FaultyS3, url: str, **more: str) -> RemoteStore:
    store = open_store(url, {**s3.storage_options(), **more})
    assert isinstance(store, RemoteStore)
    return store


def operations(s3: FaultyS3) -> list[str]:
    return [seen.operation for seen in s3.requests.all()]


def sent(s3: FaultyS3, operation: str) -> list[Seen]:
    return [seen for seen in s3.requests.all() if seen.operation == operation]


def every_method(store: ObjectStore, *, ranges: bool = True) -> None:
    store.put("a/x", b"0123456789")
    assert store.get("a/x") == b"0123456789"
    if ranges:
        assert store.get("a/x", start=2, end=4) == b"23"
        assert store.get("a/x", start=7) == b"789"
    info = store.head("a/x")
    assert (info.path, info.size) == ("a/x", 10)
    assert abs(info.modified - time.time()) < 3600
    store.put("a/x", b"again")
    store.copy("a/x", "a/y")
    store.put("ab", b"")
    assert [i.path for i in store.list("a")] == ["a/x", "a/y"]
    assert [i.path for i in store.list(after="a/x")] == ["a/y", "ab"]
    store.delete(["a/x", "nothing", "ab"])
    assert [(i.path, i.size) for i in store.list()] == [("a/y", 5)]
    for call in (store.get, store.head, lambda path: store.copy(path, "z")):
        with pytest.raises(NotFoundError):
            call("nothing")
    store.delete(["a/y"])


# The port


@pytest.mark.requirement("C2")
def test_every_method_on_the_faulty_server(store: RemoteStore) -> None:
    every_method(store)
    store.put_if_absent("x", b"first")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("x", b"second")
    assert store.get("x") == b"first"


@pytest.mark.requirement("C2")
def test_every_method_on_a_real_server(ministack: s3_servers.S3Server) -> None:
    store = open_store(ministack.url("port/table"), ministack.storage_options())
    every_method(store)
    store.put_if_absent("x", b"first")
    with pytest.raises(AlreadyExistsError):
        store.put_if_absent("x", b"second")
    assert store.get("x") == b"first"


@pytest.mark.requirement("C2")
def test_every_method_on_a_server_that_ignores_conditions(rclone_s3: s3_servers.S3Server) -> None:
    store = open_store(rclone_s3.url("port/table"), rclone_s3.storage_options())
    every_method(store, ranges=False)  # this server answers a range with the whole object
    store.put_if_absent("x", b"first")
    store.put_if_absent("x", b"second")
    assert store.get("x") == b"second"


def test_objects_live_below_the_prefix(s3: FaultyS3, store: RemoteStore) -> None:
    store.put("x", b"inside")
    opened(s3, "s3://b").put("some/tables/x", b"a neighbour")
    opened(s3, "s3://b").put("outside", b"")
    assert s3.objects.get("b", "some/table/x") is not None
    assert [i.path for i in store.list()] == ["x"]
    assert [i.path for i in opened(s3, "s3://b/some").list()] == ["table/x", "tables/x"]
    assert store.location == "s3://b/some/table"
    assert "127.0.0.1" not in repr(store)


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (0, None, b"0123456789"),
        (0, 10, b"0123456789"),
        (5, 99, b"56789"),
        (5, 5, b""),
        (7, 5, b""),
        (10, None, b""),
        (50, 60, b""),
    ],
)
def test_ranges_are_as_on_a_local_disk(
    store: RemoteStore, start: int, end: int | None, wanted: bytes
) -> None:
    store.put("x", b"0123456789")
    assert store.get("x", start=start, end=end) == wanted
    store.put("empty", b"")
    assert store.get("empty", start=start, end=end) == b""
    with pytest.raises(NotFoundError):
        store.get("nothing", start=start, end=end)


def test_odd_ranges_are_refused(store: RemoteStore) -> None:
    with pytest.raises(InvalidInputError, match="range"):
        store.get("x", start=-1)


def test_a_listing_of_many_pages(s3: FaultyS3, store: RemoteStore) -> None:
    for number in range(2345):
        s3.objects.put("b", f"some/table/many/{number:05d}", b"")
    listed = store.list("many")
    assert [i.path for i in listed] == [f"many/{n:05d}" for n in range(2345)]
    assert len(sent(s3, "list")) == 3
    assert [i.path for i in store.list("many", after="many/02342")] == ["many/02343", "many/02344"]


def test_deletes_go_in_batches(s3: FaultyS3, store: RemoteStore) -> None:
    paths = [f"many/{number:05d}" for number in range(2345)]
    for path in paths[::2]:
        s3.objects.put("b", f"some/table/{path}", b"")
    s3.requests.clear()
    store.delete(iter(paths))
    assert operations(s3) == ["delete_batch"] * 3
    assert store.list() == []
    s3.requests.clear()
    store.delete([])
    assert operations(s3) == []


def test_a_server_that_stops_a_batch_at_a_missing_name(s3: FaultyS3, store: RemoteStore) -> None:
    store.put("x", b"")
    store.put("y", b"")
    s3.faults.add(Fault(kind="status_before", method="POST", status=404))
    store.delete(["x", "nothing", "y"])
    assert store.list() == []


# Copies


@pytest.mark.requirement("C2")
def test_a_copy_stays_inside_the_server(s3: FaultyS3, store: RemoteStore) -> None:
    store.put("source", bytes(MIB))
    s3.requests.clear()
    store.copy("source", "target")
    assert operations(s3) == ["head", "copy"]
    assert sum(seen.received_bytes for seen in s3.requests.all()) == 0
    store.put("source", b"changed")
    assert store.get("target") == bytes(MIB)


def test_a_copy_above_the_limit_is_streamed_in_parts(s3: FaultyS3, store: RemoteStore) -> None:
    body = bytes(range(256)) * (MIB // 8)  # 32 MiB
    store.put("source", body)
    store.max_copy_bytes = len(body) - 1
    s3.requests.clear()
    store.copy("source", "target")
    seen = operations(s3)
    assert "copy" not in seen
    assert seen.count("get") == 1
    assert seen.count("multipart_part") > 1
    assert seen[-1] == "multipart_complete"
    assert store.get("target") == body


def test_a_streamed_copy_that_breaks_off_leaves_no_target(s3: FaultyS3) -> None:
    store = opened(s3, "s3://b/t", client_max_retries="0")
    store.put("source", bytes(40 * MIB))
    store.max_copy_bytes = 1
    s3.faults.add(Fault(kind="truncate", method="GET", length=20 * MIB, times=None))
    with pytest.raises(UnavailableError):
        store.copy("source", "target")
    s3.faults.clear()
    with pytest.raises(NotFoundError):
        store.head("target")


def test_a_copy_to_a_taken_name_is_refused_when_asked(store: RemoteStore) -> None:
    store.put("source", b"new")
    store.put("target", b"old")
    with pytest.raises(AlreadyExistsError):
        store.copy("source", "target", if_absent=True)
    assert store.get("target") == b"old"
    store.copy("source", "fresh", if_absent=True)
    store.copy("source", "target")
    assert store.get("target") == store.get("fresh") == b"new"
    assert not store.copies_if_absent


# Put-if-absent


@pytest.mark.parametrize("size", [0, 1, 20 * MIB], ids=["empty", "one", "20MiB"])
def test_a_create_is_one_conditional_put(s3: FaultyS3, store: RemoteStore, size: int) -> None:
    store.put_if_absent("x", bytes(size))
    (seen,) = s3.requests.all()
    assert (seen.operation, seen.conditional, seen.received_bytes) == ("put", True, size)


def test_a_large_put_goes_in_parts(s3: FaultyS3, store: RemoteStore) -> None:
    body = bytes(65 * MIB)
    store.put("x", body)
    assert "put" not in operations(s3)
    assert store.head("x").size == len(body)


# Errors


STATUSES = [
    (400, UnsupportedError),
    (401, PermissionDeniedError),
    (403, PermissionDeniedError),
    (404, NotFoundError),
    (405, UnsupportedError),
    (409, AlreadyExistsError),
    (412, AlreadyExistsError),
    (429, UnavailableError),
    (500, UnavailableError),
    (501, UnsupportedError),
    (503, UnavailableError),
]


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(("status", "wanted"), STATUSES)
def test_what_an_answer_to_a_create_means(
    s3: FaultyS3, status: int, wanted: type[HoldfastError]
) -> None:
    store = opened(s3, "s3://b/t", client_max_retries="0")
    s3.faults.add(Fault(kind="status_before", status=status, times=None))
    with pytest.raises(wanted) as caught:
        store.put_if_absent("x", b"")
    assert caught.type is wanted
    assert caught.value.details["path"] == "x"


@pytest.mark.parametrize("status", [409, 412, 500, 503, 429, 416])
def test_a_read_never_says_that_a_name_is_taken(s3: FaultyS3, status: int) -> None:
    store = opened(s3, "s3://b/t", client_max_retries="0")
    store.put("x", b"bytes")
    s3.faults.add(Fault(kind="status_before", status=status, times=None))
    for call in (store.get, store.head):
        with pytest.raises(UnavailableError) as caught:
            call("x")
        assert caught.type is UnavailableError


def test_a_passing_failure_is_retried_inside(s3: FaultyS3, store: RemoteStore) -> None:
    s3.faults.add(Fault(kind="status_before", status=503))
    store.put("x", b"bytes")
    s3.faults.add(Fault(kind="drop_before", method="GET"))
    assert store.get("x") == b"bytes"


def test_a_cut_answer_is_never_taken_for_the_whole(s3: FaultyS3) -> None:
    store = opened(s3, "s3://b/t", client_max_retries="0")
    store.put("x", bytes(1000))
    s3.faults.add(Fault(kind="truncate", method="GET", length=10, times=None))
    with pytest.raises(UnavailableError):
        store.get("x")


def test_no_answer_in_time_is_unavailable(faulty_s3: Start) -> None:
    server = faulty_s3()  # of its own: the request would land while another test counts
    store = opened(server, "s3://b/t", timeout="200ms", client_max_retries="0")
    server.faults.add(Fault(kind="delay_before", seconds=60, times=None))
    begun = time.monotonic()
    with pytest.raises(UnavailableError):
        store.put_if_absent("x", b"")
    assert time.monotonic() - begun < 30


def test_a_server_that_is_down_is_unavailable_in_bounded_time(faulty_s3: Start) -> None:
    server = faulty_s3()
    store = opened(server, "s3://b/t")
    server.stop()
    calls: list[Callable[[], object]] = [
        lambda: store.get("x"),
        lambda: store.put_if_absent("x", b""),
        store.list,
        lambda: store.delete(["x"]),
    ]
    for call in calls:
        begun = time.monotonic()
        with pytest.raises(UnavailableError):
            call()
        assert time.monotonic() - begun < 60


def test_a_missing_bucket_is_not_found(ministack: s3_servers.S3Server) -> None:
    store = open_store("s3://no-such-bucket/t", ministack.storage_options())
    calls: list[Callable[[], object]] = [
        lambda: store.get("x"),
        lambda: store.put("x", b""),
        lambda: store.put_if_absent("x", b""),
        lambda: store.copy("x", "y"),
        store.list,
    ]
    for call in calls:
        with pytest.raises(NotFoundError):
            call()
    with pytest.raises(NotFoundError, match="no such bucket"):
        store.put("x", b"")


def test_wrong_credentials_are_refused(faulty_s3: Start) -> None:
    server = faulty_s3(access_key="right", secret_key="right")
    store = opened(server, "s3://b/t", aws_access_key_id="wrong")
    calls: list[Callable[[], object]] = [
        lambda: store.get("x"),
        lambda: store.put("x", b""),
        lambda: store.put_if_absent("x", b""),
        store.list,
        lambda: store.delete(["x"]),
    ]
    for call in calls:
        with pytest.raises(PermissionDeniedError):
            call()


@pytest.mark.parametrize(
    ("code", "status", "wanted"),
    [
        ("ExpiredToken", 400, PermissionDeniedError),
        ("InvalidToken", 400, PermissionDeniedError),
        ("AuthorizationHeaderMalformed", 400, PermissionDeniedError),
        ("RequestTimeout", 400, UnavailableError),
        ("IncompleteBody", 400, UnavailableError),
        ("InvalidArgument", 400, UnsupportedError),
        ("NotImplemented", 501, UnsupportedError),
    ],
)
def test_codes_that_come_as_a_bad_request(
    s3: FaultyS3,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    status: int,
    wanted: type[HoldfastError],
) -> None:
    # Real services put the caller's session token into such an answer.
    body = (
        f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message>'
        "<Token-0>CANARY-session-token</Token-0></Error>"
    )
    answer = s3._service.handle("unknown", None)  # type: ignore[arg-type]
    monkeypatch.setattr(
        "holdfast.testing._faulty_s3.error_response",
        lambda _status: type(answer)(
            status=status, headers={"Content-Type": "application/xml"}, body=body.encode()
        ),
    )
    s3.faults.add(Fault(kind="status_before", status=status, times=None))
    store = opened(s3, "s3://b/t", client_max_retries="0")
    with pytest.raises(wanted) as caught:
        store.put_if_absent("x", b"")
    assert caught.type is wanted
    assert "CANARY" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_error_texts_hold_no_secret_no_signature_and_no_query(s3: FaultyS3) -> None:
    secrets = {
        "aws_secret_access_key": "CANARY-secret",
        "aws_session_token": "CANARY-token",
    }
    store = opened(s3, "s3://b/t", client_max_retries="0", **secrets)
    calls: list[Callable[[], object]] = [
        lambda: store.get("x"),
        lambda: store.put_if_absent("x", b""),
        store.list,
        lambda: store.delete(["x"]),
    ]
    for status in (400, 403, 404, 409, 500, 501, 503):
        s3.faults.clear()
        s3.faults.add(Fault(kind="status_before", status=status, times=None))
        for call in calls:
            try:
                call()
            except HoldfastError as error:
                text = f"{error} {error!r} {error.__cause__!r}"
                assert "CANARY" not in text
                assert "Signature" not in text
                assert "list-type" not in text
                assert "<" not in text


# Opening


def test_google_is_opened_not_contacted() -> None:
    store = open_store("gs://b/t", {"google_bearer_token": "x", "timeout": "5s"})
    assert (store.location, store.copies_if_absent) == ("gs://b/t", True)
    assert backend_of("gs://b") == "gs"
    assert open_store("gs://b/t", {"google_skip_signature": "true"}).location == "gs://b/t"


def test_azure_is_opened_not_contacted() -> None:
    options = {"azure_storage_account_name": "acc", "azure_storage_account_key": "a2V5"}
    store = open_store("az://container/t", options)
    assert (store.location, store.copies_if_absent) == ("az://container/t", True)
    assert backend_of("az://c") == "az"
    with pytest.raises(InvalidInputError, match="Account must be specified"):
        open_store("az://container/t")


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///path",
        "s3://../x",
        "s3://./x",
        "s3://a b/x",
        "s3://b:80/x",
        "s3://b%2f/x",
        "s3://b\n/x",
        "s3://key:secret@b/x",
        "s3://b/x?versionId=1",
        "s3://b/x#y",
        "s3://b//x",
        "s3://b/../x",
        "s3://b/a%20b",
        "s3://[b/x",
        "hdfs://b/x",
        "http://b/x",
        "gs://-b",
    ],
)
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_an_unknown_scheme_gets_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.storage._registry._registered", {})  # other tests have some
    with pytest.raises(InvalidInputError, match="did you mean 's3'"):
        open_store("s33://b/x")
    with pytest.raises(InvalidInputError, match="known are az, cos, file, gs, memory, oss, s3"):
        open_store("zzz://b/x")


def test_clients_are_independent_and_options_may_be_ready_made(s3: FaultyS3) -> None:
    options = StorageOptions(s3.storage_options())
    first, second = (open_store("s3://b/t", options) for _ in range(2))
    first.put("x", b"bytes")
    assert second.get("x") == b"bytes"
    assert first is not second
