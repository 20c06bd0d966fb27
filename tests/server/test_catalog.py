"""Unmodified pylance and LanceDB through a real server; errors by the protocol's codes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import lancedb
import pytest
from lance.namespace import RestNamespace
from lance_namespace.errors import TableAlreadyExistsError, TableNotFoundError

import holdfast
from holdfast.cli import main as run_command
from holdfast.formats import TOKEN_KEY, version_name
from holdfast.testing import FaultyS3
from server.serving import Client, ServerProcess, rows_of, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "root").mkdir()
    arguments = ("--commit-store", "sqlite")
    with serving(folder / "root", *arguments, log=folder / "log") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    made = server.client()
    yield made
    made.close()


def write(url: str, name: str, *ids: int, mode: str = "append", **options: Any) -> Any:
    tables: Any = RestNamespace(uri=url)  # type: ignore[no-untyped-call]
    return lance.write_dataset(
        rows_of(ids), namespace_client=tables, table_id=[name], mode=mode, **options
    )


def opened(url: str, name: str, **options: Any) -> Any:
    tables: Any = RestNamespace(uri=url)  # type: ignore[no-untyped-call]
    return lance.dataset(namespace_client=tables, table_id=[name], **options)


def use_pylance(url: str, uri: str, options: dict[str, str] | None = None) -> None:
    """Create, append, update, merge, delete, index, optimize, tag, go back in time."""
    given: dict[str, Any] = {} if options is None else {"storage_options": options}
    assert write(url, "py", *range(20), mode="create", **given).version == 1
    write(url, "py", *range(20, 40), **given)
    dataset = opened(url, "py", **given)
    dataset.delete("id < 5")
    dataset.update({"text": "'changed'"}, where="id = 7")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        rows_of([7, 100])
    )
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    dataset.optimize.optimize_indices()
    dataset.tags.create("first", 1)
    assert opened(url, "py", version=1, **given).count_rows() == 20
    assert dataset.checkout_version("first").count_rows() == 20
    stock = lance.dataset(uri, storage_options=options)
    assert sorted(stock.to_table()["id"].to_pylist()) == [*range(5, 40), 100]
    for version in range(1, stock.version + 1):
        older = lance.dataset(uri, version=version, storage_options=options)
        assert older.config()[TOKEN_KEY].startswith("hf-")
    dataset.checkout_version(2).restore()
    assert opened(url, "py", **given).count_rows() == 40
    write(url, "py", 1, mode="overwrite", **given)
    assert opened(url, "py", **given).count_rows() == 1


def use_lancedb(url: str, options: dict[str, str] | None = None) -> None:
    database: Any = lancedb.connect_namespace("rest", {"uri": url}, storage_options=options)
    table = database.create_table("db", rows_of(range(10)))
    table.add(rows_of(range(10, 20)))
    table.update(where="id = 1", values={"text": "changed"})
    merged = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merged.execute(rows_of([19, 20]))
    table.delete("id = 0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another word for the same is recommended
        table.create_scalar_index("id")
    table.optimize()
    again = database.open_table("db", storage_options=options)
    assert again.count_rows() == 20
    assert again.search().where("id = 1").to_list()[0]["text"] == "changed"
    table.checkout(1)
    assert table.count_rows() == 10
    assert "db" in database.list_tables().tables


@pytest.mark.requirement("N1", "C9")
def test_pylance_does_everything_through_the_server(server: ServerProcess) -> None:
    use_pylance(server.url, f"{server.root}/py.lance")
    made = {info.operation for info in holdfast.open_table(f"{server.root}/py.lance").history()}
    assert {"Append", "Overwrite", "Delete", "Update", "CreateIndex"} <= made


@pytest.mark.requirement("N1", "C9")
def test_lancedb_does_everything_through_the_server(server: ServerProcess) -> None:
    use_lancedb(server.url)
    history = holdfast.open_table(f"{server.root}/db.lance").history()
    assert all(info.decided_by for info in history)
    assert not any(info.foreign for info in history)


@pytest.mark.requirement("N1", "C6")
@pytest.mark.parametrize("conditions", ["honest", "ignoring"])
def test_clients_bring_their_own_credentials_to_s3(
    tmp_path: Path, faulty_s3: Callable[..., FaultyS3], conditions: str
) -> None:
    store = faulty_s3(conditions=conditions)
    options = store.storage_options()
    pairs = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    commit_store: list[str] = []
    if conditions == "ignoring":
        url = f"sqlite:///{tmp_path}/c.db?single_host=true"
        assert run_command(["store", "init", url]) == 0
        commit_store = ["--commit-store", url]
    root = store.url("lake", "tables")
    with serving(root, *pairs, *commit_store, log=tmp_path / "log") as server:
        use_pylance(server.url, f"{root}/py.lance", options)
        use_lancedb(server.url, options)
        client = server.client()
        described = client.post("/v1/table/py/describe", {"vend_credentials": True}).json
        assert described["location"] == f"{root}/py.lance"
        assert "storage_options" not in described
        for path in ("describe", "version/list", "stats", "tags/list"):
            assert (
                options["aws_secret_access_key"]
                not in client.post(f"/v1/table/py/{path}", b"").body.decode()
            )
        client.close()
    assert options["aws_secret_access_key"] not in (tmp_path / "log").read_text()


@pytest.mark.requirement("N1")
def test_a_table_is_created_once_and_a_missing_one_is_missing(server: ServerProcess) -> None:
    write(server.url, "once", 1, mode="create")
    with pytest.raises(TableAlreadyExistsError):
        write(server.url, "once", 2, mode="create")
    with pytest.raises(TableNotFoundError):
        opened(server.url, "nowhere")


@pytest.mark.requirement("N1")
def test_errors_have_the_codes_of_the_protocol(client: Client) -> None:
    client.create("codes", rows_of([1]))
    wanted = [
        ("/v1/table/nowhere/describe", None, 404, 4),
        ("/v1/table/nowhere/insert", b"", 400, 13),
        ("/v1/table/nowhere/count_rows", None, 404, 4),
        ("/v1/table/codes/tags/version", {"tag": "none"}, 404, 8),
        ("/v1/table/codes/version/create", {"version": 2}, 400, 13),
        ("/v1/table/codes/merge_insert", None, 406, 0),
        ("/v1/table/codes/update", None, 406, 0),
        ("/v1/table/batch-commit", None, 406, 0),
        ("/v1/transaction/x/describe", None, 406, 0),
        ("/v1/namespace/none/describe", None, 404, 1),
        ("/v1/namespace/none/table/list", None, 404, 1),
        ("/v1/table/codes/drop", None, 403, 15),
        ("/v1/table/codes/deregister", None, 403, 15),
        ("/v1/table/codes/describe", b"[1]", 400, 13),
        ("/v1/table/codes/describe", b"{", 400, 13),
    ]
    for path, body, status, code in wanted:
        reply = client.post(path, body)
        assert (path, reply.status, reply.json["code"]) == (path, status, code)
    assert client.create("codes", rows_of([1])).json["code"] == 5
    assert client.get("/v1/table/codes/insert").status == 405


@pytest.mark.requirement("N1")
def test_namespaces_are_folders(client: Client, server: ServerProcess) -> None:
    assert client.post("/v1/namespace/a/create", b"null").status == 200
    assert client.post("/v1/namespace/a/create", {"mode": "ExistOk"}).status == 200
    assert client.post("/v1/namespace/a/create").json["code"] == 2
    assert client.create("a$deep", rows_of([1, 2])).status == 200
    assert (Path(server.root) / "a" / "deep.lance").is_dir()
    assert client.get("/v1/namespace/a/table/list").json["tables"] == ["deep"]
    assert client.post("/v1/table/a.deep/count_rows?delimiter=.").json == {"count": 2}
    assert "a" in client.get("/v1/namespace/$/list").json["namespaces"]
    assert client.post("/v1/namespace/a/drop").json["code"] == 3
    client.post("/v1/namespace/b/create")
    assert client.post("/v1/namespace/b/drop").status == 200
    assert client.post("/v1/namespace/b/drop").json["code"] == 1
    assert client.post("/v1/namespace/b/drop", {"mode": "Skip"}).status == 200
    names = [f"n{number}" for number in range(3)]
    for name in names:
        client.post(f"/v1/namespace/many${name}/create")
    first = client.get("/v1/namespace/many/list?limit=2").json
    rest = client.get(f"/v1/namespace/many/list?limit=2&page_token={first['page_token']}").json
    assert first["namespaces"] + rest["namespaces"] == names


@pytest.mark.requirement("N1")
def test_nothing_is_destroyed_by_a_stray_call(client: Client, server: ServerProcess) -> None:
    client.create("kept", rows_of([1, 2, 3]))
    refused = client.post("/v1/table/kept/drop")
    assert refused.status == 403
    assert "newest_version=2" in refused.json["error"]
    assert client.post("/v1/table/kept/version/delete", {"ranges": []}).json["deleted_count"] == 0
    with pytest.raises(RuntimeError, match="nothing was dropped"):
        lancedb.connect_namespace("rest", {"uri": server.url}).drop_table("kept")
    assert client.post("/v1/table/kept/count_rows").json == {"count": 3}
    assert client.post("/v1/table/kept/drop", {"context": {"confirm": "true"}}).status == 200
    assert client.post("/v1/table/kept/exists").status == 404
    client.create("kept", rows_of([4]))  # another table at the same place
    assert client.insert("kept", rows_of([5])).status == 200
    assert client.post("/v1/table/kept/count_rows").json == {"count": 2}
    confirmed = {"uri": server.url, "header.x-lance-ctx-confirm": "true"}
    lancedb.connect_namespace("rest", confirmed).drop_table("kept")
    assert client.post("/v1/table/kept/exists").status == 404


@pytest.mark.requirement("N1")
def test_a_plain_table_is_registered_and_given_back(client: Client, server: ServerProcess) -> None:
    uri = f"{server.root}/plain.lance"
    lance.write_dataset(rows_of([1, 2]), uri)
    elsewhere = {"location": "/etc/plain.lance"}
    assert client.post("/v1/table/plain/register", elsewhere).status == 400
    assert client.post("/v1/table/plain/register", {"location": uri}).status == 200
    assert client.post("/v1/table/plain/register", {"location": uri}).json["code"] == 5
    assert client.insert("plain", rows_of([3])).json["version"] == 2
    confirmed = {"context": {"confirm": "true"}}
    assert client.post("/v1/table/plain/deregister").status == 403
    assert client.post("/v1/table/plain/deregister", confirmed).json["location"] == uri
    assert client.post("/v1/table/plain/exists").status == 404
    assert lance.dataset(uri).count_rows() == 3


@pytest.mark.requirement("N1", "P1")
def test_a_commit_that_names_a_decided_version_takes_nothing_away(
    client: Client, server: ServerProcess
) -> None:
    client.create("whole", rows_of([1]))
    client.insert("whole", rows_of([2]))
    place = Path(server.root) / "whole.lance"
    body = {
        "version": 4,
        "manifest_path": f"{place}/{version_name(3).path}".lstrip("/"),
        "naming_scheme": "V2",
    }
    assert client.post("/v1/table/whole/version/create", body).json["code"] == 13
    assert (place / version_name(3).path).exists()
    assert client.post("/v1/table/whole/count_rows").json == {"count": 2}


@pytest.mark.requirement("N1")
def test_versions_tags_stats_and_indexes_are_told(client: Client, server: ServerProcess) -> None:
    write(server.url, "told", *range(10), mode="create")
    write(server.url, "told", 10)
    opened(server.url, "told").create_scalar_index("id", "BTREE")
    newest = client.post("/v1/table/told/version/list?limit=1&descending=true").json["versions"]
    assert [one["version"] for one in newest] == [3]
    every = client.post("/v1/table/told/version/list", {"descending": True}).json["versions"]
    assert [one["version"] for one in every] == [3, 2, 1]
    first = client.post("/v1/table/told/version/describe", {"version": 1}).json["version"]
    assert first["manifest_path"].endswith(version_name(1).path)
    assert client.post("/v1/table/told/tags/create", {"tag": "a", "version": 1}).status == 200
    assert client.post("/v1/table/told/tags/create", {"tag": "a", "version": 1}).json["code"] == 9
    assert client.post("/v1/table/told/tags/update", {"tag": "a", "version": 2}).status == 200
    assert client.post("/v1/table/told/tags/version", {"tag": "a"}).json["version"] == 2
    assert client.post("/v1/table/told/tags/list").json["tags"]["a"]["version"] == 2
    assert client.post("/v1/table/told/tags/delete", {"tag": "a"}).status == 200
    assert client.post("/v1/table/told/tags/list").json["tags"] == {}
    stats = client.post("/v1/table/told/stats").json
    assert (stats["num_rows"], stats["num_indices"]) == (11, 1)
    assert stats["fragment_stats"]["num_fragments"] == 2
    (index,) = client.post("/v1/table/told/index/list").json["indexes"]
    assert (index["columns"], index["num_indexed_rows"]) == (["id"], 11)
    described = client.post("/v1/table/told/describe", {"load_detailed_metadata": True}).json
    assert [field["name"] for field in described["schema"]["fields"]] == ["id", "text"]
    assert described["version"] == 3
    client.post("/v1/table/declared/declare")
    declared = client.post("/v1/table/declared/describe", {"check_declared": True}).json
    assert declared["is_only_declared"] is True
