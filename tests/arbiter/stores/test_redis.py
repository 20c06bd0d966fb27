from __future__ import annotations

import contextlib
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping

import pytest

import servers
from holdfast.arbiter._commit_store import Key
from holdfast.arbiter.stores import redis as redis_store
from holdfast.arbiter.stores.redis import RedisCommitStore
from holdfast.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsafeStoreError,
)

pytestmark = pytest.mark.requirement("C5")

Open = Callable[[str], RedisCommitStore]


@pytest.fixture
def connect() -> Iterator[Open]:
    with contextlib.ExitStack() as stack:

        def connect(url: str) -> RedisCommitStore:
            return stack.enter_context(contextlib.closing(RedisCommitStore(url)))

        yield connect


@contextlib.contextmanager
def setting(store: RedisCommitStore, name: str, value: str) -> Iterator[None]:
    client = store._client
    before = str(client.config_get(name)[name])
    client.config_set(name, value)
    try:
        yield
    finally:
        client.config_set(name, before)
        while _rewrites(client.info("persistence")):  # killed now, the server would forget
            time.sleep(0.02)


def _rewrites(state: Mapping[str, object]) -> bool:
    return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])


def set_user(admin: RedisCommitStore, name: str, *rules: str) -> None:
    admin._client.execute_command("ACL", "SETUSER", name, *rules)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("appendonly", "no", "appendonly yes"),
        ("appendfsync", "everysec", "appendfsync always"),
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy noeviction"),
    ],
)
def test_a_server_that_can_forget_is_refused(
    name: str, value: str, advice: str, redis_server: servers.Server, connect: Open
) -> None:
    admin = connect(redis_server.url)
    admin.set_up()
    with setting(admin, name, value):
        store = connect(redis_server.url)
        for call in (
            store.identity,
            store.set_up,
            lambda: store.put_if_absent(Key("s", 0), b"x"),
            lambda: store.get(Key("s", 0)),
        ):
            with pytest.raises(UnsafeStoreError, match=f"set `{advice}`"):
                call()
        assert store.check() == [f"{name} is {value}: set `{advice}`"]
        careless = connect(f"{redis_server.url}?unsafe_may_forget=true")
        assert careless.unsafe_may_forget
        assert careless.identity() == admin.identity()


def test_hidden_settings_are_refused(redis_server: servers.Server, connect: Open) -> None:
    admin = connect(redis_server.url)
    identity = admin.set_up()
    set_user(admin, "plain", "on", ">plain-word", "~holdfast:*", "+@all", "-config")
    url = redis_server.url.replace(f":{servers.QUOTED_PASSWORD}@", "plain:plain-word@")
    with pytest.raises(UnsafeStoreError, match="allow CONFIG GET"):
        connect(url).identity()
    assert connect(f"{url}?unsafe_may_forget=true").identity() == identity


RIGHTS = re.findall(r"[+~][a-z:*|]+", (redis_store.__doc__ or "").partition("Least rights")[2])


@pytest.fixture
def least(redis_server: servers.Server, connect: Open) -> RedisCommitStore:
    admin = connect(redis_server.url)
    admin.set_up()
    set_user(admin, "least", "reset", "on", ">least", *RIGHTS)
    return connect(redis_server.url.replace(f":{servers.QUOTED_PASSWORD}@", "least:least@"))


def test_least_rights_are_enough(least: RedisCommitStore) -> None:
    assert len(RIGHTS) == 16
    least.set_up()
    assert least.put_if_absent(Key("least", 0), b"x") is None
    assert least.compare_and_set(Key("least", 0), b"x", b"y")
    assert len(least.scan("least")) == len(least.scan("least", newest_first=True)) == 1
    assert least.collect("least", 0) == 1
    assert least.boundary("least") == 0


@pytest.mark.parametrize("right", ["zadd", "hsetnx", "hdel", "zrem", "set"])
def test_a_missing_right_leaves_nothing_half_done(
    right: str, least: RedisCommitStore, redis_server: servers.Server, connect: Open
) -> None:
    admin, series = connect(redis_server.url), f"half-{right}"
    admin.put_if_absent(Key(series, 0), b"x")
    set_user(admin, "least", f"-{right}")
    puts = right in {"zadd", "hsetnx"}
    with pytest.raises(PermissionDeniedError):
        _ = least.put_if_absent(Key(series, 1), b"x") if puts else least.collect(series, 0)
    assert admin.get(Key(series, 1)) is None
    assert [entry.number for entry in admin.scan(series)] == [0]
    assert admin.boundary(series) == -1


