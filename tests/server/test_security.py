"""Who may do what, how much, and from where; nothing of the machine reaches a client."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace
from prometheus_client import generate_latest

from holdfast._clock import SystemClock
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.server import Role, ServerSettings, Tokens, new_secret, token_line
from holdfast.server._answers import Answer
from holdfast.server._app import App
from holdfast.server._sending import PIECE_BYTES, send_answer
from holdfast.server._service import Service
from server.serving import Client, ServerProcess, rows_of, serving, stream_of, wait_until

TOKENS = {role: new_secret() for role in Role}
_OPERATIONS = {
    Role.READ: ["describe", "exists", "query", "count_rows", "stats", "version/list", "tags/list"],
    Role.WRITE: ["declare", "insert", "create", "delete", "version/create", "tags/create"],
    Role.ADMIN: ["drop", "deregister", "register"],
}


def token_file(folder: Path) -> Path:
    path = folder / "tokens"
    lines = [token_line(token, role, role.name.lower()) for role, token in TOKENS.items()]
    path.write_text("\n".join(["# who may do what", "", *lines]))
    return path


def bearer(role: Role) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[role]}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("secured")
    (folder / "root").mkdir()
    limits = ("--max-body", "64k", "--token-file", str(token_file(folder)))
    with serving(folder / "root", *limits, log=folder / "log") as running:
        client = running.client()
        client.post("/v1/table/t/create", stream_of(rows_of([1])), **bearer(Role.WRITE))
        client.close()
        yield running
    logged = (folder / "log").read_text()
    assert not any(token in logged for token in TOKENS.values())


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    made = server.client()
    yield made
    made.close()


@pytest.mark.requirement("N2")
def test_a_role_may_do_what_it_says_and_no_more(client: Client) -> None:
    for role, names in _OPERATIONS.items():
        for name in names:
            path = f"/v1/table/t/{name}"
            assert client.post(path, b"").status == 401, path
            assert client.post(path, b"", authorization="Bearer wrong").status == 401
            assert client.post(path, b"", authorization="Basic eDp5").status == 401
            for given in Role:
                reply = client.post(path, b"", **bearer(given))
                assert reply.status != 401
                assert (b"needs the role" in reply.body) == (given < role), (path, given)
    assert client.get("/metrics").status == 401
    assert client.get("/metrics", **bearer(Role.READ)).status == 200
    assert client.get("/health").status == client.get("/ready").status == 200
    assert client.post("/v1/table/t/query", b"", x_api_key=TOKENS[Role.READ]).status == 200


@pytest.mark.requirement("N2")
def test_clients_bring_their_token_as_a_header(server: ServerProcess) -> None:
    header = {"header.Authorization": f"Bearer {TOKENS[Role.WRITE]}"}
    tables: Any = RestNamespace(uri=server.url, **header)  # type: ignore[no-untyped-call]
    lance.write_dataset(rows_of([1]), namespace_client=tables, table_id=["own"], mode="create")
    database: Any = lancedb.connect_namespace("rest", {"uri": server.url, **header})
    database.open_table("own").add(rows_of([2]))
    assert database.open_table("own").count_rows() == 2
    bare: Any = RestNamespace(uri=server.url)  # type: ignore[no-untyped-call]
    with pytest.raises(Exception, match="token"):
        lance.write_dataset(rows_of([3]), namespace_client=bare, table_id=["own"], mode="append")


def test_a_token_is_compared_whole_and_its_file_is_checked(tmp_path: Path) -> None:
    tokens = Tokens.read(token_file(tmp_path))
    for role, token in TOKENS.items():
        found = tokens.find(token)
        assert found is not None and found.role is role
    secret = TOKENS[Role.ADMIN]
    for wrong in ("", secret[:-1], f"{secret} ", secret.upper(), "x" * 10_000, "\ud800"):
        assert tokens.find(wrong) is None
    assert secret not in repr(tokens)
    for text in ("", "# nothing", "owner " + "0" * 64, "read 123", "read " + "0" * 64 + " a b"):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(InvalidInputError) as caught:
            Tokens.read(tmp_path / "bad")
        assert "0" * 64 not in str(caught.value)
    with pytest.raises(NotFoundError):
        Tokens.read(tmp_path / "none")


def test_a_server_without_tokens_stays_on_this_machine() -> None:
    with pytest.raises(InvalidInputError, match="needs tokens"):
        ServerSettings(root="lake", host="0.0.0.0")
    with pytest.raises(InvalidInputError, match="certificate"):
        ServerSettings(root="lake", certificate=Path("c"))
    assert ServerSettings(root="lake", host="0.0.0.0", insecure=True).insecure


@pytest.mark.requirement("N2")
def test_a_large_body_is_refused_before_it_is_read(client: Client, server: ServerProcess) -> None:
    large = b"x" * 70_000
    assert client.post("/v1/table/t/insert", large, **bearer(Role.WRITE)).status == 413
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        head = (
            "POST /v1/table/t/insert HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKENS[Role.WRITE]}\r\nContent-Length: 999999999999999999\r\n"
            "\r\n"
        )
        raw.sendall(head.encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 413")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        head = head.replace("Content-Length: 999999999999999999", "Transfer-Encoding: chunked")
        raw.sendall(head.encode() + chunk * 3)
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.requirement("N2")
def test_half_a_request_holds_nobody_up(client: Client, server: ServerProcess) -> None:
    half = []
    for number in range(200):
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        if number % 2:
            raw.sendall(b"POST /v1/table/t/insert HTTP/1.1\r\nHost: localhost\r\n")
        else:
            raw.sendall(
                b"POST /v1/table/t/insert HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
                + f"Authorization: Bearer {TOKENS[Role.WRITE]}\r\n\r\nx".encode()
            )
        half.append(raw)
    own = server.client()
    for _ in range(5):
        assert own.post("/v1/table/t/count_rows", b"", **bearer(Role.READ)).status == 200
    own.close()
    for raw in half:
        raw.close()
    metrics = client.get("/metrics", **bearer(Role.READ)).body.decode()
    assert "holdfast_requests_rows 0.0" in metrics


@pytest.mark.requirement("N2")
def test_pages_of_other_sites_reach_nothing(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with serving(tmp_path / "root", "--host-name", "lake.test", log=tmp_path / "log") as server:
        client = server.client()
        assert client.post("/v1/table/t/create", stream_of(rows_of([1]))).status == 200
        foreign = {"origin": "http://evil.test"}
        for headers in (foreign, {"sec_fetch_site": "cross-site"}, {"origin": "null"}):
            assert client.post("/v1/table/t/delete", {"predicate": "true"}, **headers).status == 403
        assert client.post("/v1/table/t/count_rows", b"", host="evil.test").status == 403
        assert client.post("/v1/table/t/count_rows", b"", host="lake.test:80").status == 200
        own = {"origin": server.url}
        assert client.post("/v1/table/t/count_rows", b"", **own).json == {"count": 1}
        reply = client.send("OPTIONS", "/v1/table/t/query", None, foreign)
        assert not any(name.startswith("access-control") for name in reply.headers)
        answers = client.get("/health").headers
        assert "default-src 'none'" in answers["content-security-policy"]
        assert answers["x-content-type-options"] == "nosniff"
        assert "server" not in answers
        client.close()


@pytest.mark.requirement("N2")
def test_tls_by_file_and_a_prefix_of_a_proxy(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost", "-addext"),
            *("subjectAltName=DNS:localhost", "-keyout", tmp_path / "key", "-out"),
            tmp_path / "cert",
        ],
        check=True,
        capture_output=True,
    )
    arguments = ("--tls-cert", str(tmp_path / "cert"), "--tls-key", str(tmp_path / "key"))
    prefix = ("--root-path", "/lake")
    with serving(tmp_path / "root", *arguments, *prefix, log=tmp_path / "log") as server:
        assert server.url.startswith("https://") and server.url.endswith("/lake")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert"))
        place = f"https://localhost:{server.port}"
        for path in ("/health", "/lake/health"):
            with urllib.request.urlopen(place + path, context=trusted) as answer:
                assert json.load(answer) == {"status": "ok"}


@pytest.mark.requirement("N2")
def test_sigterm_lets_requests_come_to_their_end(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with serving(tmp_path / "root", log=tmp_path / "log") as server:
        client = server.client()
        client.create("t", rows_of([1]))
        body = stream_of(rows_of(range(1000)))
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
            head = "POST /v1/table/t/insert HTTP/1.1\r\nHost: localhost\r\n"
            raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:100])
            wait_until(lambda: "holdfast_buffered_bytes 100.0" in metrics_of(client))
            server.process.terminate()
            client.close()
            wait_until(lambda: not listens(server.port))  # it has begun to end
            with pytest.raises(subprocess.TimeoutExpired):
                server.process.wait(1)  # and waits: for the rest of the request, up to 30 s
            raw.sendall(body[100:])
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
        assert server.process.wait(60) == 0
    assert lance.dataset(str(tmp_path / "root" / "t.lance")).count_rows() == 1001


def listens(port: int) -> bool:
    """Tell whether anybody takes a connection."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.requirement("N2")
