"""What goes wrong with a statement that changes rows, where the file of the test says so.

| the file says          | what happens, once: the file is gone then                        |
|------------------------|------------------------------------------------------------------|
| kill-amid-rows         | a task's Python is killed when it has read its rows              |
| kill-after-files       | it is killed when its files are written                          |
| kill-executor          | the JVM of that task is killed                                   |
| kill-before-commit     | the driver's Python is killed before it decides                  |
| kill-after-commit      | it is killed when the version is decided, before it says so      |
| hold-before-commit     | the driver waits, before it decides                              |
| hold-after-commit      | the driver waits, when it has decided                            |
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage

    from holdfast.spark._sql_change import ChangeWriter

_MOST_SECONDS = 240.0


def fault_file() -> Path:
    return Path(os.environ["HOLDFAST_TEST_FAULT"])


def takes(*faults: str) -> str:
    """Return the fault if it is one of these; only one process gets it."""
    try:
        wanted = fault_file().read_text()
        if wanted not in faults:
            return ""
        fault_file().rename(fault_file().with_suffix(".taken"))
    except FileNotFoundError:
        return ""
    return wanted


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def hold() -> None:
    deadline = time.monotonic() + _MOST_SECONDS
    while not fault_file().with_suffix(".go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def stop_at(stage: str) -> None:
    """Die or wait before the commit, or after it, if that is the fault."""
    if takes(f"kill-{stage}-commit"):
        die()
    if takes(f"hold-{stage}-commit"):
        hold()


def install(writer: type[ChangeWriter]) -> None:
    """Let statements of this process go wrong."""
    write, commit = writer.write, writer.commit

    def broken(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if takes("kill-amid-rows"):
            die()
        if takes("kill-executor"):
            os.kill(parent_of(os.getppid()), signal.SIGKILL)  # the daemon's parent is the JVM

    def faulty_write(self: ChangeWriter, iterator: Iterator[Any]) -> WriterCommitMessage:
        written = write(self, broken(iterator))
        if takes("kill-after-files"):
            die()
        return written

    def faulty_commit(self: ChangeWriter, messages: list[WriterCommitMessage | None]) -> None:
        stop_at("before")
        commit(self, messages)
        stop_at("after")

    writer.write, writer.commit = faulty_write, faulty_commit  # type: ignore[method-assign]
