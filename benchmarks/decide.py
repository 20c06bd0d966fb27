"""What `decide` costs beside the raw operation of the same backend.

    ./run bench decide [--seconds N] [--processes 1,8] [--only local,postgres] [--json FILE]

Each row alternates short blocks of the raw operation and of `decide`, so that whatever else
the machine does hits both. Where a commit store decides, a third kind of block is the floor: the
bare statements that the protocol asks for (insert, looks at name and pin, put, read the record
back), by the same drivers and without Holdfast; it is printed beside the aim. With several
processes all start each block together, and each decides a series of its own; in the rows marked
`one series` they all race for the same names. Servers are started for the run, with durable
settings. A second table tells what one commit costs each commit store: requests, and stored bytes.
docs/reference/performance.md explains.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import itertools
import json
import math
import multiprocessing
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plugins/holdfast-etcd/src"))

import obstore
from holdfast_etcd import connect as connect_etcd

import s3_servers
import servers
from _costs import Cost, as_json, cost_table, measure_costs
from _measuring import write_json
from holdfast._ids import RandomIds
from holdfast.arbiter import (
    Arbiter,
    ConditionalPut,
    RecordedDecisions,
    SupportsSetUp,
    Verdict,
    Won,
    connect_commit_store,
    register_commit_store,
)
from holdfast.arbiter.stores.dynamodb import DynamoCommitStore
from holdfast.formats import PIN_PATH, ArbiterKind, Name, Pin, encode_pin
from holdfast.storage import RemoteStore, open_store
from holdfast.testing import FaultyS3Process

register_commit_store("etcd", connect_etcd)  # it need not be installed here

SMALL, LARGE = 500, 100_000  # bytes: inside the record, and staged
BLOCK_SECONDS = 0.25
WARM_UP_CALLS = 8
AIM = 1.5
START_SECONDS = 60.0
KINDS = ("raw", "floor", "decide")

Step = Callable[[int, bytes], bool]
"""Gives the n-th name to a body; tells whether it was still free."""
RawStore = tuple[Step, Callable[[int], object]]
"""The bare insert of a commit store, and the bare read of what it holds around a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One backend and body size; plain values that travel to the worker processes."""

    label: str
    objects: str
    options: Mapping[str, str] = field(default_factory=dict)
    commit_store: str | None = None
    body_bytes: int = SMALL
    one_series: bool = False


@dataclass(slots=True)
class Tally:
    """The calls of one kind in one process that got their name; `elapsed` is for all calls."""

    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; times in milliseconds."""

    backend: str
    processes: int
    raw_p50: float
    raw_p99: float
    raw_rate: float
    floor_p50: float
    floor_p99: float
    floor_rate: float
    decide_p50: float
    decide_p99: float
    decide_rate: float

    @property
    def slower(self) -> float:
        return self.decide_p50 / self.raw_p50

    @property
    def floor(self) -> float:
        return self.floor_p50 / self.raw_p50

    @property
    def rate(self) -> float:
        return self.decide_rate / self.raw_rate


# --- the raw operations: the least that any program does for the same durability -------------


