"""`Ledger`: whether a transaction is applied, and how a version remembers it, for ever.

A version's config has the numbers of all apps and its newest strings; older strings are in
immutable files that the config names (`formats._ledger`, `formats._txn_file`). Files are read
only for a string that is not in the config. What was found in one stays true, so it is kept.

When the config has no room for a string, the older half of those in it move to a file, together
with the files that are not much larger. The steps of a commit that does so:

| step                                              | left behind by a crash                  |
|---------------------------------------------------|-----------------------------------------|
| 1 read the files that become one                  | nothing                                 |
| 2 put the new file, durably, under a unique name  | a file that no version names            |
| 3 decide the version whose config names it        | the file is kept while a version names  |
|                                                   | it, and the files before it likewise    |

A file was put after the version was read that the commit was begun on, so vacuum's number
protects it as it does data files (`_floor`): what vacuum may have taken, is not committed.

A file that is missing or damaged is an error, never an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from holdfast._ids import Ids, RandomIds
from holdfast.errors import CorruptError, NotFoundError
from holdfast.formats import (
    DIGEST_BYTES,
    TXNS_FOLDER,
    Directory,
    TxnFile,
    check_path,
    decode_file,
    digest_txn,
    encode_file,
    files_to_merge,
    is_in_config,
    name_older,
    older_files,
    record_txns,
    split,
)
from holdfast.storage import ObjectStore
from holdfast.txn import AppTxn, Txn

_SMALL_BYTES = 1 << 17  # a file up to this size is read as a whole, and kept
_FILES_KEPT = 64
_ANSWERS_KEPT = 1 << 14
Key = TypeVar("Key")
Value = TypeVar("Value")


class MissingTxnFileError(CorruptError):
    """A file of transaction ids is not there; or the version that names it is an old one."""


class Ledger:
    """The transactions of one table's versions. Threads may share it.

    Args:
        store: the table's object store.
        ids: where ids come from.
        folder: where files of older strings are; of a shard's log, its own.
    """

    def __init__(
        self, store: ObjectStore, ids: Ids | None = None, *, folder: str = TXNS_FOLDER
    ) -> None:
        self._store = store
        self._folder = folder
        self._ids = ids or RandomIds()
        # Files never change, so neither do these; each is replaced as a whole, never held.
        self._small: dict[str, frozenset[bytes]] = {}
        self._directories: dict[str, Directory] = {}
        self._answers: dict[tuple[str, bytes], bool] = {}

    def holds(self, config: Mapping[str, str], txn: Txn) -> bool:
        """Tell whether a version with this config has applied a transaction.

        Raises:
            CorruptError: an entry or a file cannot be read, or a file is missing.
            UnavailableError, PermissionDeniedError: the store did not tell.
        """
        return bool(self.applied(config, [txn]))

    def may_hold(self, config: Mapping[str, str], txn: Txn) -> bool:
        """Tell whether a version may have applied a transaction, which need not be the newest.

        Vacuum may have taken files that only an old version names: then nothing is known.

        Raises:
            HoldfastError: as for `holds`, but for a missing file.
        """
        try:
            return self.holds(config, txn)
        except MissingTxnFileError:
            return True

    def applied(self, config: Mapping[str, str], txns: Sequence[Txn]) -> list[Txn]:
        """Return which of these a version with this config has applied.

        Raises:
            HoldfastError: as for `holds`.
        """
        applied_txns = {txn for txn in txns if is_in_config(config, txn)}
        open_ones = {
            digest_txn(t): t for t in txns if not isinstance(t, AppTxn) and t not in applied_txns
        }
        for file in older_files(config) if open_ones else ():
            for digest in self._in_file(file, list(open_ones)):
                applied_txns.add(open_ones.pop(digest))
            if not open_ones:
                break
        return [txn for txn in txns if txn in applied_txns]

    def check_room(self, config: Mapping[str, str], txn: Txn) -> None:
        """Find out, before anything is written, whether a version can remember a transaction.

        Raises:
            InvalidInputError: the numbers of its application have too many gaps.
            CorruptError: an entry of the config cannot be read.
        """
        record_txns(config, [txn])

    def record(self, config: Mapping[str, str], txns: Sequence[Txn]) -> dict[str, str | None]:
        """Return the config entries of the version that applies `txns`, none of them applied yet.

        What they name is durable when this returns.

        Raises:
            InvalidInputError: as for `check_room`.
            HoldfastError: as for `holds`, or the store did not take a file.
        """
        recorded = record_txns(config, txns)
        if not recorded.moved:
            return recorded.entries
        files = older_files(config)
        merged = files_to_merge(files, len(recorded.moved) // DIGEST_BYTES)
        staying, going = files[: len(files) - merged], files[len(files) - merged :]
        digests = recorded.moved + b"".join(self._read_whole(file) for file in going)
        file, body = encode_file(digests, self._ids.token())
        self._store.put(self._path(file), body)
        return {**recorded.entries, **name_older([*staying, file])}

    def bring(self, config: Mapping[str, str], sources: Sequence[ObjectStore]) -> None:
        """Copy files that are not here from the tables that this one was cloned from.

        Safe to repeat. One that is nowhere stays missing, and lookups say so.

        Raises:
            CorruptError: an entry of the config cannot be read, or a file is damaged.
            UnavailableError, PermissionDeniedError: a store did not do its part.
        """
        for file in older_files(config):
            for store in (self._store, *sources):
                with suppress(NotFoundError):
                    body = store.get(self._path(file))
                    decode_file(file, body)
                    if store is not self._store:
                        self._store.put(self._path(file), body)
                    break

    def _in_file(self, file: TxnFile, digests: Sequence[bytes]) -> list[bytes]:
        """Return which of these digests a file holds."""
        if file.size <= _SMALL_BYTES:
            small = self._small.get(file.name)
            if small is None:
                small = frozenset(split(self._read_whole(file)))
                _keep(self._small, file.name, small, _FILES_KEPT)
            return [digest for digest in digests if digest in small]
        answers = {digest: self._answers.get((file.name, digest)) for digest in digests}
        asked = [digest for digest, answer in answers.items() if answer is None]
        answers.update(self._look_up(file, asked))
        for digest in asked:
            _keep(self._answers, (file.name, digest), bool(answers[digest]), _ANSWERS_KEPT)
        return [digest for digest in digests if answers[digest]]

    def _look_up(self, file: TxnFile, digests: Sequence[bytes]) -> dict[bytes, bool]:
        """Read the pages that may hold digests, or all of a file where that is less."""
        answers = dict.fromkeys(digests, False)
        if not digests:
            return answers
        directory = self._directory(file)
        pages: dict[int, list[bytes]] = {}
        for digest in digests:
            page = directory.page_of(digest)
            if page is not None:
                pages.setdefault(page, []).append(digest)
        if len(pages) * 8 > file.pages:
            every = set(split(self._read_whole(file)))
            return {digest: digest in every for digest in digests}
        for page, some in pages.items():
            start, end = file.page_range(page)
            there = set(directory.read_page(page, self._read(file, start, end)))
            answers.update((digest, digest in there) for digest in some)
        return answers

    def _directory(self, file: TxnFile) -> Directory:
        directory = self._directories.get(file.name)
        if directory is None:
            directory = Directory(file, self._read(file, 0, file.directory_bytes))
            _keep(self._directories, file.name, directory, _FILES_KEPT)
        return directory

    def _read_whole(self, file: TxnFile) -> bytes:
        return decode_file(file, self._read(file, 0, None))

    def _read(self, file: TxnFile, start: int, end: int | None) -> bytes:
        try:
            return self._store.get(self._path(file), start=start, end=end)
        except NotFoundError as error:
            raise MissingTxnFileError(
                "a file of transaction ids is not there, so nobody knows whether a string was "
                "applied; nothing was committed: put the file back from a backup or from the "
                "table that this one was copied from. Ids (app, number) do not need it",
                path=self._path(file),
            ) from error

    def _path(self, file: TxnFile) -> str:
        return check_path(f"{self._folder}/{file.name}")


def _keep(cache: dict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Keep a value, and forget the oldest ones if there are too many."""
    cache[key] = value
    while len(cache) > most:
        cache.pop(next(iter(cache), key), None)
