"""What a change of rows has computed on one version: rows that go, and fragments that come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import lance
import numpy as np
from lance.fragment import FragmentMetadata

from holdfast.edit._results import Counts

Offsets: TypeAlias = "np.ndarray"
"""Numbers of rows inside one fragment, each once."""
Fragment: TypeAlias = Any
"""pylance's `LanceFragment`, which ships no types."""

_FRAGMENT_BITS = 32
_OFFSET_MASK = (1 << _FRAGMENT_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The changes to one version; nobody sees them yet.

    Attributes:
        gone: by fragment, the rows that are replaced or deleted.
        new: the fragments that were written.
        counts: how many rows that changes.
        begun_on: the version that was read before fragments were written, if an older one.
    """

    gone: Mapping[int, Offsets] = field(default_factory=dict)
    new: Sequence[FragmentMetadata] = ()
    counts: Counts = field(default_factory=Counts)
    begun_on: int | None = None

    @property
    def is_empty(self) -> bool:
        """Tell whether it changes nothing."""
        return not (self.gone or self.new)


class RowChange(Protocol):
    """A change of rows: how it is computed, and what other writers must not have done."""

    def compute(self, base: lance.LanceDataset) -> Computed:
        """Compute the change on one version, and write its new rows."""
        ...

    def concerns(self, newest: lance.LanceDataset, fragments: Sequence[Fragment]) -> bool:
        """Tell whether rows in fragments that came meanwhile would have made a difference."""
        ...

    def renew(self) -> None:
        """Forget files of earlier tries: vacuum may have taken them."""
        ...


def by_fragment(addresses: Iterable[np.ndarray]) -> dict[int, Offsets]:
    """Return row addresses as offsets by fragment, each once."""
    offsets: dict[int, list[np.ndarray]] = defaultdict(list)
    for some in addresses:
        numbers = some.astype(np.int64, copy=False)
        parts = numbers >> _FRAGMENT_BITS
        for part in np.unique(parts):
            offsets[int(part)].append(numbers[parts == part] & _OFFSET_MASK)
    return {part: np.unique(np.concatenate(lots)) for part, lots in sorted(offsets.items())}
