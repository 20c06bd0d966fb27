"""Candidates: appends that a writer may have been told of and that the table does not show.

On a store that ignores put-if-absent two stock writers both make version N; the second
overwrites the first, and whoever builds on the first brings its rows back while the
second's vanish. So neither "a version names this transaction" nor "a version shows these
files" tells: what counts is whether the *newest* version shows them, and if not, whether a
commit between then and now says that it took them away.

A candidate may be a try that failed and was repeated under another name. What speaks for
that is its `doubt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from holdfast.commits import in_parallel
from holdfast.formats import FragmentEntry, VersionFacts, data_path
from holdfast.upkeep._survey import Survey, Trace, WrittenTransaction

_REPLACES_ALL = frozenset({"Overwrite", "Restore", "Clone"})
_LISTS_WHAT_IT_TAKES = frozenset({"Delete", "Update", "Rewrite"})
_TAKES_NOTHING = frozenset(
    {
        "Append",
        "CreateIndex",
        "ReserveFragments",
        "UpdateConfig",
        "UpdateMemWalState",
        "UpdateBases",
        "DataOverlay",
    }
)
_CHANGES = frozenset({"Delete", "Update", "Merge", "DataReplacement", "Overwrite", "Project"})


class Doubt(StrEnum):
    """Why a candidate may be none; `rescue` takes such a one only by its id."""

    REPEATED = "repeated"
    """The same bytes are in the table, or in an older candidate: a retry that succeeded."""
    AFTER_PIN = "after_pin"
    """Written when the table was tied already: Holdfast loses nothing that it acknowledged."""
    REPLACED = "replaced"
    """The table was overwritten or restored since: it may have been meant to go."""
    HISTORY_GONE = "history_gone"
    """The versions of its time were collected: whether it was committed cannot be told."""
    SCHEMA_CHANGED = "schema_changed"
    """Its columns are not those of the table any more."""
    ELSEWHERE = "elsewhere"
    """Its files are in another table's folder."""


