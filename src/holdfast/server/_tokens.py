"""Bearer tokens: a file of their hashes, and what each may do.

    # role   sha256 of the token                                              name
    read     9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  dashboards

A token is 256 random bits, so a plain hash of it tells nobody what it is, and no table of
guesses helps. It is compared with every line, each in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from holdfast._ids import RandomIds
from holdfast.errors import InvalidInputError, NotFoundError, PermissionDeniedError

_HASH = re.compile("[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_MAX_TOKEN_CHARS = 512


class Role(IntEnum):
    """What a token allows; a higher one allows all of the lower ones."""

    READ = 1
    WRITE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request."""

    name: str
    role: Role


ANYONE = Principal("anyone", Role.ADMIN)
"""Who sends a request to a server without tokens."""


@dataclass(frozen=True, slots=True)
class _Line:
    principal: Principal
    digest: str = field(repr=False)


class Tokens:
    """The tokens of a server, by their hashes."""

    def __init__(self, lines: Sequence[_Line]) -> None:
        self._lines = tuple(lines)

    def __repr__(self) -> str:
        return f"Tokens({', '.join(line.principal.name for line in self._lines)})"

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read a file of lines `ROLE SHA256 [NAME]`; empty lines and `#` comments are passed over.

        Raises:
            NotFoundError, PermissionDeniedError: the file cannot be read.
            InvalidInputError: a line is malformed, or there is none. The line's number is
                said, never its text.
        """
        try:
            text = path.read_text()
        except FileNotFoundError:
            raise NotFoundError("there is no such token file", path=path) from None
        except (OSError, UnicodeDecodeError) as error:
            raise PermissionDeniedError(
                "the token file cannot be read", path=path, reason=type(error).__name__
            ) from None
        lines = [
            _parse(words, number)
            for number, line in enumerate(text.splitlines(), 1)
            if (words := line.partition("#")[0].split())
        ]
        if not lines:
            raise InvalidInputError(
                "the token file has no token: make one with `holdfast serve --new-token ROLE`",
                path=path,
            )
        return cls(lines)

    def find(self, token: str) -> Principal | None:
        """Return whose token it is; takes the same time whether a line matches or none."""
        if not token or len(token) > _MAX_TOKEN_CHARS:
            return None
        digest = digest_of(token)
        matching = None
        for line in self._lines:
            if hmac.compare_digest(line.digest, digest):
                matching = line.principal
        return matching

    def sign(self, token: str, message: str) -> str | None:
        """Return `NAME:MESSAGE:SIGNATURE` by a token of this server; None for any other token."""
        principal = self.find(token)
        if principal is None:
            return None
        return f"{principal.name}:{message}:{_signature(digest_of(token), message)}"

    def verify(self, name: str, message: str, signature: str) -> Principal | None:
        """Return who signed a message, if the token is still one of this server."""
        for line in self._lines:
            expected = _signature(line.digest, message)
            if line.principal.name == name and hmac.compare_digest(expected, signature):
                return line.principal
        return None


def _signature(digest: str, message: str) -> str:
    return hmac.new(digest.encode(), message.encode(), hashlib.sha256).hexdigest()


def digest_of(token: str) -> str:
    """Return the hash that stands for a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_secret() -> str:
    """Return a new token."""
    ids = RandomIds()
    return "hft-" + (ids.token() + ids.token()).replace("hf-", "")


def token_line(token: str, role: Role, name: str) -> str:
    """Return the line of a token file for a token.

    Raises:
        InvalidInputError: the name has other than letters, digits, . _ @ -
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError("a token's name has letters, digits, . _ @ -", name=name[:80])
    return f"{role.name.lower()} {digest_of(token)} {name}"


def _parse(words: list[str], number: int) -> _Line:
    roles = {role.name.lower(): role for role in Role}
    role = roles.get(words[0].lower())
    digest = words[1].lower() if len(words) > 1 else ""
    name = words[2] if len(words) > 2 else f"token-{number}"  # noqa: PLR2004 - ROLE SHA256 NAME
    if role is None or not _HASH.fullmatch(digest) or not _NAME.fullmatch(name) or len(words) > 3:  # noqa: PLR2004
        raise InvalidInputError(
            "a line of a token file is ROLE SHA256 [NAME], with the role read, write or admin",
            line=number,
        )
    return _Line(Principal(name, role), digest)
