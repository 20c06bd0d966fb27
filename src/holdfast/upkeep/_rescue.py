"""`rescue`: commit appends again that stock writers lost, each exactly once.

The data files of a lost append are there, under unique names, and its transaction file
lists them. They are committed as they are, under the transaction id `rescue:UUID`: whoever
repeats a rescue, or runs two concurrently, finds it applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast._clock import Clock, SystemClock
from holdfast.arbiter import open_arbiter, read_pin
from holdfast.commits import in_parallel, records_of, require_versions
from holdfast.core import TableCore
from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.formats import FragmentEntry
from holdfast.options import StorageOptions
from holdfast.storage import open_store
from holdfast.txn import FreeTxn
from holdfast.upkeep._candidates import Candidate
from holdfast.upkeep._doctor import candidates_in
from holdfast.upkeep._survey import Progress, Survey, survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """One append that is in the table.

    Attributes:
        id: the UUID of the lost transaction.
        rows: how many rows it has.
        version: the version that holds it.
        applied: False when it was in the table already.
    """

    id: str
    rows: int
    version: int
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueResult:
    """What a rescue did, or, without `confirm`, would do.

    Attributes:
        confirmed: whether it was done.
        planned: the appends that were chosen, oldest first.
        skipped: candidates that were not named and may be no loss.
        rescued: the appends that are in the table now; empty for a plan.
        elapsed: seconds.
    """

    confirmed: bool
    planned: tuple[Candidate, ...]
    skipped: tuple[Candidate, ...]
    rescued: tuple[Rescued, ...]
    elapsed: float

    @property
    def rows(self) -> int:
        """Count the rows that this call brought back."""
        return sum(one.rows for one in self.rescued if one.applied)


def rescue(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    ids: Sequence[str] | Literal["all"],
    confirm: bool = False,
    commit_store: str | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> RescueResult:
    """Bring lost appends back, each exactly once. Plans unless `confirm` is given.

    Safe to repeat, and by several concurrently: an append that is in the table is left alone.

    Args:
        uri: where the table is; it must be tied to an arbiter.
        storage_options: pylance's storage options.
        ids: which candidates of `doctor`; "all" takes those that nothing speaks against.
        confirm: do it.
        commit_store: another address of the table's commit store, with credentials, say.
        progress: hears how many of how many objects were read.
        clock: measures how long it takes.

    Raises:
        InvalidInputError: the table is a plain one: adopt it first; or an id is no candidate.
        NotFoundError: no such table or transaction.
        CommitUnknownError: an outcome could not be learnt; repeat the call.
        ConflictError: other writers were faster, again and again; repeat the call.
        PinMismatchError, UnsafeStoreError: see `open_arbiter`.
        ForeignVersionError, CommitStoreRegressedError: see `doctor`.
    """
    clock = clock or SystemClock()
    begun = clock.elapsed()
    options = StorageOptions(storage_options)
    store = open_store(uri, options)
    pin = read_pin(store)
    if pin is None:
        require_versions(store)
        raise InvalidInputError(
            "this table is not tied to an arbiter, so what is rescued could be lost again: adopt "
            "it first, with `holdfast adopt URI --commit-store URL --confirm`",
            uri=uri,
        )
    arbiter = open_arbiter(uri, options, commit_store=commit_store)
    try:
        records = records_of(arbiter)
        seen = survey(store, records, progress)
        candidates = candidates_in(store, pin, records, seen)
        planned, there = _choose(candidates, ids, seen)
        done = _commit_all(TableCore(store, arbiter, uri, options), planned) if confirm else []
    finally:
        arbiter.close()
    return RescueResult(
        confirmed=confirm,
        planned=tuple(planned),
        skipped=tuple(one for one in candidates if one not in planned),
        rescued=(*there, *done) if confirm else (),
        elapsed=clock.elapsed() - begun,
    )


def _choose(
    candidates: Sequence[Candidate], ids: Sequence[str] | Literal["all"], seen: Survey
) -> tuple[list[Candidate], list[Rescued]]:
    """Return what to commit, and what of it is in the table already."""
    if ids == "all":
        return [one for one in candidates if one.doubt is None], []
    if isinstance(ids, str) or not ids:
        raise InvalidInputError("ids is a list of transaction UUIDs, or 'all'")
    known = {one.id: one for one in candidates}
    wanted = list(dict.fromkeys(ids))
    there = [_find_there(one, seen) for one in wanted if one not in known]
    return [known[one] for one in wanted if one in known], there


def _find_there(wanted: str, seen: Survey) -> Rescued:
    for one in seen.written:
        if one.transaction.uuid != wanted:
            continue
        if set(one.files) & seen.shown:
            rows = sum(part.rows for part in one.transaction.added)
            return Rescued(id=wanted, rows=rows, version=seen.version, applied=False)
        raise InvalidInputError(
            "this transaction is no candidate: it is no append, its files are gone, or a later "
            "commit removed or rewrote its rows",
            id=wanted,
            operation=one.transaction.operation,
        )
    raise NotFoundError("the table has no such transaction", id=wanted)


def _commit_all(core: TableCore, planned: Sequence[Candidate]) -> list[Rescued]:
    # Lance is loaded only by who commits.
    from holdfast.commits import (  # noqa: PLC0415
        Append,
        Appender,
        Versions,
    )
    from holdfast.upkeep._waiting import merge_waiting  # noqa: PLC0415

    versions = Versions(core)
    appender = Appender(versions)
    after = merge_waiting(versions)

    def commit(one: Candidate) -> Rescued:
        fragments = [_fragment(part) for part in one.fragments]
        txn = FreeTxn(f"rescue:{one.id}")
        done = appender.append(Append(fragments=fragments, txn=txn, after=after))
        return Rescued(id=one.id, rows=one.rows, version=done.version, applied=done.applied)

    # Appends that wait at the same time become one version.
    return list(in_parallel(commit, planned))


def _fragment(part: FragmentEntry) -> Any:  # noqa: ANN401 - Lance ships no types
    """Return a fragment as Lance wants it back."""
    from lance.fragment import DataFile, FragmentMetadata  # noqa: PLC0415

    files = [
        DataFile(
            file.path,
            list(file.fields),
            list(file.column_indices),
            file.major,
            file.minor,
            file.size,
            file.base_id,
        )
        for file in part.files
    ]
    return FragmentMetadata(id=part.id, files=files, physical_rows=part.rows)
