"""A process's first and last moments: Ctrl-C is one line there, too, and never a traceback.

Loading takes a moment, and Python tells of an interrupt in the middle of an import, or while it
ends, by a traceback. So a signal then ends the process, since no command has begun, or has just
ended. In between it is a `KeyboardInterrupt`, as everywhere, and every command cleans up behind it.
What Python itself does before this module is loaded is not in our hands.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

_MOMENT_SECONDS = 0.01


class Interrupts:
    """What Ctrl-C does in this process.

    Attributes:
        came: whether it was pressed while a command was at work.
    """

    def __init__(self) -> None:
        self.came = False
        self._is_ours = False

    def begin(self) -> None:
        """End the process at Ctrl-C, until a command is at work; not if somebody else cares."""
        self._is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_ours:
            signal.signal(signal.SIGINT, _end)
            sys.unraisablehook = self._look_again

    def work(self) -> None:
        """From now on interrupt the command, so that it cleans up."""
        if self._is_ours:
            signal.signal(signal.SIGINT, self._raise)

    def end(self, code: int) -> None:
        """End with this code at Ctrl-C: all is done."""
        if self._is_ours:
            signal.signal(signal.SIGINT, lambda *_: os._exit(code))

    def _raise(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt

    def _look_again(self, failed: sys.UnraisableHookArgs) -> None:
        """Interrupt once more where Python had to swallow it: in the midst of an import, say.

        A moment later, since it would be swallowed in here as well.
        """
        if failed.exc_type is KeyboardInterrupt:
            signal.signal(signal.SIGALRM, self._raise)
            signal.setitimer(signal.ITIMER_REAL, _MOMENT_SECONDS)
        else:
            sys.__unraisablehook__(failed)


INTERRUPTS = Interrupts()


def _end(_number: int, _frame: FrameType | None) -> None:
    """End now, without what Python does at the end: nothing was begun."""
    os.write(2, b"holdfast: interrupted\n")
    os._exit(INTERRUPTED)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without words, those that the process was given."""
    if argv is not None:
        from holdfast.cli._main import run_command  # noqa: PLC0415

        return run_command(argv)
    code = INTERRUPTED
    INTERRUPTS.begin()
    try:
        from holdfast.cli._main import run_command  # noqa: PLC0415 - what takes a moment

        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:  # pressed again while the first one was told of
        pass
    finally:
        INTERRUPTS.end(code)
    if code == INTERRUPTED:  # threads may be at work that Python would wait for, or trip over
        os._exit(code)
    return code
