"""DynamoDB, played by ministack: what its table must be, and what a crash leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import s3_servers
from holdfast.arbiter import Key, new_token
from holdfast.arbiter.stores import dynamodb
from holdfast.arbiter.stores.dynamodb import DynamoCommitStore, connect
from holdfast.errors import (
    CollectedError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsafeStoreError,
)

pytestmark = pytest.mark.requirement("C5")


@pytest.fixture
def store(ministack: s3_servers.S3Server) -> Iterator[DynamoCommitStore]:
    with contextlib.closing(connect(s3_servers.dynamodb_url(ministack))) as store:
        store.set_up()
        yield store


def series() -> str:
    return f"{new_token()}/versions"


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://127.0.0.1:1/",
        "dynamodb://127.0.0.1:1/a/b",
        "dynamodb:///table",
        "dynamodb:///table?region=x&regoin=y",
    ],
)
def test_a_url_that_names_no_table_or_region_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidInputError):
        connect(url)


def test_no_secret_and_no_plain_text_to_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    store = connect("dynamodb://KEY:CANARY@db.example.com/t?region=eu-central-1")
    assert store.url == "dynamodb://db.example.com/t?region=eu-central-1"
    assert "CANARY" not in repr(store)
    assert store._place["endpoint_url"] == "https://db.example.com"


def test_a_store_that_was_not_set_up(ministack: s3_servers.S3Server) -> None:
    url = s3_servers.dynamodb_url(ministack, "never-made")
    with contextlib.closing(connect(url)) as store, pytest.raises(NotFoundError, match="init"):
        store.identity()


def test_no_answer_is_unavailable() -> None:
    store = connect("dynamodb://k:s@127.0.0.1:1/t")
    with pytest.raises(UnavailableError) as caught:
        store.get(Key(series(), 0))
    assert "EndpointConnectionError" in str(caught.value)


def test_no_credentials_is_a_refusal(
    ministack: s3_servers.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    url = s3_servers.dynamodb_url(ministack)
    with pytest.raises(PermissionDeniedError):
        connect("dynamodb://" + url.partition("@")[2]).identity()


def test_a_time_to_live_is_refused(ministack: s3_servers.S3Server) -> None:
    url = s3_servers.dynamodb_url(ministack, "with-ttl")
    with contextlib.closing(connect(url)) as store:
        store.set_up()
        live = {"Enabled": True, "AttributeName": "expires"}
        store._call("UpdateTimeToLive", TableName="with-ttl", TimeToLiveSpecification=live)
        assert any("time to live" in problem for problem in store.check())
    with contextlib.closing(connect(url)) as store, pytest.raises(UnsafeStoreError, match="live"):
        store.put_if_absent(Key(series(), 0), b"x")


def test_a_table_with_other_keys_is_refused(ministack: s3_servers.S3Server) -> None:
    url = s3_servers.dynamodb_url(ministack, "other-keys")
    with contextlib.closing(connect(url)) as store:
        store._call(
            "CreateTable",
            TableName="other-keys",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "base_uri", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "base_uri", "KeyType": "HASH"}],
        )
        with pytest.raises(UnsafeStoreError, match="keys"):
            store.set_up()


def test_a_global_table_is_refused(
    store: DynamoCommitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server here knows no global tables: the shape of the answer is from AWS's documents."""
    told = store._call

    def call(operation: str, **arguments: Any) -> Any:
        answer = told(operation, **arguments)
        if operation == "DescribeTable":
            answer["Table"]["Replicas"] = [{"RegionName": "eu-west-1"}]
        return answer

    monkeypatch.setattr(store, "_call", call)
    assert any("global table" in problem for problem in store.check())


def test_records_below_the_boundary_are_gone_before_they_are_deleted(
    store: DynamoCommitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = series()
    for number in range(3):
        store.put_if_absent(Key(name, number), b"x")
    with monkeypatch.context() as patch:  # the collector dies before it deletes
        patch.setattr(store, "_delete_up_to", lambda *_: None)
        assert store.collect(name, 1) == 2
    assert store.boundary(name) == 1
    assert [entry.number for entry in store.scan(name)] == [2]
    assert store.get(Key(name, 0)) is None
    assert not store.compare_and_set(Key(name, 1), b"x", b"y")
    with pytest.raises(CollectedError):
        store.put_if_absent(Key(name, 1), b"late")
    assert [*store._numbers(name, 0, 9)] == [0, 1, 2]
    assert store.collect(name, 1) == 0
    assert [*store._numbers(name, 0, 9)] == [2], "the next collector did not finish"


def test_a_scan_that_meets_a_change_is_repeated(
    store: DynamoCommitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the comparison of the head, record 1 would be shown without record 0."""
    name = series()
    query, fresh = store._query, [Key(name, 0), Key(name, 1)]

    def between(*arguments: Any, **more: Any) -> Any:
        if fresh:  # read item by item: 0 is passed by before it is there, 1 after
            for key in fresh:
                store.put_if_absent(key, b"x")
            fresh.clear()
            return query(*arguments, **more)[1:]
        return query(*arguments, **more)

    monkeypatch.setattr(store, "_query", between)
    assert [entry.number for entry in store.scan(name)] == [0, 1]


def test_a_change_during_a_scan_of_a_known_series_is_noticed(
    store: DynamoCommitStore, ministack: s3_servers.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is read after the records alone if it was seen before: its count must be equal."""
    name, query, others = series(), store._query, [1]
    store.put_if_absent(Key(name, 0), b"first")
    store.scan(name)
    assert [entry.number for entry in store.scan(name)] == [0]

    def meanwhile(*arguments: Any, **more: Any) -> Any:
        entries = query(*arguments, **more)
        while others:
            with contextlib.closing(connect(s3_servers.dynamodb_url(ministack))) as other:
                other.put_if_absent(Key(name, others.pop()), b"of another")
        return entries

    monkeypatch.setattr(store, "_query", meanwhile)
    assert [entry.number for entry in store.scan(name)] == [0, 1]


def test_a_conflict_of_transactions_is_not_an_answer(
    store: DynamoCommitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, conflicts = store._call, [1, 2, 3]

    def call(operation: str, **arguments: Any) -> Any:
        if operation == "TransactWriteItems" and conflicts:
            conflicts.pop()
            raise store._cancelled_error([{"Code": "TransactionConflict"}, {"Code": "None"}])
        return told(operation, **arguments)

    monkeypatch.setattr(store, "_call", call)
    key = Key(series(), 0)
    assert store.put_if_absent(key, b"x") is None
    conflicts.extend(range(dynamodb._CONFLICTS))
    with pytest.raises(UnavailableError, match="in the way"):
        store.put_if_absent(Key(key.series, 1), b"x")
