"""What handlers take and give, and errors as the protocol speaks of them.

Codes are those of Lance's namespace protocol; each has one HTTP status here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import ErrorKind, HoldfastError, InvalidInputError
from holdfast.server._tokens import ANYONE, Principal

UNSUPPORTED, INVALID, DENIED, UNAUTHENTICATED = 0, 13, 15, 16
UNAVAILABLE, INTERNAL, THROTTLED = 17, 18, 21

_STATUS: Mapping[int, int] = {
    0: 406,
    1: 404,
    2: 409,
    3: 409,
    4: 404,
    5: 409,
    6: 404,
    7: 409,
    8: 404,
    9: 409,
    10: 404,
    11: 404,
    12: 404,
    13: 400,
    14: 409,
    15: 403,
    16: 401,
    17: 503,
    18: 500,
    19: 409,
    20: 400,
    21: 429,
}
_CODES: Mapping[ErrorKind, int] = {
    ErrorKind.ALREADY_EXISTS: 5,
    ErrorKind.BACKPRESSURE: 21,
    ErrorKind.BUSY: 17,
    ErrorKind.COLLECTED: 14,
    ErrorKind.COMMIT_STORE_REGRESSED: 19,
    ErrorKind.CONFLICT: 14,
    ErrorKind.CORRUPT: 19,
    ErrorKind.FENCED: 14,
    ErrorKind.FOREIGN_VERSION: 19,
    ErrorKind.INVALID_INPUT: 13,
    ErrorKind.NOT_FOUND: 4,
    ErrorKind.PERMISSION_DENIED: 15,
    ErrorKind.PIN_MISMATCH: 19,
    ErrorKind.SEALED: 19,
    ErrorKind.SNAPSHOT_EXPIRED: 17,
    ErrorKind.STALE_HANDLE: 14,
    ErrorKind.STALE_WORK: 14,
    ErrorKind.UNAVAILABLE: 17,
    ErrorKind.UNSAFE_STORE: 19,
    ErrorKind.UNSUPPORTED: 0,
    ErrorKind.UPGRADE: 19,
    ErrorKind.WAL_GAP: 19,
}
_UNKNOWN_STATUS = 504
"""A commit whose outcome could not be learnt: whoever decides gave no answer in time."""

RETRY_SECONDS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, read and authenticated.

    Attributes:
        id: the parts of the table's or namespace's name.
        query: the parameters behind `?`, the last of each name.
        body: the bytes that came with it.
        headers: in lower case.
        principal: who sent it.
        request_id: what it is called in the log.
    """

    id: tuple[str, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    principal: Principal = ANYONE
    request_id: str = ""

    def fields(self) -> dict[str, Any]:  # Any: JSON
        """Return the body as a JSON object; nothing, or the word `null`, is an empty one.

        Raises:
            InvalidInputError: it is none.
        """
        if not self.body.strip():
            return {}
        try:
            parsed = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError("the body is no JSON", reason=type(error).__name__) from None
        if parsed is None:
            return {}
        if not isinstance(parsed, dict):
            raise InvalidInputError("the body is no JSON object")
        return parsed

    def text(self, fields: Mapping[str, Any], name: str) -> str | None:
        """Return a field of text, or None.

        Raises:
            InvalidInputError: it is something else.
        """
        value = fields.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidInputError("this field is text", field=name)
        return value

    def number(self, fields: Mapping[str, Any], name: str) -> int | None:
        """Return a field that is a whole number from 0, or None.

        Raises:
            InvalidInputError: it is something else.
        """
        value = fields.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise InvalidInputError("this field is a whole number from 0", field=name)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent back."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(
    fields: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return an answer of JSON; fields without a value are left out."""
    kept = {key: value for key, value in fields.items() if value is not None}
    body = json.dumps(kept, default=str, separators=(",", ":")).encode()
    return Answer(status=status, body=body, headers=headers or {})


def problem(code: int, text: str, *, kind: str, request_id: str = "", status: int = 0) -> Answer:
    """Return the protocol's error."""
    status = status or _STATUS[code]
    fields = {
        "error": text[:2000],
        "code": code,
        "type": f"holdfast/{kind}",
        "status": status,
        "instance": request_id or None,
    }
    headers = {"retry-after": str(RETRY_SECONDS)} if status in {429, 503} else {}
    if status == 401:  # noqa: PLR2004 - HTTP's own number
        headers["www-authenticate"] = "Bearer"
    return json_answer(fields, status=status, headers=headers)


def problem_of(error: HoldfastError, request_id: str = "") -> Answer:
    """Return an error of ours in the protocol's form."""
    kind = error.kind
    if kind in {ErrorKind.COMMIT_UNKNOWN, ErrorKind.POISONED}:
        return problem(
            INTERNAL, str(error), kind=kind.value, request_id=request_id, status=_UNKNOWN_STATUS
        )
    given = getattr(type(error), "code", None)  # of Lance's class, not a detail
    code = int(given) if isinstance(given, int) else _CODES.get(kind, INTERNAL)
    return problem(code, str(error), kind=kind.value, request_id=request_id)
