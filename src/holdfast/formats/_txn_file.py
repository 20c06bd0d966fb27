"""Files of old transaction ids: sorted digests, immutable, readable in parts.

A table's config keeps its newest free-string ids and names the files that hold all older ones.
A file is a directory and then pages of 1,024 digests of 12 bytes each, sorted. The directory has
the first digest of each page and the page's checksum. The name holds the number of digests, the
checksum of the directory, and a token that makes it unlike any other. So whoever holds the
config can tell every damaged byte, and one id is looked up by two reads: the directory, which
stays in memory, and one page.
"""

from __future__ import annotations

import base64
import hashlib
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import CorruptError
from holdfast.formats._names import HOME, check_path

TXNS_FOLDER = f"{HOME}/txns"
DIGEST_BYTES = 12
PAGE_DIGESTS = 1024
LARGEST = 1 << 22
"""How many digests are in one file at most, before another one is begun."""

_SUM_BYTES = 8
_ENTRY_BYTES = DIGEST_BYTES + _SUM_BYTES
_PAGE_BYTES = PAGE_DIGESTS * DIGEST_BYTES
_GROWTH = 4  # a file is merged with the one before it unless that is this many times its size
# No token is in it: tokens in a manifest say whose decision it is.
_NAME = re.compile(r"([0-9]{10})-([0-9a-f]{24})-[0-9a-f]{32}")


def digest_of(kind: str, text: str) -> bytes:
    """Return what stands for an id; `kind` keeps users' ids and our own apart."""
    return hashlib.sha256(f"{kind}\0{text}".encode()).digest()[:DIGEST_BYTES]


def spell(digest: bytes) -> str:
    """Return a digest in 16 characters."""
    return base64.urlsafe_b64encode(digest).decode()


def unspell(text: str) -> bytes:
    """Return the digest behind 16 characters.

    Raises:
        ValueError: they spell none.
    """
    digest = base64.b64decode(text, altchars=b"-_", validate=True)
    if len(digest) != DIGEST_BYTES:
        raise ValueError(text[:80])
    return digest


@dataclass(frozen=True, slots=True)
class TxnFile:
    """One file, as its name tells of it."""

    name: str
    count: int
    checksum: str

    @classmethod
    def parse(cls, name: str) -> TxnFile:
        """Return the file of that name.

        Raises:
            CorruptError: no file has such a name.
        """
        match = _NAME.fullmatch(name)
        if match is None or not int(match[1]):
            raise CorruptError("a file of transaction ids has no such name", name=name[:120])
        return cls(name, int(match[1]), match[2])

    @property
    def path(self) -> str:
        """Return where it is."""
        return check_path(f"{TXNS_FOLDER}/{self.name}")

    @property
    def pages(self) -> int:
        """Return how many pages it has."""
        return -(-self.count // PAGE_DIGESTS)

    @property
    def directory_bytes(self) -> int:
        """Return how long the directory is; the pages come behind it."""
        return self.pages * _ENTRY_BYTES

    @property
    def size(self) -> int:
        """Return how long the file is."""
        return self.directory_bytes + self.count * DIGEST_BYTES

    def page_range(self, page: int) -> tuple[int, int]:
        """Return where a page begins and ends."""
        start = self.directory_bytes + page * _PAGE_BYTES
        return start, min(start + _PAGE_BYTES, self.size)


class Directory:
    """The directory of a file: which page may hold a digest."""

    def __init__(self, file: TxnFile, body: bytes) -> None:
        """Read it.

        Raises:
            CorruptError: these are not the bytes that the name tells of.
        """
        if len(body) != file.directory_bytes or _checksum(body) != file.checksum:
            raise _damaged_error(file)
        self._file = file
        starts = range(0, len(body), _ENTRY_BYTES)
        self._firsts = [body[at : at + DIGEST_BYTES] for at in starts]
        self._sums = [body[at + DIGEST_BYTES : at + _ENTRY_BYTES] for at in starts]

    def page_of(self, digest: bytes) -> int | None:
        """Return the one page that may hold a digest; None if none does."""
        page = bisect_right(self._firsts, digest) - 1
        return page if page >= 0 else None

    def read_page(self, page: int, body: bytes) -> Sequence[bytes]:
        """Return the digests of a page.

        Raises:
            CorruptError: these are not its bytes.
        """
        if _sum(body) != self._sums[page]:
            raise _damaged_error(self._file)
        return split(body)


def encode_file(digests: bytes, token: str) -> tuple[TxnFile, bytes]:
    """Return a new file and its bytes, for digests in any order, at least one.

    Args:
        digests: all of them, one behind the other.
        token: what makes the name unlike any other.
    """
    import numpy as np  # noqa: PLC0415 - `import holdfast` stays light

    ordered = np.unique(np.frombuffer(digests, dtype=f"V{DIGEST_BYTES}")).tobytes()
    pages = [ordered[at : at + _PAGE_BYTES] for at in range(0, len(ordered), _PAGE_BYTES)]
    directory = b"".join(page[:DIGEST_BYTES] + _sum(page) for page in pages)
    count = len(ordered) // DIGEST_BYTES
    unique = token.removeprefix("hf-")
    return TxnFile.parse(f"{count:010d}-{_checksum(directory)}-{unique}"), directory + ordered


def decode_file(file: TxnFile, body: bytes) -> bytes:
    """Return all digests of a file, sorted, one behind the other.

    Raises:
        CorruptError: these are not its bytes.
    """
    directory = Directory(file, body[: file.directory_bytes])
    if len(body) != file.size:
        raise _damaged_error(file)
    for page in range(file.pages):
        start, end = file.page_range(page)
        directory.read_page(page, body[start:end])
    return body[file.directory_bytes :]


def split(digests: bytes) -> list[bytes]:
    """Return digests one by one."""
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]


def files_to_merge(files: Sequence[TxnFile], added: int) -> int:
    """Return how many files at the end become one with the digests that are added.

    So each file is several times as large as the one behind it: their number grows with the
    logarithm of the number of ids, until files are as large as they may be.
    """
    merged = 0
    for file in reversed(files):
        if file.count >= _GROWTH * added or file.count + added > LARGEST:
            break
        added += file.count
        merged += 1
    return merged


def _sum(page: bytes) -> bytes:
    return hashlib.sha256(page).digest()[:_SUM_BYTES]


def _checksum(directory: bytes) -> str:
    return hashlib.sha256(directory).hexdigest()[:24]


def _damaged_error(file: TxnFile) -> CorruptError:
    return CorruptError(
        "a file of transaction ids is damaged, so nobody knows whether a string was applied; "
        "nothing was committed: put the file back from a backup or from the table that this one "
        "was copied from. Ids (app, number) do not need it",
        path=file.path,
    )