def raw_file(folder: Path) -> Step:
    """Temporary file, fsync, link, unlink, fsync of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    place, temporary = str(folder), str(folder / f"temporary-{os.getpid()}")

    def put(number: int, body: bytes) -> bool:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, body)
        os.fsync(fd)
        os.close(fd)
        try:
            os.link(temporary, f"{place}/{number:020d}")
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)  # noqa: PTH108 - bare calls are the point
        fd = os.open(place, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        return True

    return put


def raw_object(case: Case, prefix: str) -> Step:
    """One request of a bare client: conditional where the store decides."""
    store = open_store(case.objects, case.options)
    assert isinstance(store, RemoteStore)
    client, mode = store._client, "overwrite" if case.commit_store else "create"

    def put(number: int, body: bytes) -> bool:
        obstore.put(client, f"{prefix}/{number:020d}", body, mode=mode, use_multipart=False)  # type: ignore[arg-type]
        return True

    return put


def raw_sqlite(url: str, series: str) -> RawStore:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30, isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(RAW_TABLE.format(text="TEXT", blob="BLOB"))

    def insert(number: int, body: bytes) -> bool:
        try:
            connection.execute("INSERT INTO bench_raw VALUES (?, ?, ?)", (series, number, body))
        except sqlite3.IntegrityError:
            return False
        return True

    read = "SELECT number, value FROM bench_raw WHERE series = ? AND number > ? LIMIT 10"
    return insert, lambda number: connection.execute(read, (series, number - 2)).fetchall()


def raw_postgres(url: str, series: str) -> RawStore:
    import psycopg

    connection = psycopg.connect(url, autocommit=True, prepare_threshold=2)
    with contextlib.suppress(psycopg.errors.UniqueViolation):  # several create it concurrently
        connection.execute(RAW_TABLE.format(text="TEXT", blob="BYTEA"))

    def insert(number: int, body: bytes) -> bool:
        statement = "INSERT INTO bench_raw VALUES (%s, %s, %s)"
        connection.execute(statement, (series, number, body))
        return True

    read = "SELECT number, value FROM bench_raw WHERE series = %s AND number > %s LIMIT 10"
    return insert, lambda number: connection.execute(read, (series, number - 2)).fetchall()


def raw_mariadb(url: str, series: str) -> RawStore:
    import pymysql

    place = urlsplit(url)
    connection = pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=unquote(place.password or ""),
        database=place.path.strip("/"),
        autocommit=True,
    )
    cursor = connection.cursor()
    cursor.execute(RAW_TABLE.format(text="VARBINARY(400)", blob="MEDIUMBLOB"))

    def insert(number: int, body: bytes) -> bool:
        cursor.execute("INSERT INTO bench_raw VALUES (%s, %s, _binary %s)", (series, number, body))
        return True

    def read(number: int) -> object:
        statement = "SELECT number, value FROM bench_raw WHERE series = %s AND number > %s LIMIT 10"
        cursor.execute(statement, (series, number - 2))
        return cursor.fetchall()

    return insert, read


def raw_redis(url: str, series: str) -> RawStore:
    from redis import Redis

    client = Redis.from_url(url, protocol=2)
    return (
        lambda number, body: bool(client.set(f"{series}/{number:020d}", body, nx=True)),
        lambda number: client.mget([f"{series}/{n:020d}" for n in range(number - 1, number + 9)]),
    )


def raw_dynamodb(url: str, series: str) -> RawStore:
    """One conditional put of an item, without a transaction; a consistent query reads it."""
    store = connect_commit_store(url)
    assert isinstance(store, DynamoCommitStore)

    def put(number: int, body: bytes) -> bool:
        item = {"series": {"S": series}, "number": {"N": str(number)}, "value": {"B": body}}
        store._call(
            "PutItem",
            TableName=store._table,
            Item=item,
            ConditionExpression="attribute_not_exists(series)",
        )
        return True

    def read(number: int) -> object:
        return store._call(
            "Query",
            TableName=store._table,
            ConsistentRead=True,
            KeyConditionExpression="series = :s AND #n > :a",
            ExpressionAttributeNames={"#n": "number"},
            ExpressionAttributeValues={":s": {"S": series}, ":a": {"N": str(number - 2)}},
            Limit=10,
        )

    return put, read


def raw_etcd(url: str, series: str) -> RawStore:
    """One transaction: put a key unless it is there."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port)

    def put(number: int, body: bytes) -> bool:
        key = base64.b64encode(f"raw/{series}/{number:020d}".encode()).decode()
        value = base64.b64encode(body).decode()
        condition = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        request = {
            "compare": [condition],
            "success": [{"request_put": {"key": key, "value": value}}],
        }
        connection.request("POST", "/v3/kv/txn", json.dumps(request))
        answer = json.loads(connection.getresponse().read())
        return bool(answer.get("succeeded"))

    def read(number: int) -> object:
        keys = [f"raw/{series}/{n:020d}".encode() for n in (max(number - 1, 0), number + 9)]
        first, last = (base64.b64encode(key).decode() for key in keys)
        connection.request("POST", "/v3/kv/range", json.dumps({"key": first, "range_end": last}))
        return json.loads(connection.getresponse().read())

    return put, read


