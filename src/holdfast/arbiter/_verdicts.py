"""Verdicts remembered between processes, for a while.

A probe takes some eighty requests, so its verdict is kept in a small file per store in the
user's cache folder (`$XDG_CACHE_HOME/holdfast/verdicts`). Only `enforced` is kept: any other
verdict is found again quickly, and somebody may have mended the store since. A verdict that
is too old, from the future, or unreadable counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from holdfast._clock import Clock, SystemClock
from holdfast._ids import RandomIds
from holdfast.arbiter._probe import ProbeReport, probe_clients
from holdfast.arbiter._verdict import Verdict
from holdfast.options import StorageOptions, client_identity
from holdfast.storage import LocalStore, MemoryStore, ObjectStore, backend_of, open_store

MAX_AGE = timedelta(hours=24)


def verdict_of(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    max_age: timedelta = MAX_AGE,
    clock: Clock | None = None,
) -> Verdict:
    """Return the verdict on a store: remembered, or probed now.

    Raises:
        PermissionDeniedError, NotFoundError: the store cannot be written to at all.
    """
    clock = clock or SystemClock()
    file = _file(uri, storage_options)
    if _is_fresh(file, max_age, clock):
        return Verdict.ENFORCED
    return remember(
        uri, storage_options, probe(uri, storage_options, clock=clock), clock=clock
    ).verdict


def probe(
    uri: str | Path,
    storage_options: Mapping[str, str] | None = None,
    *,
    clock: Clock | None = None,
) -> ProbeReport:
    """Probe the store at a URL with independent clients; a bad verdict ends a remembered one."""
    report = probe_clients(lambda: open_store(uri, storage_options), clock=clock)
    if report.verdict is not Verdict.ENFORCED:
        forget(uri, storage_options)
    return report


def remember(
    uri: str | Path,
    storage_options: Mapping[str, str] | None,
    report: ProbeReport,
    *,
    clock: Clock | None = None,
) -> ProbeReport:
    """Keep a verdict of `enforced` and drop any other; return the report. Never raises."""
    file = _file(uri, storage_options)
    with contextlib.suppress(OSError):
        if report.verdict is not Verdict.ENFORCED:
            file.unlink(missing_ok=True)
            return report
        file.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: several processes may find the verdict at the same moment.
        fresh = file.with_name(f"{file.name}.{RandomIds().token()}")
        fresh.write_text(json.dumps({"probed_at": (clock or SystemClock()).now()}))
        fresh.replace(file)
    return report


def forget(uri: str | Path, storage_options: Mapping[str, str] | None = None) -> None:
    """Drop what is remembered of a store, so that it is probed again."""
    with contextlib.suppress(OSError):
        _file(uri, storage_options).unlink(missing_ok=True)


def _is_fresh(file: Path, max_age: timedelta, clock: Clock) -> bool:
    try:
        age = clock.now() - float(json.loads(file.read_text())["probed_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    # A verdict from the future is none: after a clock was set back it would hold for who knows how
    # long.
    return 0 <= age <= max_age.total_seconds()


def _file(uri: str | Path, storage_options: Mapping[str, str] | None) -> Path:
    """Return the file for one store as one client sees it: backend, bucket, endpoint, identity."""
    store = open_store(uri, storage_options)
    who = client_identity(backend_of(uri), StorageOptions(storage_options))
    parts = [backend_of(uri), _place(store), store.endpoint, who]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return _cache() / "holdfast" / "verdicts" / f"{name}.json"


def _cache() -> Path:
    """Return the user's cache folder; without a home, a place where nothing can be kept."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(given) if given else Path.home() / ".cache"
    except RuntimeError:
        return Path(os.devnull)


def _place(store: ObjectStore) -> str:
    """Return what shares one verdict: a bucket, or a mounted file system."""
    if isinstance(store, MemoryStore):
        return f"{os.getpid()} {store.location}"
    if not isinstance(store, LocalStore):
        return "/".join(store.location.split("/")[:3])
    there = next(f for f in (store.root, *store.root.parents) if f.exists())
    # By mount: NFS and a local disk below one folder may keep a name differently.
    return f"{os.uname().nodename} {there.stat().st_dev}"
