"""What the benchmarks of commits share: rows, a loop that appends for a time, and tables."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64())])
WARM_UP_CALLS = 2

Step = Callable[[pa.Table], object]
"""Appends rows; returns when they are acknowledged, and raises otherwise."""


def one_row(number: int) -> pa.Table:
    return pa.table({"id": [number], "value": [1.0]}, schema=SCHEMA)


@dataclass(slots=True)
class Tally:
    """The appends of one thread: seconds of the acknowledged ones, and how many failed."""

    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0
    failures: list[str] = field(default_factory=list)


def run_block(step: Step, seconds: float) -> Tally:
    """Append one row after the other for a time; an append under way is waited for."""
    tally = Tally()
    begun = now = time.perf_counter()
    for call in itertools.count():
        if now - begun >= seconds:
            break
        rows = one_row(call)
        before = time.perf_counter()
        try:
            step(rows)
        except Exception as error:  # noqa: BLE001 - a failure is a figure here
            tally.failures.append(f"{type(error).__name__}: {error}"[:200])
        else:
            tally.seconds.append(time.perf_counter() - before)
        now = time.perf_counter()
    tally.elapsed = now - begun
    return tally


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [headings, *lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headings))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    padded = (
        [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
        for line in (headings, rule, *lines)
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def machine() -> str:
    packages = ["pylance", "pyarrow"]
    packages += [name for name in ("deltalake", "pyiceberg") if importlib.util.find_spec(name)]
    return (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in packages)
    )


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def write_json(file: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Keep what was measured, with date and machine, as `./run bench --report` draws it."""
    kept = {
        "benchmark": Path(sys.argv[0]).stem,
        "arguments": [one for one in sys.argv[1:] if one not in {"--json", str(file)}],
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "rows": rows,
    }
    file.write_text(json.dumps(kept, indent=1) + "\n")
