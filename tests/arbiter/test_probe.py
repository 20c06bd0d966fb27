"""The probe tells honest, ignoring and racy stores apart: in every run, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import s3_servers
from holdfast.arbiter import (
    ProbeReport,
    Verdict,
    forget,
    probe,
    probe_clients,
    remember,
    verdict_of,
)
from holdfast.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from holdfast.formats import PROBE_FOLDER
from holdfast.storage import open_store
from holdfast.testing import Fault, FaultyS3, FaultyS3Process, mutate

RUNS = 20

pytestmark = pytest.mark.requirement("C3")


def probe_s3(server: FaultyS3 | FaultyS3Process) -> ProbeReport:
    options = {**server.storage_options(), "client_max_retries": "0"}
    return probe(server.url("bucket", "table"), options)


@pytest.mark.requirement("C2")
def test_ministack_is_enforced_in_every_run(ministack: s3_servers.S3Server) -> None:
    url, options = ministack.url("probed"), ministack.storage_options()
    reports = [probe(url, options) for _ in range(RUNS)]
    assert [r.verdict for r in reports] == [Verdict.ENFORCED] * RUNS
    assert open_store(url, options).list(PROBE_FOLDER) == []


@pytest.mark.requirement("C2")
def test_rclone_is_ignored_in_every_run(rclone_s3: s3_servers.S3Server) -> None:
    url, options = rclone_s3.url("probed"), rclone_s3.storage_options()
    reports = [probe(url, options) for _ in range(RUNS)]
    assert [r.verdict for r in reports] == [Verdict.IGNORED] * RUNS
    assert reports[0].requests <= 5


@pytest.mark.requirement("C2")
def test_local_disk_is_enforced_in_every_run(tmp_path: Path) -> None:
    verdicts = [probe(tmp_path / "table").verdict for _ in range(RUNS)]
    assert verdicts == [Verdict.ENFORCED] * RUNS


@pytest.mark.parametrize(
    ("conditions", "verdict"),
    [
        ("honest", Verdict.ENFORCED),
        ("ignoring", Verdict.IGNORED),
        ("lossy", Verdict.IGNORED),
        ("racy", Verdict.RACY),
        ("unsupported", Verdict.UNSUPPORTED),
        ("inverted", Verdict.INCONCLUSIVE),
    ],
)
def test_every_kind_of_store_in_every_run(
    faulty_s3_process: Callable[..., FaultyS3Process], conditions: str, verdict: Verdict
) -> None:
    server = faulty_s3_process(conditions=conditions)
    assert [probe_s3(server).verdict for _ in range(RUNS)] == [verdict] * RUNS


@pytest.mark.mutant
def test_mutant_a_probe_without_races_is_fooled_by_a_racy_store(
    faulty_s3_process: Callable[..., FaultyS3Process],
) -> None:
    server = faulty_s3_process(conditions="racy")
    careless = mutate(
        "holdfast.arbiter._probe",
        ("return self._all_at_once() if answered", "return Verdict.ENFORCED if answered"),
    )
    report = careless.probe_clients(
        lambda: open_store(server.url("bucket", "table"), server.storage_options())
    )
    assert report.verdict is Verdict.ENFORCED


def test_a_bucket_that_lies_once_versioning_was_on(
    faulty_s3: Callable[..., FaultyS3],
) -> None:
    server = faulty_s3(conditions="after_versioning")
    assert probe_s3(server).verdict is Verdict.ENFORCED
    _enable_versioning(server)
    assert probe_s3(server).verdict is Verdict.IGNORED


def _enable_versioning(server: FaultyS3) -> None:
    import urllib.request

    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    request = urllib.request.Request(
        f"{server.endpoint}/bucket?versioning", data=body, method="PUT"
    )
    urllib.request.urlopen(request, timeout=60).close()


def test_a_store_that_lies_now_and_then(faulty_s3_process: Callable[..., FaultyS3Process]) -> None:
    server = faulty_s3_process(conditions="sometimes:0.2:7")
    verdicts = {probe_s3(server).verdict for _ in range(5)}
    assert verdicts <= {Verdict.RACY, Verdict.IGNORED}


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_store_that_only_fails_is_inconclusive(
    faulty_s3: Callable[..., FaultyS3], status: int
) -> None:
    server = faulty_s3()
    server.faults.add(Fault(kind="status_before", method="PUT", status=status, times=None))
    assert probe_s3(server).verdict is Verdict.INCONCLUSIVE


def test_a_few_lost_answers_do_not_change_the_verdict(faulty_s3: Callable[..., FaultyS3]) -> None:
    server = faulty_s3()
    server.faults.add(Fault(kind="drop_after", method="PUT", nth=20, times=1))
    server.faults.add(Fault(kind="status_before", method="PUT", status=409, nth=40, times=1))
    assert probe_s3(server).verdict is Verdict.ENFORCED


def test_many_lost_answers_leave_it_open(faulty_s3: Callable[..., FaultyS3]) -> None:
    server = faulty_s3()
    server.faults.add(Fault(kind="drop_after", method="PUT", nth=3, times=None))
    assert probe_s3(server).verdict is Verdict.INCONCLUSIVE


def test_what_cannot_be_removed_is_named(faulty_s3: Callable[..., FaultyS3]) -> None:
    server = faulty_s3()
    server.faults.add(Fault(kind="status_before", method="POST", status=403, times=None))
    report = probe_s3(server)
    assert report.verdict is Verdict.ENFORCED
    assert len(report.left_behind) == 9
    assert all(path.startswith(PROBE_FOLDER) for path in report.left_behind)


def test_a_store_that_refuses_us_is_an_error_not_a_verdict(
    faulty_s3: Callable[..., FaultyS3],
) -> None:
    server = faulty_s3(secret_key="the right one")
    options = {**server.storage_options(), "aws_access_key_id": "somebody-else"}
    with pytest.raises(PermissionDeniedError):
        probe(server.url("bucket", "table"), options)


def test_a_bucket_that_is_not_there_is_an_error(ministack: s3_servers.S3Server) -> None:
    with pytest.raises(NotFoundError):
        probe("s3://no-such-bucket/table", ministack.storage_options())


def test_too_weak_a_probe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        probe_clients(lambda: open_store(tmp_path), rounds=2, writers=2)


class FixedClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time

    def elapsed(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_verdict_is_remembered_for_a_while(
    faulty_s3: Callable[..., FaultyS3], cache: Path
) -> None:
    server, clock = faulty_s3(), FixedClock()
    url, options = server.url("bucket", "table"), server.storage_options()

    def verdict() -> Verdict:
        return verdict_of(url, options, max_age=timedelta(hours=1), clock=clock)

    def requests() -> int:
        count = len(server.requests.all())
        server.requests.clear()
        return count

    assert verdict() is Verdict.ENFORCED
    assert requests() > 50
    assert verdict() is Verdict.ENFORCED
    assert requests() == 0
    clock.time += 3601
    assert verdict() is Verdict.ENFORCED
    assert requests() > 50
    clock.time -= 7200  # a clock that jumped back: the verdict is from the future
    assert verdict() is Verdict.ENFORCED
    assert requests() > 50
    forget(url, options)
    server.conditions = "ignoring"
    assert verdict() is Verdict.IGNORED
    assert list(cache.rglob("*.json")) == []


def test_a_bad_verdict_is_never_remembered_and_wipes_a_good_one(
    faulty_s3: Callable[..., FaultyS3], cache: Path
) -> None:
    server = faulty_s3()
    url, options = server.url("bucket", "table"), server.storage_options()
    verdict_of(url, options)
    assert len(list(cache.rglob("*.json"))) == 1
    server.conditions = "ignoring"
    remember(url, options, probe(url, options))
    assert list(cache.rglob("*.json")) == []


def test_an_unreadable_memory_counts_as_none(
    faulty_s3: Callable[..., FaultyS3], cache: Path
) -> None:
    server = faulty_s3()
    url, options = server.url("bucket", "table"), server.storage_options()
    verdict_of(url, options)
    (file,) = cache.rglob("*.json")
    file.write_text("{")
    server.requests.clear()
    assert verdict_of(url, options) is Verdict.ENFORCED
    assert len(server.requests.all()) > 50
