"""The ledger: which ids were acknowledged for which table, on disk, for the reader to check."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

READER = Path(__file__).with_name("independent_reader.py")


@dataclass(frozen=True, kw_only=True)
class Count:
    """What the independent reader found of one table."""

    name: str
    version: int
    acknowledged: int
    present: int
    lost: int
    doubled: int
    hits: tuple[int, int] | None = None
    """What a search finds, and what it must find."""

    @property
    def kept(self) -> bool:
        """Tell whether everything acknowledged is there, once."""
        found = self.hits is None or self.hits[0] == self.hits[1]
        return self.acknowledged > 0 and not self.lost and not self.doubled and found


@dataclass
class Page:
    """One table and the ids, or the number of rows, that its writers were told are in it."""

    name: str
    uri: str
    options: dict[str, str] = field(default_factory=dict)
    acknowledged: list[int] = field(default_factory=list)
    rows: int | None = None
    search: dict[str, str] | None = None


class Ledger:
    """The pages of one run. Written to disk before anybody counts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.pages: dict[str, Page] = {}

    def page(self, name: str, uri: str, options: Mapping[str, str] | None = None) -> Page:
        """Return the page of a table; begin it if there is none."""
        return self.pages.setdefault(name, Page(name, uri, dict(options or {})))

    def acknowledge(self, name: str, ids: Iterable[int]) -> None:
        """Note what a writer was told."""
        self.pages[name].acknowledged.extend(ids)

    def write(self, *names: str) -> Path:
        """Write all pages, or some, and return the file."""
        chosen = [page for name, page in self.pages.items() if not names or name in names]
        self.file.write_text(json.dumps([vars(page) for page in chosen], indent=1))
        return self.file

    def count(self, *names: str) -> list[Count]:
        """Let the independent reader count: a fresh process that knows nothing of Holdfast."""
        command = [sys.executable, str(READER), str(self.write(*names)), "--json"]
        found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        if not found.stdout:
            raise RuntimeError(f"the independent reader could not read the tables:\n{found.stderr}")
        counts = json.loads(found.stdout)
        return [Count(**{**one, "hits": one["hits"] and tuple(one["hits"])}) for one in counts]
