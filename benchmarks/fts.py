"""What building a full-text index in tasks costs beside stock Lance, and what searches cost.

    ./run bench fts [--documents N] [--tasks N] [--rounds N] [--no-spark] [--json FILE]

Synthetic documents with a Zipf vocabulary, in 8 fragments on local disk. Every build runs in
fresh processes, so that CPU seconds and peak memory are its own. Peers: stock Lance in one
process; stock Lance in two processes that share a folder, finalized by `merge_index_metadata`.
lance-ray is not measured; it is no part of the locked packages.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NoReturn

import lance
import numpy as np
import pyarrow as pa
from lance.query import FullTextQuery, MatchQuery, PhraseQuery

import holdfast
import holdfast.table  # loaded at its first use otherwise, and then measured
from _measuring import write_json
from holdfast.formats import BuildRecord
from holdfast.index import Indexes
from holdfast.testing import FaultyS3

SPAWN = multiprocessing.get_context("spawn")
FRAGMENTS = 8
VOCABULARY = 200_000
WORDS = 48
WORKERS = 2
PARAMETERS: dict[str, Any] = {"with_position": True}
MEMORY_MB = 512
SEARCHES = 200
WARM_UP = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a process used."""

    wall: float
    cpu: float
    peak_mb: float


def texts(count: int, seed: int) -> pa.Array:
    chance = np.random.default_rng(seed)
    ranks = np.minimum(chance.zipf(1.15, size=(count, WORDS)), VOCABULARY)
    words = np.char.add("w", ranks.astype(str))
    return pa.array([" ".join(row) for row in words.tolist()])


def make_table(
    uri: str, documents: int, storage_options: dict[str, str] | None = None
) -> holdfast.Table:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = holdfast.create_table(uri, schema, storage_options=storage_options)
    size = documents // FRAGMENTS
    for number in range(FRAGMENTS):
        ids = range(number * size, (number + 1) * size)
        table.append(pa.table({"id": list(ids), "text": texts(size, number)}, schema=schema))
    return table


# What runs in processes of its own.


def peak_mb() -> float:
    """Return the most memory this process ever used; `ru_maxrss` also counts its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measured(channel: Queue[Cost], call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    lance.dataset(arguments[0]).count_rows()  # warm, as a session's workers are
    holdfast.open_table(arguments[0]).dataset().count_rows()
    before = resource.getrusage(resource.RUSAGE_SELF)
    floor_mb, begun = peak_mb(), time.monotonic()
    call(*arguments)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    channel.put(Cost(wall=wall, cpu=cpu, peak_mb=peak_mb() - floor_mb))


def in_processes(*calls: tuple[Callable[..., None], tuple[Any, ...]]) -> list[Cost]:
    channel: Queue[Cost] = SPAWN.Queue()
    processes = [SPAWN.Process(target=measured, args=(channel, *call)) for call in calls]
    for process in processes:
        process.start()
    costs = [channel.get(timeout=3600) for _ in processes]
    for process in processes:
        process.join()
    return costs


def stock_single(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("text", "INVERTED", name="stock", **PARAMETERS)


def stock_task(uri: str, index: str, fragments: list[int]) -> None:
    lance.dataset(uri).create_index_uncommitted(
        "text",
        "INVERTED",
        name="shared",
        fragment_ids=fragments,
        index_uuid=index,
        num_workers=1,
        **PARAMETERS,
    )


def stock_finalize(uri: str, index: str) -> None:
    lance.dataset(uri).merge_index_metadata(index, "INVERTED")


def our_tasks(uri: str, build_id: str, tasks: list[int]) -> None:
    table = holdfast.open_table(uri)
    for task in tasks:
        Indexes(table.versions).run_task(build_id, task)


def our_finalize(uri: str, build_id: str) -> None:
    holdfast.open_table(uri).finalize_index(build_id)


# The comparison.


class StopError(Exception):
    """Ends a build after its record is written."""


def begin(table: holdfast.Table, name: str, tasks: int) -> str:
    """Write a build's record and return its id."""
    seen: list[str] = []

    def runner(record: BuildRecord) -> NoReturn:
        seen.append(record.build_id)
        raise StopError

    with contextlib.suppress(StopError):
        Indexes(table.versions).create(
            "text",
            name=name,
            tasks=tasks,
            memory_mb=MEMORY_MB,
            runner=runner,
            parameters=PARAMETERS,
        )
    return seen[0]


