"""What a server costs and gains: commits/s and latency of processes that append one row each.

    ./run bench serve [--processes 1,8,32] [--seconds 5] [--places local,s3] [--only-commits]

Ways: stock pylance straight at the table, Holdfast straight at it, stock pylance with
`holdfast.Namespace` in its own process and through a server, and thin clients that send Arrow
over HTTP and have no Lance. Every process is warm before the clock runs. `empty requests` are
the floor beside them: the same clients ask a server for `/health`, which does nothing; pylance
sends three requests per append, a thin client one. Then queries by key, and what an idle server
holds in memory (`--places` without a name measures these alone).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

WAYS = (
    "stock pylance",
    "holdfast",
    "pylance in process",
    "pylance by server",
    "thin by server",
    "empty requests by server",
)


# --- one client process ---------------------------------------------------------------------------


def client(way: str, uri: str, url: str, options: dict[str, str], number: int) -> None:
    """Append one row again and again between two lines on stdin; print latencies in ms."""
    append = appender(way, uri, url, options, number)
    for _ in range(3):
        append()
    print("ready", flush=True)
    seconds = float(sys.stdin.readline())
    took: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        append()
        took.append((time.perf_counter() - begun) * 1000)
    print(json.dumps(took), flush=True)


def appender(
    way: str, uri: str, url: str, options: dict[str, str], number: int
) -> Callable[[], None]:
    rows = pa.table({"id": pa.array([number], pa.int64()), "text": ["x" * 20]})
    if way == "thin by server":
        return thin(rows, url)
    if way == "empty requests by server":
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        return lambda: _ignore(empty_request(connection))
    if way == "holdfast":
        import holdfast

        table = holdfast.open_table(uri, options)
        return lambda: _ignore(table.append(rows))
    import lance
    from lance.namespace import RestNamespace

    arguments: dict[str, Any] = {"mode": "append"}
    if way == "stock pylance":
        arguments |= {"uri": uri}
    elif way == "pylance in process":
        import holdfast

        inside = holdfast.Namespace(uri.rpartition("/")[0], options)
        arguments |= {"namespace_client": inside, "table_id": ["t"]}
    else:
        made: Any = RestNamespace(uri=url)  # type: ignore[no-untyped-call]
        arguments |= {"namespace_client": made, "table_id": ["t"]}

    def append() -> None:
        for _ in range(100):  # stock's own patience ends with many writers: go on all the same
            try:
                lance.write_dataset(rows, storage_options=options or None, **arguments)
            except OSError as error:
                last = error
                continue
            return
        raise last

    return append


def thin(rows: pa.Table, url: str) -> Callable[[], None]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    body = sink.getvalue().to_pybytes()
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)

    def append() -> None:
        connection.request("POST", "/v1/table/t/insert", body)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(text)

    return append


def _ignore(_: object) -> None:
    pass


# --- the measurement ------------------------------------------------------------------------------


@contextmanager
def served(root: str, options: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Yield a server's address and process id."""
    pairs = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve", root, "--bind", "127.0.0.1:0", *pairs],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[-1].strip(), process.pid
    finally:
        process.terminate()
        process.wait(60)


