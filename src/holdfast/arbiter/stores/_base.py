"""What every commit store here shares: checked keys, strict URLs, and no secret in any text.

`StoreUrl.parse` splits a URL into its parts and refuses what cannot be read without doubt
(an unescaped `@` or `#` in a password would otherwise end up in the printed host).
`BaseStore` gives a store its credential-free `url`, a cached `identity()`, and a refusal to
be pickled.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from holdfast.arbiter._commit_store import (
    MAX_SERIES_CHARS,
    MAX_VALUE_BYTES,
    Key,
    Replacement,
    scope_of,
)
from holdfast.errors import (
    InvalidInputError,
    MissingExtraError,
    StaleHandleError,
    UnavailableError,
)

MAX_NUMBER = 2**63 - 1
_MAX_SCOPE_CHARS = 100
PUBLIC_OPTIONS = frozenset(
    {
        "allow_plaintext",
        "host",
        "region",
        "single_host",
        "ssl_ca",
        "ssl_ca_certs",
        "ssl_cert",
        "ssl_key",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
        "unix_socket",
        "unsafe_may_forget",
    }
)
"""Query keys that hold no secret and stay in a printed or pinned URL (files, switches)."""

_SERIES = re.compile(r"[ -~]+")  # printable ASCII: equal bytes and equal order in every database
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*")
_PORT = re.compile(r"[0-9]{0,5}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE)


class StandbyError(UnavailableError):
    """The server is a replica: what it shows may be old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrl:
    """The parts of a commit store's URL; its text form has no credentials."""

    scheme: str
    host: str = ""
    port: int | None = None
    path: str = ""
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str) -> StoreUrl:
        """Split `url` into decoded parts.

        Raises:
            InvalidInputError: it cannot be read without doubt; the text is not repeated.
        """
        scheme, separator, rest = url.partition(":")
        if not separator or not _SCHEME.fullmatch(scheme) or not rest.startswith("//"):
            raise InvalidInputError("a commit store's URL looks like scheme://host/name")
        scheme = scheme.lower()
        try:
            parts = urlsplit(rest)
        except ValueError:  # its text repeats the URL
            raise _unreadable(scheme) from None
        userinfo, _, address = parts.netloc.rpartition("@")
        host, port = _split_address(address)
        # `u:p@ss#x@host` parses as something else than was meant, with the secret in view.
        strayed = parts.netloc and "@" in parts.path + parts.query
        if strayed or parts.fragment or host is None or "@" in userinfo:
            raise _unreadable(scheme)
        username, colon, password = userinfo.partition(":")
        return cls(
            scheme=scheme,
            host=host,
            port=port,
            path=unquote(parts.path),
            username=unquote(username) or None,
            password=unquote(password) if colon else None,
            options=_options(parts.query, scheme),
        )

    def public(self) -> str:
        """Return the URL without user, password and any option that might be a secret."""
        port = "" if self.port is None else f":{self.port}"
        shown = {k: v for k, v in self.options.items() if k in PUBLIC_OPTIONS}
        query = "?" + urlencode(shown, safe="/") if shown else ""
        return f"{self.scheme}://{self.host}{port}{quote(self.path)}{query}"

    def allow(self, known: Collection[str]) -> None:
        """Refuse options that are not in `known`.

        Raises:
            InvalidInputError: with the nearest known name.
        """
        for name in self.options:
            if name not in known:
                raise InvalidInputError(
                    f"unknown option in the commit store's URL; {suggestion(name, known)}",
                    option=name,
                    scheme=self.scheme,
                )

    def flag(self, name: str) -> bool:
        """Return a switch of the query; absent means off.

        Raises:
            InvalidInputError: neither `true` nor `false`.
        """
        text = self.options.get(name, "false").lower()
        if text not in {"true", "false"}:
            raise InvalidInputError(
                f"{name} is true or false in a commit store's URL", scheme=self.scheme
            )
        return text == "true"


def _unreadable(scheme: str) -> InvalidInputError:
    return InvalidInputError(
        "the commit store's URL cannot be read; write special characters of user, password "
        "and path as %XX (@ is %40, # is %23, / is %2F)",
        scheme=scheme,
    )


