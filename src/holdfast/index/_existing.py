"""Parts of an existing index that may become parts of a new build, as they are.

A part may be taken over if every fragment of its documents is still covered by its segment:
then nothing in it is stale. Otherwise its segment stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc

from holdfast.errors import CorruptError, NotFoundError
from holdfast.formats import PART_FILES, Part, PartFile, index_folder, part_path
from holdfast.index._ground import Ground
from holdfast.index._segments import Segment, marker_of

Reader = Callable[[str], Any]
"""Opens a Lance file of the table by its path. Any: Lance's reader ships no types."""

_FRAGMENT_SHIFT = 32


def take_over(ground: Ground, segment: Segment, read: Reader) -> tuple[Part, ...] | None:
    """Return the parts of a segment with their sizes; None if it has to stay as it is."""
    try:
        marker = marker_of(ground.store, segment.id)
        parts = tuple(_part(ground, segment.id, number) for number in marker.parts)
    except (NotFoundError, CorruptError):
        return None
    covered = set(segment.fragments)
    documented: set[int] = set()
    for part in parts:
        documented |= _fragments_in(part, read)
    return parts if documented <= covered else None


def _part(ground: Ground, segment: str, number: int) -> Part:
    folder = index_folder(segment)
    files = tuple(
        PartFile(file=file, size=ground.store.head(part_path(folder, number, file)).size)
        for file in PART_FILES
    )
    return Part(folder=folder, id=number, files=files)


def _fragments_in(part: Part, read: Reader) -> set[int]:
    """Return the fragments of a part's documents: the upper half of a row's address."""
    docs = part.path(part.files[PART_FILES.index("docs.lance")])
    found: set[int] = set()
    for batch in read(docs).read_all().to_batches():
        fragments = pc.shift_right(batch.column("_rowid"), _FRAGMENT_SHIFT)
        found.update(int(fragment) for fragment in pc.unique(fragments).to_pylist())
    return found
