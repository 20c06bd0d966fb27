from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from typing import cast

import pytest

from holdfast.arbiter._commit_store import CommitStore
from holdfast.arbiter.stores import _registry
from holdfast.arbiter.stores._base import StoreUrl
from holdfast.arbiter.stores._registry import (
    connect_commit_store,
    known_schemes,
    redacted,
    register_commit_store,
)
from holdfast.errors import InvalidInputError

SHIPPED = {
    "sqlite": "sqlite:///x.db",
    "postgresql": "postgresql://u:p@h/d",
    "mysql": "mysql://u:p@h/d",
    "mariadb": "mariadb://u:p@h/d",
    "redis": "redis://u:p@127.0.0.1/0",
    "rediss": "rediss://u:p@h/0",
}


@pytest.mark.requirement("C5")
@pytest.mark.parametrize("scheme", SHIPPED)
def test_shipped_schemes_open(scheme: str) -> None:
    store = connect_commit_store(SHIPPED[scheme])
    assert store.url.startswith(f"{scheme}://")
    assert "u:p" not in store.url + repr(store)
    store.close()


def test_entry_points_are_the_known_schemes() -> None:
    assert {p.name for p in entry_points(group=_registry.GROUP)} <= set(known_schemes())
    assert set(SHIPPED) <= set(known_schemes())


@pytest.mark.requirement("C4")
def test_users_register_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registry, "_registered", {})
    seen: list[str] = []

    def connect(url: str) -> CommitStore:
        seen.append(url)
        return cast("CommitStore", object())

    register_commit_store("MyDB", connect)
    connect_commit_store("mydb://host/name")
    assert seen == ["mydb://host/name"]
    assert "mydb" in known_schemes()


def test_unknown_scheme_names_the_nearest() -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'postgresql'") as caught:
        connect_commit_store("postgres://u:secret@h/d")
    assert "secret" not in str(caught.value)
    assert "sqlite" in str(caught.value)
    with pytest.raises(InvalidInputError, match="known are"):
        connect_commit_store("zzz://h/d")


@pytest.mark.parametrize("url", ["", "x", "/a/b.db", "sqlite:x.db", "host:5432", "://x", "1a://x"])
def test_not_a_url(url: str) -> None:
    with pytest.raises(InvalidInputError, match="scheme://"):
        connect_commit_store(url)


def test_env_is_resolved_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_STORE", raising=False)
    with pytest.raises(InvalidInputError, match="not set"):
        connect_commit_store("env:MY_STORE")
    monkeypatch.setenv("MY_STORE", "postgresql://u:secret@h/d")
    store = connect_commit_store("env:MY_STORE")
    assert store.url == "postgresql://h/d"
    store.close()
    with pytest.raises(InvalidInputError, match="name of an environment variable"):
        connect_commit_store("env:u:secret@h")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h:5432/d?sslmode=require", "postgresql://h:5432/d?sslmode=require"),
        ("postgresql://u:secret@h/d?password=secret&sslmode=x", "postgresql://h/d?sslmode=x"),
        ("redis://:secret@[::1]:6379/0?unsafe_may_forget=true", None),
        ("mysql://secret@h/d", "mysql://h/d"),
        ("sqlite:////a/b%20c.db?single_host=true", "sqlite:////a/b%20c.db?single_host=true"),
        ("sqlite:///a@b.db", "sqlite:///a%40b.db"),
        ("env:MY_STORE", "env:MY_STORE"),
        ("mydb://h/d?token=secret", "mydb://h/d"),
        ("MYSQL://h/d", "mysql://h/d"),
    ],
)
def test_redacted(url: str, shown: str | None) -> None:
    expected = shown or "redis://[::1]:6379/0?unsafe_may_forget=true"
    assert redacted(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:se#cret@h/d",
        "postgresql://u:12#cret@h/d",
        "postgresql://u:se/cret@h/d",
        "postgresql://u:12/cret@h/d",
        "postgresql://u:12?cret@h/d",
        "postgresql://u:se@cret@h/d",
        "postgresql://u:[cret@h/d",
        "postgresql://u:cret",
        "cret",
        "env:u:cret@h",
        "postgresql://h:123456/cret",
        "postgresql://h/d?a=cret&a=cret",
    ],
)
def test_what_cannot_be_read_is_not_shown(url: str) -> None:
    assert redacted(url) == _registry.UNREADABLE
    with pytest.raises(InvalidInputError) as caught:
        StoreUrl.parse(url)
    assert "cret" not in f"{caught.value!r} {caught.value} {caught.value.__cause__}".replace(
        "secret", ""
    )


def test_decoded_parts() -> None:
    url = StoreUrl.parse("mysql://us%40er:p%2F%23@h:1/d%20b?x=%26")
    assert (url.username, url.password, url.path, url.options) == (
        "us@er",
        "p/#",
        "/d b",
        {"x": "&"},
    )
    assert "p/#" not in repr(url) and "us@er" not in repr(url)


@pytest.mark.parametrize(
    ("module", "blocked", "extra"),
    [
        ("postgres", "psycopg", "postgres"),
        ("postgres", "sqlalchemy", "postgres"),
        ("mysql", "pymysql", "mysql"),
        ("redis", "redis", "redis"),
    ],
)
def test_a_missing_driver_names_its_extra(module: str, blocked: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{blocked!r}] = None
from holdfast.arbiter.stores._registry import connect_commit_store
from holdfast.errors import MissingExtraError
try:
    connect_commit_store({SHIPPED[{"postgres": "postgresql"}.get(module, module)]!r})
except MissingExtraError as exc:
    assert "pip install 'holdfast[{extra}]'" in str(exc), exc
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