_WORDS: Mapping[Doubt, str] = {
    Doubt.REPEATED: "the same bytes are in the table already, or in an older candidate",
    Doubt.AFTER_PIN: "written after the table was tied to its arbiter: a try that was repeated",
    Doubt.REPLACED: "the table was overwritten or restored since",
    Doubt.HISTORY_GONE: "the versions of its time are gone, so nobody knows whether it was in",
    Doubt.SCHEMA_CHANGED: "the table's columns have changed since",
    Doubt.ELSEWHERE: "its files belong to another table",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An append that the newest version lacks, and what is known of it.

    Attributes:
        id: the transaction's UUID, to name it by.
        rows: how many rows it brings.
        size: its data files' bytes.
        files: its data files, as paths in the table.
        read_version: the version that its writer had read.
        time: when its transaction file was written, by the store's clock.
        seen_in: the last version that shows it; None if none does.
        doubt: why it may be no loss; None when nothing speaks against it.
        same_as: a file with the same bytes, for `Doubt.REPEATED`.
    """

    id: str
    rows: int
    size: int
    files: tuple[str, ...]
    read_version: int
    time: datetime
    seen_in: int | None
    doubt: Doubt | None = None
    same_as: str | None = None
    fragments: tuple[FragmentEntry, ...] = field(repr=False)

    @property
    def maybe_retried(self) -> bool:
        """Tell whether this looks like a try whose repetition succeeded."""
        return self.doubt in {Doubt.REPEATED, Doubt.AFTER_PIN}

    @property
    def known(self) -> str:
        """Say what is known, in words."""
        if self.seen_in is None:
            seen = "no version shows it"
        else:
            seen = f"version {self.seen_in} shows it, version {self.seen_in + 1} lost it"
        if self.doubt is None:
            return seen
        peer = f" ({self.same_as})" if self.same_as else ""
        return f"{seen}; {_WORDS[self.doubt]}{peer}"


def find_candidates(
    seen: Survey,
    *,
    tied_at: float | None,
    boundary: int | None,
    read: Callable[[str], bytes],
) -> list[Candidate]:
    """Return the appends that the newest version lacks without a reason, oldest first.

    Args:
        seen: the table.
        tied_at: when its pin was written, by the store's clock.
        boundary: up to which version it was adopted.
        read: returns an object's bytes, for comparing.
    """
    shown = seen.shown
    consumed = _consumed_files(seen.traces.values())
    last_seen = {file: v for v in sorted(seen.traces) for file in seen.traces[v].shows}
    replaced_at = _replaced_at(seen.traces)
    candidates: dict[frozenset[str], Candidate] = {}
    for one in sorted(seen.written, key=lambda one: (one.info.modified, one.info.path)):
        files = frozenset(one.files)
        if not files or files & shown or files & consumed or not files <= seen.objects.keys():
            continue
        seen_in = max((last_seen[file] for file in files if file in last_seen), default=None)
        if seen_in is not None and _is_explained(seen.traces, seen_in, files):
            continue
        candidate = _candidate(one, seen, seen_in)
        doubt = _doubt(candidate, seen, replaced_at)
        if doubt is None and _is_after_pin(one, tied_at, boundary):
            doubt = Doubt.AFTER_PIN
        candidates.setdefault(files, replace(candidate, doubt=doubt))
    return _mark_repeats(list(candidates.values()), seen, shown, read)


def orphaned_changes(seen: Survey) -> list[WrittenTransaction]:
    """Return commits other than appends that no version came of: lost, or failed."""
    made = {t.transaction.uuid for t in seen.traces.values() if t.transaction is not None}
    return [
        one
        for one in seen.written
        if one.transaction.operation in _CHANGES
        and one.transaction.uuid not in made
        and one.transaction.read_version >= seen.gap
    ]


def _consumed_files(traces: Iterable[Trace]) -> set[str]:
    """Return the files whose rows a committed rewrite carried on in others."""
    transactions = (t.transaction for t in traces if t.transaction is not None)
    return {data_path(file) for transaction in transactions for file in transaction.consumed}


def _is_explained(traces: Mapping[int, Trace], last: int, files: frozenset[str]) -> bool:
    """Tell whether the version after the last that shows these files had reason to drop them."""
    after = traces.get(last + 1)
    if after is None or after.transaction is None:
        return True  # nothing tells: not to be called a loss
    operation = after.transaction.operation
    if operation in _TAKES_NOTHING:
        return False
    if operation in _LISTS_WHAT_IT_TAKES:
        parts = {part for file, part in traces[last].shows.items() if file in files}
        return bool(parts & after.transaction.touched)
    return True


def _candidate(one: WrittenTransaction, seen: Survey, seen_in: int | None) -> Candidate:
    transaction = one.transaction
    return Candidate(
        id=transaction.uuid,
        rows=sum(part.rows for part in transaction.added),
        size=sum(seen.objects[file].size for file in one.files),
        files=one.files,
        read_version=transaction.read_version,
        time=datetime.fromtimestamp(one.info.modified, UTC),
        seen_in=seen_in,
        fragments=transaction.added,
    )


def _doubt(candidate: Candidate, seen: Survey, replaced_at: int) -> Doubt | None:
    since = candidate.read_version if candidate.seen_in is None else candidate.seen_in
    if any(file.base_id is not None for part in candidate.fragments for file in part.files):
        return Doubt.ELSEWHERE
    if not _fits(candidate.fragments, seen.newest):
        return Doubt.SCHEMA_CHANGED
    if since < replaced_at:
        return Doubt.REPLACED
    if candidate.seen_in is None and candidate.read_version < seen.gap:
        return Doubt.HISTORY_GONE
    return None


def _is_after_pin(one: WrittenTransaction, tied_at: float | None, boundary: int | None) -> bool:
    """Tell whether an append was begun when the table was tied already."""
    above = boundary is not None and one.transaction.read_version > boundary
    return above or (tied_at is not None and one.info.modified > tied_at)


def _replaced_at(traces: Mapping[int, Trace]) -> int:
    """Return the newest version that replaced everything before it."""
    made = ((version, trace.transaction) for version, trace in traces.items())
    return max((v for v, t in made if t is not None and t.operation in _REPLACES_ALL), default=0)


def _fits(fragments: Iterable[FragmentEntry], newest: VersionFacts) -> bool:
    """Tell whether fragments have columns of the table only, and all that may not be null."""
    fields = newest.fields
    known = {field.id for field in fields}
    parents = {field.parent_id for field in fields}
    required = {f.id for f in fields if not f.nullable and f.id not in parents}
    for part in fragments:
        given = {number for file in part.files for number in file.fields if number >= 0}
        if not given <= known or not required <= given:
            return False
    return True


def _mark_repeats(
    candidates: list[Candidate], seen: Survey, shown: set[str], read: Callable[[str], bytes]
) -> list[Candidate]:
    """Mark candidates whose bytes are in the table, or in an older candidate."""
    ours = {file for one in candidates for file in one.files}
    by_size: dict[int, list[str]] = {}
    for path in sorted(ours | (shown & set(seen.objects))):
        by_size.setdefault(seen.objects[path].size, []).append(path)
    alike = [p for paths in by_size.values() if len(paths) > 1 and ours & set(paths) for p in paths]
    digests = dict(zip(alike, in_parallel(lambda path: _digest(read(path)), alike), strict=True))
    holders = {digests[path]: path for path in reversed(alike) if path in shown}
    marked = []
    for one in candidates:
        same = [holders.get(digests.get(file, file)) for file in one.files]
        if one.doubt is None and all(same):
            marked.append(replace(one, doubt=Doubt.REPEATED, same_as=same[0]))
            continue
        marked.append(one)
        for file in one.files:
            holders.setdefault(digests.get(file, file), file)
    return marked


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
