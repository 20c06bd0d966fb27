"""Pairs of real database servers, a primary and its replica, for tests of failovers.

A replica that was shut down while the primary went on, and is promoted at the primary's address,
lacks what the primary acknowledged meanwhile: as after any asynchronous failover.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import redis

import servers


@dataclass(kw_only=True)
class Pair:
    """A primary and its replica; the replica copies the primary until it is shut down."""

    primary: servers.Server
    replica: servers.Server

    def fail_over(self) -> None:
        """Kill the primary and promote the replica at the primary's address."""
        raise NotImplementedError

    def await_replica(self) -> None:
        """Wait until the replica has all that the primary acknowledged."""
        raise NotImplementedError


class PostgresPair(Pair):
    """PostgreSQL with a streaming standby."""

    @property
    def folder(self) -> str:
        return str(self.primary.folder / "standby")

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.shut_down()
        self.replica.command = _standby_command(self.primary, self.primary.port)
        self.replica.answers = self.primary.answers
        self.replica.start()
        self.promote()

    def promote(self) -> None:
        run_as(self.primary, [_tool("pg_ctl"), "promote", "-D", self.folder, "-w"])

    def await_replica(self) -> None:
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            while True:
                row = connection.execute(
                    "SELECT count(*) FROM pg_stat_replication "
                    "WHERE flush_lsn = pg_current_wal_flush_lsn()"
                ).fetchone()
                if row is not None and row[0]:
                    return


class RedisPair(Pair):
    """Redis with a replica, which is promoted by a restart without its primary."""

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.shut_down()
        command = [*self.replica.command]
        command[command.index("--port") + 1] = str(self.primary.port)
        at = command.index("--replicaof")
        self.replica.command = command[:at] + command[at + 2 :]
        self.replica.answers = self.primary.answers
        self.replica.start()

    def await_replica(self) -> None:
        with self._client(self.primary) as client:
            client.set("awaited", "1")
            while not client.wait(1, 1000):
                pass
        with self._client(self.replica) as client:  # it refuses to stop before its file is whole
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.01)

    def _client(self, server: servers.Server) -> contextlib.closing[redis.Redis]:
        client = redis.Redis(port=server.port, password=servers.PASSWORD, protocol=2)
        return contextlib.closing(client)


@contextlib.contextmanager
def postgres_pair(*settings: str) -> Iterator[PostgresPair]:
    """Start PostgreSQL, and a standby from a base backup of it; settings are the primary's."""
    with servers.running("postgres", *settings) as primary:
        port = servers.free_port()
        command = [_tool("pg_basebackup"), "-h", "127.0.0.1", "-p", str(primary.port)]
        folder = str(primary.folder / "standby")
        options = ["-U", "holdfast", "-D", folder, "-R", "-X", "stream", "-c", "fast"]
        run_as(primary, [*command, *options])
        standby = servers.Server(
            url=primary.url.replace(f":{primary.port}/", f":{port}/"),
            admin_url="",
            port=port,
            folder=primary.folder,
            account=primary.account,
            answers=lambda: _answers(primary.url.replace(f":{primary.port}/", f":{port}/")),
            command=_standby_command(primary, port),
            stop_signal=primary.stop_signal,
        )
        standby.start()
        try:
            yield PostgresPair(primary=primary, replica=standby)
        finally:
            standby.shut_down()


@contextlib.contextmanager
def redis_pair() -> Iterator[RedisPair]:
    """Start Redis, and a replica of it, both with the settings that commit stores ask for."""
    with servers.running("redis", "--repl-diskless-sync-delay", "0") as primary:
        settings = ["--replicaof", f"127.0.0.1 {primary.port}", "--masterauth", servers.PASSWORD]
        with servers.running("redis", *settings) as replica:
            yield RedisPair(primary=primary, replica=replica)


def run_as(server: servers.Server, command: list[str]) -> None:
    """Run a tool of the server as its account."""
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        user=server.account,
        cwd=server.folder,
        env={**os.environ, "PGPASSWORD": servers.PASSWORD},
    )


def _tool(name: str) -> str:
    program = servers.find_program(name)
    assert program is not None
    return program


def _standby_command(primary: servers.Server, port: int) -> list[str]:
    command = [_tool("postgres"), "-D", str(primary.folder / "standby"), "-p", str(port)]
    command += ["-k", str(primary.folder), "-c", "listen_addresses=127.0.0.1"]
    return [*command, "-c", "max_connections=200"]


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True
