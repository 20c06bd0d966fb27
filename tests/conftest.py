"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import s3_servers
import servers
import tiers
from command_line import Cli
from holdfast.testing._fake_cloud import FakeCloud
from holdfast.testing._faulty_s3 import FaultyS3
from holdfast.testing._faulty_s3_process import FaultyS3Process

# Every Spark of a test lives for seconds: a Java that compiles little suits it best.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# How long an example takes says more about the machine than about the code.
settings.register_profile(
    "holdfast", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("holdfast")


@pytest.hookimpl(wrapper=True)  # before `-m` chooses by what is derived here
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    tiers.add_markers(items)
    if hasattr(config, "workerinput"):  # one of several processes
        tiers.put_long_groups_first(items)
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let all tests that share one Spark run in one process, the tests of a file together."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return tiers.group_of(nodeid.split("::", 1)[0])

    config.option.loadscopereorder = False  # they come in order: tiers.put_long_groups_first
    return Scheduler(config, log)


def skip_without(reason: str | None) -> None:
    """Skip the test when something is missing; on CI everything must be there."""
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture(scope="session")
def ministack() -> Iterator[s3_servers.S3Server]:
    skip_without(s3_servers.missing("ministack"))
    server = s3_servers.start_ministack()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def rclone_s3() -> Iterator[s3_servers.S3Server]:
    skip_without(s3_servers.missing("rclone"))
    server = s3_servers.start_rclone()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def fake_cloud() -> Iterator[FakeCloud]:
    """Start one for all tests: its clients keep one connection pool for the whole process."""
    cloud = FakeCloud()
    os.environ.update(cloud.environment())
    yield cloud
    cloud.stop()


@pytest.fixture
def faulty_s3() -> Iterator[Callable[..., FaultyS3]]:
    with ExitStack() as stack:

        def start(**settings: Any) -> FaultyS3:
            return stack.enter_context(FaultyS3(**settings))

        yield start


@pytest.fixture
def faulty_s3_process() -> Iterator[Callable[..., FaultyS3Process]]:
    with ExitStack() as stack:

        def start(**settings: Any) -> FaultyS3Process:
            return stack.enter_context(FaultyS3Process(**settings))

        yield start


@pytest.fixture(scope="session")
def postgres() -> Iterator[servers.Server]:
    with servers.running("postgres") as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[servers.Server]:
    with servers.running("mariadb") as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.Server]:
    with servers.running("redis") as server:
        yield server
