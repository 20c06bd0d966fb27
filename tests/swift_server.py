"""OpenStack Swift with its S3 interface: a real server that keeps put-if-absent only most times.

Four processes on free loopback ports, one replica, users in a file. It is not installed with the
project: `python3 -m venv DIR && DIR/bin/pip install swift`, then `HOLDFAST_SWIFT=DIR/bin`.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import obstore
from obstore.store import S3Store

from servers import free_port

BUCKET = "lake"
_KEY, _SECRET = "test:tester", "testing"
_START_SECONDS = 120.0
_KINDS = ("account", "container", "object")


def missing() -> str | None:
    """Say what is missing to start the server, or None."""
    if _program("swift-proxy-server") is None:
        return "Swift is not installed: see tests/swift_server.py"
    return None


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("HOLDFAST_SWIFT") or os.environ.get("PATH"))


class Swift:
    """A running server with one bucket."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-swift-"))
        (self._folder / "node" / "disk").mkdir(parents=True)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.port = free_port()
        try:
            self._configure()
            for kind in (*_KINDS, "proxy"):
                self._start(f"swift-{kind}-server", f"{kind}.conf")
            self._await()
        except BaseException as error:
            for log in self._folder.glob("*.log"):
                error.add_note(log.read_text(errors="replace")[-1000:])
            self.stop()
            raise

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def storage_options(self) -> dict[str, str]:
        return {
            "aws_access_key_id": _KEY,
            "aws_secret_access_key": _SECRET,
            "aws_region": "us-east-1",
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
        }

    def url(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}"

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _configure(self) -> None:
        self._write(
            "swift.conf",
            "[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n"
            "[storage-policy:0]\nname = gold\ndefault = yes\n",
        )
        for kind in _KINDS:
            port = free_port()
            self._ring(kind, port)
            self._write(
                f"{kind}.conf",
                f"[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {port}\nworkers = 1\n"
                f"swift_dir = {self._folder}\ndevices = {self._folder}/node\nmount_check = false\n"
                f"user = {getpass.getuser()}\n[pipeline:main]\npipeline = {kind}-server\n"
                f"[app:{kind}-server]\nuse = egg:swift#{kind}\n",
            )
        self._write(
            "proxy.conf",
            f"[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {self.port}\nworkers = 2\n"
            f"swift_dir = {self._folder}\nuser = {getpass.getuser()}\n"
            "[pipeline:main]\npipeline = catch_errors cache s3api tempauth proxy-server\n"
            "[filter:catch_errors]\nuse = egg:swift#catch_errors\n"
            "[filter:cache]\nuse = egg:swift#memcache\nmemcache_servers = 127.0.0.1:1\n"
            "[filter:s3api]\nuse = egg:swift#s3api\nlocation = us-east-1\n"
            f"[filter:tempauth]\nuse = egg:swift#tempauth\nuser_test_tester = {_SECRET} .admin\n"
            "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n",
        )

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def _ring(self, kind: str, port: int) -> None:
        builder = str(self._folder / f"{kind}.builder")
        for words in (
            ["create", "4", "1", "1"],
            ["add", f"r1z1-127.0.0.1:{port}/disk", "1"],
            ["rebalance"],
        ):
            subprocess.run(
                [str(_program("swift-ring-builder")), builder, *words],
                cwd=self._folder,
                check=True,
                capture_output=True,
                timeout=_START_SECONDS,
            )

    def _start(self, program: str, configuration: str) -> None:
        with (self._folder / f"{program}.log").open("wb") as log:
            command = [str(_program(program)), str(self._folder / configuration), "--verbose"]
            self._processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder
                )
            )

    def _await(self) -> None:
        """Make the bucket: ask until the server answers."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._make_bucket()
            except (OSError, subprocess.SubprocessError, obstore.exceptions.BaseError) as error:
                if time.monotonic() > deadline:
                    raise
                if all(process.poll() is None for process in self._processes):
                    time.sleep(0.2)
                    continue
                raise RuntimeError("a server of Swift ended") from error
            return

    def _make_bucket(self) -> None:
        import botocore.session

        client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=_KEY,
            aws_secret_access_key=_SECRET,
        )
        try:
            client.create_bucket(Bucket=BUCKET)
        except botocore.exceptions.BotoCoreError as error:
            raise OSError(str(error)) from None
        except botocore.exceptions.ClientError as error:
            raise OSError(str(error)) from None
        finally:
            client.close()
        store = S3Store(BUCKET, config=self.storage_options(), client_options={"allow_http": True})  # type: ignore[arg-type]
        obstore.put(store, "ready", b"")
