"""What a server is told when it is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from holdfast.errors import InvalidInputError
from holdfast.options import is_loopback
from holdfast.server._tokens import Tokens
from holdfast.upkeep import Policy

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a server runs.

    Attributes:
        root: the folder or bucket prefix of the tables.
        storage_options: pylance's storage options; never handed out.
        commit_store: for tables created through the server; see `create_arbiter`.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        root_path: the prefix that a proxy in front takes off.
        tokens: who may do what; None lets everybody who reaches the server do all.
        insecure: listen beyond this machine without tokens all the same.
        hosts: names by which the server may be called when there are no tokens, beside
            those of this machine.
        certificate: the file of a TLS certificate, with its chain.
        key: the file of its key.
        upkeep: how often tables are maintained; never by default.
        policy: when a table needs what.
        confirm: let upkeep delete.
        advertise: the address under which clients reach this server, if it writes logs.
        log_lease: how long after its last sign of life another server takes over a log.
        look: how often tables are looked at, for the pages and metrics.
        max_body_bytes: the largest request.
        max_buffered_bytes: what all requests together may hold in memory.
        max_answer_bytes: the largest answer of a query.
        row_threads: how many inserts and queries are under way.
        catalog_threads: how many other requests are under way.
        max_waiting: how many requests of each kind may wait for a thread.
        header_timeout: how long a client may take to send a request's head.
        body_timeout: how long it may be silent while it sends a body.
        drain: how long requests under way may take after SIGTERM.
    """

    root: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    commit_store: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = 8181
    root_path: str = ""
    tokens: Tokens | None = None
    insecure: bool = False
    hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    upkeep: timedelta | None = None
    policy: Policy = field(default_factory=Policy)
    confirm: bool = False
    advertise: str | None = None
    log_lease: timedelta = timedelta(seconds=15)
    look: timedelta = timedelta(seconds=30)
    max_body_bytes: int = 64 * _MIB
    max_buffered_bytes: int = 256 * _MIB
    max_answer_bytes: int = 64 * _MIB
    row_threads: int = 64
    catalog_threads: int = 32
    max_waiting: int = 256
    header_timeout: timedelta = timedelta(seconds=20)
    body_timeout: timedelta = timedelta(seconds=20)
    drain: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        """Refuse what would be open to strangers by mistake.

        Raises:
            InvalidInputError: an address beyond this machine without tokens, half of a TLS
                pair, a malformed prefix or limits below 1.
        """
        if not is_loopback(self.host) and self.tokens is None and not self.insecure:
            raise InvalidInputError(
                "an address beyond this machine needs tokens, or everybody may write: give "
                "--token-file, or say --insecure",
                host=self.host,
            )
        if (self.certificate is None) != (self.key is None):
            raise InvalidInputError("TLS needs a certificate and its key")
        if self.root_path and not self.root_path.startswith("/"):
            raise InvalidInputError("a root path starts with a slash", root_path=self.root_path)
        limits = (
            self.max_body_bytes,
            self.max_buffered_bytes,
            self.max_answer_bytes,
            self.row_threads,
            self.catalog_threads,
            self.max_waiting,
        )
        if min(limits) < 1:
            raise InvalidInputError("a server's limits are at least 1")
