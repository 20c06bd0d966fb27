"""Real database servers on loopback for tests: start one, get its URL, stop it again.

Each has its own temporary folder, a free port and the durable settings that commit stores
ask for. A server is stopped by the id of the process started here, never by name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

START_SECONDS = 120.0
STOP_SECONDS = 30.0
PASSWORD = "pass-w0rd/with@odd#signs"
QUOTED_PASSWORD = "pass-w0rd%2Fwith%40odd%23signs"

_PROGRAMS = {
    "postgres": ("initdb", "postgres"),
    "mariadb": ("mariadb-install-db", "mariadbd"),
    "redis": ("redis-server",),
    "etcd": ("etcd",),
}
_PLACES = ("/usr/sbin", *(f"/usr/lib/postgresql/{major}/bin" for major in range(19, 11, -1)))


def find_program(name: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PLACES])
    return shutil.which(name, path=path)


def missing(name: str) -> str | None:
    """Say which program `postgres`, `mariadb` or `redis` lacks here; None when it can start."""
    for program in _PROGRAMS[name]:
        if find_program(program) is None:
            return f"{program} is not installed: tests with {name} cannot run"
    return None


def require(name: str) -> None:
    """Skip the test with a plain reason when a server is missing; on CI that is a failure."""
    reason = missing(name)
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


_PORTS: list[int] = []  # file descriptors, locked until this process ends


def free_port() -> int:
    """Return a port that nobody has, and that the system gives to no outgoing connection.

    It is this process's own from now on: a server that is slow to start would otherwise meet
    another test process's on it, and that one answers to the same password.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 22_000)
        # Redis in cluster mode takes the port 10,000 above as well.
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            file = Path(tempfile.gettempdir(), f"holdfast-port-{port}")
            lock = os.open(file, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                continue
            _PORTS.append(lock)
            return port


def _program(name: str) -> str:
    found = find_program(name)
    if found is None:
        raise FileNotFoundError(name)
    return found


def _account(name: str) -> str | None:
    """Return the account to run as: servers refuse root, others can only be themselves."""
    if os.geteuid() != 0:
        return None
    pwd.getpwnam(name)
    return name


@dataclass(kw_only=True)
class Server:
    """A running server process; `url` has credentials and is fit for `connect_commit_store`."""

    url: str
    admin_url: str
    port: int
    folder: Path
    command: Sequence[str]
    account: str | None
    answers: Callable[[], bool]
    stop_signal: int = signal.SIGTERM
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.account,
                cwd=self.folder,
                env={**os.environ, **self.environment},
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                log_text = (self.folder / "server.log").read_text(errors="replace")
                raise RuntimeError(f"{self.command[0]} did not start:\n{log_text[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End the process immediately, as a crash would."""
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """End the process in good order; `start` brings it back with its data."""
        self._end(self.stop_signal)

    def restart(self) -> None:
        """Kill and start again on the same port and data."""
        self.kill()
        for _ in range(20):
            # Children of a killed PostgreSQL hold its shared memory for a moment.
            with contextlib.suppress(RuntimeError):
                return self.start()
            time.sleep(0.25)
        return self.start()

    def stop(self) -> None:
        """End the process and remove its folder."""
        self.shut_down()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)


def _new_folder(name: str, account: str | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-{name}-"))
    if account is not None:
        shutil.chown(folder, account)
    return folder


def _run(command: Sequence[str], account: str | None, folder: Path) -> None:
    done = subprocess.run(
        list(command),
        user=account,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=START_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr.decode(errors='replace')[-2000:]}")


def _started(server: Server) -> Server:
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    return server


def start_postgres(*settings: str) -> Server:
    """Start PostgreSQL with a user `holdfast` and its database; more as `name=value` settings."""
    import psycopg

    account = _account("postgres")
    folder = _new_folder("postgres", account)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    if account is not None:
        shutil.chown(secret, account)
    data = str(folder / "data")
    _run(
        [
            *(_program("initdb"), "-D", data, "-U", "holdfast", "-A", "scram-sha-256"),
            *("--pwfile", str(secret), "-E", "UTF8", "--locale=C.UTF-8"),
        ],
        account,
        folder,
    )
    port = free_port()

    def answers() -> bool:
        try:
            psycopg.connect(
                host="127.0.0.1",
                port=port,
                user="holdfast",
                password=PASSWORD,
                dbname="postgres",
                connect_timeout=5,
            ).close()
        except psycopg.OperationalError:
            return False
        return True

    url = f"postgresql://holdfast:{QUOTED_PASSWORD}@127.0.0.1:{port}/postgres"
    server = Server(
        url=url,
        admin_url=url,
        port=port,
        folder=folder,
        account=account,
        answers=answers,
        stop_signal=signal.SIGINT,  # fast shutdown: does not wait for clients
        command=[
            *(_program("postgres"), "-D", data, "-p", str(port), "-k", str(folder)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200"),
            *(word for setting in settings for word in ("-c", setting)),
        ],
    )
    return _started(server)


def start_mariadb(*settings: str) -> Server:
    """Start MariaDB with a database and user `holdfast`; more as `--name=value` settings."""
    import pymysql

    account = _account("mysql")
    folder = _new_folder("mariadb", account)
    data, port = folder / "data", free_port()
    options = [f"--datadir={data}", "--skip-log-bin"]
    _run(
        [
            *(_program("mariadb-install-db"), "--no-defaults", *options, "--skip-test-db"),
            *("--auth-root-authentication-method=normal", "--skip-name-resolve"),
        ],
        account,
        folder,
    )
    set_up = folder / "set-up.sql"
    set_up.write_text(
        "CREATE DATABASE IF NOT EXISTS holdfast;"
        f"CREATE USER IF NOT EXISTS 'holdfast'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';"
        "GRANT ALL ON holdfast.* TO 'holdfast'@'127.0.0.1';"
        f"CREATE USER IF NOT EXISTS 'admin'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';"
        "GRANT ALL ON *.* TO 'admin'@'127.0.0.1' WITH GRANT OPTION;".replace(";", ";\n")
    )

    def answers() -> bool:
        try:
            pymysql.connect(
                host="127.0.0.1",
                port=port,
                user="holdfast",
                password=PASSWORD,
                database="holdfast",
                connect_timeout=5,
            ).close()
        except pymysql.err.OperationalError:
            return False
        return True

    server = Server(
        url=f"mysql://holdfast:{QUOTED_PASSWORD}@127.0.0.1:{port}/holdfast",
        admin_url=f"mysql://admin:{QUOTED_PASSWORD}@127.0.0.1:{port}/holdfast",
        port=port,
        folder=folder,
        account=account,
        answers=answers,
        command=[
            *(_program("mariadbd"), "--no-defaults", f"--datadir={data}"),
            *(f"--port={port}", "--bind-address=127.0.0.1", "--skip-name-resolve"),
            *(f"--socket={folder / 'sock'}", f"--pid-file={folder / 'pid'}"),
            *("--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=1"),
            *("--max-connections=200", f"--init-file={set_up}"),
            *settings,
        ],
    )
    return _started(server)


def start_redis(*settings: str) -> Server:
    """Start Redis with a password; more as words of its command line (`--name value`)."""
    import redis

    folder = _new_folder("redis", None)
    port = free_port()

    def answers() -> bool:
        client = redis.Redis(port=port, password=PASSWORD, protocol=2)
        try:
            return bool(client.ping())
        except redis.exceptions.RedisError:
            return False
        finally:
            client.close()

    url = f"redis://:{QUOTED_PASSWORD}@127.0.0.1:{port}/0"
    server = Server(
        url=url,
        admin_url=url,
        port=port,
        folder=folder,
        account=None,
        answers=answers,
        command=[
            *(_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1"),
            *("--dir", str(folder), "--requirepass", PASSWORD, "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always"),
            *("--maxmemory-policy", "noeviction", *settings),
        ],
    )
    return _started(server)


def start_etcd(*settings: str) -> Server:
    """Start a cluster of one etcd; more as words of its command line (`--name=value`)."""
    folder = _new_folder("etcd", None)
    port, peer = free_port(), free_port()
    url = f"etcd://127.0.0.1:{port}/tests"

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    server = Server(
        url=url,
        admin_url=url,
        port=port,
        folder=folder,
        account=None,
        answers=answers,
        command=[
            *(_program("etcd"), "--name=one", f"--data-dir={folder / 'data'}"),
            *(f"--listen-client-urls=http://127.0.0.1:{port}",),
            *(f"--advertise-client-urls=http://127.0.0.1:{port}",),
            *(f"--listen-peer-urls=http://127.0.0.1:{peer}",),
            *(f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",),
            *(f"--initial-cluster=one=http://127.0.0.1:{peer}", "--logger=zap", *settings),
        ],
    )
    return _started(server)


STARTERS: Mapping[str, Callable[..., Server]] = {
    "postgres": start_postgres,
    "mariadb": start_mariadb,
    "redis": start_redis,
    "etcd": start_etcd,
}


@contextlib.contextmanager
def running(name: str, *settings: str) -> Iterator[Server]:
    """Run a server for the length of a `with` block; skips the test when it is missing."""
    require(name)
    server = STARTERS[name](*settings)
    try:
        yield server
    finally:
        server.stop()
