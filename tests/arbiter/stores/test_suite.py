"""The conformance suite on every commit store that comes with Holdfast."""

from __future__ import annotations

import os
import unittest
from pathlib import Path

import pytest

from holdfast.arbiter._commit_store import CommitStore, SupportsSetUp
from holdfast.arbiter.stores._registry import connect_commit_store
from holdfast.testing._commit_store_suite import CommitStoreSuite
from s3_servers import S3Server, dynamodb_url
from servers import Server


def set_up(url: str) -> str:
    store = connect_commit_store(url)
    assert isinstance(store, SupportsSetUp)
    store.set_up()
    store.close()
    return url


class ShippedStore(CommitStoreSuite):
    address: str
    server: Server
    histories = int(os.environ.get("HOLDFAST_HISTORIES", "500"))
    seed = int(os.environ.get("HOLDFAST_SEED", "0"))

    def make_store(self) -> CommitStore:
        return connect_commit_store(self.address)

    def url(self) -> str:
        return self.address

    def restart(self) -> None:
        self.server.restart()


@pytest.mark.requirement("C4", "C5")
class TestSqlite(ShippedStore):
    @pytest.fixture(autouse=True)
    def _connect(self, tmp_path: Path) -> None:
        self.address = set_up(f"sqlite:///{tmp_path}/commits.db")

    def restart(self) -> None:
        pass  # there is no server; test_sqlite kills the process that wrote


@pytest.mark.requirement("C4", "C5")
class TestPostgres(ShippedStore):
    @pytest.fixture(autouse=True)
    def _connect(self, postgres: Server) -> None:
        self.server, self.address = postgres, set_up(postgres.url)


@pytest.mark.requirement("C4", "C5")
class TestMariadb(ShippedStore):
    @pytest.fixture(autouse=True)
    def _connect(self, mariadb: Server) -> None:
        self.server, self.address = mariadb, set_up(mariadb.url)


@pytest.mark.requirement("C4", "C5")
class TestRedis(ShippedStore):
    @pytest.fixture(autouse=True)
    def _connect(self, redis_server: Server) -> None:
        self.server, self.address = redis_server, set_up(redis_server.url)


@pytest.mark.requirement("C4", "C5")
class TestDynamodb(ShippedStore):
    histories = int(os.environ.get("HOLDFAST_HISTORIES", "60"))

    @pytest.fixture(autouse=True)
    def _connect(self, ministack: S3Server) -> None:
        self.address = set_up(dynamodb_url(ministack))

    def restart(self) -> None:
        raise unittest.SkipTest("ministack keeps its tables in memory")
