"""A real server in a process of its own, and a thin client that knows HTTP and Arrow only."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

START_SECONDS = 120.0
STOP_SECONDS = 60.0


class ServerProcess:
    """`holdfast serve`, listening from construction until `stop` or `kill`."""

    def __init__(self, root: str, *arguments: str, log: Path, port: int = 0) -> None:
        self.root = root
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "holdfast", "serve", root),
                    *("--bind", f"127.0.0.1:{port}"),
                    *arguments,
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONWARNINGS": "default"},
            )
        self.url = self._read_url()
        self.port = int(urlsplit(self.url).port or 0)

    def _read_url(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.kill()
            raise RuntimeError(f"the server did not start: {self.log.read_text()[-2000:]}")
        return line.split(" at ")[-1].strip()

    def client(self) -> Client:
        return Client(self.port)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """End it politely, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def records(self) -> list[dict[str, Any]]:
        """Return what it logged."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def defects(self) -> list[dict[str, Any]]:
        return [one for one in self.records() if one["message"] == "defect"]


@contextlib.contextmanager
def serving(root: str | Path, *arguments: str, log: Path, port: int = 0) -> Iterator[ServerProcess]:
    server = ServerProcess(str(root), *arguments, log=log, port=port)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        if server.process.stdout is not None:
            server.process.stdout.close()
    assert server.defects() == []


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def applied(self) -> bool:
        return self.headers["holdfast-applied"] == "true"

    def table(self) -> pa.Table:
        return pa.ipc.open_file(self.body).read_all()


class Client:
    """One connection."""

    def __init__(self, port: int, *, timeout: float = 60.0) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        data = json.dumps(body).encode() if isinstance(body, Mapping) else body
        self._connection.request(method, path, data, dict(headers or {}))
        answer = self._connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, names, answer.read())

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, None, _headers(headers))

    def post(
        self, path: str, body: bytes | Mapping[str, Any] | None = None, **headers: str
    ) -> Reply:
        return self.send("POST", path, body, _headers(headers))

    def insert(self, table: str, rows: pa.Table, *, txn: str | None = None) -> Reply:
        headers = {} if txn is None else {"holdfast_txn": txn}
        return self.post(f"/v1/table/{table}/insert", stream_of(rows), **headers)

    def create(self, table: str, rows: pa.Table, **headers: str) -> Reply:
        return self.post(f"/v1/table/{table}/create", stream_of(rows), **headers)

    def close(self) -> None:
        self._connection.close()


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in given.items()}


def rows_of(ids: Sequence[int], text: str = "x") -> pa.Table:
    texts = pa.array([text] * len(ids), pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "text": texts})


def stream_of(rows: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, **options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def wait_until(done: Any, *, seconds: float = 60.0) -> None:
    """Wait for what another process does; how long it takes is no matter."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        time.sleep(0.02)
