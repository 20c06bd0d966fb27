"""A night on call: writers write, the database is set back under them, and the runbook helps."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
import servers
from command_line import Cli
from holdfast.cli import Exit
from holdfast.testing._faulty_s3_process import FaultyS3Process
from night_writer import ROWS
from test_runbook import run_shell, set_up, shell_blocks

KINDS = ("append", "log")


class Writer:
    """One of the processes that write."""

    def __init__(self, kind: str, uri: str, options: dict[str, str]) -> None:
        self.kind = kind
        self.done = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "night_writer", kind, uri, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        )

    def read(self) -> str | None:
        """Return what kind of error stopped it; None if it wrote something."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "it ended"
        if not line.isdigit():
            return line
        self.done = int(line) + 1
        return None

    def write_some(self, more: int) -> None:
        """Wait until it has written so much more."""
        goal = self.done + more
        while self.done < goal:
            assert self.read() is None

    def await_stop(self) -> str:
        """Wait until an error stops it that no repeat helps against."""
        while (stopped := self.read()) is None:
            pass
        return stopped

    def go_on(self) -> None:
        """Let it do the same rows again."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Kill it, wherever it is."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def database(postgres: servers.Server) -> Iterator[str]:
    import psycopg

    with psycopg.connect(postgres.admin_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE night")
        try:
            yield f"{postgres.admin_url.rpartition('/')[0]}/night"
        finally:
            admin.execute("DROP DATABASE night WITH (FORCE)")


@pytest.mark.requirement("O1", "O2", "O4")
def test_a_night_on_call(
    tmp_path: Path, postgres: servers.Server, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status alarms, doctor names the command, the command helps, writers go on: no row is lost."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    back_up, restore = shell_blocks("PostgreSQL")
    with ExitStack() as stack:
        url = stack.enter_context(database(postgres))
        set_up(url)
        monkeypatch.setenv("HOLDFAST_COMMIT_STORE_URL", url)
        s3 = stack.enter_context(FaultyS3Process(conditions="ignoring"))
        uri, options = s3.url("lake", "events.lance"), s3.storage_options()
        given = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        schema = pa.schema([("id", pa.int64()), ("kind", pa.string())])
        holdfast.create_table(uri, schema, storage_options=options, commit_store=url).close()
        writers = [Writer(kind, uri, options) for kind in KINDS]
        for writer in writers:
            stack.callback(writer.end)
            writer.write_some(2)
        run_shell(back_up, {"DATABASE_URL": url})
        for writer in writers:
            writer.write_some(2)
        run_shell(restore, {"DATABASE_URL": url})
        stopped = {writer.await_stop() for writer in writers}
        assert stopped <= {"commit_store_regressed", "foreign_version", "corrupt"}
        # The operator comes: each step is what the one before it says.
        assert cli("status", uri, "--check", *given) in {Exit.UNFIT, Exit.OPERATOR}
        findings = cli.json("doctor", uri, *given, code=Exit.UNFIT)["findings"]
        assert {one["kind"] for one in findings} & {"commit_store_regressed"}
        commands = {one["command"].partition(" --")[0] for one in findings if one["command"]}
        assert commands == {f"holdfast repair {uri}"}
        words = shlex.split(next(iter(commands)))[1:]
        assert cli(*words, *given) == Exit.UNFIT, "a plan"
        assert cli(*words, "--confirm", *given) == Exit.OK, cli.err
        for writer in writers:
            writer.go_on()
            writer.write_some(2)
            writer.end()
        assert cli.json("doctor", uri, *given)["healthy"]
        assert cli("maintain", uri, "--confirm", *given) == Exit.OK
        assert cli("status", uri, "--check", *given) == Exit.OK, cli.out
        with closing(holdfast.open_table(uri, storage_options=options)) as table:
            rows = Counter((row["kind"], row["id"]) for row in table.to_table().to_pylist())
        assert set(rows.values()) == {1}, "nothing is doubled"
        for writer in writers:
            there = {number for kind, number in rows if kind == writer.kind}
            # What it was killed at may be there, too.
            assert set(range(writer.done * ROWS)) <= there <= set(range((writer.done + 1) * ROWS))
