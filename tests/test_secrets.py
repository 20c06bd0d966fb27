"""No secret in any repr, text, log line, event, error or command output.

Every secret here is a canary: a value that must never be seen again after it was given.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import servers
from holdfast import options as table
from holdfast.arbiter import (
    ConditionalPut,
    Verdict,
    connect_commit_store,
    create_arbiter,
    forget,
    open_arbiter,
    probe,
    read_pin,
    redacted,
    verdict_of,
)
from holdfast.cli import main
from holdfast.errors import HoldfastError
from holdfast.events import Event, subscribed
from holdfast.options import StorageOptions, translate
from holdfast.storage import LocalStore, MemoryStore, open_store
from holdfast.testing import Fault, FaultyS3

CANARY = "CANARYc0ffee"
SECRETS = {
    "aws_secret_access_key": CANARY,
    "aws_session_token": CANARY,
    "proxy_excludes": CANARY,
    "user_agent": CANARY,
}
CLOSED_PORT = "127.0.0.1:9"  # the discard service, which nobody runs
STORE_URLS = [
    f"postgresql://user:{CANARY}@{CLOSED_PORT}/db",
    f"postgresql://{CLOSED_PORT}/db?password={CANARY}",
    f"mysql://user:{CANARY}@{CLOSED_PORT}/db",
    f"mariadb://{CLOSED_PORT}/db?password={CANARY}",
    f"redis://:{CANARY}@{CLOSED_PORT}/0",
    f"redis://user:{CANARY}@{CLOSED_PORT}/0",
    f"redis://{CLOSED_PORT}/0?password={CANARY}",
    f"postgresql://user:{CANARY}@ho st/db",
    f"postgresql://user:{CANARY}#x@host/db",
    f"postgresql://user:a@{CANARY}@host/db",
    f"postgresql://user:{CANARY}@host:port/db",
    f"nosuch://user:{CANARY}@host/db",
    f"postgres:user:{CANARY}@host/db",
    f"sqlite:///x.db?password={CANARY}",
    f"postgresql://user:{CANARY}@[host/db",
    f"postgresql://user:{CANARY}@host/db?a=1&a={CANARY}",
]


class Watch:
    """Everything that was said: log records, events, errors with their notes and causes."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self._said: list[str] = []

    def say(self, *things: object) -> None:
        for thing in things:
            self._said += [str(thing), repr(thing)]

    def hear_event(self, event: Event) -> None:
        self.say(event, dict(event.fields))

    @contextlib.contextmanager
    def error(self) -> Iterator[None]:
        """Expect an error of ours, and take in all that Python would print of it."""
        with pytest.raises(HoldfastError) as caught:
            yield
        error = caught.value
        again = pickle.loads(pickle.dumps(error))
        self.say(error, error.details, again, again.details)
        # The source lines of a traceback are this file's own; what counts are the messages.
        for cause in chain(error):
            self.say(*traceback.format_exception_only(cause))

    def nothing_leaked(self) -> None:
        self.say(*(record.getMessage() for record in self._caplog.records))
        self.say(*(record.exc_text for record in self._caplog.records))
        text = "\n".join(self._said)
        assert self._said
        assert CANARY not in text
        assert "Signature=" not in text


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what Python shows as the reason for it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> Iterator[Watch]:
    caplog.set_level(logging.DEBUG)
    watch = Watch(caplog)
    with subscribed(watch.hear_event):
        yield watch


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_COMMIT_STORE_URL", raising=False)
    return tmp_path / "cache"


def options_for(s3: FaultyS3) -> dict[str, str]:
    return {**s3.storage_options(), **SECRETS, "client_max_retries": "0"}


# Options and object stores


def test_options_and_settings(watch: Watch) -> None:
    for backend in ("s3", "gs", "az"):
        names = {name: name for name in table._CONFIG[backend]}
        for spelled, name in {**names, **table._ALIASES[backend], **table._CLIENT}.items():
            options = StorageOptions({spelled: CANARY})
            if name not in table._PRINTABLE:
                watch.say(options)
            with contextlib.suppress(HoldfastError):
                settings = translate(backend, options)
                watch.say(settings)
    with watch.error():
        StorageOptions({"aws_secret_access_key": CANARY.encode()})  # type: ignore[dict-item]
    with watch.error():
        translate("s3", StorageOptions({"aws_secret_acess_key": CANARY}))
    with watch.error():
        translate("s3", StorageOptions({"endpoint": f"http://u:{CANARY}@example.com"}))
    with watch.error():
        translate("s3", StorageOptions({"region": "a", "aws_region": CANARY}))
    watch.nothing_leaked()


def test_a_store_at_work(watch: Watch) -> None:
    with FaultyS3() as s3:
        store = open_store("s3://b/t", options_for(s3))
        watch.say(store, store.location, vars(store))
        store.put("x", b"")
        for status in (400, 401, 403, 404, 409, 412, 500, 501, 503):
            s3.faults.clear()
            s3.faults.add(Fault(kind="status_before", status=status, times=None))
            with watch.error():
                store.put_if_absent("x", b"")
            with watch.error():
                store.list()
    with watch.error():
        store.get("x")
    watch.nothing_leaked()


