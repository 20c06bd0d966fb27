"""Say soon that a server is silent: ask for its first answer before a command does its work.

Clients repeat what gets no answer, for good reasons, and that takes a minute or more. At the
beginning of a command nobody has to wait so long: nothing was sent that could be lost.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from holdfast.cli._declare import Target
from holdfast.cli._output import SESSION
from holdfast.cli._terminal import Bar
from holdfast.errors import HoldfastError, UnavailableError

_TELL_AFTER_SECONDS = 2.0


def await_answers(target: Target) -> None:
    """Return once the table's object store and commit store have answered, whatever they said.

    Raises:
        UnavailableError: one of them was silent for as long as `--timeout` says.
    """
    asking = _Asking(target)
    thread = threading.Thread(target=asking.run, name="holdfast-first-answer", daemon=True)
    thread.start()
    thread.join(min(_TELL_AFTER_SECONDS, SESSION.timeout))
    if not thread.is_alive():
        return
    with Bar(quiet=SESSION.quiet) as bar:
        bar.show(f"waiting for {asking.place}")
        thread.join(max(0.0, SESSION.timeout - _TELL_AFTER_SECONDS))
    if thread.is_alive():
        raise UnavailableError(
            f"no answer within {SESSION.timeout:g} seconds: is the server up, the address "
            "right, and the network open? `holdfast --timeout SECONDS` waits longer",
            place=asking.place,
        )


class _Asking:
    """Asks the object store, and then the commit store, for something small."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.place = target.uri.partition("?")[0]

    def run(self) -> None:
        """Ask; an error is an answer."""
        with suppress(HoldfastError):
            self._ask()

    def _ask(self) -> None:
        # Late: they load the clients of stores, which a wrong word on the line does not need.
        from holdfast.arbiter import (  # noqa: PLC0415
            EMBEDDED,
            URL_VARIABLE,
            connect_commit_store,
            read_pin,
            redacted,
        )
        from holdfast.storage import open_store  # noqa: PLC0415

        pin = read_pin(open_store(self._target.uri, self._target.options))
        pinned = None if pin is None else pin.store_url
        if pinned == EMBEDDED:
            return
        url = self._target.commit_store or (pinned and os.environ.get(URL_VARIABLE)) or pinned
        if url is None or url == EMBEDDED:
            return
        self.place = redacted(url)
        store = connect_commit_store(url)
        try:
            store.identity()
        finally:
            store.close()