def ours(table: holdfast.Table, name: str, tasks: int) -> tuple[list[Cost], Cost]:
    build_id = begin(table, name, tasks)
    shares = [list(range(number, tasks, WORKERS)) for number in range(WORKERS)]
    built = in_processes(*((our_tasks, (table.uri, build_id, share)) for share in shares))
    (finalized,) = in_processes((our_finalize, (table.uri, build_id)))
    return built, finalized


def stock_distributed(uri: str) -> tuple[list[Cost], Cost]:
    index = str(uuid.uuid4())
    shares = [list(range(number, FRAGMENTS, WORKERS)) for number in range(WORKERS)]
    built = in_processes(*((stock_task, (uri, index, share)) for share in shares))
    (finalized,) = in_processes((stock_finalize, (uri, index)))
    return built, finalized


def builds(table: holdfast.Table, tasks: int, rounds: int) -> list[dict[str, float]]:
    """Take turns, so that whatever else the machine does hits all."""
    found = []
    for number in range(rounds):
        (single,) = in_processes((stock_single, (table.uri,)))
        shared, merged = stock_distributed(table.uri)
        mine, finalized = ours(table, f"ours{number}", tasks)
        found.append(
            {
                "single_cpu": single.cpu,
                "single_wall": single.wall,
                "single_peak_mb": single.peak_mb,
                "shared_cpu": sum(cost.cpu for cost in shared),
                "shared_finalize_cpu": merged.cpu,
                "shared_wall": max(cost.wall for cost in shared) + merged.wall,
                "ours_cpu": sum(cost.cpu for cost in mine),
                "ours_finalize_cpu": finalized.cpu,
                "ours_wall": max(cost.wall for cost in mine) + finalized.wall,
                "ours_peak_mb": max(cost.peak_mb for cost in mine),
            }
        )
    return found