def _split_address(address: str) -> tuple[str | None, int | None]:
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, ""
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port):
        return None, None
    return host, int(port) if port else None


def _options(query: str, scheme: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise InvalidInputError("an option occurs twice in the commit store's URL", scheme=scheme)
    return options


def suggestion(name: str, known: Collection[str]) -> str:
    """Return `did you mean ...?` or the list of what is known."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return "known are: " + ", ".join(sorted(known)) if known else "there are none"


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn a failed import in the block into the command that installs the extra `name`."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise MissingExtraError(
            f"this commit store needs a package that is not installed: "
            f"pip install 'holdfast[{name}]'",
            package=exc.name,
        ) from exc


def check_series(series: str) -> str:
    """Return `series` if it can be a series.

    Raises:
        InvalidInputError: empty, too long, or not printable ASCII.
    """
    if len(series) > MAX_SERIES_CHARS or not _SERIES.fullmatch(series):
        raise InvalidInputError(
            f"a series is 1 to {MAX_SERIES_CHARS} printable ASCII characters",
            length=len(series),
        )
    return series


def check_number(number: int, *, lowest: int = 0) -> int:
    """Return `number` if it fits.

    Raises:
        InvalidInputError: below `lowest` or above 2**63 - 1.
    """
    if not lowest <= number <= MAX_NUMBER:
        raise InvalidInputError(f"a number is {lowest} to 2**63 - 1", number=number)
    return number


def check_scope(scope: str) -> str:
    """Return `scope` if it can be one: what a series may be, up to 100 characters, no slash.

    Raises:
        InvalidInputError: it cannot.
    """
    if "/" in check_series(scope) or len(scope) > _MAX_SCOPE_CHARS:
        raise InvalidInputError("a scope has up to 100 characters and no slash", scope=scope[:120])
    return scope


def retired_name(series: str) -> str:
    """Return the name, which no series can have, under which a series' scope is retired."""
    return f"\x01{scope_of(series)}"


def check_key(key: Key) -> Key:
    """Return `key` if it can be a key, else raise `InvalidInputError`."""
    check_series(key.series)
    check_number(key.number)
    return key


def check_value(value: bytes) -> bytes:
    """Return `value` if it is short enough.

    Raises:
        InvalidInputError: longer than a commit store keeps.
    """
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidInputError(
            f"a commit store keeps values of up to {MAX_VALUE_BYTES} bytes", length=len(value)
        )
    return value


def check_changes(series: str, changes: Sequence[Replacement]) -> None:
    """Check what `replace_many` was given, as `compare_and_set` does; else `InvalidInputError`."""
    check_series(series)
    for change in changes:
        check_number(change.number)
        check_value(change.value)


def check_limit(limit: int) -> int:
    """Return `limit` if a scan can have it.

    Raises:
        InvalidInputError: below one.
    """
    if not 1 <= limit <= MAX_NUMBER:
        raise InvalidInputError("a scan's limit is at least 1", limit=limit)
    return limit


def clip_after(after: int) -> int:
    """Return `after` moved into the range of numbers, which changes no scan."""
    return min(max(after, -1), MAX_NUMBER)


class BaseStore(ABC):
    """A commit store's name and identity; a live handle that stays in its process."""

    def __init__(self, url: StoreUrl) -> None:
        """Keep the credential-free URL."""
        self._url = url.public()
        self._identity: str | None = None

    @property
    def url(self) -> str:
        """Return the URL without credentials."""
        return self._url

    def identity(self) -> str:
        """Return the random id made at set-up; asked of the server once.

        Raises:
            NotFoundError: the store was not set up.
        """
        if self._identity is None:
            self._identity = self._read_identity()
        return self._identity

    @abstractmethod
    def _read_identity(self) -> str: ...

    def _retired_error(self, series: str) -> StaleHandleError:
        return StaleHandleError(
            "the table of this handle was removed, made anew or released since: open it again",
            series=series,
            store=self._url,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} holds connections and stays in its process: send its URL "
            "and call connect_commit_store(url) on the other side"
        )
