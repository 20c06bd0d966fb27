"""Say soon that a server is silent: ask for its first answer before a command does its work.

Clients repeat what gets no answer, for good reasons, and that takes a minute or more. At the
beginning of a command nobody has to wait so long: nothing was sent that could be lost.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from contextlib import suppress

from holdfast.cli._arguments import storage_options
from holdfast.cli._output import is_quiet
from holdfast.errors import HoldfastError, UnavailableError

PATIENCE_SECONDS = 15.0
_TELL_AFTER_SECONDS = 2.0


def add_patience(parser: argparse.ArgumentParser) -> None:
    """Add `--timeout`; it stands before the command."""
    parser.add_argument(
        "--timeout",
        dest="patience",
        metavar="SECONDS",
        type=float,
        default=PATIENCE_SECONDS,
        help=f"how long servers may be silent at the beginning; {PATIENCE_SECONDS:.0f} by default",
    )


def await_answers(arguments: argparse.Namespace) -> None:
    """Return once the table's object store and commit store have answered, whatever they said.

    Raises:
        UnavailableError: one of them was silent for as long as `--timeout` says.
    """
    if not hasattr(arguments, "uri"):
        return
    asking = _Asking(arguments)
    thread = threading.Thread(target=asking.run, name="holdfast-first-answer", daemon=True)
    thread.start()
    thread.join(min(_TELL_AFTER_SECONDS, arguments.patience))
    if not thread.is_alive():
        return
    if sys.stderr.isatty() and not is_quiet():
        print(f"holdfast: waiting for {asking.place} ...", file=sys.stderr, flush=True)
    thread.join(max(0.0, arguments.patience - _TELL_AFTER_SECONDS))
    if thread.is_alive():
        raise UnavailableError(
            f"no answer within {arguments.patience:g} seconds: is the server up, the address "
            "right, and the network open? `holdfast --timeout SECONDS` waits longer",
            place=asking.place,
        )


class _Asking:
    """Asks the object store, and then the commit store, for something small."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self.place = str(arguments.uri).partition("?")[0]

    def run(self) -> None:
        """Ask; an error is an answer."""
        with suppress(HoldfastError):
            self._ask()

    def _ask(self) -> None:
        # Late: they load the clients of stores, which a wrong word on the line does not need.
        from holdfast.arbiter import (  # noqa: PLC0415  # noqa: PLC0415
            EMBEDDED,
            URL_VARIABLE,
            connect_commit_store,
            read_pin,
            redacted,
        )
        from holdfast.storage import open_store  # noqa: PLC0415

        options = storage_options(self._arguments.option)
        pin = read_pin(open_store(self._arguments.uri, options))
        given = getattr(self._arguments, "commit_store", None)
        pinned = None if pin is None else pin.store_url
        if pinned == EMBEDDED:
            return
        url = given or (pinned and os.environ.get(URL_VARIABLE)) or pinned
        if url is None or url == EMBEDDED:
            return
        self.place = redacted(url)
        store = connect_commit_store(url)
        try:
            store.identity()
        finally:
            store.close()
