"""Logging in with a browser: a cookie that proves a token without holding it.

The cookie is `NAME:EXPIRY:SIGNATURE`, signed with the hash of the token. Every server with the
same token file knows it, no server keeps it, and a token that is taken out of the file ends it.
It opens the pages alone, which change nothing.
"""

from __future__ import annotations

from datetime import timedelta
from http.cookies import CookieError, SimpleCookie

from holdfast._clock import Clock
from holdfast.server._tokens import Principal, Tokens

COOKIE = "holdfast"
LASTS = timedelta(hours=12)


def make_cookie(tokens: Tokens, token: str, clock: Clock, *, path: str, secure: bool) -> str | None:
    """Return the header that lets a browser in; None for a token that is none."""
    expiry = int(clock.now() + LASTS.total_seconds())
    value = tokens.sign(token, str(expiry))
    if value is None:
        return None
    return _cookie(value, path=path, secure=secure, seconds=int(LASTS.total_seconds()))


def end_cookie(*, path: str, secure: bool) -> str:
    """Return the header that makes a browser forget its cookie."""
    return _cookie("", path=path, secure=secure, seconds=0)


def read_cookie(tokens: Tokens, header: str, clock: Clock) -> Principal | None:
    """Return who logged in; None for nobody, or too long ago."""
    try:
        cookies = SimpleCookie(header)
    except CookieError:
        return None
    morsel = cookies.get(COOKIE)
    parts = [] if morsel is None else morsel.value.split(":")
    if len(parts) != 3 or not parts[1].isdecimal() or len(parts[1]) > 12:  # noqa: PLR2004
        return None
    if int(parts[1]) < clock.now():
        return None
    return tokens.verify(*parts)


def _cookie(value: str, *, path: str, secure: bool, seconds: int) -> str:
    parts = [
        f"{COOKIE}={value}",
        f"Path={path or '/'}",
        f"Max-Age={seconds}",
        "HttpOnly",
        "SameSite=Strict",
    ]
    return "; ".join([*parts, "Secure"] if secure else parts)