def test_a_probe_and_its_memory(watch: Watch, cache: Path) -> None:
    with FaultyS3() as s3:
        options = options_for(s3)
        for conditions in ("ignoring", "unsupported", "honest"):
            s3.conditions = conditions
            watch.say(probe("s3://b/t", options))
        assert verdict_of("s3://b/t", options) is Verdict.ENFORCED
        for file in cache.rglob("*"):
            watch.say(file, file.read_text() if file.is_file() else "")
        forget("s3://b/t", options)
    watch.say(probe("s3://b/t", options))
    watch.nothing_leaked()


def test_a_refused_probe(watch: Watch) -> None:
    with FaultyS3(access_key="right", secret_key="right") as s3:
        with watch.error():
            probe("s3://b/t", {**options_for(s3), "aws_access_key_id": "wrong"})
        with watch.error():
            create_arbiter("s3://b/t", {**options_for(s3), "aws_access_key_id": "wrong"})
    watch.nothing_leaked()


def test_urls_with_credentials(watch: Watch) -> None:
    for url in (f"s3://key:{CANARY}@b/t", f"s3://b/t?X-Amz-Signature={CANARY}", f"s3://{CANARY}@b"):
        with watch.error():
            open_store(url)
        with watch.error():
            probe(url)
        with watch.error():
            create_arbiter(url)
    watch.nothing_leaked()


# Commit stores


@pytest.mark.parametrize("url", STORE_URLS, ids=range(len(STORE_URLS)))
def test_a_commit_store_that_cannot_be_reached(watch: Watch, tmp_path: Path, url: str) -> None:
    watch.say(redacted(url))
    with watch.error():
        store = connect_commit_store(url)
        watch.say(store, store.url)
        store.identity()
    with watch.error():
        create_arbiter(tmp_path / "t", commit_store=url)
    watch.nothing_leaked()


def test_a_commit_store_that_refuses_the_password(watch: Watch, postgres: servers.Server) -> None:
    url = postgres.url.replace(servers.QUOTED_PASSWORD, CANARY)
    assert CANARY in url
    with watch.error():
        connect_commit_store(url).identity()
    watch.nothing_leaked()


def test_a_pin_holds_no_password(watch: Watch, tmp_path: Path, postgres: servers.Server) -> None:
    store = connect_commit_store(postgres.url)
    store.set_up()  # type: ignore[attr-defined]
    arbiter = create_arbiter(tmp_path / "t", commit_store=postgres.url)
    assert servers.PASSWORD not in repr(arbiter.pin)
    text = (tmp_path / "t/_holdfast/pin.json").read_text()
    for password in (servers.PASSWORD, servers.QUOTED_PASSWORD):
        assert password not in text + repr(arbiter) + repr(store) + store.url
    assert read_pin(open_store(tmp_path / "t")) == arbiter.pin
    store.close()


# The command line


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["text", "json"])
def test_the_command_line(
    watch: Watch, capsys: pytest.CaptureFixture[str], tmp_path: Path, json: tuple[str, ...]
) -> None:
    given = [part for key, value in SECRETS.items() for part in ("-o", f"{key}={value}")]
    with FaultyS3() as s3:
        for key, value in {**s3.storage_options(), "client_max_retries": "0"}.items():
            if key not in SECRETS:
                given += ["-o", f"{key}={value}"]
        main(["probe", "s3://b/t", *given, *json])
        main(["pin", "s3://b/t", *given, *json])
        main(["probe", "s3://b/t", *given, "-o", f"nonsense={CANARY}", *json])
    main(["probe", "s3://b/t", *given, *json])
    main(["probe", f"s3://key:{CANARY}@b/t", *json])
    for url in STORE_URLS:
        main(["store", "init", url, *json])
        main(["store", "check", url, *json])
    watch.say(*capsys.readouterr())
    watch.nothing_leaked()


# Handles stay in their process


def handles(tmp_path: Path) -> list[Callable[[], object]]:
    s3 = {"aws_secret_access_key": CANARY, "aws_access_key_id": "id"}
    return [
        lambda: LocalStore(tmp_path),
        lambda: MemoryStore("memory://pickle"),
        lambda: open_store("s3://b/t", s3),
        lambda: open_store("gs://b/t", {"bearer_token": CANARY}),
        lambda: open_store("az://b/t", {"account_name": "a", "token": CANARY}),
        lambda: ConditionalPut(MemoryStore("memory://pickle"), Verdict.ENFORCED),
        lambda: create_arbiter(tmp_path / "recorded", commit_store="sqlite"),
        lambda: open_arbiter(tmp_path / "recorded"),
        lambda: connect_commit_store(f"sqlite:///{tmp_path}/x.db"),
        lambda: connect_commit_store(f"postgresql://u:{CANARY}@h/db"),
        lambda: connect_commit_store(f"mysql://u:{CANARY}@h/db"),
        lambda: connect_commit_store(f"redis://:{CANARY}@127.0.0.1/0"),
    ]


def test_handles_refuse_to_pickle_and_say_what_to_send(watch: Watch, tmp_path: Path) -> None:
    for make in handles(tmp_path):
        handle = make()
        watch.say(handle)
        for travel in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=r"URL") as caught:
                travel(handle)
            watch.say(caught.value)
    watch.nothing_leaked()


def test_a_report_travels() -> None:
    report = probe("memory://travels")
    assert pickle.loads(pickle.dumps(report)) == report
