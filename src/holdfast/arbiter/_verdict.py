"""`Verdict`: what a probe found about a store's put-if-absent."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Stored and printed; the strings are stable."""

    ENFORCED = "enforced"
    """No probe refuted it. The only verdict under which the store may decide."""

    IGNORED = "ignored"
    """A second create was accepted, or replaced the first one's bytes."""

    RACY = "racy"
    """Right one after the other, but simultaneous creates had several winners."""

    UNSUPPORTED = "unsupported"
    """The store refuses conditional requests."""

    INCONCLUSIVE = "inconclusive"
    """The store did not answer well enough to tell."""
