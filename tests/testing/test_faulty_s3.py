"""The faulty S3 server, as obstore and Lance's own client see it."""

from __future__ import annotations

import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from urllib.parse import urlsplit

import lance
import obstore
import pyarrow as pa
import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
)
from obstore.store import S3Store

from holdfast.errors import InvalidInputError
from holdfast.testing._faulty_s3 import FaultyS3, S3Endpoint
from holdfast.testing._faulty_s3_process import Control, FaultyS3Process
from holdfast.testing._s3_faults import Fault
from holdfast.testing._s3_objects import Conditions, sometimes

Start = Callable[..., FaultyS3]
StartProcess = Callable[..., FaultyS3Process]
MIB = 1024 * 1024
LONG = 60.0


def client(
    s3: S3Endpoint,
    bucket: str = "b",
    *,
    timeout: timedelta = timedelta(seconds=60),
    access_key: str | None = None,
) -> S3Store:
    options = s3.storage_options()
    return S3Store(
        bucket,
        endpoint=s3.endpoint,
        access_key_id=access_key or options["aws_access_key_id"],
        secret_access_key=options["aws_secret_access_key"],
        region=options["aws_region"],
        client_options={"allow_http": True, "timeout": timeout},
        retry_config={
            "max_retries": 2,
            "retry_timeout": timedelta(seconds=60),
            "backoff": {
                "init_backoff": timedelta(milliseconds=1),
                "max_backoff": timedelta(milliseconds=5),
                "base": 2,
            },
        },
    )


def create(store: S3Store, key: str, body: bytes) -> str:
    try:
        obstore.put(store, key, body, mode="create")
    except AlreadyExistsError:
        return "refused"
    except BaseError:
        return "failed"
    return "won"


def create_at_once(s3: S3Endpoint, key: str, writers: int = 8) -> list[str]:
    barrier = threading.Barrier(writers)

    def write(number: int) -> str:
        store = client(s3)
        obstore.put(store, f"warm-up/{number}", b"")
        barrier.wait(LONG)
        return create(store, key, b"%d" % number)

    with ThreadPoolExecutor(writers) as pool:
        return list(pool.map(write, range(writers)))


