"""Ctrl-C at a chosen step of a call, as Python itself delivers it.

Python looks for signals only at some instructions: calls, jumps back, the begin of a function. An
error raised by a trace function would also come where no interrupt can (between a lock's taking
and its `with` block). So the trace function here is one of Python's own, which only marks the
signal as arrived; the interpreter then raises where it really would.
"""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

_CHECKS = {
    dis.opmap[name]
    for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME")
    if name in dis.opmap
}
# Called with a trace function's arguments, which it does not look at.
_ARRIVE: Any = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.py_object, ctypes.py_object)(
    ("PyErr_SetInterrupt", ctypes.pythonapi)
)


class Interrupt:
    """Interrupts the main thread at its n-th step through some files.

    Attributes:
        steps: how many steps there were.
        at: where the interrupt was raised; None if the call had fewer steps.
    """

    def __init__(self, step: int, files: Sequence[str]) -> None:
        self.steps = 0
        self.at: str | None = None
        self._step = step
        self._files = tuple(files)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Count, and interrupt, what the main thread does in the block."""
        before = signal.signal(signal.SIGINT, self._raise)
        tracing = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(tracing)
            signal.signal(signal.SIGINT, before)

    def _raise(self, _signal: int, frame: FrameType | None) -> None:
        sys.settrace(None)
        assert frame is not None
        self.at = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        raise KeyboardInterrupt

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._count

    def _count(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in _CHECKS:
            self.steps += 1
            if self.steps == self._step:
                outer = frame.f_back
                while outer is not None:  # or the interrupt would come in this function
                    outer.f_trace = None
                    outer = outer.f_back
                return _ARRIVE
        return self._count


def each_step(files: Sequence[str], attempt: Callable[[Interrupt], None], stride: int = 1) -> int:
    """Call `attempt` with an interrupt at every step, or every so many; return how many.

    It is over when an attempt came to its end before its interrupt.
    """
    tried, step = 0, 1
    while True:
        interrupt = Interrupt(step, files)
        attempt(interrupt)
        if interrupt.at is None:
            return tried
        tried += 1
        step += stride
