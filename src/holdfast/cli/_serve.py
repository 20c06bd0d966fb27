"""`holdfast serve ROOT`: let every Lance client, and anything that speaks HTTP, use the tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from holdfast.cli._declare import storage_options
from holdfast.cli._maintain import parse_policy
from holdfast.cli._output import Exit, print_result
from holdfast.cli._vacuum import parse_interval
from holdfast.errors import InvalidInputError
from holdfast.server import Role, ServerSettings, Tokens, new_secret, token_line

_BIND = re.compile(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]*)):([0-9]{1,5})")
_SIZE = re.compile(r"([0-9]{1,9})([kmg]?)b?", re.IGNORECASE)
_MAX_PORT = 65535


def run(root: str | None, new_token: str | None, name: str, **given: Any) -> Exit:  # noqa: ANN401 - settings
    """Serve until a signal, or make a token."""
    if new_token:
        return _make_token(new_token, name)
    if root is None:
        raise InvalidInputError("say what to serve: holdfast serve ROOT")
    settings = settings_of(root, **given)
    from holdfast.server import serve  # noqa: PLC0415 - loads the web libraries

    serve(settings, listening=lambda url: print(f"holdfast serves {root} at {url}", flush=True))
    return Exit.OK


def settings_of(root: str, **given: Any) -> ServerSettings:  # noqa: ANN401 - settings by their names
    """Return the settings behind the options of the command.

    Raises:
        InvalidInputError: one is malformed.
    """
    host, port = parse_bind(given["bind"])
    if given["log_writer"] != (given["advertise"] is not None):
        raise InvalidInputError("a log writer says where it is: --log-writer --advertise URL")
    tokens, upkeep = given["token_file"], given["upkeep"]
    return ServerSettings(
        root=_absolute(root),
        storage_options=storage_options(given["option"]),
        commit_store=given["commit_store"],
        host=host,
        port=port,
        root_path=given["root_path"].rstrip("/"),
        tokens=None if tokens is None else Tokens.read(tokens),
        insecure=given["insecure"],
        hosts=tuple(name.lower() for name in given["host_name"]),
        certificate=given["tls_cert"],
        key=given["tls_key"],
        advertise=given["advertise"],
        log_lease=parse_interval(given["log_lease"], "--log-lease"),
        upkeep=None if upkeep is None else parse_interval(upkeep, "--upkeep"),
        policy=parse_policy(given["settings"]),
        confirm=given["confirm"],
        max_body_bytes=parse_size(given["max_body"]),
        max_buffered_bytes=parse_size(given["max_buffered"]),
        max_answer_bytes=parse_size(given["max_answer"]),
        max_waiting=given["max_waiting"],
    )


def parse_bind(text: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        InvalidInputError: it is not HOST:PORT.
    """
    match = _BIND.fullmatch(text)
    if match is None or int(match[3]) > _MAX_PORT:
        raise InvalidInputError("an address is HOST:PORT, such as 127.0.0.1:8181", given=text[:80])
    return match[1] or match[2] or "0.0.0.0", int(match[3])  # noqa: S104 - needs tokens


def parse_size(text: str) -> int:
    """Return bytes of 64m, 512k or a number.

    Raises:
        InvalidInputError: it is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidInputError("a size is a number, or one with k, m or g", given=text[:40])
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]


def _make_token(role: str, name: str) -> Exit:
    token = new_secret()
    line = token_line(token, Role[role.upper()], name)
    text = f"token (shown once): {token}\nline for the token file: {line}"
    print_result({"token": token, "line": line}, text)
    return Exit.OK


def _absolute(root: str) -> str:
    """Return a folder's full path: pages and answers name it to people in other folders."""
    return root if "://" in root else str(Path(root).absolute())