def ask(
    s3: S3Endpoint, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(urlsplit(s3.endpoint).netloc, timeout=LONG)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


def body_of(s3: FaultyS3, key: str) -> bytes | None:
    stored = s3.objects.get("b", key)
    return None if stored is None else stored.body


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LONG
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


# Conditions


@pytest.mark.parametrize(
    ("mode", "answers", "left"),
    [
        ("honest", ["won", "refused"], b"first"),
        ("ignoring", ["won", "won"], b"second"),
        ("after_versioning", ["won", "refused"], b"first"),
        ("racy", ["won", "refused"], b"first"),
        ("sometimes:0:1", ["won", "refused"], b"first"),
        ("sometimes:1:1", ["won", "won"], b"second"),
        ("unsupported", ["failed", "failed"], None),
        ("inverted", ["refused", "refused"], None),
        ("lossy", ["won", "refused"], b"second"),
    ],
)
def test_a_second_create(
    faulty_s3: Start, mode: str, answers: list[str], left: bytes | None
) -> None:
    s3 = faulty_s3(conditions=mode)
    store = client(s3)
    assert [create(store, "k", body) for body in (b"first", b"second")] == answers
    assert body_of(s3, "k") == left


@pytest.mark.parametrize(
    ("mode", "winners"),
    [
        ("honest", {1}),
        ("ignoring", {8}),
        ("after_versioning", {1}),
        ("racy:0.5", {2, 3, 4, 5, 6, 7, 8}),
        ("unsupported", {0}),
        ("inverted", {0}),
        ("lossy", {1}),
    ],
)
def test_eight_simultaneous_creates(faulty_s3: Start, mode: str, winners: set[int]) -> None:
    s3 = faulty_s3(conditions=mode)
    for number in range(3):
        assert create_at_once(s3, f"k{number}").count("won") in winners


def test_after_versioning_is_honest_until_versioning_was_enabled(faulty_s3: Start) -> None:
    s3 = faulty_s3(conditions="after_versioning")
    store = client(s3)
    assert create(store, "k", b"first") == "won"
    assert create(store, "k", b"second") == "refused"
    for status in ("Enabled", "Suspended"):
        xml = f"<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>"
        assert ask(s3, "PUT", "/b?versioning", xml.encode())[0] == 200
        assert create(store, "k", b"third") == "won"
    assert create(client(s3, "another"), "k", b"first") == "won"
    assert create(client(s3, "another"), "k", b"second") == "refused"


def test_sometimes_repeats_with_its_seed(faulty_s3: Start) -> None:
    def answers(seed: int) -> list[str]:
        s3 = faulty_s3(conditions=sometimes(0.5, seed))
        store = client(s3)
        obstore.put(store, "k", b"")
        return [create(store, "k", b"again") for _ in range(40)]

    first = answers(7)
    assert set(first) == {"won", "refused"}
    assert answers(7) == first
    assert answers(8) != first


def test_inverted_creates_only_what_is_there(faulty_s3: Start) -> None:
    s3 = faulty_s3(conditions="inverted")
    obstore.put(client(s3), "k", b"plain")
    assert create(client(s3), "k", b"second") == "won"
    assert body_of(s3, "k") == b"second"


def test_conditions_change_while_it_runs(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    assert create(store, "k", b"first") == "won"
    assert create(store, "k", b"second") == "refused"
    s3.conditions = Conditions(mode="ignoring")
    assert create(store, "k", b"third") == "won"


@pytest.mark.parametrize("text", ["", "nice", "sometimes:x:1", "sometimes:2:1", "racy:soon"])
def test_unknown_conditions_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        FaultyS3(conditions=text)


def test_updates_by_etag(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    old = obstore.put(store, "k", b"1")["e_tag"]
    new = obstore.put(store, "k", b"2")["e_tag"]
    assert old is not None
    assert new is not None
    with pytest.raises(PreconditionError):
        obstore.put(store, "k", b"3", mode={"e_tag": old})
    with pytest.raises(PreconditionError):
        obstore.put(store, "missing", b"3", mode={"e_tag": new})
    obstore.put(store, "k", b"4", mode={"e_tag": new})
    assert body_of(s3, "k") == b"4"


def test_conditions_hold_for_copies_and_multipart_uploads(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    obstore.put(client(s3), "taken", b"first")
    condition = {"If_None_Match": "*"}
    copied = {"x_amz_copy_source": "/b/taken", **condition}
    assert ask(s3, "PUT", "/b/taken", b"", **copied)[0] == 412
    assert ask(s3, "PUT", "/b/copied", b"", **copied)[0] == 200
    complete = b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part></X>"
    for key, status in (("taken", 412), ("new", 200), ("new", 412)):
        created = ask(s3, "POST", f"/b/{key}?uploads")[1].decode()
        upload = created.partition("<UploadId>")[2].partition("</UploadId>")[0]
        target = f"/b/{key}?uploadId={upload}"
        assert ask(s3, "PUT", f"{target}&partNumber=1", b"part")[0] == 200
        assert ask(s3, "POST", target, complete, **condition)[0] == status
    assert s3.objects.keys("b") == ["copied", "new", "taken"]
    assert body_of(s3, "taken") == b"first"


# Faults, and what obstore makes of them


def test_a_request_lost_before_it_was_applied(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="drop_before", method="PUT", conditional=True))
    with pytest.raises(GenericError):
        obstore.put(client(s3), "k", b"mine", mode="create")
    assert body_of(s3, "k") is None


def test_an_answer_lost_after_it_was_applied(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="drop_after", method="PUT", conditional=True))
    with pytest.raises(GenericError):
        obstore.put(client(s3), "k", b"mine", mode="create")
    assert body_of(s3, "k") == b"mine"
    assert [seen.status for seen in s3.requests.all()] == [0]


@pytest.mark.parametrize("status", [500, 503])
def test_an_error_after_it_was_applied_reads_as_already_exists(
    faulty_s3: Start, status: int
) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="status_after", status=status))
    assert create(client(s3), "k", b"mine") == "refused"
    assert body_of(s3, "k") == b"mine"
    assert [seen.status for seen in s3.requests.all()] == [status, 412]


