"""Helpers of `CommitStoreSuite`: threads behind a barrier, child processes, lost answers."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from holdfast.arbiter._commit_store import CommitStore, Key
from holdfast.arbiter.stores._registry import connect_commit_store
from holdfast.errors import CollectedError, StaleHandleError, UnavailableError
from holdfast.testing._linearizable import History, WatchedStore

R = TypeVar("R")

ATTEMPTS = 20
WAIT_SECONDS = 60


def run_together(count: int, work: Callable[[int], R]) -> list[R]:
    """Call `work(0)`, `work(1)`, ... in threads of their own that start at one moment."""
    barrier = threading.Barrier(count)

    def start(place: int) -> R:
        barrier.wait(WAIT_SECONDS)
        return work(place)

    with ThreadPoolExecutor(count, thread_name_prefix="holdfast-race") as threads:
        return list(threads.map(start, range(count)))


def decide(store: CommitStore, key: Key, value: bytes) -> bytes:
    """Put until there is an answer, and return the value that won. `value` must be unique."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(UnavailableError):
            existing = store.put_if_absent(key, value)
            return value if existing is None else existing
    raise UnavailableError("no answer in many attempts")


def record_histories(
    stores: Sequence[CommitStore], series: Sequence[str], seed: int
) -> list[History]:
    """Let every store act concurrently on each series in turn; return one history per series."""
    histories = [History() for _ in series]
    barrier = threading.Barrier(len(stores))

    def act(client: int) -> None:
        choose = random.Random(f"{seed}-{client}")
        try:
            for place, (name, history) in enumerate(zip(series, histories, strict=True)):
                watched = history.watched(stores[client], client=client)
                barrier.wait(WAIT_SECONDS)
                for step in range(5):
                    # Every other history has collections in it, and some end in retirement;
                    # the rest is checked per key.
                    value = f"{client}.{step}".encode()
                    more = [[], ["scan", "boundary", "collect"]][place % 2]
                    more += ["retire"] if place % 8 == 1 and step > 1 else []
                    _one_call(watched, name, value, choose, more)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(stores), thread_name_prefix="holdfast-history") as threads:
        outcomes = [threads.submit(act, client) for client in range(len(stores))]
        errors = [error for o in outcomes if (error := o.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return histories


def _one_call(
    store: WatchedStore, series: str, value: bytes, choose: random.Random, more: Sequence[str]
) -> None:
    key = Key(series, choose.randrange(2))
    verbs = ["put", "put", "put", "get", "get", "swap", "swap", *more]
    with contextlib.suppress(UnavailableError, CollectedError, StaleHandleError):
        match choose.choice(verbs):
            case "put":
                store.put_if_absent(key, value)
            case "get":
                store.get(key)
            case "swap":
                expected = f"{choose.randrange(4)}.{choose.randrange(3)}".encode()
                store.compare_and_set(key, store.get(key) or expected, value)
            case "scan":
                store.scan(series)
            case "boundary":
                store.boundary(series)
            case "retire":
                store.retire(series)
            case _:
                store.collect(series, key.number)  # below 0 no store is asked at all


# Child processes. The URL goes through stdin: a command line is readable by everybody.

_CHILD = "from holdfast.testing._commit_store_races import child_main; child_main()"


@contextlib.contextmanager
def child(task: str, **order: object) -> Iterator[subprocess.Popen[str]]:
    """Run a task in a new process; it has said `ready` and waits for a line."""
    with subprocess.Popen(  # noqa: S603 - our own interpreter and a constant
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"task": task, **order}) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ready\n", "the child process did not start"
            yield process
        finally:
            process.kill()


def go(processes: Sequence[subprocess.Popen[str]]) -> list[Any]:
    """Let waiting children act concurrently and return their answers."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = []
    for process in processes:
        out, _ = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0, f"a child process failed with {process.returncode}"
        answers.append(json.loads(out.splitlines()[-1]))
    return answers


def child_main() -> None:
    """Do what the first line of stdin asks; the answer is the last line of stdout."""
    order: Mapping[str, Any] = json.loads(sys.stdin.readline())
    store = connect_commit_store(order["url"])
    store.identity()
    print("ready", flush=True)  # noqa: T201 - the protocol with the parent
    sys.stdin.readline()
    answer = _TASKS[order["task"]](store, order)
    store.close()
    print(json.dumps(answer), flush=True)  # noqa: T201


def _race(store: CommitStore, order: Mapping[str, Any]) -> list[str]:
    """Decide every key and return the winners."""
    value = order["value"].encode()
    return [
        decide(store, Key(order["series"], number), value).decode()
        for number in range(order["keys"])
    ]


def _fork(store: CommitStore, order: Mapping[str, Any]) -> list[str]:
    """Use the store before a fork, in the child, and again in the parent."""
    series = order["series"]
    store.put_if_absent(Key(series, 0), b"before")
    pid = os.fork()
    if pid == 0:
        assert store.get(Key(series, 0)) == b"before"
        assert store.put_if_absent(Key(series, 1), b"child") is None
        store.close()
        del store
        gc.collect()
        sys.exit(0)  # the long way out: what the interpreter tears down must not matter
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the forked child failed"
    assert store.put_if_absent(Key(series, 2), b"parent") is None
    return [entry.value.decode() for entry in store.scan(series)]


_TASKS: Mapping[str, Callable[[CommitStore, Mapping[str, Any]], object]] = {
    "race": _race,
    "fork": _fork,
}


class LosingProxy:
    """A TCP proxy in front of a server that can lose an answer after the server gave it."""

    def __init__(self, host: str, port: int) -> None:
        """Listen on a free loopback port."""
        self._server = (host, port)
        self._losing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    def lose_next_answer(self) -> None:
        """Drop the next bytes that the server sends, and the connection with them."""
        self._losing.set()

    def close(self) -> None:
        """End all connections and threads."""
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(
            target=target, args=arguments, name="holdfast-losing-proxy", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            self._sockets += [client, server]
            self._spawn(self._pump, client, server, False)
            self._spawn(self._pump, server, client, True)

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:  # noqa: FBT001
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self._losing.is_set():
                    self._losing.clear()
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def through(url: str, port: int) -> str:
    """Return `url` with its address replaced by a port of this machine."""
    parts = urlsplit(url)
    userinfo = parts.netloc.rpartition("@")[0]
    address = f"127.0.0.1:{port}"
    return parts._replace(netloc=f"{userinfo}@{address}" if userinfo else address).geturl()
