"""Hostile requests: no defect, no way out of the root, nothing written.

10,000 of them. The seed is printed.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from server.serving import ServerProcess, rows_of, serving, stream_of

REQUESTS = 10_000
SEED = int(os.environ.get("HOLDFAST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)

_OPERATIONS = [
    *("describe", "exists", "declare", "drop", "register", "deregister", "stats", "index/list"),
    *("version/list", "version/create", "version/describe", "version/delete", "tags/create"),
    *("tags/list", "tags/version", "tags/update", "tags/delete", "insert", "create", "delete"),
    *("query", "count_rows", "merge_insert", "update", "nonsense", "..", "%2e%2e"),
]
_NAMES = [
    *("t", "..", ".", "../t", "..%2F..%2Fetc", "%2e%2e%2f%2e%2e%2fpasswd", "..%5c..%5ct", "%00"),
    *("t%00.lance", "%ff%fe", "a" * 300, "$", "$$", "a$..$b", "_holdfast", ".hidden", "t.lance"),
    *("t%2F_versions", "t;drop", "%F0%9F%92%A9", "t%0d%0aX-Evil:1", "~root", "C:", "file:%2F%2F"),
    *("s3:%2F%2Fbucket", "con", "-", "t$t", "%", "%zz", "*", "?", "#"),
]
_TEXTS = [
    *("", "x", "../../x", "\x00", "\ud83d", "💩" * 100, "1=1; DROP TABLE t", "a" * 5000, "null"),
    *("id = (select 1)", "((((((", "NaN", "_versions/1.manifest", "/etc/passwd", "id > 'x'"),
]
_VALUES: list[Any] = [None, True, -1, 0, 1, 2**63, 1e308, [], {}, [[]], {"a": {}}, *_TEXTS]
_FIELDS = [
    *("id", "version", "manifest_path", "naming_scheme", "limit", "page_token", "tag", "predicate"),
    *("filter", "columns", "k", "offset", "vector", "keys", "full_text_query", "location", "mode"),
    *("context", "branch", "freshness", "vector_column", "nprobes", "distance_type", "e_tag"),
]


class Hostile:
    """Makes requests that nobody should answer with yes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stream = stream_of(rows_of(range(5)))

    def request(self) -> bytes:
        make = self.random.choice([self.json, self.json, self.arrow, self.arrow, self.raw])
        return make()

    def path(self) -> str:
        choice = self.random.choice
        group = choice(["table", "table", "table", "namespace", "transaction", "", "static"])
        return f"/v1/{group}/{choice(_NAMES)}/{choice(_OPERATIONS)}{self.query()}"

    def query(self) -> str:
        choice = self.random.choice
        return choice(
            [
                *(
                    "",
                    "",
                    "",
                    "?delimiter=",
                    "?delimiter=/",
                    "?delimiter=.",
                    "?mode=x",
                    "?limit=-1",
                ),
                *("?limit=99999999999", "?" + "a=b&" * 200, "?%ff=%fe", "?mode=append&mode=create"),
                f"?page_token={'x' * 3000}",
            ]
        )

    def head(self, method: str, path: str, size: int, extra: list[str]) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {size}", *extra]
        text = "\r\n".join([*lines, "Connection: close", "", ""])
        return text.encode("utf-8", "replace")

    def json(self) -> bytes:
        import json

        choice, rnd = self.random.choice, self.random
        fields = {choice(_FIELDS): choice(_VALUES) for _ in range(rnd.randrange(6))}
        body = json.dumps(fields).encode("utf-8", "replace")
        if rnd.random() < 0.3:
            body = choice([b"{", b"[]", b"null", b"[" * 50_000, b"\xff\xfe", b'{"a":', body[:-1]])
        # A name that is allowed would be declared or created: that is no attack.
        path = self.path()
        if "/declare" in path or "/namespace/" in path:
            path = path.replace("/declare", "/describe").replace("/create", "/exists")
        return self.head("POST", path, len(body), []) + body

    def arrow(self) -> bytes:
        rnd = self.random
        body = bytearray(self.stream)
        for _ in range(rnd.randrange(1, 12)):
            place = rnd.randrange(len(body))
            body[place] = rnd.randrange(256)
        if rnd.random() < 0.5:
            body = body[: rnd.randrange(len(body))]
        if rnd.random() < 0.1:
            body = bytearray(b"ARROW1\0\0") + body
        kind = rnd.choice(["stream", "file", "x" * 500, "stream; charset=\xff"])
        extra = [f"Content-Type: application/vnd.apache.arrow.{kind}"]
        if rnd.random() < 0.3:
            txn = rnd.choice(["a/99999999999999999999", "/", "a" * 400, "\x01", "a/-1", "é"])
            extra.append(f"Holdfast-Txn: {txn}")
        # Flipped bits may still be rows that fit; then they go to a table of their own.
        name = "flipped" if len(body) == len(self.stream) else "t"
        return self.head("POST", f"/v1/table/{name}/insert", len(body), extra) + bytes(body)

    def raw(self) -> bytes:
        rnd = self.random
        size = rnd.randrange(1, 2000)
        lines = [
            rnd.randbytes(size),
            b"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /static/../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /t/..%2f..%2f HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: " + b"a=b;" * 500 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
            b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n\xff\xfe%%",
            b"POST /v1/table/t/insert HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: -1\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"DELETE /v1/table/t/drop HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00" + rnd.randbytes(100),
        ]
        return rnd.choice(lines)


