"""`holdfast serve ROOT`: let every Lance client, and anything that speaks HTTP, use the tables."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from holdfast.cli._arguments import add_json, storage_options
from holdfast.cli._maintain import parse_policy
from holdfast.cli._output import Exit, print_result
from holdfast.cli._vacuum import parse_interval
from holdfast.errors import InvalidInputError
from holdfast.server import Role, ServerSettings, Tokens, new_secret, token_line

_BIND = re.compile(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]*)):([0-9]{1,5})")
_SIZE = re.compile(r"([0-9]{1,9})([kmg]?)b?", re.IGNORECASE)
_MAX_PORT = 65535


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = verbs.add_parser(
        "serve",
        help="let Lance clients commit, and anything send rows, over HTTP",
        description="Serve the tables below ROOT by Lance's REST namespace, with rows over HTTP, "
        "metrics and pages for people. Any number of servers may serve one root.",
        allow_abbrev=False,
    )
    parser.add_argument("root", metavar="ROOT", nargs="?", help="a folder or bucket prefix")
    parser.add_argument(
        "-o",
        "--option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a storage option by pylance's name; VALUE may be env:NAME; repeat for more",
    )
    parser.add_argument(
        "--commit-store",
        metavar="URL",
        help="what decides the versions of tables that are created here; may be env:NAME",
    )
    parser.add_argument(
        "--bind", metavar="HOST:PORT", default="127.0.0.1:8181", help="default: %(default)s"
    )
    parser.add_argument(
        "--root-path", default="", help="the prefix that a proxy in front takes off"
    )
    _add_log(parser)
    _add_security(parser)
    _add_limits(parser)
    _add_upkeep(parser)
    parser.add_argument(
        "--new-token",
        metavar="ROLE",
        choices=[role.name.lower() for role in Role],
        help="only make a token: read, write or admin; prints it and its line for the file",
    )
    parser.add_argument("--name", default="unnamed", help="the new token's name, for the log")
    add_json(parser)
    parser.set_defaults(run=serve)


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-writer", action="store_true", help="take rows for tables' logs: ?durable=log"
    )
    parser.add_argument("--advertise", metavar="URL", help="where clients reach this log writer")
    parser.add_argument(
        "--log-lease",
        metavar="TIME",
        default="15s",
        help="how long another server waits before it takes over a log; default: %(default)s",
    )


def _add_security(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="lines ROLE SHA256 NAME")
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="serve https")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="the certificate's key")
    parser.add_argument(
        "--host-name",
        metavar="NAME",
        action="append",
        default=[],
        help="another name of this server; without tokens it answers to localhost only",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond this machine without tokens: everybody may read and write",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-body", metavar="SIZE", default="64m", help="default: %(default)s")
    parser.add_argument(
        "--max-buffered",
        metavar="SIZE",
        default="256m",
        help="of all requests together; default: %(default)s",
    )
    parser.add_argument("--max-answer", metavar="SIZE", default="64m", help="default: %(default)s")
    parser.add_argument(
        "--max-waiting",
        metavar="N",
        type=int,
        default=256,
        help="requests of one kind that wait for a thread; default: %(default)s",
    )


def _add_upkeep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--upkeep", metavar="TIME", help="maintain every table so often: 30s, 1m, 1h"
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of the upkeep's policy, as for `holdfast maintain`",
    )
    parser.add_argument("--confirm", action="store_true", help="let upkeep's vacuum delete")


def serve(arguments: argparse.Namespace) -> Exit:
    """Serve until a signal, or make a token."""
    if arguments.new_token:
        return _make_token(arguments)
    if arguments.root is None:
        raise InvalidInputError("say what to serve: holdfast serve ROOT")
    settings = settings_of(arguments)
    from holdfast.server import serve as run  # noqa: PLC0415 - loads the web libraries

    run(
        settings,
        listening=lambda url: print(f"holdfast serves {arguments.root} at {url}", flush=True),
    )
    return Exit.OK


def settings_of(arguments: argparse.Namespace) -> ServerSettings:
    """Return the settings behind the arguments.

    Raises:
        InvalidInputError: one is malformed.
    """
    host, port = parse_bind(arguments.bind)
    if arguments.log_writer != (arguments.advertise is not None):
        raise InvalidInputError("a log writer says where it is: --log-writer --advertise URL")
    tokens = None if arguments.token_file is None else Tokens.read(arguments.token_file)
    return ServerSettings(
        root=_absolute(arguments.root),
        storage_options=storage_options(arguments.option),
        commit_store=arguments.commit_store,
        host=host,
        port=port,
        root_path=arguments.root_path.rstrip("/"),
        tokens=tokens,
        insecure=arguments.insecure,
        hosts=tuple(name.lower() for name in arguments.host_name),
        certificate=arguments.tls_cert,
        key=arguments.tls_key,
        advertise=arguments.advertise,
        log_lease=parse_interval(arguments.log_lease),
        upkeep=None if arguments.upkeep is None else parse_interval(arguments.upkeep),
        policy=parse_policy(arguments.set),
        confirm=arguments.confirm,
        max_body_bytes=parse_size(arguments.max_body),
        max_buffered_bytes=parse_size(arguments.max_buffered),
        max_answer_bytes=parse_size(arguments.max_answer),
        max_waiting=arguments.max_waiting,
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


def _make_token(arguments: argparse.Namespace) -> Exit:
    token, role = new_secret(), Role[arguments.new_token.upper()]
    line = token_line(token, role, arguments.name)
    text = f"token (shown once): {token}\nline for the token file: {line}"
    print_result({"token": token, "line": line}, text, as_json=arguments.json)
    return Exit.OK


def _absolute(root: str) -> str:
    """Return a folder's full path: pages and answers name it to people in other folders."""
    return root if "://" in root else str(Path(root).absolute())