def test_who_finds_no_place_is_told_when_to_come_back(tmp_path: Path) -> None:
    """One may run and one may wait: the third is refused, and taken when a place is free."""
    settings = ServerSettings(root=str(tmp_path), catalog_threads=1, max_waiting=1)
    service = Service(settings)
    lane = service.lanes["catalog"]
    lane.enter()
    assert ask_app(service, "/v1/namespace/$/list")[0] == 200
    lane.enter()
    status, headers, body = ask_app(service, "/v1/namespace/$/list")
    assert (status, headers["retry-after"]) == (429, "1")
    assert body["code"] == 21
    lane.leave()
    assert ask_app(service, "/v1/namespace/$/list")[0] == 200
    refused = b'holdfast_requests_refused_total{lane="catalog"} 1.0'
    assert refused in generate_latest(service.metrics.registry)
    lane.leave()
    service.close()


def ask_app(service: Service, path: str) -> tuple[int, dict[str, str], Any]:
    """Ask the application itself, without a socket; return status, headers and JSON."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "scheme": "http",
    }
    asyncio.run(App(service)(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], headers, json.loads(body)


@pytest.mark.requirement("N3")
def test_every_request_has_a_line_of_json_under_its_id(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with serving(tmp_path / "root", log=tmp_path / "log") as server:
        client = server.client()
        replies = [client.get("/v1/namespace/$/list"), client.get("/v1/table/none/describe")]
        client.close()
    lines = {line.get("request_id"): line for line in server.records()}
    assert len({reply.headers["x-request-id"] for reply in replies}) == 2
    for reply in replies:
        line = lines[reply.headers["x-request-id"]]
        assert (line["status"], line["method"]) == (reply.status, "GET")
        assert line["ms"] >= 0


@pytest.mark.requirement("N2")
def test_a_server_that_ends_leaves_no_insert_in_doubt(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with serving(tmp_path / "root", log=tmp_path / "log") as server:
        first = server.client()
        first.create("t", rows_of([-1]))
        first.close()
        acknowledged: list[int] = []

        def insert_until_refused(start: int) -> None:
            own = server.client()
            for number in range(start, start + 1_000_000):
                try:
                    reply = own.insert("t", rows_of([number]), txn=f"c{start}/{number}")
                except (ConnectionError, http.client.HTTPException):  # too late to be taken
                    break
                assert reply.status == 200, reply.body
                acknowledged.append(number)
            own.close()

        threads = [
            threading.Thread(target=insert_until_refused, args=(number * 1_000_000,))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(acknowledged) >= 40, seconds=280)
        assert server.stop() == 0
        for thread in threads:
            thread.join(280)
    ids = lance.dataset(str(tmp_path / "root" / "t.lance")).to_table(["id"])["id"].to_pylist()
    # Of eight requests under way each was answered: nothing is there that nobody was told of.
    assert sorted(ids) == [-1, *sorted(acknowledged)]


@pytest.mark.requirement("N2")
def test_answers_that_nobody_reads_do_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    limits = ("--max-buffered", "40m")
    with serving(tmp_path / "root", *limits, log=tmp_path / "log") as server:
        client = server.client()
        client.create("t", pa.table({"text": ["x" * 1000] * 15_000}))
        question = (
            b"POST /v1/table/t/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
        )
        unread = []
        for _ in range(2):
            raw = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.sendall(question)
            unread.append(raw)
        wait_until(lambda: unsent(client) > 30e6)
        refused = client.post("/v1/table/t/query", b"{}")
        assert (refused.status, refused.json["code"]) == (429, 21)
        assert client.post("/v1/table/t/count_rows").json == {"count": 15_000}
        for raw in unread:
            raw.close()
        wait_until(lambda: unsent(client) == 0)
        assert client.post("/v1/table/t/query", b"{}").table().num_rows == 15_000
        client.close()


def unsent(client: Client) -> float:
    (line,) = [
        line for line in metrics_of(client).splitlines() if line.startswith("holdfast_unsent_bytes")
    ]
    return float(line.split()[1])


def test_a_client_that_stops_reading_loses_its_connection() -> None:
    sent: list[object] = []
    aborted: list[bool] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > 2:
            await asyncio.Event().wait()  # the client reads no more

    async def answer() -> bool:
        return await send_answer(
            send,
            Answer(body=b"x" * (3 * PIECE_BYTES)),
            {},
            patience=0.01,
            clock=SystemClock(),
            abort=lambda: aborted.append(True),
            head_only=False,
        )

    assert asyncio.run(answer()) is False
    assert aborted == [True]
    assert len(sent) == 3


def metrics_of(client: Client) -> str:
    return client.get("/metrics").body.decode()
