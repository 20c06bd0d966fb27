"""`Handle`: a live connection that refuses to travel to another process."""

from __future__ import annotations

from typing import NoReturn


class Handle:
    """A base for objects that hold sockets, files or secrets: they do not pickle."""

    def __reduce__(self) -> NoReturn:
        """Say what to send instead."""
        raise TypeError(
            f"a {type(self).__name__} does not travel between processes: send the URL and the "
            "options, and open it there"
        )
