"""What becomes of a segment of the existing index when the index is refreshed.

- Every fragment of its documents is still covered by it: nothing in it is stale, and its
  parts become parts of the new build as they are.
- It has documents of fragments that are gone: it stays a segment of its own.
- It has documents of a fragment that is there but was rewritten: it is built anew. Beside a
  segment that covers the fragment, Lance would show the old documents again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto
from typing import Any

import pyarrow.compute as pc

from holdfast.errors import CorruptError, NotFoundError
from holdfast.formats import PART_FILES, Part, PartFile, index_folder, part_path
from holdfast.index._files import BuildFiles
from holdfast.index._segments import Segment, marker_of

Reader = Callable[[str], Any]
"""Opens a Lance file of the table by its path. Any: Lance's reader ships no types."""

_FRAGMENT_SHIFT = 32


class SegmentUse(Enum):
    """What becomes of a segment."""

    TAKEN_OVER = auto()
    STAYS = auto()
    REBUILT = auto()


def use_of_segment(
    files: BuildFiles, segment: Segment, live: Collection[int], read: Reader
) -> tuple[SegmentUse, tuple[Part, ...]]:
    """Return what becomes of a segment, and its parts if they are taken over."""
    try:
        marker = marker_of(files.core.store, segment.id)
        parts = tuple(_part(files, segment.id, number) for number in marker.parts)
    except (NotFoundError, CorruptError):
        return SegmentUse.REBUILT, ()
    stale: set[int] = set()
    for part in parts:
        stale |= _fragments_in(part, read) - set(segment.fragments)
    if stale & set(live):
        return SegmentUse.REBUILT, ()
    whole = not stale and set(segment.fragments) <= set(live)
    return (SegmentUse.TAKEN_OVER, parts) if whole else (SegmentUse.STAYS, ())


def _part(files: BuildFiles, segment: str, number: int) -> Part:
    folder = index_folder(segment)
    sizes = (files.core.store.head(part_path(folder, number, file)).size for file in PART_FILES)
    pairs = zip(PART_FILES, sizes, strict=True)
    part_files = tuple(PartFile(file=file, size=size) for file, size in pairs)
    return Part(folder=folder, id=number, files=part_files)


def _fragments_in(part: Part, read: Reader) -> set[int]:
    """Return the fragments of a part's documents: the upper half of a row's address."""
    docs = part.path(part.files[PART_FILES.index("docs.lance")])
    fragment_ids: set[int] = set()
    for batch in read(docs).read_all().to_batches():
        fragments = pc.shift_right(batch.column("_rowid"), _FRAGMENT_SHIFT)
        fragment_ids.update(int(fragment) for fragment in pc.unique(fragments).to_pylist())
    return fragment_ids
