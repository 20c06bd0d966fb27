"""`RedisCommitStore`: names decided by scripts inside a Redis server that forgets nothing.

The URL is `redis://user:password@host:port/database` or, over TLS, `rediss://...`. Each verb
is one script, which Redis runs alone; a verb that returned is in the append-only file on
disk, and so is everything a verb has seen.

Redis as it comes out of the box forgets: it writes to disk later or not at all, and may
evict keys. So before the first verb the server's settings are read, and one that can
forget is refused with `UnsafeStoreError`. It needs

    appendonly yes
    appendfsync always
    maxmemory-policy noeviction

Options:
    unsafe_may_forget: `true` skips that check. A crash or a full memory may then lose
        decisions that were acknowledged, and a name may be decided twice: two writers
        both believe they won, and rows of one of them vanish from the table. Holdfast
        notices some of these losses afterwards and stops; it cannot undo them.
    allow_plaintext: `true` lets `redis://` go to other machines without TLS. Passwords and
        records then travel in the clear.
    ssl_ca_certs: a file of certificate authorities for `rediss://`.

Warning:
    Redis replicates after it has answered. A failover to a replica (Sentinel, cluster,
    managed services) may lose the newest decisions whatever the settings say: let the
    server restart from its own disk instead.

Least rights: `~holdfast:* +evalsha +script|load +config|get +info +get +set +setnx +hget
+hset +hsetnx +hdel +zadd +zrem +zrangebylex +zrevrangebylex`.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from holdfast._ids import Ids, RandomIds
from holdfast.arbiter._commit_store import Key, Replacement, StoredEntry, scope_of
from holdfast.arbiter.stores._base import (
    BaseStore,
    StoreUrl,
    check_changes,
    check_key,
    check_limit,
    check_number,
    check_scope,
    check_series,
    check_value,
    clip_after,
    extra,
)
from holdfast.errors import (
    CollectedError,
    CommitStoreRegressedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsafeStoreError,
    UnsupportedError,
)

with extra("redis"):
    from redis import Redis
    from redis import exceptions as failures
    from redis.backoff import NoBackoff
    from redis.retry import Retry

CONNECT_TIMEOUT = timedelta(seconds=10)
ANSWER_TIMEOUT = timedelta(seconds=30)

_OPTIONS = frozenset({"allow_plaintext", "ssl_ca_certs", "unsafe_may_forget"})
_IDENTITY = "holdfast:identity"
_DIGITS = 19  # of 2**63 - 1
_NEEDED = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}

_SENTINEL = (
    "this is a Sentinel, which keeps no data: give the server itself, and do not let Sentinel fail "
    "over, since a replica may lack the newest decisions"
)

# KEYS: records (hash), index (sorted set), boundary, the mark of a retired scope. Numbers are
# padded to equal length, so that comparing text compares numbers; scores are doubles and
# would mix up large ones.
# Redis does not undo a script that fails half-way, for instance at a command the user may
# not run. So commands that change nothing (`XX`, empty names) ask for every right first.
_ALIVE = """
if redis.call('GET', KEYS[4]) then return redis.error_reply('HOLDFASTRETIRED') end
"""
_PUT = f"""{_ALIVE}
local boundary = redis.call('GET', KEYS[3])
if boundary and ARGV[1] <= boundary then return {{2, boundary}} end
redis.call('ZADD', KEYS[2], 'XX', 0, '')
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 then
  return {{1, redis.call('HGET', KEYS[1], ARGV[1])}}
