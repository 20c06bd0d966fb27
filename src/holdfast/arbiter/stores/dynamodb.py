"""`DynamoCommitStore`: names decided by conditional transactions in one DynamoDB table.

The URL is `dynamodb:///TABLE?region=REGION`; credentials come from AWS's usual places (variables,
profile, role), or as `dynamodb://KEY:SECRET@/TABLE`. A host and port in it name another endpoint:
`dynamodb://127.0.0.1:8000/TABLE?region=us-east-1`. One that is not on this machine is reached by
https, unless the URL says `allow_plaintext=true`.

What the table holds, by `series` (partition key) and `number` (sort key):

| series        | number | attributes      | what                                                |
|---------------|--------|-----------------|-----------------------------------------------------|
| the series    | 0 ...  | value           | a record                                            |
| the series    | -1     | upto, changes   | its head: the boundary, and how often it changed    |
| a mark, scope | 0 - 15 |                 | the scope was retired; 16 of them, see below        |
| a mark, meta  | 0      | value           | the store's identity                                |

Every change is one transaction: the record, the head (its boundary is compared, its count of
changes goes up), and a look at the scope's mark. Every read is strongly consistent. `scan` reads
the head after the records: if its count is one that the series had before, as this process knows
from an earlier look and its own changes since, nothing changed in between. Else it reads again.

`collect` raises the boundary in a transaction; from then on the records up to it count as gone.
They are deleted afterwards, and by the next `collect` if this one dies.

Two transactions that touch one item at the same time cancel one of them (`TransactionConflict`):
it was not applied, and is sent again a few times. A scope has 16 marks, by a hash of the series,
so that its series seldom meet there; `retire` writes all of them in one transaction.

One region decides. A global table takes writes in several, and the last one wins: `check` refuses
it, and a time to live as well, since it deletes records by itself.

Least rights: `dynamodb:GetItem, BatchGetItem, Query, PutItem, UpdateItem, DeleteItem,
ConditionCheckItem, BatchWriteItem, DescribeTable, DescribeTimeToLive` on the table, and
`CreateTable` for `holdfast store init`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import quote

from holdfast._clock import Clock, SystemClock
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
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsafeStoreError,
    UnsupportedError,
)
from holdfast.options import is_loopback

with extra("dynamodb"):
    import botocore.config
    import botocore.exceptions as failures
    import botocore.session

CONNECT_TIMEOUT = timedelta(seconds=10)
ANSWER_TIMEOUT = timedelta(seconds=30)

_OPTIONS = frozenset({"allow_plaintext", "region"})
_MARK = "\u2020"  # begins no series: those are ASCII
_MARKS = 16
_HEAD = -1
_META = f"{_MARK}meta/identity"  # no scope has a slash
_CONFLICTS = 12
_FIRST_WAIT_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 0.2
_UNSTEADY_READS = 20
_DELETE_BATCH = 25
_PAGE_RECORDS = 1000
_MOST_HEADS = 10_000
_TABLE_SECONDS = 60.0
_MEANINGS: Mapping[str, type[HoldfastError]] = {
    "AccessDeniedException": PermissionDeniedError,
    "ExpiredTokenException": PermissionDeniedError,
    "IncompleteSignature": PermissionDeniedError,
    "InvalidClientTokenId": PermissionDeniedError,
    "InvalidSignatureException": PermissionDeniedError,
    "MissingAuthenticationToken": PermissionDeniedError,
    "MissingAuthenticationTokenException": PermissionDeniedError,
    "UnrecognizedClientException": PermissionDeniedError,
    "ResourceNotFoundException": NotFoundError,
    "ValidationException": UnsupportedError,
}
_CREDENTIALS = (
    failures.NoCredentialsError,
    failures.PartialCredentialsError,
    failures.CredentialRetrievalError,
)
_CANCELLED = "TransactionCanceledException"
_CONFLICT = {"TransactionConflict"}
_FAILED = "ConditionalCheckFailed"

# Any: items and answers are dicts as DynamoDB's own JSON has them.
Item = dict[str, Any]


class _SeriesHead(NamedTuple):
    """The boundary of a series, and how often it changed."""

    upto: int
    changes: int


class DynamoCommitStore(BaseStore):
    """A commit store in one DynamoDB table."""

    def __init__(self, url: str, *, ids: Ids | None = None, clock: Clock | None = None) -> None:
        """Read the URL; the service is contacted at the first use.

        Raises:
            InvalidInputError: an unknown option, no table, or no region.
        """
        parsed = StoreUrl.parse(url)
        parsed.allow(_OPTIONS)
        super().__init__(parsed)
        self._table = parsed.path.strip("/")
        if not self._table or "/" in self._table:
            raise InvalidInputError(
                "the commit store's URL names a table: dynamodb:///TABLE?region=REGION"
            )
        self._place = _place(parsed)
        self._secret = parsed.password or ""
        self._ids = ids or RandomIds()
        self._clock = clock or SystemClock()
        self._clients: dict[int, Any] = {}
        self._fit = False
        self._lock = threading.Lock()  # guards _heads
        # As last seen, with our own changes since: a series has had at least as many.
        self._heads: dict[str, _SeriesHead] = {}

    def set_up(self) -> str:
        """Create the table unless it is there, and return the identity. Safe to call again.

        Raises:
            PermissionDeniedError: these credentials may not.
            UnsafeStoreError: the table that is there can forget.
            UnavailableError: no usable answer; call again.
        """
        self._create_table()
        self._refuse_unfit()
        item = {**_item(_META, 0), "value": {"B": self._ids.token().encode()}}
        with contextlib.suppress(_ConditionFailedError):
            self._write([{"Put": {"Item": item, "ConditionExpression": _ABSENT}}])
        return self.identity()

    def check(self) -> Sequence[str]:
        """Return what makes this table unfit to decide names; empty when it is fit."""
        table = self._call("DescribeTable", TableName=self._table)["Table"]
        problems = []
        keys = {(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]}
        if keys != {("series", "HASH"), ("number", "RANGE")}:
            problems.append("the table's keys are not series and number: give another table")
        if table.get("Replicas"):
            problems.append(
                "it is a global table: regions accept writes by themselves and the last one wins; "
                "use a table of one region"
            )
        live = self._call("DescribeTimeToLive", TableName=self._table)["TimeToLiveDescription"]
        if live.get("TimeToLiveStatus") not in {None, "DISABLED"}:
            problems.append("a time to live deletes records by itself: switch it off")
        return problems

    def put_if_absent(self, key: Key, value: bytes) -> bytes | None:
        """Keep `value` unless a value is there; durable when this returns.

        Raises:
            CollectedError: the number is not above the boundary.
            UnavailableError: no usable answer; it may or may not be stored.
        """
        check_key(key)
        item = {**_item(*key), "value": {"B": check_value(value)}}
        put = {"Put": {"Item": item, "ConditionExpression": _ABSENT}}
        try:
            self._change(key, put)
        except _ConditionFailedError as failed:
            return self._why_not_put(key, failed)
        return None

    def _why_not_put(self, key: Key, failed: _ConditionFailedError) -> bytes | None:
        record, head, mark = failed.items
        if mark is not None:
            raise self._retired_error(key.series)
        if head is not None and _upto(head) >= key.number:
            raise CollectedError(
                "this number was decided and its record collected",
                **key._asdict(),
                boundary=_upto(head),
            )
        if not record:
            raise UnavailableError("neither stored nor found; ask again", store=self.url)
        return bytes(record["value"]["B"])

    def get(self, key: Key, *, retired: bool = False) -> bytes | None:
        """Return the value, or None; with `retired`, of a retired scope as well."""
        check_key(key)
        record, head, mark = self._items(_item(*key), _item(key.series, _HEAD), _mark(key.series))
        if mark is not None and not retired:
            raise self._retired_error(key.series)
        if record is None or (head is not None and _upto(head) >= key.number):
            return None
        return bytes(record["value"]["B"])

    def compare_and_set(self, key: Key, expected: bytes, value: bytes) -> bool:
        """Replace `expected` by `value`; return whether `expected` was there."""
        check_key(key)
        try:
            self._change(key, _update(key, expected, check_value(value)))
        except _ConditionFailedError as failed:
            if failed.items[-1] is not None:
                raise self._retired_error(key.series) from None
            return False
        return True

    def replace_many(self, series: str, changes: Sequence[Replacement]) -> int:
        """Do for each change what `compare_and_set` does: in one transaction where all fit."""
        check_changes(series, changes)
        if not changes:
            return 0
        keys = [Key(series, change.number) for change in changes]
        updates = [
            _update(key, one.expected, one.value) for key, one in zip(keys, changes, strict=True)
        ]
        try:
            self._change(min(keys), *updates)
        except _ConditionFailedError as failed:
            if failed.items[-1] is not None:
                raise self._retired_error(series) from None
            # One does not fit, so none was changed.
            return sum(
                self.compare_and_set(key, one.expected, one.value)
                for key, one in zip(keys, changes, strict=True)
            )
        return len(changes)

    def scan(
        self, series: str, *, after: int = -1, limit: int = 1000, newest_first: bool = False
    ) -> Sequence[StoredEntry]:
        """Return up to `limit` records with numbers above `after`, in order of number.

        Raises:
            UnavailableError: no answer, or the series changed at each look.
        """
        check_series(series)
        check_limit(limit)
        after = clip_after(after)
        self._refuse_unfit()
        with self._lock:
            known = self._heads.get(series)
        for _ in range(_UNSTEADY_READS):
            lowest = after if known is None else max(after, known.upto)
            entries = self._query(series, lowest, limit, newest_first=newest_first)
            item, mark = self._items(_item(series, _HEAD), _mark(series))
            if mark is not None:
                raise self._retired_error(series)
            head = _SeriesHead(_upto(item), _changes(item))
            if head == known:
                return entries
            known = head
            self._note_head(series, head)
        raise UnavailableError("the series changed at every look; ask again", store=self.url)

    def _note_head(self, series: str, head: _SeriesHead) -> None:
        with self._lock:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[series] = head

    def boundary(self, series: str, *, retired: bool = False) -> int:
        """Return the boundary of a series, -1 if it never had one; `retired` as for `get`."""
        head, mark = self._items(_item(check_series(series), _HEAD), _mark(series))
        if mark is not None and not retired:
            raise self._retired_error(series)
        return _upto(head)

    def collect(self, series: str, through: int) -> int:
        """Raise the boundary to `through`, then delete the records up to it.

        They count as gone from the moment the boundary is raised.
        """
        check_series(series)
        if check_number(through, lowest=-1) < 0:
            self.boundary(series)  # refuses a retired scope
            return 0
        for _ in range(_UNSTEADY_READS):
            removed = self._raise_boundary(series, through)
            if removed is not None:
                self._delete_up_to(series, through)
                return removed
        raise self._error(UnavailableError, "the series changed at every look")

    def _raise_boundary(self, series: str, through: int) -> int | None:
        """Raise the boundary unless it is there; return how many records went, None if unclear.

        They are counted before, and the boundary is raised only if nothing changed since.
        """
        head, mark = self._items(_item(series, _HEAD), _mark(series))
        if mark is not None:
            raise self._retired_error(series)
        if _upto(head) >= through:
            return 0
        gone = sum(1 for _ in self._numbers(series, _upto(head) + 1, through))
        raised = _update_head(
            series, "changes = :seen", "SET upto = :n ADD changes :one", through, _changes(head)
        )
        try:
            self._write([raised, _look(_mark(series))])
        except _ConditionFailedError as failed:
            if failed.items[1] is not None:
                raise self._retired_error(series) from None
            return None
        return gone

    def retire(self, scope: str) -> None:
        """Refuse every verb on the series of a scope from now on; durable when this returns."""
        check_scope(scope)
        self._write([{"Put": {"Item": _item(_MARK + scope, place)}} for place in range(_MARKS)])

    def close(self) -> None:
        """Close the connections of this process."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def _read_identity(self) -> str:
        (item,) = self._items(_item(_META, 0))
        if item is None:
            raise self._error(NotFoundError, "no identity")
        return bytes(item["value"]["B"]).decode()

    # Reading.

    def _items(self, *keys: Item) -> list[Item | None]:
        """Return items by their keys, each as it is at some moment of this call."""
        self._refuse_unfit()
        wanted = {self._table: {"Keys": list(keys), "ConsistentRead": True}}
        answer = self._call("BatchGetItem", RequestItems=wanted)
        if answer.get("UnprocessedKeys"):
            raise self._error(UnavailableError, "throttled")
        items = {_key_of(item): item for item in answer["Responses"].get(self._table, [])}
        return [items.get(_key_of(key)) for key in keys]

    def _query(
        self, series: str, after: int, limit: int, *, newest_first: bool
    ) -> Sequence[StoredEntry]:
        entries: list[StoredEntry] = []
        more: Item = {}
        while True:
            answer = self._call(
                "Query",
                TableName=self._table,
                ConsistentRead=True,
                KeyConditionExpression="series = :s AND #n > :a",
                ExpressionAttributeNames={"#n": "number"},
                ExpressionAttributeValues={":s": {"S": series}, ":a": {"N": str(after)}},
                ScanIndexForward=not newest_first,
                Limit=min(limit - len(entries), _PAGE_RECORDS),
                **more,
            )
            entries += [_entry(item) for item in answer["Items"]]
            if len(entries) >= limit or "LastEvaluatedKey" not in answer:
                return entries
            more = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    # Writing.

    def _change(self, lowest: Key, *changes: Item) -> None:
        """Change records, if the lowest is above the boundary and the scope not retired."""
        series = lowest.series
        counted = _update_head(series, "upto < :n", "ADD changes :one", lowest.number)
        with self._lock:
            before = self._heads.get(series)
        self._write([*changes, counted, _look(_mark(series))])
        with self._lock:
            # A look since then may have seen this change already.
            if before is not None and self._heads.get(series) == before:
                self._heads[series] = before._replace(changes=before.changes + 1)

    def _write(self, parts: Sequence[Item]) -> None:
        """Apply a transaction, again while others are in its way: it was not applied then.

        Raises:
            _ConditionFailedError: a condition did not hold; nothing was changed.
            UnavailableError: no usable answer; it may or may not be applied.
        """
        self._refuse_unfit()
        for part in parts:
            for work in part.values():
                work["TableName"] = self._table
                if "ConditionExpression" in work:
                    work["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        wait = _FIRST_WAIT_SECONDS
        for _ in range(_CONFLICTS):
            try:
                self._call("TransactWriteItems", TransactItems=list(parts))
            except _ConflictError:
                self._clock.sleep(wait * (0.5 + self._ids.jitter()))
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
            else:
                return
        raise self._error(UnavailableError, "other transactions were in the way each time")

    def _delete_up_to(self, series: str, through: int) -> None:
        numbers = list(self._numbers(series, 0, through))
        for first in range(0, len(numbers), _DELETE_BATCH):
            keys = [_item(series, number) for number in numbers[first : first + _DELETE_BATCH]]
            batch = {self._table: [{"DeleteRequest": {"Key": key}} for key in keys]}
            # What is not processed is deleted by the next collection.
            self._call("BatchWriteItem", RequestItems=batch)

    def _numbers(self, series: str, lowest: int, highest: int) -> Iterator[int]:
        """Yield the numbers of the records that are there, from `lowest` to `highest`."""
        more: Item = {}
        while True:
            answer = self._call(
                "Query",
                TableName=self._table,
                ConsistentRead=True,
                KeyConditionExpression="series = :s AND #n BETWEEN :a AND :t",
                ExpressionAttributeNames={"#n": "number"},
                ExpressionAttributeValues={
                    ":s": {"S": series},
                    ":a": {"N": str(lowest)},
                    ":t": {"N": str(highest)},
                },
                ProjectionExpression="series, #n",
                **more,
            )
            yield from (int(item["number"]["N"]) for item in answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return
            more = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def _create_table(self) -> None:
        with contextlib.suppress(_InUseError):
            if self._state() is None:
                self._call(
                    "CreateTable",
                    TableName=self._table,
                    BillingMode="PAY_PER_REQUEST",
                    AttributeDefinitions=[
                        {"AttributeName": "series", "AttributeType": "S"},
                        {"AttributeName": "number", "AttributeType": "N"},
                    ],
                    KeySchema=[
                        {"AttributeName": "series", "KeyType": "HASH"},
                        {"AttributeName": "number", "KeyType": "RANGE"},
                    ],
                )
        waited = 0.0
        while self._state() != "ACTIVE":
            if waited > _TABLE_SECONDS:
                raise self._error(UnavailableError, "the table is not ready yet")
            self._clock.sleep(0.2)
            waited += 0.2

    def _state(self) -> str | None:
        try:
            table = self._call("DescribeTable", TableName=self._table)["Table"]
        except NotFoundError:
            return None
        return str(table["TableStatus"])

    def _refuse_unfit(self) -> None:
        if self._fit:
            return
        problems = self.check()
        if problems:
            raise UnsafeStoreError(
                "this DynamoDB table cannot decide: " + "; ".join(problems), store=self.url
            )
        self._fit = True

    # The client.

    def _call(self, operation: str, **arguments: object) -> Any:  # noqa: ANN401 - its JSON
        try:
            return self._client()._make_api_call(operation, arguments)  # noqa: SLF001 - by name
        except failures.ClientError as error:
            raise self._meaning(error.response) from None
        except _CREDENTIALS as error:
            raise self._error(PermissionDeniedError, type(error).__name__) from None
        except failures.BotoCoreError as error:
            # Not its text: it holds the address.
            raise self._error(UnavailableError, type(error).__name__) from None

    def _client(self) -> Any:  # noqa: ANN401 - botocore makes its clients when asked
        pid = os.getpid()  # a child must not speak on its parent's connections
        if pid not in self._clients:
            session = botocore.session.get_session()
            settings = botocore.config.Config(
                connect_timeout=CONNECT_TIMEOUT.total_seconds(),
                read_timeout=ANSWER_TIMEOUT.total_seconds(),
                max_pool_connections=50,
                # The library would send a request again after a lost answer; only we may.
                retries={"total_max_attempts": 1},
            )
            self._clients[pid] = session.create_client("dynamodb", config=settings, **self._place)
        return self._clients[pid]

    def _meaning(self, answer: Mapping[str, Any]) -> Exception:
        code = str(answer.get("Error", {}).get("Code", ""))
        reason = self._clean(f"{code}: {answer.get('Error', {}).get('Message', '')}")
        if code == _CANCELLED:
            return self._cancelled_error(answer.get("CancellationReasons", []))
        if code == "ResourceInUseException":
            return _InUseError()
        return self._error(_MEANINGS.get(code, UnavailableError), reason)

    def _cancelled_error(self, reasons: Sequence[Mapping[str, Any]]) -> Exception:
        codes = {str(reason.get("Code")) for reason in reasons} - {"None"}
        if _FAILED in codes:
            items = [
                reason.get("Item") or {} if reason.get("Code") == _FAILED else None
                for reason in reasons
            ]
            return _ConditionFailedError(items)
        if codes and codes <= _CONFLICT:
            return _ConflictError()
        return self._error(UnavailableError, ", ".join(sorted(codes)) or "cancelled")

    def _error(self, meaning: type[HoldfastError], reason: str) -> HoldfastError:
        message = {
            NotFoundError: f"no commit store there; run `holdfast store init {self.url}`",
            PermissionDeniedError: "DynamoDB refused: check the credentials and their rights",
            UnsupportedError: "DynamoDB refused the request",
        }.get(meaning, "DynamoDB gave no usable answer")
        return meaning(message, store=self.url, reason=reason)

    def _clean(self, text: str) -> str:
        text = " ".join(text.split())[:300]
        for secret in (self._secret, quote(self._secret, safe="")):
            text = text.replace(secret, "***") if secret else text
        return text


class _ConditionFailedError(Exception):
    """A transaction's condition did not hold; what was there, per part, None where it held."""

    def __init__(self, items: Sequence[Item | None]) -> None:
        super().__init__()
        self.items = items


class _ConflictError(Exception):
    """Another transaction was under way on the same items; this one was not applied."""


class _InUseError(Exception):
    """Somebody else is creating the table."""


_ABSENT = "attribute_not_exists(series)"


def connect(url: str) -> DynamoCommitStore:
    """Return the commit store at a `dynamodb:` URL."""
    return DynamoCommitStore(url)


def _place(url: StoreUrl) -> dict[str, str]:
    """Return where the service is, and as whom we ask, in botocore's words."""
    place: dict[str, str] = {}
    region = url.options.get("region") or os.environ.get("AWS_REGION")
    region = region or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        place["region_name"] = region
    elif not url.host:
        raise InvalidInputError("a dynamodb: URL needs its region: dynamodb:///TABLE?region=REGION")
    else:
        place["region_name"] = "us-east-1"  # a server of one's own has none
    if url.host:
        plain = is_loopback(url.host.strip("[]")) or url.flag("allow_plaintext")
        port = "" if url.port is None else f":{url.port}"
        place["endpoint_url"] = f"{'http' if plain else 'https'}://{url.host}{port}"
    if url.username:
        place["aws_access_key_id"] = url.username
        place["aws_secret_access_key"] = url.password or ""
    return place


def _item(series: str, number: int) -> Item:
    return {"series": {"S": series}, "number": {"N": str(number)}}


def _mark(series: str) -> Item:
    """Return the key of the mark that tells whether a series' scope is retired."""
    return _item(_MARK + scope_of(series), zlib.crc32(series.encode()) % _MARKS)


def _update(key: Key, expected: bytes, value: bytes) -> Item:
    return {
        "Update": {
            "Key": _item(*key),
            "UpdateExpression": "SET #v = :new",
            "ConditionExpression": "#v = :old",
            "ExpressionAttributeNames": {"#v": "value"},
            "ExpressionAttributeValues": {":new": {"B": value}, ":old": {"B": expected}},
        }
    }


def _look(key: Item) -> Item:
    return {"ConditionCheck": {"Key": key, "ConditionExpression": _ABSENT}}


def _update_head(
    series: str, condition: str, update: str, number: int, seen: int | None = None
) -> Item:
    values: Item = {":n": {"N": str(number)}, ":one": {"N": "1"}}
    absent = "attribute_not_exists(upto)"
    if seen is not None:
        values[":seen"] = {"N": str(seen)}
        absent = "attribute_not_exists(changes)"
    return {
        "Update": {
            "Key": _item(series, _HEAD),
            "UpdateExpression": update,
            "ConditionExpression": condition if seen else f"{absent} OR {condition}",
            "ExpressionAttributeValues": values,
        }
    }


def _upto(head: Item | None) -> int:
    return _HEAD if head is None or "upto" not in head else int(head["upto"]["N"])


def _changes(head: Item | None) -> int:
    return 0 if head is None else int(head.get("changes", {"N": "0"})["N"])


def _key_of(item: Item) -> tuple[str, int]:
    return item["series"]["S"], int(item["number"]["N"])


def _entry(item: Item) -> StoredEntry:
    return StoredEntry(int(item["number"]["N"]), bytes(item["value"]["B"]))
