"""From a URL to a commit store: `connect_commit_store(url)` finds the class by its scheme.

Stores that come with Holdfast and those of installed packages are found through the entry
points of group `holdfast.commit_stores`: the name is the scheme, the value a function
`connect(url: str) -> CommitStore`. `register_commit_store` adds one for this process.

    register_commit_store("mydb", MyCommitStore)
    store = connect_commit_store("mydb://host/name")

`env:NAME` in place of a URL reads it from the environment at the moment of connecting, so
the secret in it never stands in a config or a job's options.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from holdfast.arbiter._commit_store import CommitStore
from holdfast.arbiter.stores._base import StoreUrl, suggestion
from holdfast.errors import InvalidInputError

GROUP = "holdfast.commit_stores"
ENV_PREFIX = "env:"
UNREADABLE = "[unreadable URL]"

Connect = Callable[[str], CommitStore]

_registered: dict[str, Connect] = {}


def connect_commit_store(url: str) -> CommitStore:
    """Return a client of the commit store at `url`. Nothing is created there.

    Servers are contacted at the first use, not here.

    Args:
        url: `scheme://...`, or `env:NAME` to take the URL from the environment now.

    Raises:
        InvalidInputError: unknown scheme or option, unreadable URL, unset variable.
        MissingExtraError: the database's driver is not installed.
    """
    resolved = _resolve(url)
    return _find(StoreUrl.parse(resolved).scheme)(resolved)


def register_commit_store(scheme: str, connect: Connect) -> None:
    """Make `scheme://` URLs of this process open with `connect`; the last call for it counts."""
    _registered[scheme.lower()] = connect


def known_schemes() -> list[str]:
    """Return the schemes that have a commit store here, sorted."""
    return sorted({*_registered, *_installed_stores()})


@cache
def _installed_stores() -> Mapping[str, EntryPoint]:
    """Return what installed packages bring. To ask them takes milliseconds: once per process."""
    return {point.name: point for point in entry_points(group=GROUP)}


def redacted(url: str) -> str:
    """Return `url` without user, password and possible secrets in its query. Never raises.

    Only allow-listed query keys stay. What cannot be read for certain is not shown at all.
    """
    if url.startswith(ENV_PREFIX):
        return url if url.removeprefix(ENV_PREFIX).isidentifier() else UNREADABLE
    try:
        return StoreUrl.parse(url).public()
    except ValueError:
        return UNREADABLE


def _resolve(url: str) -> str:
    given: object = url
    if not isinstance(given, str):
        raise InvalidInputError(
            "a commit store is named by its URL, a text", given=type(given).__name__
        )
    if not url.startswith(ENV_PREFIX):
        return url
    name = url.removeprefix(ENV_PREFIX)
    if not name.isidentifier():
        raise InvalidInputError("env: is followed by the name of an environment variable")
    value = os.environ.get(name, "")
    if not value:
        raise InvalidInputError(
            "the environment variable with the commit store's URL is not set", variable=name
        )
    return value


def _find(scheme: str) -> Connect:
    if scheme in _registered:
        return _registered[scheme]
    if scheme not in _installed_stores():
        _installed_stores.cache_clear()  # a package may have come since
    point = _installed_stores().get(scheme)
    if point is not None:
        return cast("Connect", point.load())
    raise InvalidInputError(
        f"no commit store for this kind of URL; {suggestion(scheme, known_schemes())}",
        scheme=scheme,
        known=",".join(known_schemes()),
    )
