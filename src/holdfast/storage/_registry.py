"""Object stores of other packages, by the scheme of their URLs.

The entry points of group `holdfast.object_stores` are found in installed packages: the name is
the scheme, the value a function `open_(url: str, options: Mapping[str, str]) -> ObjectStore`.
`register_object_store` adds one for this process. The options come with `env:` values
resolved; the function refuses those that it does not know.

    register_object_store("mystore", MyStore.open)
    table = holdfast.create_table("mystore://place/events", schema, commit_store=...)

Lance reads and writes the table's data files with a client of its own. So the scheme must be one
that Lance knows, or the store says where Lance finds the same files (`SupportsLanceAddress`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, cast

from holdfast.errors import InvalidInputError
from holdfast.storage._port import ObjectStore

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "holdfast.object_stores"
OpenObjectStore = Callable[[str, Mapping[str, str]], ObjectStore]

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_registered: dict[str, OpenObjectStore] = {}


def register_object_store(scheme: str, open_: OpenObjectStore) -> None:
    """Make `scheme://` URLs of this process open with `open_`; the last call for it counts.

    Raises:
        InvalidInputError: it cannot be the scheme of a URL.
    """
    if not _SCHEME.fullmatch(scheme.lower()):
        raise InvalidInputError("a scheme is letters, digits and + . -", scheme=repr(scheme[:40]))
    _registered[scheme.lower()] = open_


def find_object_store(scheme: str) -> OpenObjectStore | None:
    """Return what opens the URLs of a scheme: registered here, or by an installed package."""
    if scheme in _registered:
        return _registered[scheme]
    point = _installed_stores().get(scheme)
    return None if point is None else cast("OpenObjectStore", point.load())


def registered_schemes() -> set[str]:
    """Return the schemes that were registered, here and by installed packages."""
    return {*_registered, *_installed_stores()}


@cache
def _installed_stores() -> Mapping[str, EntryPoint]:
    """Return what installed packages bring. To ask them takes milliseconds: once per process."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - `import holdfast` stays light

    return {point.name: point for point in entry_points(group=GROUP)}