RAW_TABLE = """CREATE TABLE IF NOT EXISTS bench_raw (
    series {text} NOT NULL, number BIGINT NOT NULL, value {blob} NOT NULL,
    PRIMARY KEY (series, number))"""
RAW_STORES: Mapping[str, Callable[[str, str], RawStore]] = {
    "sqlite": raw_sqlite,
    "postgresql": raw_postgres,
    "mysql": raw_mariadb,
    "redis": raw_redis,
    "dynamodb": raw_dynamodb,
    "etcd": raw_etcd,
}


def raw_step(case: Case, series: str) -> Step:
    """Return the raw operation: a put, after an insert where a commit store decides."""
    local = case.objects.startswith("/")
    prefix = f"raw-{series}"
    put = raw_file(Path(case.objects) / prefix) if local else raw_object(case, prefix)
    if case.commit_store is None:
        return put
    insert, _ = raw_store(case, series)
    return lambda number, body: insert(number, body) and put(number, body)


def raw_store(case: Case, series: str) -> RawStore:
    url = str(case.commit_store)
    return RAW_STORES[url.partition(":")[0]](url, series)


def floor_step(case: Case, series: str) -> Step:
    """Return the least that the protocol asks for: insert, two looks, put, read back."""
    local = case.objects.startswith("/")
    prefix = f"floor-{series}"
    put = raw_file(Path(case.objects) / prefix) if local else raw_object(case, prefix)
    insert, read = raw_store(case, f"floor-{series}")
    look = look_at_file(case.objects) if local else look_at_object(case)

    def floor(number: int, body: bytes) -> bool:
        if not insert(number, body):
            return False
        look(f"{prefix}/{number:020d}")
        look(PIN_PATH)
        put(number, body)
        read(number)
        return True

    return floor


def look_at_file(folder: str) -> Callable[[str], object]:
    def look(path: str) -> None:
        with contextlib.suppress(FileNotFoundError), Path(folder, path).open("rb") as file:
            file.read()

    return look