def measure(
    way: str, root: str, options: dict[str, str], processes: int, seconds: float
) -> list[float]:
    """Return the latencies of all appends of some processes, in ms."""
    import lance

    import holdfast

    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    uri = f"{root}/t.lance"
    if way == "stock pylance":
        lance.write_dataset(schema.empty_table(), uri, storage_options=options or None)
    else:
        holdfast.create_table(uri, schema, storage_options=options).close()
    with ExitStack() as stack:
        url = stack.enter_context(served(root, options))[0] if "server" in way else ""
        clients = [
            subprocess.Popen(
                [sys.executable, __file__, "--client", way, uri, url, json.dumps(options), str(n)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(processes)
        ]
        for one in clients:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in clients:
            assert one.stdin is not None
            one.stdin.write(f"{seconds}\n")
            one.stdin.flush()
        took = [ms for one in clients for ms in json.loads(one.stdout.readline())]  # type: ignore[union-attr]
        for one in clients:
            one.wait(60)
    return took


@contextmanager
def place(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    with ExitStack() as stack:
        if name == "local":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            yield folder, {}
            return
        from holdfast.testing._faulty_s3_process import FaultyS3Process

        store = stack.enter_context(FaultyS3Process(latency_seconds=0.01))
        yield store.url("lake", "root"), store.storage_options()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--places", default="local,s3")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--only-commits", action="store_true")
    parser.add_argument("--client", nargs=5)
    arguments = parser.parse_args()
    if arguments.client:
        way, uri, url, options, number = arguments.client
        client(way, uri, url, json.loads(options), int(number))
        return
    for name in filter(None, arguments.places.split(",")):
        print(
            f"\n{name}\n| way | processes | p50 ms | p99 ms | commits/s | rate / stock |\n"
            "|---|---:|---:|---:|---:|---:|"
        )
        for processes in map(int, arguments.processes.split(",")):
            stock = 0.0
            for way in arguments.ways.split(","):
                with place(name) as (root, storage):
                    took = measure(way, root, storage, processes, arguments.seconds)
                rate = len(took) / arguments.seconds
                stock = rate if way == "stock pylance" else stock
                show(way, processes, took, rate, rate / stock if stock else None)
    if not arguments.only_commits:
        queries(arguments.seconds)
        memory()


def show(way: str, processes: int, took: list[float], rate: float, ratio: float | None) -> None:
    tail = statistics.quantiles(took, n=100)[98] if len(took) > 1 else took[0]
    middle = statistics.median(took)
    beside = "-" if ratio is None else f"{ratio:.2f}"
    line = f"| {way} | {processes} | {middle:.1f} | {tail:.1f} | {rate:.1f} | {beside} |"
    print(line, flush=True)


def queries(seconds: float) -> None:
    """Measure `/query` by key, of a table of 100,000 rows with an index on its key."""
    import holdfast

    with tempfile.TemporaryDirectory() as root:
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        table = holdfast.create_table(f"{root}/t.lance", schema, primary_key=["id"])
        table.append(pa.table({"id": range(100_000), "text": ["x"] * 100_000}, schema=table.schema))
        table.dataset().create_scalar_index("id", "BTREE")
        with served(root, {}) as (url, _):
            connection = http.client.HTTPConnection(url.removeprefix("http://"))
            floor = [empty_request(connection) for _ in range(520)][20:]
            took = []
            for number in range(20 + 100_000):
                begun = time.perf_counter()
                body = json.dumps({"keys": [number * 37 % 100_000]})
                connection.request("POST", "/v1/table/t/query", body)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
                if number >= 20:
                    took.append((time.perf_counter() - begun) * 1000)
                if sum(took) > seconds * 1000:
                    break
            connection.close()
    print(f"\na request that does nothing: p50 {statistics.median(floor):.2f} ms")
    print("\n/query by key, one client\n| p50 ms | p99 ms | requests/s |\n|---:|---:|---:|")
    tail = statistics.quantiles(took, n=100)[98]
    print(f"| {statistics.median(took):.1f} | {tail:.1f} | {len(took) / sum(took) * 1000:.0f} |")


def empty_request(connection: http.client.HTTPConnection) -> float:
    """Ask for `/health`; return the ms that takes: no request of a server takes less."""
    begun = time.perf_counter()
    connection.request("GET", "/health")
    connection.getresponse().read()
    return (time.perf_counter() - begun) * 1000


def memory() -> None:
    """Measure an idle server beside a process that only imports what it is made of."""
    program = "import holdfast, lance, pyarrow, sys; holdfast.open_table; print(); sys.stdin.read()"
    bare = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert bare.stdout is not None
    bare.stdout.readline()
    with tempfile.TemporaryDirectory() as root, served(root, {}) as (_, pid):
        time.sleep(2)
        server, imports = resident(pid), resident(bare.pid)
    bare.communicate()
    print(f"\nidle server: {server:.0f} MB, {server - imports:.0f} MB above its imports alone")


def resident(pid: int) -> float:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
