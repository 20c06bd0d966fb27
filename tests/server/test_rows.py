"""Rows over HTTP: once under a transaction id, one version for many, answers in Arrow or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from server.serving import Client, ServerProcess, rows_of, serving, stream_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "root").mkdir()
    with serving(folder / "root", "--max-answer", "64k", log=folder / "log") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    made = server.client()
    yield made
    made.close()


@pytest.mark.requirement("N2")
def test_an_insert_with_a_transaction_id_is_applied_once(client: Client) -> None:
    client.create("once", rows_of([0]))
    first = client.insert("once", rows_of([1, 2]), txn="app/42")
    again = client.insert("once", rows_of([1, 2]), txn="app/42")
    assert first.json == {"transaction_id": "app/42", "num_inserted_rows": 2, "version": 3}
    assert (first.applied, again.applied) == (True, False)
    assert again.json == {"transaction_id": "app/42", "num_inserted_rows": 0, "version": 3}
    assert client.insert("once", rows_of([3]), txn="a free text").applied
    assert not client.insert("once", rows_of([3]), txn="a free text").applied
    assert client.post("/v1/table/once/count_rows").json == {"count": 4}


@pytest.mark.requirement("N2")
def test_a_create_with_a_transaction_id_is_applied_once(client: Client) -> None:
    assert client.create("made", rows_of([1]), holdfast_txn="app/1").applied
    again = client.create("made", rows_of([1]), holdfast_txn="app/1")
    assert (again.status, again.applied) == (200, False)
    other = client.create("made", rows_of([1]), holdfast_txn="app/2")
    assert other.json["code"] == 5
    assert not client.post("/v1/table/made/create?mode=ExistOk", stream_of(rows_of([1]))).applied
    assert client.post("/v1/table/made/count_rows").json == {"count": 1}
    replaced = client.post("/v1/table/made/create?mode=overwrite", stream_of(rows_of([7, 8])))
    assert replaced.status == 200
    assert client.post("/v1/table/made/count_rows").json == {"count": 2}
    assert (
        client.post("/v1/table/made/insert?mode=Overwrite", stream_of(rows_of([9]))).status == 200
    )
    assert client.post("/v1/table/made/count_rows").json == {"count": 1}


@pytest.mark.requirement("N2")
def test_inserts_that_arrive_at_the_same_time_share_versions(
    server: ServerProcess, client: Client
) -> None:
    client.create("many", rows_of([0]))

    def insert(first: int) -> list[tuple[int, bool]]:
        own = server.client()
        replies = [
            own.insert("many", rows_of([first + number]), txn=f"c{first}/{number}")
            for number in range(8)
        ]
        own.close()
        return [(reply.json["version"], reply.applied) for reply in replies]

    with ThreadPoolExecutor(16) as pool:
        done = [one for part in pool.map(insert, range(1000, 17000, 1000)) for one in part]
    assert all(applied for _, applied in done)
    versions = {version for version, _ in done}
    assert len(versions) < len(done)
    table = holdfast.open_table(f"{server.root}/many.lance")
    ids = table.to_table(["id"])["id"].to_pylist()
    assert sorted(ids) == [0, *(n + i for n in range(1000, 17000, 1000) for i in range(8))]
    told = {info.version: len(info.txns) for info in table.history()}
    assert sum(told[version] for version in versions) == len(done)


@pytest.mark.requirement("N2")
def test_one_bad_insert_does_not_spoil_those_beside_it(
    server: ServerProcess, client: Client
) -> None:
    client.create("mixed", rows_of([0]))

    def insert(number: int) -> int:
        own = server.client()
        bad = pa.table({"id": ["text"], "text": ["x"]})
        reply = own.insert("mixed", bad if number % 2 else rows_of([number]))
        own.close()
        return reply.status

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(insert, range(16))) == [200, 400] * 8
    assert client.post("/v1/table/mixed/count_rows").json == {"count": 9}


@pytest.mark.requirement("N2")
def test_json_rows_go_in_and_come_out(client: Client) -> None:
    client.create("curl", rows_of([1]))
    headers = {"content_type": "application/json"}
    rows = json.dumps([{"id": 2, "text": "two"}]).encode()
    assert client.post("/v1/table/curl/insert", rows, **headers).status == 200
    lines = b'{"id": 3, "text": "three"}\n{"id": 4, "text": null}\n'
    assert client.post("/v1/table/curl/insert", lines, content_type="application/x-ndjson").applied
    reply = client.post("/v1/table/curl/query", {"filter": "id > 1"}, accept="application/json")
    assert sorted(row["id"] for row in reply.json) == [2, 3, 4]
    for bad in (b"{}", b"[1]", b"[" * 100_000, b'[{"id": 1.5}]', b'[{"nope": 1}]', b"\xff"):
        assert client.post("/v1/table/curl/insert", bad, **headers).status == 400
    made = client.post("/v1/table/made-by-curl/create", rows, **headers)
    assert made.status == 200


@pytest.mark.requirement("N2")
def test_rows_are_asked_for(client: Client, server: ServerProcess) -> None:
    rows = pa.table(
        {
            "id": pa.array(range(50), pa.int64()),
            "text": [f"word{n % 5} storm" for n in range(50)],
            "v": pa.array([[float(n), 0.0] for n in range(50)], pa.list_(pa.float32(), 2)),
        }
    )
    assert client.create("asked", rows, holdfast_primary_key="id").status == 200

    def ask(**fields: Any) -> pa.Table:
        reply = client.post("/v1/table/asked/query", fields)
        assert reply.status == 200, reply.body
        return reply.table()

    assert ask(filter="id < 3", columns=["id"]).to_pydict() == {"id": [0, 1, 2]}
    assert ask(k=4).num_rows == 4
    assert ask(filter="id < 10", columns={"column_names": ["id"]}, k=3, offset=4).num_rows == 3
    assert ask(keys=[7, 3, 999], columns=["id"])["id"].to_pylist() == [7, 3]
    near = ask(vector=[20.2, 0.0], k=2, columns=["id"])
    assert near["id"].to_pylist() == [20, 21]
    holdfast.open_table(f"{server.root}/asked.lance").create_index("text")
    found = ask(full_text_query={"columns": ["text"], "query": "word3"}, k=3)
    assert set(found["text"].to_pylist()) == {"word3 storm"}
    assert ask(version=1).num_rows == 0
    stream = client.post(
        "/v1/table/asked/query", {"k": 1}, accept="application/vnd.apache.arrow.stream"
    )
    assert pa.ipc.open_stream(stream.body).read_all().num_rows == 1
    deleted = client.post("/v1/table/asked/delete", {"predicate": "id >= 10"})
    assert deleted.json["version"] == 4
    assert client.post("/v1/table/asked/count_rows", {"predicate": "id > 4"}).json == {"count": 5}
    assert client.post("/v1/table/asked/count_rows", {"version": 2}).json == {"count": 50}
    refused: tuple[dict[str, Any], ...] = (
        {"filter": "no such"},
        {"columns": ["nope"]},
        {"columns": [1]},
        {"k": -1},
        {"k": "x"},
        {"vector": ["a"]},
        {"keys": []},
        {"typo": 1},
        {"version": 99},
        {"freshness": "none"},
        {"full_text_query": {"query": "x"}},
    )
    for bad in refused:
        assert client.post("/v1/table/asked/query", bad).status in {400, 404}, bad


@pytest.mark.requirement("N2")
def test_an_answer_is_not_larger_than_the_server_gives(client: Client) -> None:
    client.create("large", pa.table({"text": ["x" * 1000] * 100}))
    refused = client.post("/v1/table/large/query", {})
    assert (refused.status, refused.json["code"]) == (400, 13)
    assert "page with k and offset" in refused.json["error"]
    assert client.post("/v1/table/large/query", {"k": 10}).table().num_rows == 10


@pytest.mark.requirement("N2")
def test_a_body_that_was_cut_off_is_refused(client: Client, server: ServerProcess) -> None:
    client.create("cut", rows_of([0]))
    batch = pa.table({"id": pa.array([4294967295], pa.int64()), "text": ["x"]})
    reordered = batch.select(["text", "id"])  # its last bytes look like an end mark
    for body in (
        stream_of(rows_of([1, 2]))[:-8],
        stream_of(reordered)[:-8],
        stream_of(rows_of([1, 2]))[:200],
        stream_of(rows_of([1, 2])) + b"more",
        stream_of(rows_of([1]), options=pa.ipc.IpcWriteOptions(compression="zstd")),
        b"no arrow",
        b"ARROW1 no file",
    ):
        reply = client.post("/v1/table/cut/insert", body)
        assert (reply.status, reply.json["code"]) == (400, 13), body[:40]
    assert client.post("/v1/table/cut/count_rows").json == {"count": 1}
    data = Path(server.root) / "cut.lance" / "data"
    assert len(list(data.iterdir())) == 1
