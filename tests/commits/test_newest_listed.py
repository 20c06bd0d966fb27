"""A server is asked for the newest version alone: by one listing, and never by guessing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance_namespace as models
import pytest

from commits.table_worker import Place, rows, set_up
from holdfast.arbiter import RecordedDecisions
from holdfast.commits import Namespace
from holdfast.errors import CommitUnknownError
from holdfast.formats import version_name
from holdfast.testing import FaultyS3

pytestmark = pytest.mark.requirement("C9")
NEWEST: dict[str, Any] = {"id": ["t"], "limit": 1, "descending": True}


@pytest.fixture
def s3(faulty_s3: Callable[..., FaultyS3], tmp_path: Path, monkeypatch: Any) -> FaultyS3:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return faulty_s3()


def asked(namespace: Namespace, **more: object) -> list[Any]:
    request = models.ListTableVersionsRequest(**{**NEWEST, **more})
    return list(namespace.list_table_versions(request).versions)


def made(s3: FaultyS3, commit_store: str | None = None) -> tuple[Namespace, Place]:
    options = dict(s3.storage_options())
    place = Place(uri=s3.url("lake", "t.lance"), options=options, commit_store=commit_store)
    table = place.create()
    for number in range(3):
        table.append(rows(number))
    table.close()
    return Namespace(s3.url("lake"), options), place


def test_one_listing_tells_the_newest_version_and_its_size(s3: FaultyS3) -> None:
    namespace, place = made(s3)
    every = asked(namespace, limit=None)
    assert [one.version for one in every] == [4, 3, 2, 1]
    s3.requests.clear()
    (newest,) = asked(namespace)
    assert newest == every[0], "the shortcut tells something else than the whole list"
    assert {name: total.requests for name, total in s3.requests.totals().items()} == {"list": 1}
    other = place.open()
    other.append(rows(9))
    other.close()
    assert [one.version for one in asked(namespace)] == [5], "another writer's is seen"


def test_a_page_or_the_oldest_is_no_shortcut(s3: FaultyS3) -> None:
    namespace, _ = made(s3)
    assert [one.version for one in asked(namespace, descending=False)] == [1]
    assert [one.version for one in asked(namespace, page_token="3")] == [2]
    assert [one.version for one in asked(namespace, limit=2)] == [4, 3]


def test_a_version_of_ours_in_doubt_is_looked_at(s3: FaultyS3) -> None:
    """While an outcome of this process is unknown, a listing alone tells too little."""
    namespace, _ = made(s3)
    (newest,) = asked(namespace)
    (versions,) = namespace._tables.values()
    versions._unsure.add("hf-in-doubt")
    s3.requests.clear()
    assert asked(namespace) == [newest]
    assert s3.requests.count("get") == 1


def test_a_decided_version_is_finished_before_it_is_told(s3: FaultyS3, tmp_path: Path) -> None:
    """With a commit store the record tells; whoever asks finds the bytes at their name."""
    url = set_up(f"sqlite:///{tmp_path}/c.db?single_host=true")
    namespace, place = made(s3, url)
    stalled = place.open()
    arbiter: Any = stalled.core.arbiter
    assert isinstance(arbiter, RecordedDecisions)
    arbiter._copy_once = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(CommitUnknownError):
        stalled.append(rows(9))
    name = version_name(5).path
    assert s3.objects.get("lake", f"t.lance/{name}") is None
    assert [one.version for one in asked(namespace)] == [5]
    assert s3.objects.get("lake", f"t.lance/{name}") is not None
