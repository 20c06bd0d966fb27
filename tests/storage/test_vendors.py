"""Tencent COS and Alibaba OSS: options, variables, error texts, faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.errors import (
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.storage import ObjectStore, backend_of, open_store
from holdfast.storage._opendal import VendorStore
from holdfast.testing import FakeCloud, Fault

QUICK = {"client_max_retries": "0"}


@pytest.fixture(params=["cos", "oss"])
def vendor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cloud(fake_cloud: FakeCloud) -> Iterator[FakeCloud]:
    yield fake_cloud
    fake_cloud.faults.clear()


def opened(cloud: FakeCloud, vendor: str, **more: str) -> ObjectStore:
    return open_store(f"{vendor}://b/{vendor}", {**cloud.storage_options(vendor), **QUICK, **more})


def test_the_bucket_is_in_the_host_and_the_place_is_named(cloud: FakeCloud, vendor: str) -> None:
    store = opened(cloud, vendor)
    store.put("x", b"bytes")
    assert cloud.objects.keys("b", f"{vendor}/x") == [f"{vendor}/x"]
    assert store.location == f"{vendor}://b/{vendor}"
    assert store.endpoint == f"{vendor}.holdfast.test"
    assert backend_of(f"{vendor}://b/x") == vendor


def test_an_endpoint_is_needed(vendor: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{vendor}_endpoint"):
        open_store(f"{vendor}://b/table")


@pytest.mark.parametrize(
    ("vendor", "variables"),
    [
        ("cos", {"COS_ENDPOINT": "", "TENCENTCLOUD_SECRET_ID": "x", "COS_SECRET_KEY": "y"}),
        ("oss", {"OSS_ENDPOINT": "", "ALIBABA_CLOUD_ACCESS_KEY_ID": "x"}),
        ("oss", {"OSS_ENDPOINT": "", "OSS_ACCESS_KEY_ID": "x", "OSS_ACCESS_KEY_SECRET": "y"}),
    ],
)
def test_the_vendors_variables_are_read(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch, vendor: str, variables: dict[str, str]
) -> None:
    endpoint = cloud.storage_options(vendor)[f"{vendor}_endpoint"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value or endpoint)
    store = open_store(f"{vendor}://b/variables")
    assert store.endpoint == f"{vendor}.holdfast.test"


def test_settings_of_another_cloud_are_not_mixed_in(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(InvalidInputError, match="oss_region"):
        opened(cloud, "oss")
    opened(cloud, "oss", oss_region="cn-hangzhou")
    opened(cloud, "cos")


def test_unknown_options_are_errors(cloud: FakeCloud, vendor: str) -> None:
    with pytest.raises(InvalidInputError, match="did you mean"):
        opened(cloud, vendor, **{f"{vendor}_endpont": "x"})
    with pytest.raises(InvalidInputError, match="unknown storage option"):
        opened(cloud, vendor, aws_region="x")
    options = {f"{vendor}_endpoint": "http://objects.example.com"}
    with pytest.raises(InvalidInputError, match="plain http"):
        open_store(f"{vendor}://b/t", options)
    with pytest.raises(InvalidInputError, match="timeout"):
        opened(cloud, vendor, timeout="1 week 2s")


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials(cloud: FakeCloud, vendor: str, status: int) -> None:
    store = opened(cloud, vendor)
    for call in (lambda: store.get("x"), lambda: store.put("x", b""), store.list):
        cloud.faults.add(Fault(kind="status_before", status=status, times=1))
        with pytest.raises(PermissionDeniedError):
            call()


@pytest.mark.parametrize("kind", ["status_after", "drop_after", "drop_before"])
def test_no_answer_is_unavailable_and_never_a_verdict(
    cloud: FakeCloud, vendor: str, kind: str
) -> None:
    store = opened(cloud, vendor)
    cloud.objects.remove("b", f"{vendor}/new")
    cloud.faults.add(Fault(kind=kind, status=500, times=1))  # type: ignore[arg-type]
    with pytest.raises(UnavailableError):
        store.put_if_absent("new", b"mine")
    landed = cloud.objects.get("b", f"{vendor}/new") is not None
    assert landed == (kind != "drop_before")


def test_a_passing_failure_is_retried_inside(cloud: FakeCloud, vendor: str) -> None:
    store = opened(cloud, vendor, client_max_retries="3")
    store.put("kept", b"bytes")
    cloud.faults.add(Fault(kind="status_before", status=503, times=1))
    assert store.get("kept") == b"bytes"
    cloud.faults.add(Fault(kind="drop_before", times=1))
    assert [info.path for info in store.list("nothing")] == []


def test_a_copy_above_the_limit_goes_through_this_process(cloud: FakeCloud, vendor: str) -> None:
    store = opened(cloud, vendor)
    assert isinstance(store, VendorStore)
    body = bytes(range(256)) * 9000
    store.put("large", body)
    store.max_copy_bytes = 1 << 20
    store.copy("large", "copied")
    assert store.get("copied") == body


def test_error_texts_hold_no_secret_and_no_address(cloud: FakeCloud, vendor: str) -> None:
    secret = {"cos": "cos_secret_key", "oss": "oss_secret_access_key"}[vendor]
    store = opened(cloud, vendor, **{secret: "CANARY"})
    assert "CANARY" not in repr(store)
    for status in (400, 403, 404, 500, 503):
        cloud.faults.add(Fault(kind="status_before", status=status, times=1))
        with pytest.raises(HoldfastError) as caught:
            store.put("x", b"bytes")
        text = f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
        assert "CANARY" not in text and "ignature" not in text and "http" not in text
    with pytest.raises(NotFoundError):
        store.get("nothing")
