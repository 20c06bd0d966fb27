"""Copies, moves and aliases: a table is opened under addresses that its commit store knows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.arbiter import Key, connect_commit_store, open_arbiter, read_pin, repin
from holdfast.errors import PinMismatchError, StaleHandleError, UpgradeError
from holdfast.formats import PIN_PATH
from holdfast.storage import open_store
from holdfast.storage._endpoint import remote_endpoint
from holdfast.testing import FaultyS3

pytestmark = pytest.mark.requirement("P1", "P2")
SCHEMA = pa.schema([pa.field("id", pa.int64())])
SHARD = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def commit_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"sqlite:///{tmp_path}/decisions.db?single_host=true"
    store = connect_commit_store(url)
    store.set_up()  # type: ignore[attr-defined]
    store.close()
    return url


def make(uri: str, commit_store: str, options: dict[str, str] | None = None) -> holdfast.Table:
    table = holdfast.create_table(
        uri, SCHEMA, primary_key=["id"], commit_store=commit_store, storage_options=options
    )
    table.append([{"id": 1}])
    with table.claim_writer(SHARD) as writer:
        writer.put(pa.record_batch({"id": [2]}, schema=SCHEMA))
        writer.flush()
        writer.put(pa.record_batch({"id": [3]}, schema=SCHEMA))
    return table


def copy_objects(source: FaultyS3, target: FaultyS3) -> None:
    """Copy a bucket as `mc mirror` does, past Holdfast."""
    here = open_store(source.url("bucket", "t"), source.storage_options())
    there = open_store(target.url("bucket", "t"), target.storage_options())
    for info in here.list():
        there.put(info.path, here.get(info.path))


def ids(table: holdfast.Table) -> list[int]:
    return sorted(table.to_table()["id"].to_pylist())


def test_a_copy_on_another_endpoint(faulty_s3: Callable[..., FaultyS3], commit_store: str) -> None:
    here, there = faulty_s3(conditions="ignoring"), faulty_s3(conditions="ignoring")
    uri, options = here.url("bucket", "t"), there.storage_options()
    original = make(uri, commit_store, here.storage_options())
    copy_objects(here, there)
    with pytest.raises(PinMismatchError, match="--alias") as caught:
        holdfast.open_table(uri, options)
    assert str(caught.value.address) not in str(caught.value.known)
    assert repin(uri, options, how="copied").pin.table_id != original.pin.table_id  # type: ignore[union-attr]
    copy = holdfast.open_table(uri, options)
    assert ids(copy) == [1, 2, 3]
    copy.append([{"id": 7}])
    with copy.claim_writer(SHARD) as writer:  # shards and logs go on, too
        writer.put(pa.record_batch({"id": [8]}, schema=SCHEMA))
        writer.flush()
    copy.compact_lsm()
    assert ids(copy) == [1, 2, 3, 7, 8]
    original.append([{"id": 9}])
    assert ids(original) == [1, 2, 3, 9]
    assert ids(copy) == [1, 2, 3, 7, 8]


def test_another_way_to_the_same_files_needs_one_alias(
    faulty_s3: Callable[..., FaultyS3], commit_store: str
) -> None:
    server = faulty_s3(conditions="ignoring")
    uri, options = server.url("bucket", "t"), server.storage_options()
    make(uri, commit_store, options)
    name = {key: str(value).replace("127.0.0.1", "localhost") for key, value in options.items()}
    assert name != options
    with pytest.raises(PinMismatchError, match="--alias"):
        holdfast.open_table(uri, name)
    repin(uri, name, how="alias")
    for number, way in enumerate([options, name], 5):
        holdfast.open_table(uri, way).append([{"id": number}])
    assert ids(holdfast.open_table(uri, options)) == [1, 2, 3, 5, 6]


def test_a_local_copy_in_the_original_s_place(tmp_path: Path, commit_store: str) -> None:
    """As the same path on another host: only the identity of the pin's file differs."""
    uri, away = tmp_path / "t", tmp_path / "away"
    make(str(uri), commit_store)
    shutil.move(uri, away)
    shutil.copytree(away, uri)
    for place in (uri, away):
        with pytest.raises(PinMismatchError, match="--copied"):
            holdfast.open_table(place)
    repin(uri, how="copied")
    repin(away, how="moved")
    holdfast.open_table(uri).append([{"id": 7}])
    holdfast.open_table(away).append([{"id": 8}])
    assert ids(holdfast.open_table(uri)) == [1, 2, 3, 7]
    assert ids(holdfast.open_table(away)) == [1, 2, 3, 8]


@pytest.mark.parametrize("store", ["sqlite", None], ids=["embedded", "beside"])
def test_a_folder_seen_by_another_path_needs_one_alias(
    tmp_path: Path, commit_store: str, store: str | None
) -> None:
    uri, mount = tmp_path / "t", tmp_path / "mount"
    make(str(uri), store or commit_store)
    shutil.move(uri, mount)  # as a container sees it: the same files, another path
    with pytest.raises(PinMismatchError, match="--alias"):
        holdfast.open_table(mount)
    repin(mount, how="alias")
    assert ids(holdfast.open_table(mount)) == [1, 2, 3]
    shutil.move(mount, uri)
    assert ids(holdfast.open_table(uri)) == [1, 2, 3]  # the first one is still known