end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return {{0}}
"""
_REPLACE = f"""{_ALIVE}
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
_REPLACE_MANY = f"""{_ALIVE}
local replaced = 0
for place = 1, #ARGV, 3 do
  if redis.call('HGET', KEYS[1], ARGV[place]) == ARGV[place + 1] then
    redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 2])
    replaced = replaced + 1
  end
end
return replaced
"""
_SCAN = f"""{_ALIVE}
local numbers
if ARGV[3] == '1' then
  numbers = redis.call('ZREVRANGEBYLEX', KEYS[2], '+', ARGV[1], 'LIMIT', 0, ARGV[2])
else
  numbers = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, ARGV[2])
end
local found = {{}}
for _, number in ipairs(numbers) do
  found[#found + 1] = number
  found[#found + 1] = redis.call('HGET', KEYS[1], number)
end
return found
"""
_COLLECT = f"""{_ALIVE}
local boundary = redis.call('GET', KEYS[3])
if boundary and ARGV[1] <= boundary then return 0 end
local numbers = redis.call('ZRANGEBYLEX', KEYS[2], '-', '[' .. ARGV[1])
redis.call('HDEL', KEYS[1], '')
redis.call('ZREM', KEYS[2], '')
redis.call('SET', KEYS[3], ARGV[1])
for _, number in ipairs(numbers) do
  redis.call('HDEL', KEYS[1], number)
  redis.call('ZREM', KEYS[2], number)
end
return #numbers
"""
_GET_RETIRED = "return redis.call('HGET', KEYS[1], ARGV[1])"
_GET = _ALIVE + _GET_RETIRED
_BOUNDARY_RETIRED = "return redis.call('GET', KEYS[3])"
_BOUNDARY = _ALIVE + _BOUNDARY_RETIRED
_RETIRE = "redis.call('SET', KEYS[1], '1') return 1"
_SET_UP = "redis.call('SETNX', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])"
_READ_IDENTITY = "return redis.call('GET', KEYS[1])"


_SCRIPTS = (
    _PUT,
    _REPLACE,
    _REPLACE_MANY,
    _SCAN,
    _COLLECT,
    _GET,
    _GET_RETIRED,
    _BOUNDARY_RETIRED,
    _BOUNDARY,
    _RETIRE,
    _SET_UP,
    _READ_IDENTITY,
)


