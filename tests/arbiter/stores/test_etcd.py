"""etcd, as a plug-in of another distribution: installed into a folder, found by its entry point."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import servers
from arbiter.stores.sizes import check_stays_small
from holdfast.arbiter import CommitStore, Key, SupportsSetUp, connect_commit_store, new_token
from holdfast.errors import (
    CommitStoreRegressedError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from holdfast.testing import CommitStoreSuite

PLUGIN = Path(__file__).resolve().parents[3] / "plugins" / "holdfast-etcd"

pytestmark = pytest.mark.requirement("C4", "C5")


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install the distribution where this process and its children find it, and nobody else."""
    folder = tmp_path_factory.mktemp("plugins")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(folder), str(PLUGIN)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        yield folder


@pytest.fixture(scope="module")
def etcd(plugin: Path) -> Iterator[servers.Server]:
    with servers.running("etcd") as server:
        with contextlib.closing(connect_commit_store(server.url)) as store:
            assert isinstance(store, SupportsSetUp)
            store.set_up()
        yield server


class TestEtcd(CommitStoreSuite):
    histories = int(os.environ.get("HOLDFAST_HISTORIES", "100"))

    @pytest.fixture(autouse=True)
    def _connect(self, etcd: servers.Server) -> None:
        self.server = etcd

    def make_store(self) -> CommitStore:
        return connect_commit_store(self.server.url)

    def url(self) -> str:
        return self.server.url

    def restart(self) -> None:
        self.server.restart()


def test_it_stays_small(etcd: servers.Server) -> None:
    from holdfast_etcd._gateway import Gateway  # installed by the fixture

    check_stays_small(etcd.url, (Gateway, "_send"))


def test_it_is_found_by_its_entry_point(plugin: Path) -> None:
    (point,) = entry_points(group="holdfast.commit_stores", name="etcd")
    assert point.dist is not None
    assert point.dist.name == "holdfast-etcd"


def test_another_prefix_is_another_store(etcd: servers.Server) -> None:
    with (
        contextlib.closing(connect_commit_store(etcd.url)) as store,
        contextlib.closing(connect_commit_store(f"{etcd.url}/elsewhere")) as other,
    ):
        with pytest.raises(NotFoundError, match="store init"):
            other.identity()
        assert isinstance(other, SupportsSetUp)
        assert other.set_up() != store.identity()
        assert other.check() == []


def run_etcdctl(*arguments: str) -> None:
    tool = servers.find_program("etcdctl")
    assert tool is not None
    environment = {**os.environ, "ETCDCTL_API": "3"}
    subprocess.run([tool, *arguments], check=True, capture_output=True, env=environment)


def restore(server: servers.Server, snapshot: Path, aside: Path) -> None:
    """Put a snapshot in the place of a cluster that was killed; it gets a new cluster's id."""
    folder = server.folder / "data"
    folder.rename(aside)
    words = {word.partition("=")[0]: word for word in server.command}
    peers: Sequence[str] = [words[name] for name in ("--initial-cluster", "--name")]
    peers = [*peers, words["--initial-advertise-peer-urls"], "--initial-cluster-token=again"]
    run_etcdctl("snapshot", "restore", str(snapshot), f"--data-dir={folder}", *peers)


def test_a_restored_snapshot_is_another_store(plugin: Path, tmp_path: Path) -> None:
    name, snapshot = f"{new_token()}/versions", tmp_path / "snapshot.db"
    with servers.running("etcd") as server:
        store = connect_commit_store(server.url)
        assert isinstance(store, SupportsSetUp)
        before = store.set_up()
        address = f"--endpoints=http://127.0.0.1:{server.port}"
        run_etcdctl(address, "snapshot", "save", str(snapshot))
        store.put_if_absent(Key(name, 1), b"acknowledged, and not in the snapshot")
        server.kill()
        restore(server, snapshot, tmp_path / "old")
        server.start()
        with contextlib.suppress(UnavailableError):  # the connection that died with the server
            store.close()
        with pytest.raises(CommitStoreRegressedError, match="back in time"):
            store.get(Key(name, 1))
        with contextlib.closing(connect_commit_store(server.url)) as fresh:
            assert fresh.identity() != before, "tables would decide names a second time"
        store.close()


def test_addresses_and_secrets(plugin: Path) -> None:
    store = connect_commit_store("etcd://user:CANARY@127.0.0.1:1/lake")
    assert store.url == "etcd://127.0.0.1:1/lake"
    assert "CANARY" not in repr(store)
    with pytest.raises(UnavailableError) as caught:
        store.get(Key("a/b", 0))
    assert "CANARY" not in str(caught.value)
    with pytest.raises(InvalidInputError, match="unknown option"):
        connect_commit_store("etcd://127.0.0.1/lake?prefx=x")
