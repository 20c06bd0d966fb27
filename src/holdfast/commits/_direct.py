"""Appends whose manifest is made here instead of by Lance: same bytes, a third of the time.

Lance needs some milliseconds to make a manifest, and on a local disk writers take turns, so
all wait for that. An append on top of the newest version needs none of what Lance looks at:
it goes behind what is there, and its columns are the very same. The steps:

| step                                          | left behind by a crash                    |
|-----------------------------------------------|-------------------------------------------|
| 1 data files and the transaction are durable  | files that nobody needs                   |
| 2 wait for our turn, read the newest version  | the same                                  |
| 3 same columns, and none of our transactions? | the same                                  |
| 4 decide the next version: its manifest       | nothing                                   |

Who loses in 4 goes back to 2. Whatever is not plain (`formats._append` says what is) is left
to Lance, and decided by the hook as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import lance

from holdfast._clock import Clock, SystemClock
from holdfast._ids import Ids, RandomIds
from holdfast.commits._versions import Versions
from holdfast.errors import CommitUnknownError, ConflictError, HoldfastError, UnavailableError
from holdfast.formats._append import AppendTransaction, Base, Shape
from holdfast.formats._transaction import DataFileEntry, FragmentEntry
from holdfast.formats._version_files import HINT_PATH, hint_of
from holdfast.txn import Txn

_TRIES = 20
_HINT_EVERY = 8  # Lance looks on from the hint, one version after the other


class Direct:
    """Commits plain appends to one table."""

    def __init__(
        self, versions: Versions, *, clock: Clock | None = None, ids: Ids | None = None
    ) -> None:
        self._versions = versions
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()
        self._known = 0  # a version that is or was there

    def newest(self, *, exact: bool = True) -> Base | None:
        """Return the newest version, if appends to it may be made here.

        Where it need not be `exact` it is a hint, good enough to write rows for.

        Raises:
            HoldfastError: as for `Table.dataset`.
        """
        try:
            manifest = None if exact else self._versions.manifest_after(self._known)
            manifest = manifest or self._versions.newest_manifest()
        except HoldfastError:
            raise
        except Exception as error:  # a driver's own, say
            reason = f"{type(error).__name__}: {error}"[:300]
            raise UnavailableError("a store failed in a way of its own", reason=reason) from error
        base = None if manifest is None else Base(manifest, lance.__version__)
        self._known = base.version if base is not None else 0
        return base if base is not None and base.is_plain else None

    def write_transaction(
        self, fragments: Sequence[Any], read_version: int
    ) -> AppendTransaction | None:
        """Write the transaction, durably; None if Lance must do this append.

        Raises:
            HoldfastError: the store gave no answer, or refused.
        """
        added = [_entry(fragment) for fragment in fragments]
        known = [entry for entry in added if entry is not None]
        if len(known) < len(added):
            return None
        transaction = AppendTransaction(read_version, self._ids.token(), known)
        self._versions.store.put(transaction.path, transaction.body)
        return transaction

    def commit(
        self,
        transaction: AppendTransaction,
        shape: Shape,
        txns: Sequence[Txn],
        durable: Callable[[], None],
    ) -> int | None:
        """Make the next version; return which, or None if Lance must do it.

        `durable` returns once the data files are.

        Raises:
            AlreadyAppliedError: the newest version holds some of the transactions.
            CommitUnknownError: the outcome could not be learnt; the transaction stays.
            ConflictError: other writers were faster, again and again.
            HoldfastError: a store gave no answer, or refused; nothing was decided.
        """
        try:
            version = self._commit(transaction, shape, txns, durable)
        except CommitUnknownError:
            raise
        except HoldfastError:
            self._versions.drop(transaction.path)
            raise
        except Exception as error:
            raise CommitUnknownError(
                "an unexpected error during the decision: repeat it with the same txn",
                reason=f"{type(error).__name__}: {error}"[:300],
            ) from error
        if version is None:
            self._versions.drop(transaction.path)
        return version

    def _commit(
        self,
        transaction: AppendTransaction,
        shape: Shape,
        txns: Sequence[Txn],
        durable: Callable[[], None],
    ) -> int | None:
        for left in reversed(range(_TRIES)):
            begun = self._versions.elapsed()
            base = self.newest()
            if base is None or base.shape != shape or not base.takes(transaction.added):
                return None
            try:
                return self._versions.append(
                    base, transaction, txns, durable, self._clock.now(), begun=begun
                )
            except ConflictError as error:
                if type(error) is not ConflictError or not left:
                    raise
        raise AssertionError("unreachable")

    def leave_hint(self, version: int) -> None:
        """Tell Lance's own writers about where to look for the newest version; best effort."""
        if version % _HINT_EVERY == 0:
            with suppress(HoldfastError):
                self._versions.store.put(HINT_PATH, hint_of(version))


# Any: Lance's FragmentMetadata, which ships no types.
def _entry(fragment: Any) -> FragmentEntry | None:  # noqa: ANN401
    """Return a fragment as its transaction lists it; None if there is more to it than files."""
    if fragment.deletion_file or fragment.row_id_meta or fragment.overlays:
        return None
    if fragment.created_at_version_meta or fragment.last_updated_at_version_meta:
        return None
    files = tuple(
        DataFileEntry(
            path=file.path,
            fields=tuple(file.fields),
            column_indices=tuple(file.column_indices),
            major=file.file_major_version,
            minor=file.file_minor_version,
            size=file.file_size_bytes,
            base_id=file.base_id,
        )
        for file in fragment.files
    )
    return FragmentEntry(id=int(fragment.id), rows=int(fragment.physical_rows), files=files)
