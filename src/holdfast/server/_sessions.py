"""Logging in with a browser: a cookie that proves a token without holding it.

The cookie is `NAME:EXPIRY:SIGNATURE`, signed with the hash of the token. Every server with the
same token file knows it, no server keeps it, and a token that is taken out of the file ends it.
It opens the pages alone, which change nothing.

Browsers share cookies between all ports of a host. So a cookie is called after its token: whoever
logs in to one server stays logged in to the other servers of that host, and those behind one
balancer agree on the name, whatever port each has.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from http.cookies import CookieError, SimpleCookie

from holdfast._clock import Clock
from holdfast.server._tokens import Principal, Tokens, digest_of

COOKIE = "holdfast-"
"""What the names of our cookies begin with."""
LASTS = timedelta(hours=12)
_MOST_COOKIES = 20  # that are looked at


def make_cookie(tokens: Tokens, token: str, clock: Clock, *, path: str, secure: bool) -> str | None:
    """Return the header that lets a browser in; None for a token that is none."""
    expiry = int(clock.now() + LASTS.total_seconds())
    value = tokens.sign(token, str(expiry))
    if value is None:
        return None
    name = COOKIE + digest_of(digest_of(token))[:12]
    return _cookie(name, value, path=path, secure=secure, seconds=int(LASTS.total_seconds()))


def end_cookies(
    tokens: Tokens, header: str, clock: Clock, *, path: str, secure: bool
) -> Iterator[str]:
    """Yield the headers that make a browser forget the cookies that let it in here."""
    for name, value in _cookies(header):
        if _verify(tokens, value, clock) is not None:
            yield _cookie(name, "", path=path, secure=secure, seconds=0)


def read_cookie(tokens: Tokens, header: str, clock: Clock) -> Principal | None:
    """Return who logged in; None for nobody, or too long ago."""
    verified = (_verify(tokens, value, clock) for _, value in _cookies(header))
    return next((principal for principal in verified if principal is not None), None)


def _cookies(header: str) -> list[tuple[str, str]]:
    """Return the cookies of ours that a browser sent, those of other servers included."""
    try:
        cookies = SimpleCookie(header)
    except CookieError:
        return []
    ours = [(name, one.value) for name, one in cookies.items() if name.startswith(COOKIE)]
    return ours[:_MOST_COOKIES]


def _verify(tokens: Tokens, value: str, clock: Clock) -> Principal | None:
    parts = value.split(":")
    if len(parts) != 3 or not parts[1].isdecimal() or len(parts[1]) > 12:  # noqa: PLR2004
        return None
    if int(parts[1]) < clock.now():
        return None
    return tokens.verify(*parts)


def _cookie(name: str, value: str, *, path: str, secure: bool, seconds: int) -> str:
    parts = [
        f"{name}={value}",
        f"Path={path or '/'}",
        f"Max-Age={seconds}",
        "HttpOnly",
        "SameSite=Strict",
    ]
    return "; ".join([*parts, "Secure"] if secure else parts)
