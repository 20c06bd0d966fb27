"""Commit a complete index to its table, through the table's arbiter, once.

What the index covers is computed here, at the newest version: the fragments whose file for
the column is the one that was indexed. Lance then refuses if anything that matters changed
between that version and its own. What it would accept but nobody could use is refused here:
an index without any fragment, on a column that is another one now, or beside segments made
with other parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lance
from lance.bitmap import Bitmap
from lance.dataset import Index, IndexFile

from holdfast.commits import (
    AlreadyAppliedError,
    LanceOperation,
    LancePlan,
    Versions,
    make_version,
    open_dataset,
    translate_errors,
)
from holdfast.errors import ConflictError, CorruptError, NextStep, NotFoundError
from holdfast.formats import Plan
from holdfast.index._finalize import Complete
from holdfast.index._plan import same_properties
from holdfast.index._segments import Segment, field_of, ids_of, properties_of, segments_of
from holdfast.txn import OwnTxn


class TableCommits:
    """Commits indexes of one table."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def superseding_version(self, plan: Plan) -> int | None:
        """Return the newest version if the index was committed and replaced since."""
        table = open_dataset(self._versions)
        with translate_errors(self._versions.core.location):
            gone = self._was_made(table, plan) and not is_shown(table, plan)
        return int(table.version) if gone else None

    def is_committed(self, plan: Plan) -> bool:
        """Tell whether the index is, or was, in the table."""
        table = open_dataset(self._versions)
        with translate_errors(self._versions.core.location):
            return self._was_made(table, plan) or is_shown(table, plan)

    def commit(self, complete: Complete) -> tuple[int, bool]:
        """Commit once; return the version and whether this call made it.

        Raises:
            ConflictError: it fits the table no more; the message says what to do.
            NotFoundError: the version that was indexed is gone.
            CommitUnknownError: the outcome could not be learnt; repeat.
        """
        done = make_version(IndexPlan(self._versions, complete))
        return done.version, done.applied

    def _was_made(self, table: lance.LanceDataset, plan: Plan) -> bool:
        return self._versions.ledger.holds(table.config(), txn_of(plan))


class IndexPlan(LancePlan):
    """The version that gets an index; what it covers is computed for each try.

    What Lance finds in its way says nothing of the next try, which is built anew: so every
    conflict of Lance's means *again*. What can never fit is refused here.
    """

    tries = 20

    def __init__(self, versions: Versions, complete: Complete) -> None:
        plan = complete.plan
        super().__init__(versions, [txn_of(plan)], begun_on=plan.version, built_anew=True)
        self._complete = complete

    def operation(self, newest: lance.LanceDataset) -> tuple[LanceOperation, int]:
        """Return the index as it fits the newest version."""
        plan = self._complete.plan
        if is_shown(newest, plan):
            raise AlreadyAppliedError("in the table already", version=int(newest.version))
        coverage = self._coverage(newest, plan)
        removed = self._replaced_segments(newest, plan, coverage)
        # Not `commit_existing_index_segments`: that lists the folder, strays and all.
        change = lance.LanceOperation.CreateIndex(
            new_indices=[_index(self._complete, coverage)],
            removed_indices=[_removed_index(plan, segment) for segment in removed],
        )
        return change, int(newest.version)

    def _coverage(self, table: lance.LanceDataset, plan: Plan) -> set[int]:
        """Return the fragments that hold what was indexed: same number, same file."""
        field = field_of(table.lance_schema, plan.column)
        if int(field.id()) not in plan.details.fields:
            raise _final(
                "the column is another one now: drop the build and index it again",
                column=plan.column,
            )
        live = _files_of(table.get_fragments(), ids_of(field))
        then = _files_of(self._open_indexed(plan).get_fragments(), ids_of(field))
        coverage = {f for f in plan.fragments if f in live and live[f] == then.get(f)}
        if plan.fragments and not coverage:
            raise _final(
                "every fragment that was indexed has been rewritten since, by a compaction or "
                "an overwrite: nothing is left to cover. Build again, and let no compaction "
                "run meanwhile",
                build_id=plan.build_id,
                version=plan.version,
            )
        return coverage

    def _open_indexed(self, plan: Plan) -> lance.LanceDataset:
        try:
            return open_dataset(self.versions, plan.version)
        except NotFoundError as error:
            raise NotFoundError(
                "the version that was indexed is gone: build again",
                build_id=plan.build_id,
                version=plan.version,
            ) from error

    def _replaced_segments(
        self, table: lance.LanceDataset, plan: Plan, coverage: Iterable[int]
    ) -> list[Segment]:
        """Return the segments that the index takes the place of: those it covers whole.

        Raises:
            ConflictError: another one overlaps, or was made with other parameters.
        """
        ours, replaced = set(coverage), []
        for other in segments_of(table, plan.name):
            theirs = set(other.fragments)
            if theirs <= ours:
                replaced.append(other)
                continue
            if theirs & ours:
                raise _final(
                    "another build of this index was committed meanwhile and covers more: "
                    "nothing is missing; refresh the index if rows are",
                    build_id=plan.build_id,
                    segment=other.id,
                )
            try:
                properties = properties_of(self.versions.core.store, other.id)
            except (NotFoundError, CorruptError):
                properties = {}
            if not same_properties(properties, plan.properties):
                raise _final(
                    "the index has segments with other parameters: build it again with "
                    "replace=True",
                    build_id=plan.build_id,
                    segment=other.id,
                )
        return replaced


def is_shown(table: lance.LanceDataset, plan: Plan) -> bool:
    """Tell whether a version has the index."""
    return any(one.id == plan.build_id for one in segments_of(table, plan.name))


def _final(message: str, **details: object) -> ConflictError:
    """Return a conflict that trying again does not help."""
    return ConflictError(message, **details).leading_to(NextStep.NEVER)


def txn_of(plan: Plan) -> OwnTxn:
    """Return the transaction id of a build's commit; no user's string is the same."""
    return OwnTxn(f"index {plan.build_id}")


def _files_of(fragments: Iterable[Any], fields: set[int]) -> dict[int, str]:
    """Return for each fragment the data file that holds the column."""
    files = {}
    for fragment in fragments:
        for file in fragment.metadata.files:
            if fields & set(file.fields):
                files[int(fragment.fragment_id)] = str(file.path)
    return files


def _index(complete: Complete, coverage: set[int]) -> Index:
    plan = complete.plan
    return Index(
        uuid=plan.build_id,
        name=plan.name,
        fields=list(plan.details.fields),
        dataset_version=plan.version,
        fragment_ids=Bitmap(coverage),
        index_version=plan.details.index_version,
        files=[IndexFile(path=path, size_bytes=size) for path, size in complete.files],
        index_details=(plan.details.type_url, bytes.fromhex(plan.details.value_hex)),
    )


def _removed_index(plan: Plan, segment: Segment) -> Index:
    return Index(
        uuid=segment.id,
        name=plan.name,
        fields=list(plan.details.fields),
        dataset_version=segment.version,
        fragment_ids=Bitmap(segment.fragments),
        index_version=plan.details.index_version,
    )
