"""Our own object stores pass the suite that we ship, and so does one of another package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import holdfast
import s3_servers
from holdfast.errors import InvalidInputError, UnsafeStoreError
from holdfast.storage import (
    LocalStore,
    ObjectStore,
    SupportsDistrust,
    SupportsSync,
    open_store,
    register_object_store,
)
from holdfast.storage._registry import _registered
from holdfast.testing import FakeCloud, FaultyS3, ObjectStoreSuite


class TestLocal(ObjectStoreSuite):
    many = 60

    @pytest.fixture(autouse=True)
    def _where(self, tmp_path: Path) -> None:
        self.root = tmp_path

    def make_store(self, place: str) -> ObjectStore:
        return LocalStore(self.root / place)


class TestMemory(ObjectStoreSuite):
    def make_store(self, place: str) -> ObjectStore:
        return open_store(f"memory://{place}")


class TestFaultyS3(ObjectStoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, faulty_s3: Callable[..., FaultyS3]) -> None:
        self.server = faulty_s3()

    def make_store(self, place: str) -> ObjectStore:
        return open_store(self.server.url("b", place), self.server.storage_options())


class TestMinistack(ObjectStoreSuite):
    many = 1010

    @pytest.fixture(autouse=True)
    def _server(self, ministack: s3_servers.S3Server) -> None:
        self.server = ministack

    def make_store(self, place: str) -> ObjectStore:
        return open_store(self.server.url(place), self.server.storage_options())


@pytest.mark.requirement("C2")
class TestCosNeverVersioned(ObjectStoreSuite):
    vendor, bucket = "cos", "never"

    @pytest.fixture(autouse=True)
    def _server(self, fake_cloud: FakeCloud) -> None:
        self.cloud = fake_cloud

    def make_store(self, place: str) -> ObjectStore:
        options = self.cloud.storage_options(self.vendor)
        return open_store(f"{self.vendor}://{self.bucket}/{place}", options)


class TestOssNeverVersioned(TestCosNeverVersioned):
    vendor = "oss"


class TestCosEverVersioned(TestCosNeverVersioned):
    bucket, keeps_conditions, many = "ever", False, 10

    @pytest.fixture(autouse=True)
    def _versioned(self, fake_cloud: FakeCloud) -> None:
        fake_cloud.enable_versioning(self.bucket)


class TestOssEverVersioned(TestCosEverVersioned):
    vendor = "oss"


# A store of another package: files on a mount that is known by a scheme of its own.


class MountStore(LocalStore):
    """Files below a folder, by the URL `mount://NAME/...`."""

    def __init__(self, folder: Path, location: str) -> None:
        super().__init__(folder)
        self._location = location

    @property
    def location(self) -> str:
        return self._location


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    def open_(url: str, options: Mapping[str, str]) -> ObjectStore:
        if options:
            raise InvalidInputError("a mount takes no options", options=", ".join(options))
        return MountStore(tmp_path / url.removeprefix("mount://"), url)

    register_object_store("mount", open_)
    yield tmp_path
    del _registered["mount"]


class TestMount(ObjectStoreSuite):
    many = 60

    @pytest.fixture(autouse=True)
    def _where(self, mount: Path) -> None:
        pass

    def make_store(self, place: str) -> ObjectStore:
        return open_store(f"mount://disk/{place}")


def test_a_table_on_a_store_of_another_package(mount: Path) -> None:
    import pyarrow as pa

    rows = pa.table({"id": [1, 2, 3]})
    table = holdfast.create_table("mount://disk/events", rows.schema)
    table.append(rows)
    assert holdfast.open_table("mount://disk/events").dataset().count_rows() == 3
    assert (mount / "disk/events/_versions").is_dir()
    with pytest.raises(InvalidInputError, match="takes no options"):
        holdfast.open_table("mount://disk/events", storage_options={"region": "here"})


def test_a_scheme_is_checked_and_suggested(mount: Path) -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'mount'"):
        open_store("mounts://disk/x")
    with pytest.raises(InvalidInputError, match="a scheme"):
        register_object_store("no scheme", lambda _url, _options: open_store("memory://x"))


# What only some can do.


def test_powers_are_asked_for_by_protocol(tmp_path: Path, fake_cloud: FakeCloud) -> None:
    local = open_store(tmp_path)
    cos = open_store("cos://b/t", fake_cloud.storage_options("cos"))
    assert isinstance(local, SupportsSync) and not isinstance(local, SupportsDistrust)
    assert isinstance(cos, SupportsDistrust) and not isinstance(cos, SupportsSync)


@pytest.mark.requirement("C3", "C6")
@pytest.mark.parametrize("vendor", ["cos", "oss"])
def test_conditional_put_is_refused_whatever_the_probe_says(
    fake_cloud: FakeCloud, vendor: str
) -> None:
    import pyarrow as pa

    url, options = f"{vendor}://never/refused", fake_cloud.storage_options(vendor)
    assert holdfast.probe(url, options).verdict == "enforced"
    with pytest.raises(UnsafeStoreError, match="versioning was ever enabled"):
        holdfast.create_table(url, pa.schema([("id", pa.int64())]), storage_options=options)
    assert list(open_store(url, options).list()) == []
