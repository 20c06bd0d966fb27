"""Waiting threads notice an interrupt, also one that came when nobody could be woken."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from holdfast._wakeup import Wakeup, await_item


@pytest.fixture
def interrupts() -> Iterator[None]:
    # A program that was started in the background may be told to ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("way", ["queue", "wakeup"])
def test_an_interrupt_that_woke_nobody_is_noticed(interrupts: None, way: str) -> None:
    queue: SimpleQueue[str] = SimpleQueue()
    wakeup = Wakeup()

    def interrupt_another_thread() -> None:
        # Python notes the signal for the main thread, whose sleep it does not end.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not done.wait(60):
            queue.put("nobody noticed")
            wakeup.wake()

    done = threading.Event()
    other = threading.Thread(target=interrupt_another_thread)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interrupt may come at each of these
        other.start()
        _ = await_item(queue) if way == "queue" else wakeup.wait()
    done.set()
    other.join(120)
    assert queue.empty()


def test_what_is_put_is_taken() -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    thread = threading.Timer(0.7, queue.put, [7])  # longer than a glance
    thread.start()
    assert await_item(queue) == 7
    thread.join()
