"""LanceDB for Node, unmodified, through a real server.

`./run explore` installs it. Wherever it is there, and Node is, these tests run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from server.serving import ServerProcess, rows_of, serving

CLIENT = Path(__file__).with_name("node_client.cjs")
MODULES = Path(__file__).resolve().parents[2] / ".cache" / "lancedb-node" / "node_modules"
PROCESSES, APPENDS = 4, 5


def what_is_missing() -> str | None:
    if shutil.which("node") is None:
        return "Node is not installed: its LanceDB cannot be tried"
    if not (MODULES / "@lancedb" / "lancedb").is_dir():
        return "LanceDB for Node is not installed: ./run explore does it"
    return None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if (reason := what_is_missing()) is not None:
        pytest.skip(reason)  # also on CI: only ./run explore installs it
    folder = tmp_path_factory.mktemp("served")
    (folder / "root").mkdir()
    with serving(folder / "root", "--commit-store", "sqlite", log=folder / "log") as running:
        yield running


def node(*arguments: object) -> Any:
    done = subprocess.run(
        ["node", CLIENT, *map(str, arguments)],
        env={**os.environ, "NODE_PATH": str(MODULES)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.requirement("N1", "C9")
def test_node_does_everything_through_the_server(server: ServerProcess) -> None:
    found = node("everything", server.url)
    assert (found["ids"], found["text"], found["first"]) == ([1, 3, 4], "changed", [1, 2])
    assert "nothing was dropped" in found["refused"]
    assert (found["names"], found["doomed"], found["left"]) == (["node"], [1], ["node"])
    history = holdfast.open_table(f"{server.root}/node.lance").history()
    assert {"Append", "Update", "Delete", "CreateIndex"} <= {info.operation for info in history}
    assert all(info.decided_by for info in history)
    assert not any(info.foreign for info in history)


@pytest.mark.requirement("N1", "C1")
def test_processes_of_node_lose_and_double_nothing(server: ServerProcess) -> None:
    client = server.client()
    assert client.create("shared", rows_of([0])).status == 200
    client.close()
    firsts = [1000 * (number + 1) for number in range(PROCESSES)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        done = list(pool.map(lambda first: node("append", server.url, first, APPENDS), firsts))
    assert done == [{"appended": APPENDS}] * PROCESSES
    table = holdfast.open_table(f"{server.root}/shared.lance")
    ids = sorted(table.to_table(["id"])["id"].to_pylist())
    assert ids == [0, *(first + number for first in firsts for number in range(APPENDS))]
