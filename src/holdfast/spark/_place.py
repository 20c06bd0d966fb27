"""`Place`: where a table is and how to get there, in a form that travels to Spark's workers.

The driver opens the table itself: it may need the commit store. Workers never do: they
read a version that the driver pinned, and write files that nobody sees yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import lance

from holdfast.commits import translate_errors
from holdfast.core import address_of
from holdfast.options import StorageOptions, resolve
from holdfast.spark._options import SparkOptions
from holdfast.storage import open_store

if TYPE_CHECKING:
    from holdfast.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table's address and options. Shows no secret, and holds `env:NAME` as it was given."""

    uri: str
    storage: StorageOptions
    commit_store: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, given: SparkOptions) -> Place:
        """Return the place that a user's options name; a path is made absolute here.

        Raises:
            InvalidInputError: the address or a storage option is malformed.
        """
        return cls(
            uri=address_of(given.path, open_store(given.path, given.storage)),
            storage=given.storage,
            commit_store=given.get("commitStoreUrl"),
        )

    def table(self) -> Table:
        """Open the table, on the driver; the caller closes it.

        Raises:
            NotFoundError: there is no Holdfast table.
            PinMismatchError, UnsafeStoreError: see `open_table`.
        """
        from holdfast.table import open_table  # noqa: PLC0415 - workers do without

        return open_table(self.uri, self.storage, commit_store=self.commit_store)

    @contextmanager
    def open_table(self) -> Iterator[Table]:
        """Hold the table open, on the driver.

        Raises:
            NotFoundError, PinMismatchError, UnsafeStoreError: as for `table`.
        """
        table = self.table()
        try:
            yield table
        finally:
            table.close()

    def plain(self, version: int) -> lance.LanceDataset:
        """Return one version as stock Lance reads it; for workers.

        Raises:
            NotFoundError: the version is not there (any more).
            UnavailableError: the store gave no answer.
        """
        resolved = {key: resolve(key, value) for key, value in self.storage.items()}
        with translate_errors(self.uri):
            return lance.dataset(self.uri, version=version, storage_options=resolved or None)
