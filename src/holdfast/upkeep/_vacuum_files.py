"""What `vacuum` takes of files: finders, one for each kind, of what no version needs.

Each yields objects that are older than the grace period, with the reason. Whether one of a kind
that commits bring may go now, `_numbers` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from holdfast.commits import VERSIONS_FOLDER
from holdfast.errors import CorruptError, InvalidInputError, NotFoundError
from holdfast.formats import (
    DATA_FOLDER,
    DELETIONS_FOLDER,
    PIN_PATH,
    PROBE_FOLDER,
    STAGED_FOLDER,
    TEMPORARY_FOLDER,
    TRANSACTIONS_FOLDER,
    TXNS_FOLDER,
    VACUUM_FOLDER,
    VersionFacts,
    is_left_by_lance,
    is_staged_manifest,
    number_of_list,
)
from holdfast.storage import ObjectInfo, ObjectStore
from holdfast.upkeep._branches import failed_branches
from holdfast.upkeep._doctor import candidates_in
from holdfast.upkeep._leftovers import Contents
from holdfast.upkeep._survey import survey
from holdfast.upkeep._vacuum_versions import find_versions as versions_to_take

Found = Iterator[tuple[ObjectInfo, str]]
"""Leftovers of one kind, each with the reason."""


def find_versions(contents: Contents) -> Found:
    """Manifests of versions that nobody keeps."""
    if not contents.going:
        return
    tied = contents.objects.get(PIN_PATH)
    transactions = contents.old_below(TRANSACTIONS_FOLDER)
    if tied is not None and any(info.modified <= tied.modified for info in transactions):
        seen = survey(contents.core.store, contents.records)  # files stay or go by it
        candidates = candidates_in(
            contents.core.store, contents.core.arbiter.pin, contents.records, seen
        )
        if any(one.doubt is None for one in candidates):
            raise InvalidInputError(
                "old versions tell which appends were lost before the table was tied: run "
                "`holdfast rescue` first, or keep versions"
            )
    yield from versions_to_take(contents)


def find_data(contents: Contents) -> Found:
    """Data files that no version shows; those that `rescue` could bring back stay."""
    orphans = [
        info for info in contents.old_below(DATA_FOLDER) if not contents.is_needed(info.path)
    ]
    kept = rescuable(contents, orphans)
    for info in orphans:
        if info.path not in kept:
            yield info, "no version shows it, and no commit under way speaks of it"


def rescuable(contents: Contents, orphans: Collection[ObjectInfo]) -> set[str]:
    """Return data files of appends that may have been lost before the table was tied.

    Raises:
        CorruptError, NotFoundError: the table's newest version cannot be read.
    """
    tied = contents.objects.get(PIN_PATH)
    if tied is None or all(info.modified > tied.modified for info in orphans):
        return set()
    seen = survey(contents.core.store, contents.records)  # files stay or go by it
    candidates = candidates_in(
        contents.core.store, contents.core.arbiter.pin, contents.records, seen
    )
    return {file for one in candidates if one.doubt is None for file in one.files}


def find_deletions(contents: Contents) -> Found:
    """Deletion files that no version shows."""
    for info in contents.old_below(DELETIONS_FOLDER):
        under_way = any(f"-{version}-" in info.path for version in contents.under_way)
        if not under_way and not contents.is_needed(info.path):
            yield info, "no version shows it, and no commit under way speaks of it"


def find_transactions(contents: Contents) -> Found:
    """Transaction files of commits that no version came of, or whose version is gone.

    Those from before the table was tied stay: by them `doctor` finds what was lost.
    """
    tied = contents.objects.get(PIN_PATH)
    for info in contents.old_below(TRANSACTIONS_FOLDER):
        before = tied is not None and info.modified <= tied.modified
        if not before and not contents.is_needed(info.path):
            yield info, "no version came of this commit, or the version is gone"


def find_txns(contents: Contents) -> Found:
    """Files of transaction ids that were merged into others, or whose commit was refused."""
    for info in contents.old_below(TXNS_FOLDER):
        if not contents.is_needed(info.path):
            yield info, "no version names it"


def find_staged(contents: Contents) -> Found:
    """Staged bytes of versions that are decided: whoever comes late with them, loses.

    Bytes for a version that nobody decided yet stay, however old: their writer may wake up,
    decide, and need them.
    """
    records = {} if contents.records is None else contents.records.by_version
    needed = {record.staged for record in records.values() if record.staged is not None}
    for info in contents.old_below(STAGED_FOLDER):
        version = None if info.path in needed else _version_in(contents.core.store, info.path)
        if version is not None and version <= contents.newest:
            yield info, f"version {version} is decided and does not need it"


def _version_in(store: ObjectStore, path: str) -> int | None:
    """Return the version that staged bytes want to be; None if they are no manifest."""
    try:
        return VersionFacts(store.get(path)).version
    except (CorruptError, NotFoundError):
        return None


def find_manifests(contents: Contents) -> Found:
    """Manifests that Lance staged for commits that were refused or cut off."""
    for info in contents.old_below(VERSIONS_FOLDER):
        if is_staged_manifest(info.path) or is_left_by_lance(info.path):
            yield info, "staged for a commit that was refused or cut off"


def find_temporary(contents: Contents) -> Found:
    """Files that got no name, and lists that vacuum does not delete by any more."""
    for info in contents.old_below(TEMPORARY_FOLDER):
        yield info, "a temporary file of a writer that stopped half-way"
    for info in contents.old_below(VACUUM_FOLDER):
        kept = {contents.mark.listed, contents.mark.due}
        # One with a higher number tells commits that a stock restore took the number back.
        if info.path not in kept and number_of_list(info.path) <= contents.mark.number:
            yield info, "a list of an earlier vacuum"


def find_probes(contents: Contents) -> Found:
    """Objects of probes."""
    for info in contents.old_below(PROBE_FOLDER):
        yield info, "an object of a probe that was cut off"


def find_branches(contents: Contents) -> Found:
    """What attempts to make a branch left behind."""
    for files in failed_branches(contents.objects):
        if all(contents.is_old(info) for info in files):
            for info in files:
                yield info, "of a branch that was begun and never made"