def look_at_object(case: Case) -> Callable[[str], object]:
    store = open_store(case.objects, case.options)
    assert isinstance(store, RemoteStore)

    def look(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            obstore.get(store._client, path).bytes()

    return look


# --- decide -----------------------------------------------------------------------------------


def decide_step(case: Case, table_id: str, series: str) -> Step:
    arbiter = open_arbiter(case, table_id)

    def decide(number: int, body: bytes) -> bool:
        previous = f"{series}/{number - 1:020d}" if number else None
        name = Name(f"{series}/{number:020d}", series, number, previous)
        return isinstance(arbiter.decide(name, body, body[:35].decode()), Won)

    return decide


def open_arbiter(case: Case, table_id: str) -> Arbiter:
    """Return the arbiter as it is after `open_arbiter`: probed and pinned already."""
    store = open_store(case.objects, case.options)
    if case.commit_store is None:
        return ConditionalPut(store, Verdict.ENFORCED)
    commit_store = connect_commit_store(case.commit_store)
    pin = Pin(
        table_id=table_id,
        arbiter=ArbiterKind.COMMIT_STORE,
        location=store.location,
        store_id=commit_store.identity(),
        store_url=commit_store.url,
    )
    store.put(PIN_PATH, encode_pin(pin))  # decide looks at it
    return RecordedDecisions(store, commit_store, pin)


# --- measuring --------------------------------------------------------------------------------


# Any: multiprocessing's own types differ by context.
def work(case: Case, table_id: str, rounds: int, barrier: Any, results: Any) -> None:  # noqa: ANN401
    """Measure in one process, in step with the others; send the two tallies, or an error."""
    try:
        results.put(measure(case, table_id, rounds, barrier))
    except BaseException as error:  # noqa: BLE001 - told by the parent
        barrier.abort()
        if not isinstance(error, BrokenBarrierError):
            results.put(traceback.format_exc())


def measure(case: Case, table_id: str, rounds: int, barrier: Any) -> dict[str, Tally]:  # noqa: ANN401
    series = "shared" if case.one_series else f"series-{os.getpid()}"
    steps = {
        "raw": raw_step(case, f"{table_id}-{series}"),
        "decide": decide_step(case, table_id, series),
    }
    if case.commit_store is not None and not case.one_series and case.body_bytes == SMALL:
        steps["floor"] = floor_step(case, f"{table_id}-{series}")
    kinds = [kind for kind in KINDS if kind in steps]
    numbers = {kind: itertools.count() for kind in kinds}
    for kind in kinds:
        run_block(steps[kind], numbers[kind], case, calls=WARM_UP_CALLS)
    tallies = {kind: Tally() for kind in kinds}
    for turn in range(rounds):
        for kind in kinds if turn % 2 == 0 else reversed(kinds):
            barrier.wait(START_SECONDS)
            run_block(steps[kind], numbers[kind], case, tally=tallies[kind])
    return {"floor": tallies["raw"], **tallies}  # where none was measured


def run_block(
    step: Step,
    numbers: Iterator[int],
    case: Case,
    *,
    tally: Tally | None = None,
    calls: int | None = None,
) -> None:
    """Call the step for a block's time, or a number of calls."""
    tally = tally or Tally()
    ids, filler = RandomIds(), os.urandom(case.body_bytes - 35)
    begun = now = time.perf_counter()
    for done in itertools.count():
        if done == calls or (calls is None and now - begun >= BLOCK_SECONDS):
            break
        body = ids.token().encode() + filler
        number = next(numbers)
        before = time.perf_counter()
        won = step(number, body)
        now = time.perf_counter()
        if won:
            tally.seconds.append(now - before)
    tally.elapsed += now - begun


def run_row(case: Case, processes: int, seconds: float) -> Row:
    """Start the processes, wait for their tallies, and sum them up."""
    context = multiprocessing.get_context("forkserver")
    barrier, results = context.Barrier(processes), context.Queue()
    table_id = RandomIds().token()
    rounds = max(1, round(seconds / BLOCK_SECONDS / len(KINDS)))
    arguments = (case, table_id, rounds, barrier, results)
    workers = [context.Process(target=work, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    answers = [results.get(timeout=START_SECONDS + 4 * seconds)]
    while len(answers) < processes and not isinstance(answers[-1], str):
        answers.append(results.get(timeout=START_SECONDS))
    for worker in workers:
        worker.join()
    if isinstance(answers[-1], str):
        raise SystemExit(f"{case.label}: a worker failed\n{answers[-1]}")
    figures = {kind: sum_up([answer[kind] for answer in answers]) for kind in KINDS}
    return Row(
        backend=case.label,
        processes=processes,
        **{f"{kind}_{name}": value for kind in KINDS for name, value in figures[kind].items()},
    )


def sum_up(tallies: Sequence[Tally]) -> dict[str, float]:
    """Return median and 99th percentile, and names given per second."""
    times = sorted(itertools.chain.from_iterable(tally.seconds for tally in tallies))
    return {
        "p50": statistics.median(times) * 1000,
        "p99": times[math.ceil(len(times) * 0.99) - 1] * 1000,
        "rate": sum(len(tally.seconds) / tally.elapsed for tally in tallies),
    }


# --- the backends -----------------------------------------------------------------------------


@contextlib.contextmanager
def local(place: str) -> Iterator[list[Case]]:
    yield [
        Case(label="local disk", objects=place),
        Case(label="local disk, one series", objects=place, one_series=True),
    ]


@contextlib.contextmanager
def honest_s3(_place: str) -> Iterator[list[Case]]:
    with FaultyS3Process() as server:
        options = server.storage_options()
        yield [Case(label="S3 (built-in server)", objects=server.url("bench"), options=options)]


@contextlib.contextmanager
def ministack(_place: str) -> Iterator[list[Case]]:
    server = s3_servers.start_ministack()
    try:
        options = server.storage_options()
        yield [Case(label="S3 (ministack)", objects=server.url("bench"), options=options)]
    finally:
        server.stop()


@contextlib.contextmanager
def sqlite(place: str) -> Iterator[list[Case]]:
    url = f"sqlite:///{place}/decisions.db"
    set_up(url)
    case = Case(label="SQLite + local disk", objects=place, commit_store=url)
    racing = replace(case, label=f"{case.label}, one series", one_series=True)
    yield [case, racing, with_large_body(case)]


@contextlib.contextmanager
def postgres(place: str) -> Iterator[list[Case]]:
    with database("postgres") as url:
        case = Case(label="PostgreSQL + local disk", objects=place, commit_store=url)
        yield [case, with_large_body(case)]


def with_large_body(case: Case) -> Case:
    return replace(case, label=f"{case.label}, 100 kB", body_bytes=LARGE)


@contextlib.contextmanager
def mariadb(place: str) -> Iterator[list[Case]]:
    with database("mariadb") as url:
        yield [Case(label="MariaDB + local disk", objects=place, commit_store=url)]


@contextlib.contextmanager
def redis(place: str) -> Iterator[list[Case]]:
    with database("redis") as url:
        yield [Case(label="Redis + local disk", objects=place, commit_store=url)]


@contextlib.contextmanager
def dynamodb(place: str) -> Iterator[list[Case]]:
    server = s3_servers.start_ministack()
    try:
        url = s3_servers.dynamodb_url(server)
        set_up(url)
        yield [Case(label="DynamoDB (ministack) + local disk", objects=place, commit_store=url)]
    finally:
        server.stop()


@contextlib.contextmanager
def etcd(place: str) -> Iterator[list[Case]]:
    with database("etcd") as url:
        yield [Case(label="etcd + local disk", objects=place, commit_store=url)]


@contextlib.contextmanager
def postgres_s3(_place: str) -> Iterator[list[Case]]:
    with database("postgres") as url, FaultyS3Process(conditions="ignoring") as server:
        yield [
            Case(
                label="PostgreSQL + ignoring S3",
                objects=server.url("bench"),
                options=server.storage_options(),
                commit_store=url,
            )
        ]


@contextlib.contextmanager
def database(name: str) -> Iterator[str]:
    server = servers.STARTERS[name]()
    try:
        set_up(server.url)
        yield server.url
    finally:
        server.stop()


def set_up(url: str) -> None:
    store = connect_commit_store(url)
    assert isinstance(store, SupportsSetUp)
    store.set_up()
    store.close()


BACKENDS: Mapping[str, Callable[[str], contextlib.AbstractContextManager[list[Case]]]] = {
    "local": local,
    "s3": honest_s3,
    "ministack": ministack,
    "sqlite": sqlite,
    "postgres": postgres,
    "mariadb": mariadb,
    "redis": redis,
    "dynamodb": dynamodb,
    "etcd": etcd,
    "postgres-s3": postgres_s3,
}


def missing(name: str) -> str | None:
    """Say why a backend cannot run here, or None."""
    if name in {"ministack", "dynamodb"}:
        return s3_servers.missing("ministack")
    server = name.partition("-")[0]
    return servers.missing(server) if server in servers.STARTERS else None


# --- the report -------------------------------------------------------------------------------


def machine() -> list[str]:
    """Describe what the figures depend on."""
    packages = ("obstore", "SQLAlchemy", "psycopg", "PyMySQL", "redis")
    programs = [servers.find_program(name) for name in ("postgres", "mariadbd", "redis-server")]
    return [
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        + ", ".join(f"{name} {version(name)}" for name in packages),
        *(said_version(program) for program in programs if program),
        f"fsync of 500 appended bytes: p50 {fsync_milliseconds():.2f} ms",
    ]


def said_version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.strip().replace(program, Path(program).name)


def fsync_milliseconds() -> float:
    times = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(300):
            file.write(os.urandom(SMALL))
            before = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - before)
    return statistics.median(times) * 1000


HEADINGS = (
    *("backend", "processes", "raw p50 ms", "raw p99 ms", "raw/s"),
    *("decide p50 ms", "decide p99 ms", "decide/s", "p50 ratio", "floor", "rate ratio"),
)


def table(rows: Sequence[Row]) -> list[str]:
    """Return the table in Markdown; ratios beyond the aim are marked."""
    cells = [HEADINGS, *(cells_of(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [cells[0], rule, *cells[1:]]
    return [
        "| "
        + " | ".join(
            pad(cell, width, column)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    ]


def pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def cells_of(row: Row) -> tuple[str, ...]:
    mark = " !" if row.slower > AIM else ""
    rate_mark = " !" if row.rate < 1 / AIM else ""
    floor = f"{row.floor:.2f}" if row.floor_p50 != row.raw_p50 else "-"
    return (
        *(row.backend, str(row.processes)),
        *(f"{row.raw_p50:.2f}", f"{row.raw_p99:.2f}", f"{row.raw_rate:.0f}"),
        *(f"{row.decide_p50:.2f}", f"{row.decide_p99:.2f}", f"{row.decide_rate:.0f}"),
        *(f"{row.slower:.2f}{mark}", floor, f"{row.rate:.2f}{rate_mark}"),
    )


def measured_rows(
    names: Sequence[str],
    processes: Sequence[int],
    seconds: float,
    folder: str,
    costs: list[Cost],
) -> Iterator[Row]:
    """Yield the rows as they are measured, and add what a commit costs to `costs`."""
    for name in names:
        reason = missing(name)
        if reason:
            print(f"skipped {name}: {reason}", file=sys.stderr)
            continue
        place = str(Path(folder) / name)
        Path(place).mkdir()
        with BACKENDS[name](place) as cases:
            for case in cases:
                for count in [max(processes)] if case.one_series else processes:
                    print(f"{case.label}, {count} processes ...", file=sys.stderr, flush=True)
                    yield run_row(case, count, seconds)
            url = cases[0].commit_store
            if url is not None and cases[0].objects.startswith("/"):
                costs.append(measure_costs(cases[0].label.partition(" + ")[0], url))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run bench decide", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring, per row")
    parser.add_argument("--processes", default="1,8", help="how many concurrently, e.g. 1,8")
    parser.add_argument("--only", default=",".join(BACKENDS), help="some of " + ",".join(BACKENDS))
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    given = parser.parse_args(arguments)
    names = given.only.split(",")
    unknown = sorted(set(names) - set(BACKENDS))
    if unknown:
        parser.error(f"no such backend: {', '.join(unknown)}")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["psycopg", "pymysql", "redis", "sqlalchemy", "holdfast.testing"]
    )
    about = machine()
    processes = [int(count) for count in given.processes.split(",")]
    # One folder until the end: ext4 creates files more slowly right after many were removed.
    with tempfile.TemporaryDirectory(prefix=f"holdfast-bench-{os.getpid()}-") as folder:
        costs: list[Cost] = []
        rows = list(measured_rows(names, processes, given.seconds, folder, costs))
    print("\n".join([*about, "", *table(rows)]))
    print(f"\n! beyond the aim: decide takes at most {AIM} times as long as the raw operation")
    print(
        "floor: the bare statements that the protocol asks for, as a multiple of the raw operation"
    )
    if costs:
        print("\n" + cost_table(costs))
    if given.json:
        lines = [
            {
                **asdict(row),
                "p50_ratio": row.slower,
                "floor_ratio": row.floor,
                "rate_ratio": row.rate,
            }
            for row in rows
        ]
        write_json(given.json, [*lines, *as_json(costs)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
