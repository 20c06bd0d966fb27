"""`Flusher`: one thread that flushes frozen MemTables, strictly in order.

A flush that fails is tried again after a pause, and those behind it wait: nothing is ever
skipped. An error that no repeat can help ends the thread and is reported once.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast._wakeup import Bell
from holdfast.errors import HoldfastError, InvalidInputError

log = logging.getLogger("holdfast.shard")

T = TypeVar("T")

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0


class Flusher(Generic[T]):
    """Flushes what it is given, oldest first.

    Args:
        flush: flushes one thing; safe to repeat.
        final: tells whether an error makes repeating useless.
        report: is told of such an error.
        name: of the thread.
    """

    def __init__(
        self,
        flush: Callable[[T], None],
        *,
        final: Callable[[HoldfastError], bool],
        report: Callable[[HoldfastError], None],
        name: str,
    ) -> None:
        self._flush = flush
        self._final = final
        self._report = report
        self._name = name
        self._lock = threading.Lock()  # guards everything below
        self._change = threading.Condition(self._lock)  # only the thread itself waits for it
        self._attempted = Bell()  # callers listen to it
        self._queue: deque[T] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._ended = False
        self._failures = 0
        self._error: HoldfastError | None = None

    @property
    def failures(self) -> int:
        """Return how many attempts failed."""
        return self._failures

    @property
    def error(self) -> HoldfastError | None:
        """Return why the newest attempt failed; None when it did not."""
        return self._error

    def add(self, thing: T) -> None:
        """Flush something after all that was added before."""
        with self._lock:
            self._queue.append(thing)
            if self._thread is None and not self._closing:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._change.notify_all()

    def drain(self) -> HoldfastError | None:
        """Wait until all is flushed; return the error of the first attempt that fails meanwhile."""
        with self._lock:
            failures = self._failures
            self._change.notify_all()
        while True:
            attempted = self._attempted.listen()
            with self._lock:
                if not self._queue:
                    return None
                if self._failures != failures or self._ended:
                    return self._error
                if self._closing:
                    return InvalidInputError(
                        "the writer was closed before all was flushed; the rows are in the log"
                    )
            attempted.wait()

    def close(self) -> None:
        """End the thread after the attempt it is at. What is left stays in the log."""
        with self._lock:
            self._closing = True
            thread, self._thread = self._thread, None
            self._change.notify_all()
        self._attempted.ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._lock:
                self._change.wait_for(lambda: self._queue or self._closing)
                if self._closing:
                    return
                oldest = self._queue[0]
            error = self._attempt(oldest)
            with self._lock:
                self._error = error
                if error is None:
                    # Only after it is flushed: `drain` counts what is in the queue as not flushed
                    # yet.
                    self._queue.popleft()
                    pause = FIRST_PAUSE
                else:
                    self._failures += 1
                self._ended = error is not None and self._final(error)
                self._attempted.ring()
                if error is not None and not self._ended:
                    # The oldest stays in front: cursors move in order, so nothing behind it can be
                    # flushed before.
                    self._change.wait_for(lambda: self._closing, pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
            if error is not None and self._ended:
                self._report(error)
                return

    def _attempt(self, thing: T) -> HoldfastError | None:
        try:
            self._flush(thing)
        except HoldfastError as error:
            log.warning("a flush failed and will be repeated: %s", error)
            return error
        except BaseException as error:
            # A panic of a library, too: without this thread, whoever waits for it waits for ever.
            log.exception("a flush failed and will be repeated")
            return HoldfastError(f"a flush failed: {type(error).__name__}: {error}"[:300])
        return None
