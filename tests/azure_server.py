"""azurite, a server that speaks Azure Blob, on a free loopback port; `./run` installs it by npm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import shutil
import subprocess
import tempfile
import time
from email.utils import formatdate
from pathlib import Path

from servers import free_port

CONTAINER = "lake"
_FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "azurite"
_PROGRAM = _FOLDER / "node_modules" / ".bin" / "azurite-blob"
_ACCOUNT = "holdfast"
_KEY = base64.b64encode(b"a key of the tests, known to all").decode()
_VERSION = "2021-12-02"
_START_SECONDS = 120.0


def missing() -> str | None:
    """Say what is missing to start the server, or None."""
    if shutil.which("node") is None or not _PROGRAM.exists():
        return "azurite is not installed: tests with Azure Blob cannot run"
    return None


class Azurite:
    """A running server with one container."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-azurite-"))
        self._port = free_port()
        command = [str(_PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(self._port)]
        command += ["--location", str(self._folder), "--skipApiVersionCheck", "--silent"]
        command += ["--disableTelemetry", "--disableProductStyleUrl"]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._await()
        except BaseException:
            self.stop()
            raise

    def storage_options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": _KEY,
            "azure_storage_endpoint": f"http://127.0.0.1:{self._port}/{_ACCOUNT}",
            "allow_http": "true",
        }

    def url(self, path: str) -> str:
        return f"az://{CONTAINER}/{path}"

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _await(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self._make_container() in {http.client.CREATED, http.client.CONFLICT}:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError("azurite did not start")

    def _make_container(self) -> int:
        date = formatdate(usegmt=True)
        place = f"/{_ACCOUNT}/{_ACCOUNT}/{CONTAINER}"
        lines = ["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{_VERSION}", place]
        signed = "\n".join([*lines, "restype:container"])
        digest = hmac.digest(base64.b64decode(_KEY), signed.encode(), hashlib.sha256)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        headers = {
            "x-ms-date": date,
            "x-ms-version": _VERSION,
            "Content-Length": "0",
            "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        try:
            path = f"/{_ACCOUNT}/{CONTAINER}?restype=container"
            connection.request("PUT", path, headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()
