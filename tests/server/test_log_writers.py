"""Rows into the log over HTTP: one owner, others say who; a fenced owner acknowledges nothing.

Leases in these tests are long, and a test that wants one to have run out says so in the table.
So nothing here depends on how fast a server gets to renew its own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.formats import LOG_OWNER_PATH
from server.serving import Client, Reply, ServerProcess, rows_of, serving, stream_of, wait_until
from servers import free_port

INSERT = "/v1/table/t/insert?durable=log"


def arguments(port: int, lease: str = "1h") -> tuple[str, ...]:
    advertised = f"http://127.0.0.1:{port}"
    return ("--log-writer", "--advertise", advertised, "--log-lease", lease)


@contextlib.contextmanager
def owning(root: Path, log: Path, lease: str = "1h") -> Iterator[ServerProcess]:
    port = free_port()
    with serving(root, *arguments(port, lease), log=log, port=port) as server:
        yield server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def put(client: Client, *ids: int, txn: str | None = None, table: str = "t") -> Reply:
    headers = {} if txn is None else {"holdfast_txn": txn}
    return client.post(INSERT.replace("/t/", f"/{table}/"), stream_of(rows_of(ids)), **headers)


def ids_in(root: Path, table: str = "t") -> list[int]:
    found = holdfast.open_table(root / f"{table}.lance").to_table(["id"])
    return sorted(found["id"].to_pylist())


def end_lease(root: Path) -> None:
    """Let the owner's lease have run out."""
    place = root / "t.lance" / LOG_OWNER_PATH
    place.write_text(json.dumps({**json.loads(place.read_text()), "until": 0}))


@pytest.mark.requirement("N2", "L3")
def test_a_server_that_slept_is_fenced_by_the_one_that_took_over(
    tmp_path: Path, root: Path
) -> None:
    with (
        owning(root, tmp_path / "log1") as first,
        owning(root, tmp_path / "log2") as second,
        serving(root, log=tmp_path / "log3") as plain,
    ):
        one, two, three = first.client(), second.client(), plain.client()
        one.create("t", rows_of([0]), holdfast_primary_key="id")
        assert put(three, 1).status == 503  # nobody writes it yet
        assert put(one, 1).json == {"num_inserted_rows": 1}
        assert put(one, 2, txn="app/2").applied
        for other in (two, three):
            refused = put(other, 3)
            assert (refused.status, refused.headers["holdfast-owner"]) == (421, first.url)
        assert one.post("/v1/table/t/count_rows").json == {"count": 3}
        first.process.send_signal(signal.SIGSTOP)
        end_lease(root)
        try:
            assert put(two, 3).status == 200
        finally:
            first.process.send_signal(signal.SIGCONT)
        late = put(one, 4, txn="app/4")
        assert late.status in {409, 421}, late.body
        moved = put(one, 4, txn="app/4")
        assert (moved.status, moved.headers["holdfast-owner"]) == (421, second.url)
        assert put(two, 4, txn="app/4").applied
        again = put(two, 2, txn="app/2")  # taken by the owner before
        assert (again.status, again.applied) == (200, False)
        assert again.json == {"transaction_id": "app/2", "num_inserted_rows": 0}
        assert ids_in(root) == [0, 1, 2, 3, 4]
        for client in (one, two, three):
            client.close()
        # A server that ends politely says so: the next one need not wait for its lease.
        assert second.stop() == 0
        last = first.client()
        assert put(last, 6).status == 200
        assert not put(last, 4, txn="app/4").applied
        last.close()
        assert ids_in(root) == [0, 1, 2, 3, 4, 6]


@pytest.mark.requirement("N2", "L3")
def test_a_log_is_taken_over_when_its_owners_lease_ran_out(tmp_path: Path, root: Path) -> None:
    with owning(root, tmp_path / "log2", lease="1s") as second:
        two = second.client()
        with owning(root, tmp_path / "log1", lease="1s") as first:
            one = first.client()
            one.create("t", rows_of([0]), holdfast_primary_key="id")
            assert put(one, 1, txn="app/1").applied
            one.close()
            first.kill()
        wait_until(lambda: put(two, 2).status == 200, seconds=280)
        assert not put(two, 1, txn="app/1").applied
        two.close()
    assert ids_in(root) == [0, 1, 2]


