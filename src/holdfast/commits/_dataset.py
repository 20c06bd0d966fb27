"""Opening a version of a table as a pylance dataset whose commits are decided."""

from __future__ import annotations

from typing import Any

import lance

from holdfast.commits._held import hold
from holdfast.commits._opening import open_hooked
from holdfast.commits._operation import DatasetHook
from holdfast.commits._versions import Versions


def open_dataset(
    versions: Versions, version: int | None = None, *, over_log: bool = False
) -> lance.LanceDataset:
    """Return one version, the newest by default; with `over_log`, it may change rows that wait.

    Raises:
        NotFoundError: there is no such version.
        UnavailableError: a store gave no answer.
        CommitStoreRegressedError, ForeignVersionError, CorruptError: the newest version is not
            the one that was decided.
    """
    live = DatasetHook(versions, {} if over_log else None)
    hook: Any = live  # Any: Lance wants a namespace and gets one by its methods
    with live.raising_outcome():
        return hold(open_hooked(hook, version), live)