def send(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        raw.sendall(request)
        raw.shutdown(socket.SHUT_WR)
        parts = []
        try:
            while part := raw.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


def snapshot(folder: Path) -> dict[str, int]:
    """Return every file that is not of the table for flipped bits."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path): path.stat().st_size
        for path in files
        if "flipped" not in str(path) and not path.name.endswith(("-wal", "-shm", "queue"))
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "outer" / "root").mkdir(parents=True)
    with serving(tmp_path / "outer" / "root", log=tmp_path / "log") as running:
        yield running


@pytest.mark.requirement("N2")
def test_hostile_requests_break_and_write_nothing(
    server: ServerProcess, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    print(f"HOLDFAST_SEED={SEED}")
    record_property("seed", SEED)
    client = server.client()
    client.create("t", rows_of([1, 2, 3]))
    client.create("flipped", rows_of([1, 2, 3]))
    before = snapshot(tmp_path / "outer")
    hostile = Hostile(SEED)
    statuses: dict[str, int] = {}
    for _ in range(REQUESTS):
        request = hostile.request()
        answer = send(server.port, request)
        status = answer[9:12].decode("ascii", "replace")
        statuses[status] = statuses.get(status, 0) + 1
        assert status[:1] != "5", (SEED, request[:600], answer[:600])
        assert b"Traceback" not in answer
        assert b"root:x:" not in answer
    print(statuses)
    assert server.process.poll() is None
    assert snapshot(tmp_path / "outer") == before
    own = server.client()
    assert own.post("/v1/table/t/count_rows").json == {"count": 3}
    own.close()
    client.close()


@pytest.mark.requirement("N2")
def test_rows_without_bytes_and_compressed_bodies_take_no_memory(server: ServerProcess) -> None:
    client = server.client()
    client.create("t", rows_of([1]))
    nulls = pa.table({"id": pa.nulls(10_000_000), "text": pa.nulls(10_000_000)})
    zeros = pa.table({"id": pa.array([0] * 1_000_000, pa.int64()), "text": [""] * 1_000_000})
    compressed = stream_of(zeros, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    for body in (stream_of(nulls), compressed):
        assert len(body) < 300_000
        reply = client.post("/v1/table/t/insert", body)
        assert reply.status == 400, reply.body
    dictionary = pa.table({"id": [1], "text": pa.array(["x"]).dictionary_encode()})
    packed = stream_of(dictionary, options=pa.ipc.IpcWriteOptions(compression="lz4"))
    assert "compressed" in client.post("/v1/table/t/insert", packed).json["error"]
    assert client.post("/v1/table/t/count_rows").json == {"count": 1}
    client.close()
