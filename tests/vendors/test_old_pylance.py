"""The loss that started Holdfast, with the release of that time: pylance 4.0.0 on Tencent COS.

For `./run explore --servers`: it installs that release into an environment of its own. Newer ones
refuse to write there (`test_nothing_is_lost.py::test_stock_refuses_to_write_to_cos`).
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.testing import FakeCloud

RELEASE = "pylance==4.0.0"
WORKERS, APPENDS, ROUNDS = 5, 10, 5
WRITER = Path(__file__).with_name("old_pylance_writer.py")
pytestmark = [
    pytest.mark.requirement("C1"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("HOLDFAST_EXPLORE"), reason="for ./run explore --servers"
    ),
]


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the Python of an environment that holds the old release and nothing of ours."""
    folder = tmp_path_factory.mktemp("old-pylance")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin/python")
    command = [python, "-m", "pip", "install", "-q", RELEASE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if ended.returncode:
        pytest.skip(f"{RELEASE} cannot be installed here")
    return python


@pytest.mark.parametrize("versioned", [False, True], ids=["never versioned", "ever versioned"])
def test_what_the_release_of_that_time_loses(
    old_python: str, capsys: pytest.CaptureFixture[str], versioned: bool
) -> None:
    lost, acknowledged = set[int](), set[int]()
    with ExitStack() as stack:
        cloud = FakeCloud()
        stack.callback(cloud.stop)
        options = json.dumps(cloud.storage_options("cos")) + "\n"
        environment = {**os.environ, **cloud.environment()}
        if versioned:
            cloud.enable_versioning("lake")

        def start(mode: str, first: int, count: int) -> subprocess.Popen[str]:
            arguments = [old_python, str(WRITER), "cos://lake/seed", mode, str(first), str(count)]
            process = stack.enter_context(
                subprocess.Popen(
                    arguments,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            assert process.stdin is not None
            process.stdin.write(options)
            process.stdin.flush()
            return process

        assert json.loads(start("create", -1, 1).communicate(timeout=120)[0]) == [-1]
        for turn in range(ROUNDS):
            writers = [
                start("append", (turn * WORKERS + worker) * APPENDS, APPENDS)
                for worker in range(WORKERS)
            ]
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == "ready\n"
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write("go\n")
                writer.stdin.flush()
            for writer in writers:
                acknowledged |= set(json.loads(writer.communicate(timeout=300)[0]))
            there = json.loads(start("read", 0, 0).communicate(timeout=120)[0])
            lost = acknowledged - set(there)
            if lost:
                break
    with capsys.disabled():
        print(f"\n{RELEASE}: {len(lost)} of {len(acknowledged)} acknowledged rows lost")
    assert bool(lost) == versioned
