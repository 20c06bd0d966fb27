"""Say soon that a server is silent: ask for its first answer before a command does its work.

Clients repeat what gets no answer, for good reasons, and that takes a minute or more. At the
beginning of a command nobody has to wait so long: nothing was sent that could be lost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

from holdfast.cli._declare import Target
from holdfast.cli._output import SESSION
from holdfast.cli._terminal import Bar
from holdfast.errors import HoldfastError, UnavailableError

_TELL_AFTER_SECONDS = 2.0


def await_answers(target: Target | None, stores: Sequence[str] = ()) -> None:
    """Return once a table's object store and commit store, and other commit stores, answered.

    Raises:
        UnavailableError: one of them was silent for as long as `--timeout` says.
    """
    asking = _Asking(target, stores)
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
    """Asks the object store, and then commit stores, for something small."""

    def __init__(self, target: Target | None, stores: Sequence[str]) -> None:
        self._target = target
        self._stores = stores
        self.place = "" if target is None else target.uri.partition("?")[0]

    def run(self) -> None:
        """Ask; an error is an answer."""
        from holdfast.arbiter import EMBEDDED  # noqa: PLC0415 - it loads the clients of stores

        with suppress(HoldfastError):
            pinned = None if self._target is None else self._ask_table(self._target)
            for url in (pinned, *self._stores):
                if url is not None and url != EMBEDDED:
                    self._ask_store(url)

    @staticmethod
    def _ask_table(target: Target) -> str | None:
        """Return the URL of a table's commit store."""
        from holdfast.arbiter import EMBEDDED, URL_VARIABLE, read_pin  # noqa: PLC0415
        from holdfast.storage import open_store  # noqa: PLC0415

        pin = read_pin(open_store(target.uri, target.options))
        pinned = None if pin is None else pin.store_url
        if pinned == EMBEDDED:
            return None
        return target.commit_store or (pinned and os.environ.get(URL_VARIABLE)) or pinned

    def _ask_store(self, url: str) -> None:
        from holdfast.arbiter import connect_commit_store, redacted  # noqa: PLC0415

        self.place = redacted(url)
        store = connect_commit_store(url)
        try:
            store.identity()
        finally:
            store.close()
