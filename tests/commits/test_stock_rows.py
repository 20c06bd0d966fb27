"""Tables that stock Lance keeps on `s3+ddb://` are taken over: nothing that it decided is lost.

Stock pylance writes to S3 and DynamoDB, both played by ministack.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

import lance
import pyarrow as pa
import pytest

import holdfast
import s3_servers
from command_line import Cli
from commits.table_worker import set_up
from holdfast.arbiter import StockRows, _stock_rows
from holdfast.errors import (
    CorruptError,
    ForeignVersionError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from holdfast.formats import version_name
from holdfast.storage import ObjectStore, open_store

pytestmark = pytest.mark.requirement("C2")
NUMBERS = itertools.count()


class Stock:
    """A table that stock Lance keeps on DynamoDB."""

    def __init__(self, server: s3_servers.S3Server) -> None:
        self.table = f"lance-{next(NUMBERS)}"
        self.uri = f"s3+ddb://{server.bucket}/lake/{self.table}?ddbTableName={self.table}"
        self.plain = server.url(f"lake/{self.table}")
        self.plain_options = server.storage_options()
        self.options = {**self.plain_options, "dynamodb_endpoint": server.endpoint}
        self.rows_of = StockRows(self.uri, self.options)
        self.rows_of._call(
            "CreateTable",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[
                {"AttributeName": "base_uri", "AttributeType": "S"},
                {"AttributeName": "version", "AttributeType": "N"},
            ],
            KeySchema=[
                {"AttributeName": "base_uri", "KeyType": "HASH"},
                {"AttributeName": "version", "KeyType": "RANGE"},
            ],
        )

    @property
    def store(self) -> ObjectStore:
        return open_store(self.plain, self.plain_options)

    def write(self, number: int, mode: str = "append", **more: Any) -> lance.LanceDataset:
        rows = pa.table({"id": [number]})
        return lance.write_dataset(rows, self.uri, mode=mode, storage_options=self.options, **more)

    def ids(self) -> list[int]:
        """Return what stock reads under the plain address."""
        dataset = lance.dataset(self.plain, storage_options=self.plain_options)
        return sorted(dataset.to_table()["id"].to_pylist())

    def leave_open(self, version: int) -> None:
        """Leave a version as stock does that died after its row: staged, not at its name."""
        path = version_name(version).path
        staged = f"{path}-d6aba056-7b17-4f2e-81ab-10352c4777fd"
        self.store.copy(path, staged)
        self.store.delete([path])
        self.rows_of._call(
            "UpdateItem",
            Key={"base_uri": {"S": f"lake/{self.table}"}, "version": {"N": str(version)}},
            UpdateExpression="SET #p = :p",
            ExpressionAttributeNames={"#p": "path"},
            ExpressionAttributeValues={":p": {"S": f"lake/{self.table}/{staged}"}},
        )


@pytest.fixture
def stock(ministack: s3_servers.S3Server) -> Stock:
    stock = Stock(ministack)
    stock.write(1, "create")
    stock.write(2)
    return stock


@pytest.fixture(scope="module")
def commits(ministack: s3_servers.S3Server) -> str:
    return set_up(s3_servers.dynamodb_url(ministack, "stock-rows"))


def test_a_table_is_taken_over_and_stock_cannot_open_it(stock: Stock, commits: str) -> None:
    table = holdfast.adopt_table(stock.uri, commit_store=commits, storage_options=stock.options)
    assert table.uri == stock.plain
    for number in (3, 4):
        assert table.append(pa.table({"id": [number]}), txn=f"{number}").version == number
        for mode in ("append", "overwrite", "create"):
            with pytest.raises((OSError, ValueError)):
                stock.write(99, mode)
        with pytest.raises(ValueError, match="not found"):
            lance.dataset(stock.uri, storage_options=stock.options)
    assert stock.ids() == [1, 2, 3, 4]
    table.close()
    again = holdfast.open_table(stock.plain, stock.plain_options, commit_store=commits)
    assert not again.append(pa.table({"id": [3]}), txn="3").applied
    again.close()


def test_a_dataset_that_stock_has_open_is_noticed(stock: Stock, commits: str) -> None:
    opened = lance.dataset(stock.uri, storage_options=stock.options)
    table = holdfast.adopt_table(stock.uri, commit_store=commits, storage_options=stock.options)
    with pytest.raises(OSError, match="unknown"):
        opened.insert(pa.table({"id": [98]}))  # the next version is our row's
    table.append(pa.table({"id": [3]}))
    opened.insert(pa.table({"id": [99]}))  # above ours, past us
    with pytest.raises(ForeignVersionError):
        table.append(pa.table({"id": [4]}))
    with pytest.raises(ForeignVersionError):
        holdfast.open_table(stock.plain, stock.plain_options, commit_store=commits).dataset()
    table.close()


def test_put_if_absent_is_refused(stock: Stock) -> None:
    with pytest.raises(InvalidInputError, match="needs a commit store"):
        holdfast.adopt_table(stock.uri, storage_options=stock.options)
    assert stock.write(3).version == 3, "a refusal closed the table"


def test_a_row_that_stock_left_open_is_finished_first(stock: Stock, commits: str) -> None:
    stock.leave_open(2)
    table = holdfast.adopt_table(stock.uri, commit_store=commits, storage_options=stock.options)
    assert table.append(pa.table({"id": [3]})).version == 3
    assert stock.ids() == [1, 2, 3], "what stock had acknowledged was lost"
    table.close()


def test_a_version_whose_bytes_are_gone(stock: Stock, commits: str) -> None:
    stock.leave_open(2)
    store = stock.store
    store.delete([info.path for info in store.list("_versions") if "-" in info.path])
    with pytest.raises(CorruptError, match="neither staged nor final"):
        holdfast.adopt_table(stock.uri, commit_store=commits, storage_options=stock.options)


def test_stock_writers_race_with_the_take_over(stock: Stock, commits: str) -> None:
    acknowledged: list[int] = []
    enough, stopped = threading.Event(), []

    def write(first: int) -> None:
        for number in itertools.count(first):
            try:
                stock.write(number)
            except (OSError, ValueError) as error:
                stopped.append(error)
                return
            acknowledged.append(number)
            if len(acknowledged) > 5:
                enough.set()

    threads = [threading.Thread(target=write, args=(1000 * place,)) for place in (1, 2)]
    for thread in threads:
        thread.start()
    assert enough.wait(120)
    table = holdfast.adopt_table(stock.uri, commit_store=commits, storage_options=stock.options)
    table.append(pa.table({"id": [3]}))
    for thread in threads:
        thread.join(120)
    assert len(stopped) == 2
    found = stock.ids()
    assert {1, 2, 3, *acknowledged} <= set(found), "acknowledged by stock, and lost"
    assert len(found) == len(set(found))
    table.close()


@pytest.mark.parametrize("applied", [False, True])
def test_a_take_over_that_is_cut_off_is_finished_by_a_repeat(
    stock: Stock, commits: str, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    stock.leave_open(2)
    real = StockRows._call
    for place in range(20):
        calls = itertools.count()

        def call(
            self: StockRows, operation: str, *, place: int = place, calls: Any = calls, **more: Any
        ) -> Any:
            cut = next(calls) == place
            if cut and not applied:
                raise UnavailableError("cut off")
            answer = real(self, operation, **more)
            if cut:
                raise UnavailableError("cut off")
            return answer

        monkeypatch.setattr(_stock_rows.StockRows, "_call", call)
        with contextlib.suppress(UnavailableError):
            StockRows(stock.uri, stock.options).close()
            break
    monkeypatch.undo()
    table = holdfast.adopt_table(stock.uri, commit_store=commits, storage_options=stock.options)
    assert table.append(pa.table({"id": [3]})).version == 3
    assert stock.ids() == [1, 2, 3]
    table.close()


def test_old_manifest_names_are_refused_before_anything_is_closed(
    ministack: s3_servers.S3Server, commits: str
) -> None:
    stock = Stock(ministack)
    stock.write(1, "create", enable_v2_manifest_paths=False)
    with pytest.raises(InvalidInputError, match="migrate_manifest_paths_v2"):
        holdfast.adopt_table(stock.uri, commit_store=commits, storage_options=stock.options)
    assert stock.write(2).version == 2


def test_the_command(stock: Stock, commits: str, cli: Cli, monkeypatch: Any) -> None:
    monkeypatch.setenv("COMMITS", commits)
    options = [word for key, value in stock.options.items() for word in ("-o", f"{key}={value}")]
    command = ["adopt", stock.uri, "--commit-store", "env:COMMITS", *options]
    assert "plan: " in cli.text(*command)
    assert stock.write(3).version == 3, "a plan closed the table"
    assert "after version 3" in cli.text(*command, "--confirm")
    with pytest.raises((OSError, ValueError)):
        stock.write(4)


def test_what_is_not_there(stock: Stock, commits: str) -> None:
    with pytest.raises(NotFoundError):
        holdfast.adopt_table(
            stock.uri.replace("ddbTableName=", "ddbTableName=no-"),
            commit_store=commits,
            storage_options=stock.options,
        )
    with pytest.raises(NotFoundError, match="no Lance table"):
        holdfast.adopt_table(
            stock.uri.replace("lake/", "lake/no-"),
            commit_store=commits,
            storage_options=stock.options,
        )
    far = {"dynamodb_endpoint": "http://db.example", "allow_http": "false"}
    with pytest.raises(InvalidInputError, match="plain http"):
        StockRows(stock.uri, {**stock.plain_options, **far})
    with pytest.raises(UnavailableError):
        StockRows(
            stock.uri, {**stock.plain_options, "dynamodb_endpoint": "http://127.0.0.1:1"}
        ).newest()
