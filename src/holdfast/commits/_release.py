"""Which releases of pylance Holdfast works with.

One that is older is refused: it lacks what commits go through. One that is newer is tried, with
a warning. Nothing is guessed about its files: only Lance itself makes manifests then, which is
slower, and every version is decided as ever.
"""

from __future__ import annotations

import functools
import warnings

import lance

from holdfast.errors import UnsupportedError
from holdfast.formats import CHECKED_RELEASE, SUPPORTED_PYLANCE, is_supported


@functools.cache
def check_release(release: str = lance.__version__) -> None:
    """Return if a release of pylance is supported; warn once of one that is newer.

    Raises:
        UnsupportedError: it is older than all that are.
    """
    if is_supported(release):
        return
    first, last = SUPPORTED_PYLANCE[0], SUPPORTED_PYLANCE[-1]
    wanted = f"pylance>={first},<{last + 1}"
    major = release.partition(".")[0]
    if major.isdecimal() and int(major) < first:
        raise UnsupportedError(
            f"this release of pylance is too old: install {wanted!r}", release=release
        )
    warnings.warn(
        f"pylance {release} is newer than what Holdfast was tested with ({CHECKED_RELEASE}): "
        f"appends are made by Lance itself and are slower; install {wanted!r} if anything fails",
        RuntimeWarning,
        stacklevel=2,
    )


__all__ = ["check_release"]
