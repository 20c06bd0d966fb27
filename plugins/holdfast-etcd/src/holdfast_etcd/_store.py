"""`EtcdCommitStore`: names decided by etcd's transactions.

| key                               | what                                              |
|-----------------------------------|---------------------------------------------------|
| PREFIX r SERIES NUL 19 digits     | a record                                          |
| PREFIX b SERIES                   | the boundary of a series, 19 digits               |
| PREFIX x SCOPE                    | the scope was retired                             |
| PREFIX identity                   | the random id made at set-up                      |

A change compares the scope's mark and the boundary in the transaction that makes it. etcd joins
comparisons by "and" only, so "no boundary, or one below" is asked in two parts: the boundary that
this process saw last is below the number, and its key's revision is still the same. When that is
old, the answer brings the new one, and the transaction, which changed nothing, is made again.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast import new_token
from holdfast.arbiter import (
    Key,
    Replacement,
    StoredEntry,
    StoreUrl,
    check_changes,
    check_key,
    check_limit,
    check_number,
    check_scope,
    check_series,
    check_value,
    scope_of,
)
from holdfast.errors import (
    CollectedError,
    CommitStoreRegressedError,
    InvalidInputError,
    NotFoundError,
    StaleHandleError,
    UnavailableError,
)
from holdfast_etcd._gateway import Gateway

_OPTIONS = frozenset({"allow_plaintext", "ssl_ca"})
_TOP = 2**63 - 1
_TRIES = 20
_PAGE = 64  # records; an answer of 16 MiB at most
_AFTER_DIGITS = ":"  # sorts after the digits

# Any: JSON of etcd's gateway.
Json = dict[str, Any]


class EtcdCommitStore:
    """A commit store in the keys of an etcd cluster that begin with a prefix."""

    def __init__(self, url: str) -> None:
        """Read the URL; the server is contacted at the first use.

        Raises:
            InvalidInputError: an unknown option.
        """
        parsed = StoreUrl.parse(url)
        parsed.allow(_OPTIONS)
        plain = _is_loopback(parsed.host) or parsed.flag("allow_plaintext")
        self._url = parsed.public()
        self._prefix = f"holdfast{parsed.path.rstrip('/')}\0"
        self._gateway = Gateway(parsed, plain=plain)
        # Boundaries as last seen, with the revisions of their keys.
        self._boundaries: dict[str, tuple[int, int]] = {}
        self._seen = (0, "")  # the highest revision, and the cluster

    @property
    def url(self) -> str:
        """Return the URL without credentials."""
        return self._url

    def __repr__(self) -> str:
        return f"EtcdCommitStore({self._url!r})"

    def __getstate__(self) -> NoReturn:
        raise TypeError("an EtcdCommitStore stays in its process: send its URL")

    def set_up(self) -> str:
        """Make the identity unless there is one, and return it. Safe to call again, by many."""
        key = f"{self._prefix}identity"
        self._txn([_absent(key)], [_put(key, new_token().encode())], [])
        return self.identity()

    def check(self) -> Sequence[str]:
        """Return what makes this cluster unfit to decide names; empty when it is fit."""
        alarms = self._call("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", [])
        return [
            f"etcd raised the alarm {alarm.get('alarm', 'unknown')}: free space, then disarm it"
            for alarm in alarms
        ]

    def identity(self) -> str:
        """Return the random id made at set-up, with the cluster's: a restored snapshot is another.

        Raises:
            NotFoundError: the store was not set up.
        """
        answer = self._txn([], [_get(f"{self._prefix}identity")], [])
        (found,) = _found(answer)
        if not found:
            raise NotFoundError(
                f"no commit store there; run `holdfast store init {self._url}`", store=self._url
            )
        return f"{_value(found[0]).decode()}-{self._seen[1]}"

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        """Keep `value` unless a value is there; durable when this returns."""
        check_key(key)
        name = self._record(key)
        there = self._change(key, [_absent(name)], [_put(name, check_value(value))])
        return None if there is _DONE else there

    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        """Return the value, or None; with `retired`, of a retired scope as well."""
        check_key(key)
        answer = self._txn([], [_get(self._record(key)), _get(self._mark(key.series))], [])
        record, mark = _found(answer)
        if mark and not retired:
            raise self._retired(key.series)
        return _value(record[0]) if record else None

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`; return whether `expected` was there."""
        check_key(key)
        name = self._record(key)
        try:
            there = self._change(key, [_equals(name, expected)], [_put(name, check_value(value))])
        except CollectedError:
            return False
        return there is _DONE

    def replace_many(self, series: str, changes: Sequence[Replacement]) -> int:
        """Do for each change what `compare_and_set` does: in one transaction where all fit."""
        check_changes(series, changes)
        if not changes:
            return 0
        keys = [Key(series, change.number) for change in changes]
        names = [self._record(key) for key in keys]
        conditions = [_equals(name, one.expected) for name, one in zip(names, changes, strict=True)]
        puts = [_put(name, one.value) for name, one in zip(names, changes, strict=True)]
        with contextlib.suppress(CollectedError):
            if self._apply(min(keys), conditions, puts).get("succeeded"):
                return len(changes)
        # One does not fit, so none was changed.
        return sum(self.compare_and_set(Key(series, number), *rest) for number, *rest in changes)

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        """Return up to `limit` records with numbers above `after`, in order of number.

        Pages after the first are read as of the first one's revision.
        """
        check_series(series)
        check_limit(limit)
        low, high = min(max(after, -1), _TOP) + 1, _TOP
        entries: list[StoredEntry] = []
        revision = 0
        while low <= high and len(entries) < limit:
            count = min(_PAGE, limit - len(entries))
            wanted = self._range(series, low, high, count, newest_first=newest_first)
            if revision:
                wanted["request_range"]["revision"] = str(revision)
            answer = self._txn([], [wanted, _get(self._mark(series))], [])
            records, mark = _found(answer)
            if mark:
                raise self._retired(series)
            revision = revision or int(answer["header"]["revision"])
            page = [StoredEntry(_number(record), _value(record)) for record in records]
            entries += page
            if len(page) < count:
                break
            if newest_first:
                high = page[-1].number - 1
            else:
                low = page[-1].number + 1
        return entries

    def boundary(self, series: str, *, retired: bool = False) -> int:
        """Return the boundary of a series, -1 if it never had one; `retired` as for `get`."""
        check_series(series)
        answer = self._txn([], [_get(self._boundary(series)), _get(self._mark(series))], [])
        boundary, mark = _found(answer)
        if mark and not retired:
            raise self._retired(series)
        return int(_value(boundary[0])) if boundary else -1

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary to `through` and remove the records up to it, in one transaction."""
        check_series(series)
        if check_number(through, lowest=-1) < 0 or self.boundary(series) >= through:
            self.boundary(series)  # refuses a retired scope
            return 0
        first, last = self._span(series, 0, through)
        raised = _put(self._boundary(series), _digits(through).encode())
        removed = {"request_delete_range": {"key": _b64(first), "range_end": _b64(last)}}
        try:
            answer = self._apply(Key(series, through), [], [raised, removed])
        except CollectedError:  # another collector was faster, and went at least as far
            return 0
        if answer.get("succeeded"):
            return int(answer["responses"][1]["response_delete_range"].get("deleted", 0))
        raise UnavailableError("neither collected nor refused; ask again", store=self._url)

    def retire(self, scope: str) -> None:
        """Refuse every verb on the series of a scope from now on; durable when this returns."""
        self._txn([], [_put(self._mark(check_scope(scope)), b"retired")], [])

    def close(self) -> None:
        """Close the connections of this process."""
        self._gateway.close()

    def _change(self, key: Key, conditions: Sequence[Json], changes: Sequence[Json]) -> Any:  # noqa: ANN401
        """Apply changes; return `_DONE`, or the record that is there instead (None: nothing)."""
        answer = self._apply(key, conditions, changes)
        if answer.get("succeeded"):
            return _DONE
        record = _found(answer)[0]
        return _value(record[0]) if record else None

    def _apply(self, key: Key, conditions: Sequence[Json], changes: Sequence[Json]) -> Json:
        """Apply changes if the scope lives and the number is above the boundary.

        Raises:
            CollectedError, StaleHandleError: one of these does not hold.
            UnavailableError: no usable answer.
        """
        boundary, mark = self._boundary(key.series), self._mark(key.series)
        looks = [_get(self._record(key)), _get(boundary), _get(mark)]
        for _ in range(_TRIES):
            revision, upto = self._boundaries.get(key.series, (0, -1))
            above = [] if key.number > upto else [_NEVER]  # then only the answer's looks count
            answer = self._txn(
                [_absent(mark), _unchanged(boundary, revision), *conditions, *above],
                changes,
                looks,
            )
            if answer.get("succeeded"):
                return answer
            _, limit, retired = _found(answer)
            if retired:
                raise self._retired(key.series)
            seen = (int(limit[0]["mod_revision"]), int(_value(limit[0]))) if limit else (0, -1)
            if seen[1] >= key.number:
                raise CollectedError(
                    "this number was decided and its record collected", **key._asdict()
                )
            if seen[0] == revision:
                return answer
            self._boundaries[key.series] = seen
        raise UnavailableError("the boundary moved at every look; ask again", store=self._url)

    def _txn(
        self, conditions: Sequence[Json], then: Sequence[Json], otherwise: Sequence[Json]
    ) -> Json:
        return self._call(
            "/v3/kv/txn",
            {"compare": list(conditions), "success": list(then), "failure": list(otherwise)},
        )

    def _call(self, path: str, body: Json) -> Json:
        """Send a request, and notice a cluster that went back in time.

        Raises:
            CommitStoreRegressedError: its revision is lower than one seen before this request.
        """
        revision, cluster = self._seen
        answer = self._gateway.call(path, body)
        header = answer.get("header", {})
        now, here = int(header.get("revision", revision)), str(header.get("cluster_id", cluster))
        if now < revision or (cluster and here != cluster):
            raise CommitStoreRegressedError(
                "this etcd cluster went back in time, or is another one: stop writing, see "
                "docs/troubleshooting.md",
                store=self._url,
                seen=revision,
                now=now,
            )
        if now > self._seen[0] or not cluster:
            self._seen = (now, here)
        return answer

    def _retired(self, series: str) -> StaleHandleError:
        return StaleHandleError(
            "the table of this handle was removed, made anew or released since: open it again",
            series=series,
            store=self._url,
        )

    def _record(self, key: Key) -> str:
        return f"{self._prefix}r{key.series}\0{_digits(key.number)}"

    def _span(self, series: str, low: int, high: int) -> tuple[str, str]:
        """Return the first key of a range of records, and the one after its last."""
        start = f"{self._prefix}r{series}\0"
        last = _AFTER_DIGITS if high == _TOP else _digits(high + 1)
        return start + _digits(low), start + last

    def _range(self, series: str, low: int, high: int, limit: int, *, newest_first: bool) -> Json:
        first, last = self._span(series, low, high)
        return {
            "request_range": {
                "key": _b64(first),
                "range_end": _b64(last),
                "limit": str(limit),
                "sort_target": "KEY",
                "sort_order": "DESCEND" if newest_first else "ASCEND",
            }
        }

    def _boundary(self, series: str) -> str:
        return f"{self._prefix}b{series}"

    def _mark(self, series: str) -> str:
        return f"{self._prefix}x{scope_of(series)}"


_DONE = object()


def connect(url: str) -> EtcdCommitStore:
    """Return the commit store at an `etcd:` URL."""
    return EtcdCommitStore(url)


def _is_loopback(host: str) -> bool:
    if host in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digits(number: int) -> str:
    if not 0 <= number <= _TOP:
        raise InvalidInputError("a number is 0 to 2**63 - 1", number=number)
    return f"{number:019d}"


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _get(key: str) -> Json:
    return {"request_range": {"key": _b64(key)}}


def _put(key: str, value: bytes) -> Json:
    return {"request_put": {"key": _b64(key), "value": _b64(value)}}


def _absent(key: str) -> Json:
    return {
        "key": _b64(key),
        "target": "CREATE",
        "result": "EQUAL",
        "create_revision": "0",
    }


def _unchanged(key: str, revision: int) -> Json:
    return {"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def _equals(key: str, value: bytes) -> Json:
    return {"key": _b64(key), "target": "VALUE", "result": "EQUAL", "value": _b64(value)}


_NEVER: Json = _unchanged("\0", -1)  # no key has such a revision


def _found(answer: Json) -> list[list[Json]]:
    """Return the key-value pairs of each range in an answer; other answers count as empty."""
    return [part.get("response_range", {}).get("kvs", []) for part in answer.get("responses", [])]


def _value(pair: Json) -> bytes:
    return base64.b64decode(pair.get("value", ""))


def _number(pair: Json) -> int:
    return int(base64.b64decode(pair["key"])[-19:])
