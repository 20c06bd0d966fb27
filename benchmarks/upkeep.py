"""How long upkeep takes on a table of many versions: the plan of `vacuum`, and `doctor`.

    ./run bench upkeep [--appends N] [--latency-ms MS] [--store local|s3]
                       [--table URI] [--json FILE]

Makes a table by one-row appends (their manifests repeat each other), runs `vacuum` and `doctor`
each twice, appends ten rows, and runs them again. Shown are seconds, seconds of CPU, the highest
memory of the process, and on S3 the requests and bytes. `--table` takes a local table that is
there, and changes nothing in it.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import holdfast
from _measuring import SCHEMA, machine, markdown, one_row, write_json
from holdfast.testing import FaultyS3Process
from holdfast.upkeep import doctor, vacuum

MORE = 10
SETTLED_SECONDS = 61  # what is younger than a minute is not remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One run of one verb."""

    verb: str
    when: str
    seconds: float
    cpu_seconds: float
    memory_mb: int
    requests: int | None
    megabytes: float | None


class Bench:
    """One table, and the server that it is on."""

    def __init__(self, uri: str, options: dict[str, str], server: FaultyS3Process | None) -> None:
        self.uri, self.options, self._server = uri, options, server
        self.figures: list[Figure] = []

    def append(self, count: int) -> None:
        path = Path(self.uri)
        there = self._server is None and path.exists()
        open_table = holdfast.open_table if there else _create
        table = open_table(self.uri, self.options)
        begun = time.perf_counter()
        for number in range(count):
            table.append(one_row(number))
            if number and number % 1000 == 0:
                print(f"{number} appends, {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        table.close()

    def append_more(self) -> None:
        table = holdfast.open_table(self.uri, self.options)
        for number in range(MORE):
            table.append(one_row(number))
        table.close()

    def measure(self, when: str) -> None:
        verbs: dict[str, Callable[..., object]] = {"vacuum": vacuum, "doctor": doctor}
        for verb, call in verbs.items():
            before = self._traffic()
            begun, cpu = time.perf_counter(), time.process_time()
            call(self.uri, self.options)
            seconds, spent = time.perf_counter() - begun, time.process_time() - cpu
            after = self._traffic()
            self.figures.append(
                Figure(
                    verb=verb,
                    when=when,
                    seconds=round(seconds, 2),
                    cpu_seconds=round(spent, 2),
                    memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                    requests=None if before is None or after is None else after[0] - before[0],
                    megabytes=None
                    if before is None or after is None
                    else round((after[1] - before[1]) / 1e6, 1),
                )
            )

    def _traffic(self) -> tuple[int, int] | None:
        if self._server is None:
            return None
        totals = self._server.control.totals().values()
        return sum(one.requests for one in totals), sum(one.sent_bytes for one in totals)


def _create(uri: str, options: dict[str, str]) -> holdfast.Table:
    return holdfast.create_table(uri, SCHEMA, storage_options=options)


@contextmanager
def place(arguments: argparse.Namespace) -> Iterator[Bench]:
    if arguments.table:
        yield Bench(arguments.table, {}, None)
    elif arguments.store == "local":
        with tempfile.TemporaryDirectory() as folder:
            yield Bench(f"{folder}/t.lance", {}, None)
    else:
        with FaultyS3Process() as server:
            bench = Bench(server.url("bucket", "t.lance"), dict(server.storage_options()), server)
            yield bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=1000)
    parser.add_argument("--latency-ms", type=float, default=10.0)
    parser.add_argument("--store", choices=("local", "s3"), default="local")
    parser.add_argument("--table")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache, place(arguments) as bench:
        os.environ["XDG_CACHE_HOME"] = cache
        if not arguments.table:
            bench.append(arguments.appends)
            time.sleep(SETTLED_SECONDS)
        if bench._server is not None:
            bench._server.control.set_latency(arguments.latency_ms / 1000)
        bench.measure("first")
        bench.measure("again")
        if not arguments.table:
            bench.append_more()
            bench.measure(f"after {MORE} more")
    _show(bench, arguments)


def _show(bench: Bench, arguments: argparse.Namespace) -> None:
    print(machine())
    headings = ("verb", "when", "s", "CPU s", "MB memory", "requests", "MB read")
    lines = [[str(value) for value in asdict(one).values()] for one in bench.figures]
    print(markdown(headings, lines))
    if arguments.json:
        write_json(arguments.json, [asdict(one) for one in bench.figures])


if __name__ == "__main__":
    main()
