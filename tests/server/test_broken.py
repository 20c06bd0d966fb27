"""Tables that are broken, dropped or made anew: said in words, never a defect, others go on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
import servers
from conftest import skip_without
from holdfast.cli import main as run_command
from holdfast.formats import PIN_PATH
from holdfast.testing import Fault, FaultyS3
from server.serving import Client, ServerProcess, rows_of, serving, stream_of, wait_until

DEFECT = 500


def damage_manifests(place: Path) -> None:
    for manifest in (place / "_versions").iterdir():
        manifest.write_bytes(manifest.read_bytes()[:20])


def lose_data(place: Path) -> None:
    shutil.rmtree(place / "data")


def damage_data(place: Path) -> None:
    for file in (place / "data").iterdir():
        file.write_bytes(b"\xff" * file.stat().st_size)


def lose_versions(place: Path) -> None:
    shutil.rmtree(place / "_versions")


def damage_pin(place: Path) -> None:
    (place / PIN_PATH).write_bytes(b'{"v": 1, "table_id":')


def lose_pin(place: Path) -> None:
    (place / PIN_PATH).unlink()


def lose_commit_store(place: Path) -> None:
    for file in place.rglob("commits.db*"):
        file.unlink()


def damage_commit_store(place: Path) -> None:
    for file in place.rglob("commits.db"):
        file.write_bytes(b"no database" * 1000)


def become_a_file(place: Path) -> None:
    place.rename(place.with_suffix(".gone"))
    place.write_bytes(b"a table was here")


DAMAGES: tuple[Callable[[Path], None], ...] = (
    damage_manifests,
    lose_data,
    damage_data,
    lose_versions,
    damage_pin,
    lose_pin,
    lose_commit_store,
    damage_commit_store,
    become_a_file,
)
REQUESTS = (
    *("describe", "exists", "stats", "count_rows", "query", "version/list", "tags/list"),
    *("version/list?limit=1&descending=true", "version/describe", "index/list"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "root").mkdir()
    with serving(folder / "root", log=folder / "log") as running:
        yield running
    assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    made = server.client()
    yield made
    made.close()


@pytest.mark.requirement("N1", "N3")
@pytest.mark.parametrize("opened", [True, False], ids=["opened before", "fresh"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_broken_table_is_no_defect_of_the_server(
    server: ServerProcess, client: Client, damage: Callable[[Path], None], opened: bool
) -> None:
    name = f"{damage.__name__}-{opened}".lower()
    place = Path(server.root) / f"{name}.lance"
    made = holdfast.create_table(place, rows_of([]).schema, commit_store="sqlite")
    made.append(rows_of([1, 2]))
    made.close()
    if opened:
        assert client.post(f"/v1/table/{name}/count_rows").json == {"count": 2}
        assert client.get(f"/table/{name}").status == 200
    damage(place)
    for path in REQUESTS:
        reply = client.post(f"/v1/table/{name}/{path}", b"{}")
        assert reply.status != DEFECT, (path, reply.body)
    for path in ("/", f"/table/{name}"):
        assert client.get(path).status in {200, 404, 503}, path
    insert = client.post(f"/v1/table/{name}/insert", stream_of(rows_of([3])))
    assert insert.status != DEFECT, insert.body
    assert client.get(f"/table/{name}?page=2").status in {200, 404, 503}
    assert client.get("/metrics").status == 200


@pytest.mark.requirement("N1", "N3")
def test_tables_come_and_go_while_people_look(server: ServerProcess, client: Client) -> None:
    ended = threading.Event()
    seen: list[int] = []
    pages = ("/", "/table/fleeting", "/table/fleeting?page=2", "/metrics")

    def look() -> None:
        own = server.client()
        while not ended.is_set():
            seen.extend(own.get(path).status for path in pages)
            seen.extend(own.post(f"/v1/table/fleeting/{path}", b"{}").status for path in REQUESTS)
        own.close()

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(6):
            assert client.create("fleeting", rows_of([number])).status == 200
            assert client.insert("fleeting", rows_of([100 + number])).status == 200
            assert client.post("/v1/table/fleeting/count_rows").json == {"count": 2}
            confirmed = {"context": {"confirm": "true"}}
            assert client.post("/v1/table/fleeting/drop", confirmed).status == 200
    finally:
        ended.set()
        for thread in threads:
            thread.join(280)
    assert set(seen) <= {200, 404, 409, 503}
    assert 200 in seen


@pytest.mark.requirement("N1", "C6")
def test_a_commit_store_that_is_down_is_said_to_be_and_comes_back(tmp_path: Path) -> None:
    skip_without(servers.missing("redis"))
    (tmp_path / "root").mkdir()
    with servers.running("redis") as redis:
        assert run_command(["store", "init", redis.url]) == 0
        arguments = ("--commit-store", redis.url)
        with serving(tmp_path / "root", *arguments, log=tmp_path / "log") as server:
            client = server.client()
            assert client.create("t", rows_of([1])).status == 200
            redis.kill()
            for path in ("count_rows", "query", "stats", "version/list", "tags/list"):
                reply = client.post(f"/v1/table/t/{path}", b"{}")
                assert (path, reply.status, reply.json["code"]) == (path, 503, 17)
                assert int(reply.headers["retry-after"]) >= 1
            refused = client.insert("t", rows_of([2]), txn="app/2")
            assert refused.status in {503, 504}, refused.body
            assert client.create("new", rows_of([1])).status == 503
            assert client.get("/").status == client.get("/table/t").status == 200
            assert client.get("/health").status == client.get("/metrics").status == 200
            redis.restart()
            again = client.insert("t", rows_of([2]), txn="app/2")
            assert again.status == 200, again.body
            assert client.post("/v1/table/t/count_rows").json == {"count": 2}
            client.close()


@pytest.mark.requirement("N1", "N3")
def test_a_server_is_not_ready_while_its_store_gives_no_answer(
    tmp_path: Path, faulty_s3: Callable[..., FaultyS3]
) -> None:
    store = faulty_s3()
    store.faults.add(Fault(kind="status_before", status=403, times=None))
    pairs = [
        word
        for name, value in store.storage_options().items()
        for word in ("-o", f"{name}={value}")
    ]
    with serving(store.url("lake", "tables"), *pairs, log=tmp_path / "log") as server:
        client = server.client()
        wait_until(lambda: client.get("/ready").status == 503)
        assert client.get("/ready").headers["retry-after"]
        assert client.get("/health").status == 200
        store.faults.clear()
        wait_until(lambda: client.get("/ready").status == 200)
        client.close()