def test_409_reads_as_already_exists_with_nothing_stored(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="status_before", status=409))
    assert create(client(s3), "k", b"mine") == "refused"
    assert body_of(s3, "k") is None


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_error_before_it_was_applied_is_retried(faulty_s3: Start, status: int) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="status_before", status=status))
    assert create(client(s3), "k", b"mine") == "won"
    assert [seen.status for seen in s3.requests.all()] == [status, 200]


def test_a_delayed_request_lands_after_its_sender_gave_up(
    faulty_s3: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = faulty_s3()
    gave_up = threading.Event()
    monkeypatch.setattr(s3, "_wait", lambda seconds: seconds and gave_up.wait(LONG))
    s3.faults.add(Fault(kind="delay_before", seconds=LONG, times=None))
    store = client(s3, timeout=timedelta(seconds=0.2))
    while not s3.faults.fired:  # else it gave up before it had sent anything
        with pytest.raises(GenericError):
            obstore.put(store, "k", b"late", mode="create")
    assert body_of(s3, "k") is None
    gave_up.set()
    assert eventually(lambda: body_of(s3, "k") == b"late")


def test_a_delayed_answer_finds_the_request_applied(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="delay_after", seconds=LONG, times=None))
    store = client(s3, timeout=timedelta(seconds=0.2))
    while not s3.faults.fired:  # else it gave up before it had sent anything
        with pytest.raises(GenericError):
            obstore.put(store, "k", b"mine", mode="create")
    assert eventually(lambda: body_of(s3, "k") == b"mine")


def test_a_truncated_answer_is_resumed_by_the_client(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    body = bytes(range(256)) * 40
    obstore.put(store, "k", body)
    s3.faults.add(Fault(kind="truncate", method="GET", length=1000))
    assert bytes(obstore.get(store, "k").bytes()) == body
    assert s3.faults.fired["truncate"] == 1
    # A client that does not resume sees the short body.
    s3.faults.add(Fault(kind="truncate", method="GET", length=1000))
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(s3, "GET", "/b/k")
    assert caught.value.partial == body[:1000]


def test_counting_is_deterministic(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="status_before", status=409, path_regex=r"^/b/hit/", nth=3, times=2))
    store = client(s3)
    answers = []
    for number in range(6):
        obstore.put(store, f"other/{number}", b"")
        answers.append(create(store, f"hit/{number}", b""))
    assert answers == ["won", "won", "refused", "refused", "won", "won"]


def test_only_conditional_writes_of_a_method_are_hit(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    s3.faults.add(Fault(kind="status_before", status=409, conditional=False, method="PUT"))
    assert create(store, "k", b"") == "won"
    assert bytes(obstore.get(store, "k").bytes()) == b""
    with pytest.raises(BaseError):
        obstore.put(store, "k", b"plain")
    assert s3.faults.fired == {"status_before(409)": 1}


def test_chance_repeats_with_its_seed(faulty_s3: Start) -> None:
    def answers(seed: int) -> list[str]:
        s3 = faulty_s3(seed=seed)
        s3.faults.add(Fault(kind="status_before", status=409, times=None, probability=0.5))
        store = client(s3)
        return [create(store, f"{number}", b"") for number in range(40)]

    first = answers(1)
    assert set(first) == {"won", "refused"}
    assert answers(1) == first
    assert answers(2) != first


def test_delays_go_together_with_other_faults(faulty_s3: Start) -> None:
    s3 = faulty_s3(latency_seconds=0.02)
    s3.faults.add(Fault(kind="delay_before", seconds=0.05))
    s3.faults.add(Fault(kind="drop_before"))
    begun = time.monotonic()
    assert create(client(s3), "k", b"") == "failed"
    assert time.monotonic() - begun >= 0.07
    assert s3.requests.all()[0].faults == ("delay_before", "drop_before")
    s3.faults.clear()
    assert create(client(s3), "k", b"") == "won"


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "explode"}, {"nth": 0}, {"times": 0}, {"probability": 1.5}, {"path_regex": "("}],
)
def test_wrong_faults_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        Fault(**{"kind": "drop_before", **wrong})  # type: ignore[arg-type]


