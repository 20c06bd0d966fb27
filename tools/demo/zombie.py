"""A writer sleeps through its successor's whole life, wakes up, and is locked out.

Two processes write one shard of a table. The first is stopped (SIGSTOP), the second claims the
shard, writes, flushes and merges into the base table. Then the first wakes and writes on.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from tools.demo.ledger import Ledger
from tools.demo.terminal import chapter, line

import holdfast
from holdfast.errors import FencedError
from holdfast.wal import WalAppender

SHARD = "unsharded"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
ROOT = Path(__file__).parents[2]


def run(ledger: Ledger, folder: Path, number: int, *, fenced: bool) -> None:
    """Stop the first writer, let the second take over, wake the first."""
    uri = str(folder / "ingest.lance")
    chapter(number, "Zombie: a writer is stopped, another takes its shard, the first wakes up")
    holdfast.create_table(uri, SCHEMA, primary_key=["id"]).close()
    ledger.page("zombie", uri)
    sleeper = Sleeper(uri)
    for row in (1, 2, 3):
        tell(ledger, "A", row, sleeper.put(row))
    sleeper.stop()
    line("A is stopped (SIGSTOP); B claims the shard" + ("" if fenced else " WITHOUT a fence"))
    if not fenced:
        take_the_fence_out()
    table = holdfast.open_table(uri)
    with table.claim_writer(SHARD) as writer:
        sleeper.wake()
        line("A wakes up and writes on")
        tell(ledger, "A", 4, sleeper.put(4))
        for row in (5, 6):
            writer.put(rows(row))
            tell(ledger, "B", row, "acknowledged")
    merged = table.compact_lsm()
    line(f"B closed; its rows are merged into the base table, version {merged.version}")
    sleeper.end()


def rows(number: int) -> pa.RecordBatch:
    """Return one row."""
    return pa.record_batch([[number], [f"row {number}"]], schema=SCHEMA)


def tell(ledger: Ledger, who: str, row: int, answer: str) -> None:
    """Print what a writer was told; the ledger has what was acknowledged."""
    if answer == "acknowledged":
        ledger.acknowledge("zombie", [row])
    line(f"{who} puts row {row}: {answer}")


def take_the_fence_out() -> None:
    """Let claimers leave a place for the fence, and write none."""

    def pretend(self: WalAppender, listed: Mapping[int, object]) -> None:
        self.fence_position = max([self.manifest.replay_after, *listed])
        self.next_position = self.fence_position + 2

    WalAppender._fence = pretend  # type: ignore[method-assign]  # noqa: SLF001


class Sleeper:
    """The first writer, in a process of its own: one row per line that it is sent."""

    def __init__(self, uri: str) -> None:
        command = [sys.executable, "-m", "tools.demo.zombie", uri]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def put(self, row: int) -> str:
        """Return what the writer was told."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        assert self._process.stdout is not None  # noqa: S101
        print(row, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip() or "no answer: it died"

    def stop(self) -> None:
        """Stop it where it is."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Let it end."""
        self._process.communicate(timeout=60)


def be_the_sleeper(uri: str) -> None:
    """Put one row for each line of standard input, and answer what was said."""
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    writer = holdfast.open_table(uri).claim_writer(SHARD)
    for request in sys.stdin:
        try:
            writer.put(rows(int(request)))
        except FencedError as error:
            mine, stored = error.details["epoch"], error.details["stored_epoch"]
            print(f"FencedError, my epoch {mine}, the shard's epoch {stored}: {error.message}")
        else:
            print("acknowledged")
        sys.stdout.flush()
    writer.abort()


if __name__ == "__main__":
    be_the_sleeper(sys.argv[1])
