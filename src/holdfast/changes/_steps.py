"""Steps: what leads from one cursor to the next. They travel to tasks, and are read there.

A step names files only, so whoever reads it needs the object store and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from holdfast.formats import SnapshotRecord
from holdfast.read import SnapshotPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """Rows that are new: fragments that a version added, or a part of the first snapshot.

    Attributes:
        part: the rows; those whose key is in the log above are not seen, and left out.
        version: the version that shows them.
        time: when that was made.
        sizes: bytes of each fragment.
    """

    part: SnapshotPart
    version: int
    time: datetime
    sizes: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Return how many bytes are read, about."""
        return sum(self.sizes)

    @property
    def files(self) -> int:
        """Return how many fragments are read."""
        return len(self.part.fragments or ())

    def split(self, size: int) -> Iterator[Inserted]:
        """Yield steps of about so many bytes that together are this one."""
        fragments, start, held = self.part.fragments, 0, 0
        if fragments is None:
            yield self
            return
        for end, more in enumerate(self.sizes, 1):
            held += more
            if held >= size or end == len(fragments):
                part = replace(self.part, fragments=fragments[start:end])
                yield replace(self, part=part, sizes=self.sizes[start:end])
                start, held = end, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two states of rows that are compared.

    Attributes:
        before: the state before, with what hides rows of the base.
        after: the state after.
        removed: fragments of `before` of which all rows went; None: compare all rows there are.
        added: fragments of `after` of which all rows came; None as above.
        masked: fragments that lost or regained rows.
        version: the version that made the difference.
        time: when that was made.
        size: how many bytes are read, about.
    """

    before: SnapshotRecord
    after: SnapshotRecord
    removed: tuple[int, ...] | None
    added: tuple[int, ...] | None
    masked: tuple[int, ...]
    version: int
    time: datetime
    size: int = 0

    @property
    def files(self) -> int:
        """Return how many fragments are read, of those that differ."""
        return len({*(self.removed or ()), *(self.added or ()), *self.masked})


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Entries of one shard's log.

    Attributes:
        state: the table before them: a base version and what this shard has above it.
        shard_id: the shard.
        after: the position before the first entry.
        through: the position of the last one.
        size: how many bytes are read, about, by entries that were seen; nobody asks the store.
    """

    state: SnapshotRecord
    shard_id: str
    after: int
    through: int
    size: int = 0

    @property
    def version(self) -> int:
        """Return the base version that these entries lie upon."""
        return self.state.base_version

    @property
    def entries(self) -> int:
        """Return how many entries are read, fences included."""
        return self.through - self.after

    @property
    def files(self) -> int:
        """Return 0: these are no fragments."""
        return 0


Step: TypeAlias = Inserted | Compared | Logged
