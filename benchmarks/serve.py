"""What a server costs and gains: commits/s and latency of processes that append one row each.

    ./run bench serve [--processes 1,8,32] [--seconds 3] [--places local,s3] [--only-commits]
        [--json FILE]

Ways: stock pylance straight at the table, Holdfast straight at it, stock pylance with
`holdfast.Namespace` in its own process and through a server, and thin clients that send Arrow
over HTTP and have no Lance. Every process is warm before the clock runs. `empty requests` are
the floor beside them: the same clients ask a server for `/health`, which does nothing; pylance
sends three requests per append, a thin client one. `pylance in process` is measured with one
process alone: it is the floor of `pylance by server`, less the three requests. Then queries by
key, and what an idle server holds in memory (`--places=` measures these alone). Last come the aims,
each with its floor where it was missed.
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

from _measuring import write_json

TIMES_DIRECT = 1.5  # pylance by a server, of the time that direct pylance takes
TIMES_STOCK = 8  # commits/s of thin inserts by 32 processes, of stock pylance's
IDLE_MEGABYTES = 80  # above the imports
REQUESTS_PER_APPEND = 3  # that pylance sends to a server

Row = dict[str, Any]

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
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--places", default="local,s3")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--only-commits", action="store_true")
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    parser.add_argument("--client", nargs=5)
    arguments = parser.parse_args()
    if arguments.client:
        way, uri, url, options, number = arguments.client
        client(way, uri, url, json.loads(options), int(number))
        return
    rows: list[Row] = []
    for name in filter(None, arguments.places.split(",")):
        print(
            f"\n{name}\n| way | processes | p50 ms | p99 ms | commits/s | rate / stock |\n"
            "|---|---:|---:|---:|---:|---:|"
        )
        for processes in map(int, arguments.processes.split(",")):
            stock = 0.0
            for way in arguments.ways.split(","):
                if way == "pylance in process" and processes > 1:
                    continue  # a floor, and many processes take long to start
                with place(name) as (root, storage):
                    took = measure(way, root, storage, processes, arguments.seconds)
                rate = len(took) / arguments.seconds
                stock = rate if way == "stock pylance" else stock
                beside = rate / stock if stock else None
                rows.append({"place": name, **show(way, processes, took, rate, beside)})
    if not arguments.only_commits:
        rows.append(queries(arguments.seconds))
        rows.append(memory())
    print("\n" + "\n".join(aims(rows)))
    if arguments.json:
        kept = ("place", "way", "processes", "p50_ms", "p99_ms", "rate", "of_stock")
        memory_too = (*kept, "resident_mb", "above_imports_mb")
        write_json(arguments.json, [{key: row.get(key) for key in memory_too} for row in rows])


def show(way: str, processes: int, took: list[float], rate: float, ratio: float | None) -> Row:
    tail = statistics.quantiles(took, n=100)[98] if len(took) > 1 else took[0]
    middle = statistics.median(took)
    beside = "-" if ratio is None else f"{ratio:.2f}"
    line = f"| {way} | {processes} | {middle:.1f} | {tail:.1f} | {rate:.1f} | {beside} |"
    print(line, flush=True)
    figures = {"p50_ms": middle, "p99_ms": tail, "rate": rate, "of_stock": ratio}
    return {"way": way, "processes": processes, **figures}


def aims(rows: list[Row]) -> list[str]:
    """Return each aim with what was measured, and the floor where it was missed."""
    lines = []
    measured = {(row.get("place"), row["way"], row.get("processes")): row for row in rows}
    for name in ("local", "s3"):
        for processes in (1, 8, 32):

            def of(way: str, key: str, many: int = processes, at: str = name) -> float:
                return float(measured.get((at, way, many), {}).get(key) or 0)

            stock, served_ms = of("stock pylance", "p50_ms"), of("pylance by server", "p50_ms")
            empty = of("empty requests by server", "p50_ms")
            if stock and served_ms:
                text = f"{name}, {processes}: pylance by server {served_ms / stock:.2f} x direct"
                text += f" stock, {served_ms / (of('holdfast', 'p50_ms') or served_ms):.2f} x"
                text += f" direct Holdfast (aim {TIMES_DIRECT})"
                inside = of("pylance in process", "p50_ms", 1)
                if served_ms > TIMES_DIRECT * stock and inside and processes == 1:
                    floor = (inside + REQUESTS_PER_APPEND * empty) / stock
                    text += f"; floor {floor:.2f}: the same without a server, and three requests"
                lines.append(text)
            thin, rate = of("thin by server", "rate"), of("stock pylance", "rate")
            if thin and rate and processes == 32:
                text = f"{name}, 32: thin inserts {thin / rate:.1f} x stock (aim {TIMES_STOCK})"
                if thin < TIMES_STOCK * rate:
                    most = of("empty requests by server", "rate") / rate
                    text += f"; floor: empty requests are {most:.1f} x stock"
                lines.append(text)
    idle = [row["above_imports_mb"] for row in rows if "above_imports_mb" in row]
    lines += [f"idle: {one:.0f} MB above the imports (aim {IDLE_MEGABYTES})" for one in idle]
    return lines


def queries(seconds: float) -> Row:
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
    rate = len(took) / sum(took) * 1000
    print(f"| {statistics.median(took):.1f} | {tail:.1f} | {rate:.0f} |")
    figures = {"p50_ms": statistics.median(took), "p99_ms": tail, "rate": rate}
    return {"way": "query by key", "processes": 1, "place": "local", **figures}


def empty_request(connection: http.client.HTTPConnection) -> float:
    """Ask for `/health`; return the ms that takes: no request of a server takes less."""
    begun = time.perf_counter()
    connection.request("GET", "/health")
    connection.getresponse().read()
    return (time.perf_counter() - begun) * 1000


def memory() -> Row:
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
    return {"way": "idle server", "resident_mb": server, "above_imports_mb": server - imports}


def resident(pid: int) -> float:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