def test_after_a_move_the_old_place_is_unknown(tmp_path: Path, commit_store: str) -> None:
    uri, moved = tmp_path / "t", tmp_path / "moved"
    make(str(uri), commit_store)
    shutil.copytree(uri, moved)
    repin(moved, how="moved")
    assert ids(holdfast.open_table(moved)) == [1, 2, 3]
    with pytest.raises(PinMismatchError):
        holdfast.open_table(uri)


def test_a_new_table_in_the_old_place_leaves_the_moved_one_alone(
    tmp_path: Path, commit_store: str
) -> None:
    uri, moved = tmp_path / "t", tmp_path / "moved"
    make(str(uri), commit_store)
    shutil.move(uri, moved)
    repin(moved, how="moved")
    make(str(uri), commit_store).append([{"id": 4}])
    holdfast.open_table(moved).append([{"id": 5}])
    assert ids(holdfast.open_table(moved)) == [1, 2, 3, 5]
    assert ids(holdfast.open_table(uri)) == [1, 2, 3, 4]


def test_a_table_made_anew_through_an_alias_ends_the_old_one(
    faulty_s3: Callable[..., FaultyS3], commit_store: str
) -> None:
    server = faulty_s3(conditions="ignoring")
    uri, options = server.url("bucket", "t"), server.storage_options()
    alias = {key: str(value).replace("127.0.0.1", "localhost") for key, value in options.items()}
    stale = make(uri, commit_store, options)
    repin(uri, alias, how="alias")
    stale.core.store.delete([info.path for info in stale.core.store.list()])
    made = make(uri, commit_store, alias)
    store = connect_commit_store(commit_store)
    assert stale.pin is not None
    with pytest.raises(StaleHandleError):  # not only because it looks at the pin
        store.get(Key(f"{stale.pin.table_id}/versions", 1))
    store.close()
    with pytest.raises(StaleHandleError):
        stale.append([{"id": 66}])
    assert ids(made) == [1, 2, 3]


def test_files_of_a_table_that_was_made_anew_can_only_be_a_copy(
    tmp_path: Path, commit_store: str
) -> None:
    uri, kept = tmp_path / "t", tmp_path / "kept"
    make(str(uri), commit_store)
    shutil.move(uri, kept)
    make(str(uri), commit_store)
    with pytest.raises(PinMismatchError, match="--copied"):
        holdfast.open_table(kept)
    with pytest.raises(StaleHandleError):
        repin(kept, how="moved")
    repin(kept, how="copied")
    assert ids(holdfast.open_table(kept)) == [1, 2, 3]


def test_a_creator_that_died_before_it_kept_the_address(tmp_path: Path, commit_store: str) -> None:
    uri = str(tmp_path / "t")
    make(uri, commit_store)
    store = connect_commit_store(commit_store)
    pin = read_pin(open_store(uri))
    assert pin is not None
    with store._use() as connection:  # type: ignore[attr-defined]
        connection.execute("DELETE FROM holdfast_records WHERE series LIKE '%/addresses'")
    assert ids(holdfast.open_table(uri)) == [1, 2, 3]
    assert store.get(Key(f"{pin.table_id}/addresses", 0)) is not None
    store.close()


def test_the_same_path_on_two_servers_is_two_tables(
    faulty_s3: Callable[..., FaultyS3], commit_store: str
) -> None:
    """Creating the second one must not retire the first."""
    one, two = faulty_s3(conditions="ignoring"), faulty_s3(conditions="ignoring")
    first = make(one.url("bucket", "t"), commit_store, one.storage_options())
    second = make(two.url("bucket", "t"), commit_store, two.storage_options())
    first.append([{"id": 5}])
    second.append([{"id": 6}])
    assert (ids(first), ids(second)) == ([1, 2, 3, 5], [1, 2, 3, 6])


@pytest.mark.parametrize("arbiter", [None, "sqlite"], ids=["conditional", "commit store"])
def test_a_table_of_a_newer_format_is_refused(tmp_path: Path, arbiter: str | None) -> None:
    uri = tmp_path / "t"
    table = holdfast.create_table(uri, SCHEMA, commit_store=arbiter)
    pin = (uri / PIN_PATH).read_bytes()
    (uri / PIN_PATH).write_bytes(pin.replace(b'"v": 1', b'"v": 2, "new": {"field": [1]}'))
    with pytest.raises(UpgradeError, match="upgrade") as caught:
        open_arbiter(uri)
    assert (caught.value.format, caught.value.known) == (2, 1)
    if arbiter:  # a handle that was opened before
        with pytest.raises(holdfast.errors.HoldfastError):
            table.append([{"id": 1}])


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        (None, "amazonaws.com"),
        ("https://s3.eu-west-1.amazonaws.com", "amazonaws.com"),
        ("https://bucket.vpce-1a.s3.us-east-1.vpce.amazonaws.com/", "amazonaws.com"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "amazonaws.com.cn"),
        ("http://MinIO.local:9000/", "minio.local:9000"),
        ("https://minio.local:443", "minio.local"),
        ("https://notamazonaws.com", "notamazonaws.com"),
    ],
)
def test_endpoints_have_one_name(
    endpoint: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(variable, raising=False)
    assert remote_endpoint("s3", {"endpoint": endpoint} if endpoint else {}) == name
    if endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        assert remote_endpoint("s3", {}) == name
    assert remote_endpoint("az", {"account_name": "a"}) != remote_endpoint("az", {})