def resumed(table: holdfast.Table, tasks: int) -> float:
    """Return the cost of going on from half of the tasks, beside a full build."""
    full = begin(table, "full", tasks)
    (built,) = in_processes((our_tasks, (table.uri, full, list(range(tasks)))))
    (finalized,) = in_processes((our_finalize, (table.uri, full)))
    half = begin(table, "half", tasks)
    in_processes((our_tasks, (table.uri, half, list(range(tasks // 2)))))
    (rest,) = in_processes((our_tasks, (table.uri, half, list(range(tasks)))))
    (ended,) = in_processes((our_finalize, (table.uri, half)))
    return (rest.wall + ended.wall) / (built.wall + finalized.wall)


QUERIES: dict[str, Callable[[], FullTextQuery]] = {
    "1 rare term": lambda: MatchQuery("w9000", "text"),
    "1 common term": lambda: MatchQuery("w12", "text"),
    "2 terms": lambda: MatchQuery("w150 w700", "text"),
    "3 terms": lambda: MatchQuery("w20 w800 w9000", "text"),
    "phrase": lambda: PhraseQuery("w3 w7", "text"),
    "fuzzy": lambda: MatchQuery("w90000", "text", fuzziness=1),
}


def milliseconds(table: lance.LanceDataset, query: FullTextQuery) -> float:
    times = []
    for number in range(SEARCHES + WARM_UP):
        begun = time.perf_counter()
        table.to_table(columns=["id", "_score"], full_text_query=query, limit=10)
        if number >= WARM_UP:
            times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def searches(folder: Path, documents: int, tasks: int) -> list[tuple[str, float, float]]:
    """Compare the two layouts: each in a table of its own, searched in turn."""
    tables = []
    for name in ("one", "parts"):
        table = make_table(str(folder / name), documents)
        if name == "one":
            table.dataset().create_scalar_index("text", "INVERTED", num_workers=1, **PARAMETERS)
        else:
            table.create_index("text", "fts", tasks=tasks, **PARAMETERS)
        tables.append(table.dataset())
    return [
        (name, milliseconds(tables[0], make()), milliseconds(tables[1], make()))
        for name, make in QUERIES.items()
    ]


def bytes_on_s3(documents: int, tasks: int) -> tuple[int, int]:
    """Return how many bytes of parts went through the finalizer, and how many copies were made."""
    with FaultyS3() as server:
        uri = server.url("holdfast", "bench")
        table = make_table(uri, documents, storage_options=server.storage_options())
        build_id = begin(table, "s3", tasks)
        for task in range(tasks):
            Indexes(table.versions).run_task(build_id, task)
        server.requests.clear()
        table.finalize_index(build_id)
        seen = [one for one in server.requests.all() if "/part_" in one.key]
        moved = sum(one.sent_bytes for one in seen if one.method == "GET")
        moved += sum(one.received_bytes for one in seen if one.method == "PUT")
        return moved, server.requests.count("copy")


def on_spark(table: holdfast.Table, tasks: int) -> float:
    """Return the seconds of a build on a warm session of two cores."""
    import holdfast.spark

    spark = holdfast.spark.session("local[2]")
    try:
        on_it = holdfast.spark.table(spark, table.uri)
        on_it.create_index("text", "fts", name="warm", tasks=tasks, **PARAMETERS)
        begun = time.monotonic()
        on_it.create_index("text", "fts", name="spark", tasks=tasks, **PARAMETERS)
        return time.monotonic() - begun
    finally:
        spark.stop()


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def show_builds(found: list[dict[str, float]]) -> None:
    middle = {key: statistics.median(one[key] for one in found) for key in found[0]}
    single, wall = middle["single_cpu"], middle["single_wall"]
    share = middle["ours_finalize_cpu"] / middle["ours_cpu"]
    stock_share = middle["shared_finalize_cpu"] / middle["shared_cpu"]
    print(
        markdown(
            ["build", "CPU s", "x one process", "wall s", "x one process", "finalize / build CPU"],
            [
                ["stock, one process", f"{single:.1f}", "1.00", f"{wall:.1f}", "1.00", "-"],
                [
                    "stock, 2 processes, merge_index_metadata",
                    f"{middle['shared_cpu']:.1f}",
                    f"{middle['shared_cpu'] / single:.2f}",
                    f"{middle['shared_wall']:.1f}",
                    f"{middle['shared_wall'] / wall:.2f}",
                    f"{stock_share:.0%}",
                ],
                [
                    "Holdfast, 2 processes",
                    f"{middle['ours_cpu']:.1f}",
                    f"{middle['ours_cpu'] / single:.2f} (aim 1.15)",
                    f"{middle['ours_wall']:.1f}",
                    f"{middle['ours_wall'] / wall:.2f} (aim 0.75)",
                    f"{share:.1%} (aim 2%)",
                ],
            ],
        )
    )
    print(
        f"\npeak memory of a task: {middle['ours_peak_mb']:.0f} MB above the start, "
        f"memory_mb={MEMORY_MB}; stock in one process {middle['single_peak_mb']:.0f} MB"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench fts", description=__doc__)
    parser.add_argument("--documents", type=int, default=500_000)
    parser.add_argument("--tasks", type=int, default=FRAGMENTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python "
        f"{platform.python_version()}, pylance {version('pylance')}, {given.documents} documents"
    )
    with tempfile.TemporaryDirectory() as folder:
        table = make_table(f"{folder}/builds", given.documents)
        found = builds(table, given.tasks, given.rounds)
        show_builds(found)
        print(f"\nresume at 50 %: {resumed(table, given.tasks):.2f}x of a full build (aim 0.65)")
        if not given.no_spark:
            seconds = on_spark(table, given.tasks)
            wall = statistics.median(one["single_wall"] for one in found)
            print(f"on a warm Spark session, 2 cores: {seconds:.1f} s, {seconds / wall:.2f}x stock")
        moved, copies = bytes_on_s3(min(given.documents, 20_000), given.tasks)
        print(f"finalizing on S3: {moved} bytes of parts through the driver, {copies} copies\n")
        timed = searches(Path(folder), given.documents, given.tasks)
    lines = [[name, f"{one:.2f}", f"{many:.2f}", f"{many / one:.2f}"] for name, one, many in timed]
    print(markdown(["query p50", "1 part ms", f"{given.tasks} parts ms", "ratio (aim 1.6)"], lines))
    if given.json:
        write_json(
            given.json,
            [{"query": name, "one_part_ms": one, "parts_ms": many} for name, one, many in timed],
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
