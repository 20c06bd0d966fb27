"""Rows into the log over HTTP: one owner, others say who; a fenced owner acknowledges nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import holdfast
from server.serving import ServerProcess, rows_of, serving, stream_of, wait_until
from servers import free_port

INSERT = "/v1/table/t/insert?durable=log"


def arguments(port: int) -> tuple[str, ...]:
    advertised = f"http://127.0.0.1:{port}"
    return ("--log-writer", "--advertise", advertised, "--log-lease", "2s")


def ids_in(root: Path) -> list[int]:
    ids: list[int] = holdfast.open_table(root / "t.lance").to_table(["id"])["id"].to_pylist()
    return sorted(ids)


@pytest.mark.requirement("N2", "L3")
def test_a_server_that_slept_is_fenced_by_the_one_that_took_over(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    ports = [free_port(), free_port()]
    with (
        serving(root, *arguments(ports[0]), log=tmp_path / "log1", port=ports[0]) as first,
        serving(root, *arguments(ports[1]), log=tmp_path / "log2", port=ports[1]) as second,
        serving(root, log=tmp_path / "log3") as plain,
    ):
        one, two, three = first.client(), second.client(), plain.client()
        one.create("t", rows_of([0]), holdfast_primary_key="id")
        assert three.post(INSERT, stream_of(rows_of([1]))).status == 503  # nobody writes it yet
        assert one.post(INSERT, stream_of(rows_of([1]))).json == {"num_inserted_rows": 1}
        for other in (two, three):
            refused = other.post(INSERT, stream_of(rows_of([2])))
            assert (refused.status, refused.headers["holdfast-owner"]) == (421, first.url)
        assert one.post("/v1/table/t/count_rows").json == {"count": 2}
        first.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: two.post(INSERT, stream_of(rows_of([3]))).status == 200)
        finally:
            first.process.send_signal(signal.SIGCONT)
        late = one.post(INSERT, stream_of(rows_of([4])))
        assert late.status in {409, 421}, late.body
        moved = one.post(INSERT, stream_of(rows_of([4])))
        assert (moved.status, moved.headers["holdfast-owner"]) == (421, second.url)
        assert two.post(INSERT, stream_of(rows_of([1, 4], "again"))).status == 200
        assert ids_in(root) == [0, 1, 3, 4]
        assert two.post(INSERT, stream_of(rows_of([5])), holdfast_txn="a/1").status == 406
        one.create("keyless", rows_of([0]))
        assert one.post(INSERT.replace("/t/", "/keyless/"), stream_of(rows_of([1]))).status == 400
        assert one.post(INSERT.replace("=log", "=x"), stream_of(rows_of([1]))).status == 400
        for client in (one, two, three):
            client.close()
        ends_and_is_taken_over(second, first, root)


def ends_and_is_taken_over(owner: ServerProcess, other: ServerProcess, root: Path) -> None:
    """A server that ends politely says so: the next one need not wait."""
    assert owner.stop() == 0
    client = other.client()
    assert client.post(INSERT, stream_of(rows_of([6]))).status == 200
    client.close()
    assert ids_in(root) == [0, 1, 3, 4, 6]
