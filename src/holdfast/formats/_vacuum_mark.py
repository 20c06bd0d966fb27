"""What vacuum keeps in a table's config: its number, and the lists that it deletes by.

A list holds the paths of objects that no version showed when it was made. It is immutable, and
its name holds the digest of its bytes. The mark names two lists: the one that the newest number
closed, and the one that the number before it closed, by which vacuum may delete.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.errors import CorruptError
from holdfast.formats._names import HOME, check_path

VACUUM_KEY = "holdfast.vacuum"
"""The config entry that holds the mark."""
VACUUM_FOLDER = f"{HOME}/vacuum"

_DIGEST_CHARS = 32
_LIST = re.compile(rf"{VACUUM_FOLDER}/([0-9]{{10}})-([0-9a-f]{{{_DIGEST_CHARS}}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumMark:
    """How far vacuum has come.

    Attributes:
        number: how often the number was raised; 0 when never.
        version: the version that raised it to this number.
        floor: the version that raised it to the number before. What was begun on an older
            version is not committed any more: vacuum may have taken its files.
        listed: the list that this number closed; everything on it was there before `version`.
        due: the list that the number before closed; vacuum deletes by it.
    """

    number: int = 0
    version: int = 0
    floor: int = 0
    listed: str | None = None
    due: str | None = None

    def next(self, version: int, listed: str) -> VacuumMark:
        """Return the mark of the version that raises the number, and closes a list."""
        return VacuumMark(
            number=self.number + 1,
            version=version,
            floor=self.version,
            listed=listed,
            due=self.listed,
        )

    @property
    def entry(self) -> dict[str, str | None]:
        """Return the config entry."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {VACUUM_KEY: json.dumps(fields, separators=(",", ":"), sort_keys=True)}


NO_MARK = VacuumMark()


def read_mark(config: Mapping[str, str]) -> VacuumMark:
    """Return the mark in a table's config.

    Raises:
        CorruptError: the entry cannot be read.
    """
    text = config.get(VACUUM_KEY)
    if text is None:
        return NO_MARK
    try:
        mark = VacuumMark(**json.loads(text))
        lists = [path for path in (mark.listed, mark.due) if path is not None]
        numbers = (mark.number, mark.version, mark.floor)
        if all(_LIST.fullmatch(path) for path in lists) and min(numbers) >= 0:
            return mark
    except (TypeError, ValueError):
        pass
    raise CorruptError("the entry of vacuum in the table's config cannot be read", entry=text[:200])


def encode_list(number: int, paths: Collection[str]) -> tuple[str, bytes]:
    """Return where a list goes that this number will close, and its bytes."""
    body = zlib.compress("\n".join(sorted(paths)).encode())
    return check_path(f"{VACUUM_FOLDER}/{number:010d}-{_digest(body)}"), body


def decode_list(path: str, body: bytes) -> frozenset[str]:
    """Return the paths on a list.

    Raises:
        CorruptError: these are not the bytes that its name tells of.
    """
    match = _LIST.fullmatch(path)
    if match is None or match[2] != _digest(body):
        raise CorruptError("a list of vacuum is damaged: nothing goes by it", path=path)
    return frozenset(zlib.decompress(body).decode().split("\n")) - {""}


def number_of_list(path: str) -> int:
    """Return the number that a list was made to close; 0 for an object that is no list."""
    match = _LIST.fullmatch(path)
    return 0 if match is None else int(match[1])


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:_DIGEST_CHARS]