@pytest.mark.requirement("N2", "L3", "C8")
def test_rows_without_a_key_are_in_the_log_once_while_owners_are_killed(
    tmp_path: Path, root: Path
) -> None:
    """Each insert is sent until it is answered, to whichever server is there."""
    ports = [free_port(), free_port()]
    logs = [tmp_path / "log0", tmp_path / "log1"]
    running = [
        ServerProcess(str(root), *arguments(ports[n], "1s"), log=logs[n], port=ports[n])
        for n in range(2)
    ]
    client = running[0].client()
    client.create("t", rows_of([0]))
    client.close()
    repeats = Counter[bool]()

    def insert(number: int) -> None:
        for attempt in range(100_000):
            with contextlib.suppress(OSError, http.client.HTTPException):
                own = Client(ports[attempt % 2])
                try:
                    reply = put(own, number, txn=f"a{number % 7}/{number}")
                    if attempt < 1 and number % 3 == 0:
                        continue  # as if the answer were lost
                    if reply.status == 200:
                        repeats[reply.applied] += 1
                        return
                    assert reply.status in {409, 421, 429, 503, 504}, reply.body
                finally:
                    own.close()
        raise AssertionError("it never got through")

    try:
        with ThreadPoolExecutor(8) as pool:
            for n in (0, 1):
                list(pool.map(insert, range(1 + n * 40, 41 + n * 40)))
                running[n].kill()  # whoever owns the log, or the other one
                close_output(running[n])
                if n == 0:
                    running[0] = ServerProcess(
                        str(root), *arguments(ports[0], "1s"), log=logs[0], port=ports[0]
                    )
            list(pool.map(insert, range(81, 101)))
    finally:
        for one in running:
            one.kill()
            close_output(one)
    print(repeats)
    assert repeats[False] > 0
    assert ids_in(root) == list(range(101))


def close_output(server: ServerProcess) -> None:
    if server.process.stdout is not None:
        server.process.stdout.close()


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("owned")
    (folder / "root").mkdir()
    with owning(folder / "root", folder / "log") as server:
        yield server


@pytest.fixture
def client(owner: ServerProcess) -> Iterator[Client]:
    made = owner.client()
    yield made
    made.close()


@pytest.mark.requirement("N2")
def test_a_request_into_several_shards_is_completed_by_its_repeat(
    owner: ServerProcess, client: Client
) -> None:
    client.create("shards", rows_of([0]), holdfast_primary_key="id")
    table = holdfast.open_table(f"{owner.root}/shards.lance")
    table.prepare_writers(sharding=holdfast.Sharding.bucket("id", 4))
    parts = table.router().split(rows_of(range(1, 41)))
    assert len(parts) > 1
    shard, part = parts[0]
    with table.claim_writer(shard) as writer:  # the request died after its first shard
        writer.put(part, txn=("app", 1))
    whole = put(client, *range(1, 41), txn="app/1", table="shards")
    assert whole.applied
    assert whole.json["num_inserted_rows"] == 40 - part.num_rows
    assert not put(client, *range(1, 41), txn="app/1", table="shards").applied
    assert ids_in(Path(owner.root), "shards") == list(range(41))


@pytest.mark.requirement("N2")
def test_what_does_not_fit_the_log_is_refused(owner: ServerProcess, client: Client) -> None:
    client.create("plain", rows_of([0]))
    place = INSERT.replace("/t/", "/plain/")
    refused = put(client, 1, table="plain")
    assert refused.status == 400
    assert "Holdfast-Txn" in refused.json["error"]
    assert put(client, 1, txn="app/1", table="plain").applied
    assert client.post(place.replace("=log", "=x"), stream_of(rows_of([1]))).status == 400
    assert client.post(f"{place}&mode=overwrite", stream_of(rows_of([1]))).status == 400
    bad = stream_of(rows_of([1]).rename_columns(["id", "other"]))
    assert client.post(place, bad, holdfast_txn="app/2").status == 400
    assert put(client, 2, txn="app/2", table="plain").applied
    assert ids_in(Path(owner.root), "plain") == [0, 1, 2]


@pytest.mark.requirement("N2")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_table_that_is_made_anew_has_a_log_of_its_own(
    owner: ServerProcess, client: Client, elsewhere: bool
) -> None:
    name = f"anew-{elsewhere}".lower()
    client.create(name, rows_of([0]), holdfast_primary_key="id")
    assert put(client, 1, txn="app/1", table=name).applied
    assert not put(client, 1, txn="app/1", table=name).applied
    if elsewhere:  # another server, or a program
        holdfast.Namespace(owner.root, allow_drop=True).drop_table({"id": [name]})
        place = f"{owner.root}/{name}.lance"
        holdfast.create_table(place, rows_of([]).schema, primary_key=["id"]).close()
    else:
        dropped = client.post(f"/v1/table/{name}/drop", {"context": {"confirm": "true"}})
        assert dropped.status == 200
        client.create(name, rows_of([]), holdfast_primary_key="id")
    assert put(client, 11, txn="app/1", table=name).applied
    assert put(client, 12, table=name).status == 200
    assert ids_in(Path(owner.root), name) == [11, 12]


@pytest.mark.requirement("N2")
def test_the_log_takes_a_column_that_was_added_meanwhile(
    owner: ServerProcess, client: Client
) -> None:
    client.create("wider", rows_of([0]), holdfast_primary_key="id")
    assert put(client, 1, table="wider").status == 200
    table = holdfast.open_table(f"{owner.root}/wider.lance")
    table.merge_log()
    table.dataset().add_columns(pa.schema([pa.field("more", pa.int64())]))
    wide = rows_of([2]).append_column("more", [[2]])
    place = INSERT.replace("/t/", "/wider/")
    assert client.post(place, stream_of(wide)).status == 200
    assert ids_in(Path(owner.root), "wider") == [0, 1, 2]