# S3 itself


def test_listing_more_than_a_page(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    names = [f"many/{number:05d}" for number in range(2500)]
    for name in names:
        s3.objects.put("b", name, b"")
    s3.objects.put("b", "none-of-them", b"")
    store = client(s3)
    assert [meta["path"] for meta in obstore.list(store, "many").collect()] == names
    assert s3.requests.count("list") == 3
    later = obstore.list(store, "many", offset="many/02000").collect()
    assert [meta["path"] for meta in later] == names[2001:]


def test_listing_with_a_delimiter_over_pages(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    for number in range(1200):
        for leaf in ("x", "y"):
            s3.objects.put("b", f"d/{number:04d}/{leaf}", b"")
    s3.objects.put("b", "d/0500", b"file")
    result = obstore.list_with_delimiter(client(s3), "d")
    assert result["common_prefixes"] == [f"d/{number:04d}" for number in range(1200)]
    assert [meta["path"] for meta in result["objects"]] == ["d/0500"]
    assert s3.requests.count("list") == 2


def test_every_page_size_gives_the_same_listing(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    for name in ("a", "b/", "b/1", "b/2", "b0", "c/1/2", "c/2", "d"):
        s3.objects.put("b", name, b"")

    def names(size: int) -> list[str]:
        found: list[str] = []
        token = ""
        while True:
            path = f"/b?list-type=2&delimiter=%2F&max-keys={size}{token}"
            text = ask(s3, "GET", path)[1].decode()
            pieces = text.split("<Key>")[1:] + text.split("<CommonPrefixes><Prefix>")[1:]
            found.extend(piece.partition("<")[0] for piece in pieces)
            if "<IsTruncated>false" in text:
                return sorted(found)
            next_token = text.partition("<NextContinuationToken>")[2].partition("<")[0]
            token = f"&continuation-token={next_token}"

    for size in (1, 2, 3, 7, 1000):
        assert names(size) == ["a", "b/", "b0", "c/", "d"]


def test_range_reads(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    body = bytes(range(200))
    obstore.put(store, "k", body)
    assert bytes(obstore.get_range(store, "k", start=10, end=20)) == body[10:20]
    assert bytes(obstore.get_range(store, "k", start=190, end=900)) == body[190:]
    assert bytes(obstore.get(store, "k", options={"range": {"suffix": 7}}).bytes()) == body[-7:]
    assert bytes(obstore.get(store, "k", options={"range": {"offset": 7}}).bytes()) == body[7:]
    pieces = obstore.get_ranges(store, "k", starts=[0, 100], ends=[3, 105])
    assert [bytes(piece) for piece in pieces] == [body[:3], body[100:105]]
    with pytest.raises(BaseError, match="416"):
        obstore.get_range(store, "k", start=500, end=600)
    status, piece, headers = ask(s3, "GET", "/b/k", Range="bytes=0-9")
    assert (status, piece, headers["Content-Range"]) == (206, body[:10], "bytes 0-9/200")


def test_head_get_and_missing_objects(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    etag = obstore.put(store, "k", b"12345")["e_tag"]
    meta = obstore.head(store, "k")
    assert (meta["size"], meta["e_tag"]) == (5, etag)
    assert abs(meta["last_modified"].timestamp() - time.time()) < 60
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "missing")
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "missing")
    status, body, headers = ask(s3, "GET", "/b/missing")
    assert status == 404
    assert b"<Code>NoSuchKey</Code>" in body
    assert headers["Content-Type"] == "application/xml"


def test_batched_delete(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    names = ["a b", "a&b<c>", "p+q", "per%20cent", "ünï", "q?x=1"]
    for name in names:
        obstore.put(store, f"odd/{name}", b"")
    obstore.put(store, "kept", b"")
    listed = [meta["path"] for meta in obstore.list(store, "odd").collect()]
    assert listed == s3.objects.keys("b", "odd/") == sorted(f"odd/{name}" for name in names)
    obstore.delete(store, [*listed, "odd/missing"])
    assert s3.requests.count("delete_batch") == 1
    assert s3.objects.keys("b") == ["kept"]
    obstore.delete(store, "kept")
    assert s3.objects.keys("b") == []


def test_copy(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    obstore.put(store, "from here/ä", b"body")
    obstore.copy(store, "from here/ä", "to")
    assert body_of(s3, "to") == b"body"
    assert s3.requests.totals()["copy"].received_bytes == 0
    with pytest.raises(FileNotFoundError):
        obstore.copy(store, "missing", "to")


def test_multipart_upload(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    body = random.Random(1).randbytes(11 * MIB)
    obstore.put(store, "big", body, use_multipart=True, chunk_size=5 * MIB)
    assert bytes(obstore.get(store, "big").bytes()) == body
    totals = s3.requests.totals()
    assert totals["multipart_part"].requests == 3
    assert totals["multipart_part"].received_bytes == len(body)
    # The completing request may be repeated after an error that hid its success.
    s3.faults.add(Fault(kind="status_after", status=500, method="POST", path_regex="again", nth=2))
    obstore.put(store, "again", body, use_multipart=True, chunk_size=6 * MIB)
    assert body_of(s3, "again") == body


def test_an_unfinished_multipart_upload_leaves_nothing(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    s3.faults.add(Fault(kind="status_before", status=403, method="PUT"))
    with pytest.raises(PermissionDeniedError):
        obstore.put(client(s3), "big", b"x" * 11 * MIB, use_multipart=True, chunk_size=5 * MIB)
    assert s3.objects.keys("b") == []
    assert s3.requests.count("multipart_abort") == 1


def test_framed_bodies(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    framed = (
        b"5;chunk-signature=0\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n"
    )
    assert ask(s3, "PUT", "/b/aws", framed, Content_Encoding="aws-chunked")[0] == 200
    assert body_of(s3, "aws") == b"hello world"
    connection = http.client.HTTPConnection(urlsplit(s3.endpoint).netloc, timeout=LONG)
    pieces = iter([b"hello", b" ", b"world"])
    connection.request("PUT", "/b/chunked", pieces, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    assert body_of(s3, "chunked") == b"hello world"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"PUT /b/k HTTP/1.1\r\nContent-Encoding: aws-chunked\r\nContent-Length: 2\r\n\r\nzz",
    ],
)
def test_nonsense_ends_the_connection_only(faulty_s3: Start, nonsense: bytes) -> None:
    s3 = faulty_s3()
    connection = http.client.HTTPConnection(urlsplit(s3.endpoint).netloc, timeout=LONG)
    connection.connect()
    connection.sock.sendall(nonsense)
    assert connection.sock.recv(100) == b""
    connection.close()
    assert create(client(s3), "k", b"") == "won"


def test_other_access_keys_are_refused(faulty_s3: Start) -> None:
    s3 = faulty_s3(access_key="alice", secret_key="secret")
    obstore.put(client(s3), "k", b"")
    with pytest.raises(PermissionDeniedError):
        obstore.get(client(s3, access_key="mallory"), "k")
    assert ask(s3, "GET", "/b/k")[0] == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "", "10.1.2.3", "::", "example.org"])
def test_only_loopback_is_bound(host: str) -> None:
    with pytest.raises(InvalidInputError, match="loopback"):
        FaultyS3(host=host)


def test_stopping_ends_all_threads_even_waiting_ones() -> None:
    before = set(threading.enumerate())
    s3 = FaultyS3()
    s3.faults.add(Fault(kind="delay_before", seconds=LONG))
    waiting = threading.Thread(target=create, args=(client(s3), "k", b""))
    waiting.start()
    while not s3.faults.fired:
        time.sleep(0.01)
    begun = time.monotonic()
    s3.stop()
    s3.stop()
    waiting.join(LONG)
    assert time.monotonic() - begun < LONG / 2
    assert eventually(lambda: set(threading.enumerate()) <= before)
    assert body_of(s3, "k") is None


def test_the_log_counts_requests_and_bytes(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    store = client(s3)
    obstore.put(store, "k", b"12345", mode="create")
    bytes(obstore.get(store, "k").bytes())
    seen = [(s.operation, s.method, s.key, s.conditional, s.status) for s in s3.requests.all()]
    assert seen == [("put", "PUT", "k", True, 200), ("get", "GET", "k", False, 200)]
    assert s3.requests.totals()["put"].received_bytes == 5
    assert s3.requests.totals()["get"].sent_bytes == 5
    assert s3.requests.count() == 2
    s3.requests.clear()
    assert s3.requests.count("put") == 0


# In a process of its own


def test_a_server_process_is_steered_over_http(faulty_s3_process: StartProcess) -> None:
    s3 = faulty_s3_process(conditions=sometimes(1, 3))
    store = client(s3)
    assert [create(store, "k", b"") for _ in range(2)] == ["won", "won"]
    s3.control.set_conditions("honest")
    assert create(store, "k", b"") == "refused"
    s3.control.clear_requests()
    elsewhere = Control(s3.endpoint)
    elsewhere.add_fault(Fault(kind="status_before", status=409, times=None))
    assert create(store, "new", b"12") == "refused"
    assert elsewhere.fired() == {"status_before(409)": 1}
    elsewhere.clear_faults()
    assert create(store, "new", b"12") == "won"
    assert elsewhere.totals()["put"].requests == 2
    elsewhere.set_latency(0.1)
    begun = time.monotonic()
    obstore.get(store, "new")
    assert time.monotonic() - begun >= 0.1
    with pytest.raises(InvalidInputError, match="unknown condition mode"):
        elsewhere.set_conditions("nice")
    assert ask(s3, "POST", "/_control", b'{"colour": 1}')[0] == 400
    assert ask(s3, "POST", "/_control", b"[]")[0] == 400
    assert ask(s3, "POST", "/_control", b"not json")[0] == 400


def test_a_server_process_refuses_unknown_conditions() -> None:
    with pytest.raises(InvalidInputError):
        FaultyS3Process(conditions="nice")


@pytest.mark.parametrize("how", ["stdin", "sigterm"])
def test_a_server_process_ends_when_told(how: str) -> None:
    command = [sys.executable, "-m", "holdfast.testing.faulty_s3", "--conditions", "ignoring"]
    with subprocess.Popen(
        [*command, "--port", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        endpoint = json.loads(process.stdout.readline())["endpoint"]
        assert endpoint.startswith("http://127.0.0.1:")
        if how == "stdin":
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0


@pytest.mark.parametrize("arguments", [["--host", "0.0.0.0"], ["--conditions", "nice"]])
def test_a_server_process_says_what_is_wrong(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "holdfast.testing.faulty_s3", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


# Lance's own client


def rows(first: int, end: int) -> pa.Table:
    return pa.table({"id": range(first, end), "value": [float(i) for i in range(first, end)]})


def test_a_lance_table_lives_on_it(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    url, options = s3.url("b", "t.lance"), s3.storage_options()
    lance.write_dataset(rows(0, 100), url, storage_options=options)
    table = lance.write_dataset(rows(100, 200), url, mode="append", storage_options=options)
    merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows(150, 250))
    table = lance.dataset(url, storage_options=options)
    table.create_scalar_index("id", "BTREE")
    assert table.to_table(filter="id = 170").to_pylist() == [{"id": 170, "value": 170.0}]
    table.optimize.compact_files()
    table = lance.dataset(url, storage_options=options)
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(250))
    assert len(table.get_fragments()) == 1
    assert table.checkout_version(2).count_rows() == 200


def test_lance_recognises_its_own_commit_after_a_lost_answer(faulty_s3: Start) -> None:
    s3 = faulty_s3()
    url, options = s3.url("b", "t.lance"), s3.storage_options()
    lance.write_dataset(rows(0, 1), url, storage_options=options)
    s3.faults.add(Fault(kind="drop_after", method="PUT", conditional=True, path_regex="_versions"))
    table = lance.write_dataset(rows(1, 2), url, mode="append", storage_options=options)
    assert s3.faults.fired == {"drop_after": 1}
    assert sorted(table.to_table()["id"].to_pylist()) == [0, 1]


APPENDER = """
import json, sys
import lance, pyarrow as pa
number, options = int(sys.argv[1]), json.loads(sys.argv[2])
print("ready", flush=True)
for line in sys.stdin:
    acknowledged = []
    for turn in range(5):
        row = pa.table({"id": [number * 5 + turn]})
        try:
            lance.write_dataset(row, line.strip(), mode="append", storage_options=options)
        except OSError:
            continue
        acknowledged.append(number * 5 + turn)
    print(json.dumps(acknowledged), flush=True)
"""


class Appenders:
    """Four processes that append to a table at the same time, the stock way."""

    def __init__(self, options: dict[str, str], stack: ExitStack) -> None:
        self._options = options
        self._processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", APPENDER, str(number), json.dumps(options)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(4)
        ]
        assert self._lines() == ["ready\n"] * 4

    def run(self, url: str) -> tuple[set[int], set[int]]:
        """Return the ids that were acknowledged and those that are in the table."""
        lance.write_dataset(pa.table({"id": [-1]}), url, storage_options=self._options)
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(url + "\n")
            process.stdin.flush()
        acknowledged = {number for line in self._lines() for number in json.loads(line)}
        table = lance.dataset(url, storage_options=self._options)
        return acknowledged, set(table.to_table()["id"].to_pylist()) - {-1}

    def _lines(self) -> list[str]:
        return [process.stdout.readline() for process in self._processes if process.stdout]


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[FaultyS3Process, Appenders]]:
    with FaultyS3Process() as s3, ExitStack() as stack:
        yield s3, Appenders(s3.storage_options(), stack)


def test_stock_appends_are_lost_when_conditions_are_ignored(
    shared: tuple[FaultyS3Process, Appenders],
) -> None:
    s3, appenders = shared
    s3.control.set_conditions("ignoring")
    lost: set[int] = set()
    for number in range(10):
        acknowledged, present = appenders.run(s3.url("b", f"ignoring-{number}.lance"))
        assert acknowledged
        lost = acknowledged - present
        print(f"round {number}: acknowledged {len(acknowledged)}, lost {len(lost)}")
        if lost:
            break
    assert lost


def test_stock_appends_are_all_there_when_conditions_are_kept(
    shared: tuple[FaultyS3Process, Appenders],
) -> None:
    s3, appenders = shared
    s3.control.set_conditions("honest")
    acknowledged, present = appenders.run(s3.url("b", "honest.lance"))
    assert acknowledged
    assert acknowledged <= present