def test_a_replica_is_refused(redis_server: servers.Server, connect: Open) -> None:
    words = ["--replicaof", f"127.0.0.1 {redis_server.port}", "--masterauth", servers.PASSWORD]
    with servers.running("redis", *words) as replica:
        store = connect(replica.url)
        with pytest.raises(UnsafeStoreError, match="replica"):
            store.identity()
        careless = connect(f"{replica.url}?unsafe_may_forget=true")
        with pytest.raises((PermissionDeniedError, UnavailableError)):
            careless.put_if_absent(Key("s", 0), b"x")


def test_a_cluster_is_refused(connect: Open) -> None:
    with servers.running("redis", "--cluster-enabled", "yes") as server:
        assert any("cluster" in problem for problem in connect(server.url).check())


def test_not_set_up(redis_server: servers.Server, connect: Open) -> None:
    store = connect(f"{redis_server.url.rpartition('/')[0]}/5")
    with pytest.raises(NotFoundError, match="holdfast store init redis://"):
        store.identity()


@pytest.mark.parametrize("userinfo", [":wr%40ng-s3cret@", "", "nobody:wr%40ng-s3cret@"])
def test_wrong_password(userinfo: str, redis_server: servers.Server, connect: Open) -> None:
    store = connect(redis_server.url.replace(f":{servers.QUOTED_PASSWORD}@", userinfo))
    for call in (store.identity, store.check):
        with pytest.raises(PermissionDeniedError) as caught:
            call()
        said = f"{caught.value!r} {caught.value} " + "".join(
            traceback.format_exception(caught.value)
        )
        assert "s3cret" not in said and "wr@ng" not in said
        ways = ("HOLDFAST_COMMIT_STORE_URL", "--commit-store env:NAME")
        assert all(one in said for one in ways) == (not userinfo), "where to give a missing one"


def test_a_server_that_is_down_and_comes_back(redis_server: servers.Server, connect: Open) -> None:
    store = connect(redis_server.url)
    store.set_up()
    redis_server.kill()
    try:
        for _ in range(2):
            with pytest.raises(UnavailableError) as caught:
                store.put_if_absent(Key("down", 0), b"x")
            assert servers.PASSWORD not in str(caught.value)
    finally:
        redis_server.restart()
    assert store.put_if_absent(Key("down", 0), b"y") is None  # the scripts are loaded again


@pytest.mark.parametrize("host", ["db.example.com", "10.0.0.1", "[fe80::1]"])
def test_plaintext_stays_on_this_machine(host: str, connect: Open) -> None:
    with pytest.raises(InvalidInputError, match="allow_plaintext=true") as caught:
        connect(f"redis://:s3cret@{host}:6379/0")
    assert "s3cret" not in str(caught.value)
    connect(f"redis://:s3cret@{host}:6379/0?allow_plaintext=true")
    connect(f"rediss://:s3cret@{host}:6379/0")


@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1", "127.8.8.8", "[::1]"])
def test_plaintext_to_loopback_is_fine(host: str, connect: Open) -> None:
    assert connect(f"redis://{host}:1/0").url == f"redis://{host}:1/0"


def test_bad_urls(connect: Open) -> None:
    with pytest.raises(InvalidInputError, match="did you mean 'unsafe_may_forget'"):
        connect("redis://localhost/0?may_forget=true")
    with pytest.raises(InvalidInputError, match="is a number"):
        connect("redis://localhost/name")


def test_tls_checks_certificates(connect: Open) -> None:
    pool = connect("rediss://h/0?ssl_ca_certs=/ca.pem")._client.connection_pool
    assert pool.connection_kwargs["ssl_ca_certs"] == "/ca.pem"
    assert pool.connection_kwargs["ssl_cert_reqs"] == "required"


def test_the_client_never_retries(connect: Open) -> None:
    pool = connect("redis://localhost/0")._client.connection_pool
    assert pool.connection_kwargs["retry"].get_retries() == 0
