"""The command line in tests: one helper that runs commands in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.cli import Exit, main


class Cli:
    """Runs commands in this process and keeps what the last one printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *words: str) -> int:
        """Run a command and return its exit code; whatever it is, there is no traceback."""
        code = main(words)
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.out + self.err
        assert "a defect" not in self.err or code == Exit.INTERNAL, self.err
        return code

    def text(self, *words: str, code: int = Exit.OK) -> str:
        """Return what a command prints for people; it ends with `code`."""
        assert self(*words) == code, self.err
        return self.out

    def json(self, *words: str, code: int = Exit.OK) -> Any:
        """Return what a command prints with `--json`; it ends with `code`."""
        return json.loads(self.text(*words, "--json", code=code))

    def shown(self) -> Any:
        """Return what the last command printed with `--json`."""
        return json.loads(self.out)