class RedisCommitStore(BaseStore):
    """A commit store in one Redis server.

    Attributes:
        unsafe_may_forget: the check of the server's settings was switched off.
    """

    def __init__(self, url: str, *, ids: Ids | None = None) -> None:
        """Read the URL; the server is contacted at the first use.

        Raises:
            InvalidInputError: an unknown option, a database that is no number, or
                `redis://` to another machine without `allow_plaintext=true`.
        """
        parsed = StoreUrl.parse(url)
        parsed.allow(_OPTIONS)
        _refuse_plaintext(parsed)
        super().__init__(parsed)
        self.unsafe_may_forget = parsed.flag("unsafe_may_forget")
        self._password = parsed.password or ""
        self._ids = ids or RandomIds()
        self._fit = self.unsafe_may_forget
        self._client = _client(parsed)
        # Any: scripts answer integers, bytes, or lists of them.
        self._scripts: dict[str, Callable[..., Any]] = {
            text: self._client.register_script(text) for text in _SCRIPTS
        }

    def set_up(self) -> str:
        """Make the identity unless there is one, and return it. Safe to call again, by many.

        Raises:
            UnsafeStoreError: the server can forget.
            UnavailableError: no usable answer; call again.
        """
        identity: bytes = self._run(_SET_UP, [_IDENTITY], self._ids.token())
        return identity.decode()

    def check(self) -> Sequence[str]:
        """Return what makes this server unfit to decide names; empty when it is fit."""
        with self._translate_errors():
            mode: dict[str, object] = self._client.info("server")
            if mode.get("redis_mode") == "sentinel":
                return [_SENTINEL]
            try:
                settings = {name: self._setting(name) for name in _NEEDED}
                state: dict[str, object] = self._client.info("replication")
                cluster: dict[str, object] = self._client.info("cluster")
            except failures.ResponseError as exc:
                if str(exc).startswith("NOAUTH"):
                    raise
                return [
                    "the server does not let this user read its settings: allow CONFIG GET and "
                    "INFO, or set " + _advice(_NEEDED) + " and give unsafe_may_forget=true"
                ]
        problems = [
            f"{name} is {settings[name] or 'unknown'}: set {_advice({name: needed})}"
            for name, needed in _NEEDED.items()
            if settings[name] != needed
        ]
        if state.get("role") != "master":
            problems.append("the server is a replica: what it shows may be old; use the primary")
        if cluster.get("cluster_enabled"):
            problems.append("the server is part of a cluster: a failover loses decisions")
        return problems

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        """Keep `value` unless a value is there; durable when this returns.

        Raises:
            CollectedError: the number is not above the boundary.
            UnsafeStoreError: the server can forget.
            UnavailableError: no usable answer; it may or may not be stored.
        """
        check_key(key)
        answer = self._on(key.series, _PUT, _pad(key.number), check_value(value))
        if answer[0] == 0:
            return None
        if answer[0] == 1:
            return bytes(answer[1])
        raise CollectedError(
            "this number was decided and its record collected",
            **key._asdict(),
            boundary=int(answer[1]),
        )

    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        """Return the value, or None; with `retired`, of a retired scope as well."""
        check_key(key)
        script = _GET_RETIRED if retired else _GET
        value: bytes | None = self._on(key.series, script, _pad(key.number))
        return value

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`; return whether `expected` was there."""
        check_key(key)
        number = _pad(key.number)
        return bool(self._on(key.series, _REPLACE, number, expected, check_value(value)))

    def replace_many(self, series: str, changes: Sequence[Replacement]) -> int:
        """Do for each change what `compare_and_set` does, in one script."""
        check_changes(series, changes)
        arguments: list[bytes | str] = []
        for number, expected, value in changes:
            arguments += [_pad(number), expected, value]
        return int(self._on(series, _REPLACE_MANY, *arguments))

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        """Return up to `limit` records with numbers above `after`, in order of number.

        Raises:
            CommitStoreRegressedError: records are gone that were not collected.
            UnavailableError: no answer.
        """
        after = clip_after(after)
        start = "-" if after < 0 else f"({_pad(after)}"
        answer = self._on(series, _SCAN, start, check_limit(limit), int(newest_first))
        # The index is a key of its own, so an evicted hash of records leaves it behind.
        if None in answer:  # the index names them still: their key was evicted or deleted
            raise CommitStoreRegressedError(
                "the commit store lost records of decisions: stop writing, see "
                "docs/troubleshooting.md",
                series=series,
                store=self.url,
            )
        return [StoredEntry(int(n), v) for n, v in zip(answer[::2], answer[1::2], strict=True)]

    def boundary(self, series: str, *, retired: bool = False) -> int:
        """Return the boundary of a series, -1 if it never had one; `retired` as for `get`."""
        answer = self._on(series, _BOUNDARY_RETIRED if retired else _BOUNDARY)
        return -1 if answer is None else int(answer)

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary to `through` and remove the records up to it, in one script."""
        check_series(series)
        if check_number(through, lowest=-1) < 0:
            self.boundary(series)  # refuses a retired scope
            return 0
        return int(self._on(series, _COLLECT, _pad(through)))

    def retire(self, scope: str) -> None:
        """Refuse every verb on the series of a scope from now on; durable when this returns."""
        self._run(_RETIRE, [_retired_key(check_scope(scope))])

    def close(self) -> None:
        """Close the connections of this process."""
        self._client.close()

    def _read_identity(self) -> str:
        identity: bytes | None = self._run(_READ_IDENTITY, [_IDENTITY])
        if identity is None:
            raise NotFoundError(
                f"no commit store there; create it with `holdfast store init {self.url}`",
                store=self.url,
            )
        return identity.decode()

    def _on(self, series: str, script: str, *arguments: bytes | str | int) -> Any:  # noqa: ANN401
        # In braces: a cluster would keep the three together. `s:` because `{}` counts as none.
        prefix = f"holdfast:{{s:{check_series(series)}}}"
        keys = [*(f"{prefix}:{part}" for part in _PARTS), _retired_key(scope_of(series))]
        try:
            return self._run(script, keys, *arguments)
        except _ScopeRetired:
            raise self._retired_error(series) from None

    def _run(self, script: str, keys: list[str], *arguments: bytes | str | int) -> Any:  # noqa: ANN401
        # Asked once per handle: it takes several requests. A setting that is changed later shows as
        # a commit store that forgot.
        self._refuse_forgetful()
        with self._translate_errors():
            return self._scripts[script](keys=keys, args=arguments)

    def _refuse_forgetful(self) -> None:
        if self._fit:
            return
        problems = self.check()
        if problems:
            raise UnsafeStoreError(
                "this Redis server can forget a decision: " + "; ".join(problems), store=self.url
            )
        self._fit = True

    def _setting(self, name: str) -> str:
        return str(self._client.config_get(name).get(name) or "")

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except failures.RedisError as exc:
            if "HOLDFASTRETIRED" in str(exc):
                raise _ScopeRetired from None
            # Not `from exc`: the client's error carries the address it connected to.
            raise self._meaning(exc) from None

    def _meaning(self, exc: failures.RedisError) -> HoldfastError:
        reason = self._clean(str(exc))
        refused = (
            failures.AuthenticationError,
            failures.AuthorizationError,
            failures.NoPermissionError,
            failures.ReadOnlyError,
        )
        words = ("NOAUTH", "WRONGPASS", "user executing the script")
        if isinstance(exc, refused) or any(word in str(exc) for word in words):
            message = "Redis refused: check user, password and rights"
            if not self._password:
                message += (
                    ". The URL has no password: put one with credentials into "
                    "HOLDFAST_COMMIT_STORE_URL, or give it with --commit-store env:NAME"
                )
            return PermissionDeniedError(message, store=self.url, reason=reason)
        if isinstance(exc, failures.MovedError | failures.AskError):
            message = "this is a Redis cluster; a commit store needs a single server"
            return UnsupportedError(message, store=self.url)
        return UnavailableError("Redis gave no usable answer", store=self.url, reason=reason)

    def _clean(self, text: str) -> str:
        """Return a server's words without our password, should it repeat it."""
        for secret in (self._password, quote(self._password, safe="")):
            text = text.replace(secret, "***") if secret else text
        return text


_PARTS = ("records", "index", "boundary")


class _ScopeRetired(Exception):  # noqa: N818 - a word between two functions here
    """A script met the mark of a retired scope."""


def _retired_key(scope: str) -> str:
    return f"holdfast:retired:{scope}"


def connect(url: str) -> RedisCommitStore:
    """Return the commit store at a `redis:` or `rediss:` URL."""
    return RedisCommitStore(url)


def _client(url: StoreUrl) -> Redis:
    name = url.path.strip("/") or "0"
    if not name.isdecimal():
        raise InvalidInputError("a Redis database is a number: redis://host:port/0")
    return Redis(
        host=url.host.strip("[]") or "localhost",
        port=url.port or 6379,
        db=int(name),
        username=url.username,
        password=url.password,
        socket_connect_timeout=CONNECT_TIMEOUT.total_seconds(),
        socket_timeout=ANSWER_TIMEOUT.total_seconds(),
        # The library would send a command again after a lost answer; only the arbiter may.
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        ssl=url.scheme == "rediss",
        ssl_ca_certs=url.options.get("ssl_ca_certs"),
    )


def _refuse_plaintext(url: StoreUrl) -> None:
    if url.scheme != "rediss" and not url.flag("allow_plaintext") and not _is_loopback(url.host):
        raise InvalidInputError(
            "redis:// would send password and records in the clear; use rediss://, or give "
            "allow_plaintext=true if the network is yours",
            store=url.public(),
        )


def _is_loopback(host: str) -> bool:
    if host in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _pad(number: int) -> str:
    return f"{number:0{_DIGITS}d}"


def _advice(settings: dict[str, str]) -> str:
    return ", ".join(f"`{name} {value}`" for name, value in settings.items())
