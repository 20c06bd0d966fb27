"""The one source of randomness: every id, token and jitter comes from an `Ids`.

Protocol code takes an `Ids` as an argument, so a simulated world can hand out ids that
repeat exactly when a schedule is replayed.
"""

from __future__ import annotations

import random
import re
import secrets
from typing import Protocol

TOKEN_PATTERN = re.compile(rb"hf-[0-9a-f]{32}")
"""What every token looks like, so that it can be found inside bytes of any format."""


class Ids(Protocol):
    """Hands out ids that nobody else has."""

    def token(self) -> str:
        """Return a new token: `hf-` and 32 hexadecimal digits."""
        ...

    def jitter(self) -> float:
        """Return a number in [0, 1) that spreads retries out."""
        ...


class RandomIds:
    """Ids from the operating system's random source; safe to share between threads and forks."""

    def token(self) -> str:
        """Return a new random token."""
        return f"hf-{secrets.token_hex(16)}"

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""
        return random.random()  # noqa: S311 - spreads retries, protects nothing


def new_token() -> str:
    """Return a new random token, to mark a body with before it is decided."""
    return RandomIds().token()
