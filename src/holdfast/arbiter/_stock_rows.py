"""Take over a table that stock Lance keeps on `s3+ddb://`.

There a version is decided by a row of a DynamoDB table (`base_uri` and `version`, put if absent);
its `path` first names staged bytes, then the manifest's own name, once somebody copied them. The
steps of a take-over, and what a crash after each leaves:

| step                                             | left behind by a crash                  |
|--------------------------------------------------|-----------------------------------------|
| 1 finish stock's newest rows: copy the staged    | what any reader of stock does as well   |
|   manifest to its name, say so in the row        |                                         |
| 2 put a row of ours as the next version, if      | stock's writers stop with an error; the |
|   absent: **taken over**                         | same call goes on                       |
| 3 put a row of ours far above all versions       | stock cannot open the table any more    |
| 4 adopt the table under its plain `s3://` address | as for any adoption                    |

Step 2 is a decision in stock's own store, so of a stock writer and us one gets the next version. If
it is the writer, its row is finished first, and we try the one after. So what stock had
acknowledged is in the table. Our rows name a manifest that never exists: whoever opens the table
by `s3+ddb://` gets an error, instead of an old table. A row for version 1 is put as well if stock
removed it: without one it would take the table for missing, and create it.

A dataset that stock had open before goes on: it meets our versions as objects, and puts a row and
a manifest above them. A commit store notices that (`ForeignVersionError`); put-if-absent would not,
since stock copies without a condition. Hence such a table needs a commit store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from holdfast.arbiter.stores._base import extra
from holdfast.errors import (
    CorruptError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from holdfast.formats import version_name
from holdfast.options import StorageOptions, resolve, translate
from holdfast.storage import ObjectStore, open_store

SCHEME = "s3+ddb://"
_ENDPOINT = "dynamodb_endpoint"
_CLOSED = "_versions/adopted-by-holdfast.manifest"
_COMMITTER = "holdfast"
_FAR = 2**53
_STAGED = re.compile(r"(?P<final>.+\.manifest)-[0-9a-fA-F-]{32,36}")
_TRIES = 20
_REFUSED = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "InvalidSignatureException",
        "UnrecognizedClientException",
    }
)
_TAKEN = "ConditionalCheckFailedException"

# Any: rows are dicts as DynamoDB's own JSON has them.
Row = dict[str, Any]


class StockRows:
    """The rows in which stock Lance decides the versions of one table."""

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        """Read address and options; nothing is contacted yet.

        Args:
            uri: `s3+ddb://bucket/path?ddbTableName=TABLE`.
            options: storage options; `dynamodb_endpoint` as stock takes it.

        Raises:
            InvalidInputError: the address names no table, or an option is wrong.
            MissingExtraError: the extra `[dynamodb]` is not installed.
        """
        parts = urlsplit(uri)
        names = parse_qs(parts.query).get("ddbTableName", [])
        if not uri.startswith(SCHEME) or len(names) != 1 or not parts.path.strip("/"):
            raise InvalidInputError(
                "a table of stock Lance on DynamoDB is s3+ddb://bucket/path?ddbTableName=TABLE"
            )
        given = dict(StorageOptions(options))
        endpoint = given.pop(_ENDPOINT, None) or os.environ.get("DYNAMODB_ENDPOINT")
        self.uri = f"s3://{parts.netloc}{parts.path}".rstrip("/")
        """The plain address of the same table."""
        self.options = StorageOptions(given)
        """The options without those of DynamoDB."""
        self.table = names[0]
        self._base = parts.path.strip("/")
        self._endpoint = None if endpoint is None else resolve(_ENDPOINT, endpoint)
        if self._endpoint is not None:  # refuses plain http to other machines
            translate(
                "s3", StorageOptions({**_without_endpoint(given), "endpoint": self._endpoint})
            )
        self._client = _connect(self._endpoint, self.options)

    def newest(self) -> int:
        """Return the newest version that stock decided.

        Raises:
            NotFoundError: no row of this table is there.
            UnavailableError, PermissionDeniedError: DynamoDB did not tell.
        """
        return int(self._newest_of(self._rows())["version"]["N"])

    def _newest_of(self, rows: Sequence[Row]) -> Row:
        for row in rows:
            if not _is_ours(row):
                return row
        raise NotFoundError("no Lance table is there", uri=self.uri, table=self.table)

    def close(self) -> int:
        """Finish what stock decided, and let nobody open the table by its rows. Safe to repeat.

        Returns:
            The newest version that stock decided.

        Raises:
            NotFoundError: no row of this table is there.
            InvalidInputError: the table has the old manifest names.
            CorruptError: a decided manifest is neither staged nor at its name.
            UnavailableError, PermissionDeniedError: a store did not do its part; call again.
        """
        store = open_store(self.uri, self.options)
        for _ in range(_TRIES):
            rows = self._rows()
            newest = self._newest_of(rows)
            self._refuse_old_names(newest)
            for row in rows:
                self._finish(store, row)
            if _is_ours(rows[0]) or self._put(int(newest["version"]["N"]) + 1):
                self._put(_FAR)
                self._put(1)
                return int(newest["version"]["N"])
        raise UnavailableError("stock writers were faster each time: call again", uri=self.uri)

    def _refuse_old_names(self, row: Row) -> None:
        path, name = row["path"]["S"], version_name(int(row["version"]["N"]))
        staged = _STAGED.fullmatch(path)
        if (staged["final"] if staged else path) != f"{self._base}/{name.path}":
            raise InvalidInputError(
                "this table has the old manifest names: migrate it first with "
                "`lance.dataset(uri).migrate_manifest_paths_v2()`",
                uri=self.uri,
            )

    def _rows(self) -> list[Row]:
        """Return the newest rows, newest first: stock leaves at most the last one open."""
        answer = self._call(
            "Query",
            ConsistentRead=True,
            KeyConditionExpression="base_uri = :b",
            ExpressionAttributeValues={":b": {"S": self._base}},
            ScanIndexForward=False,
            Limit=16,
        )
        return list(answer["Items"])

    def _finish(self, store: ObjectStore, row: Row) -> None:
        """Copy a staged manifest to its name, and say so in its row, as stock does."""
        staged = _STAGED.fullmatch(row["path"]["S"])
        if staged is None:
            return
        source, target = (
            path.removeprefix(f"{self._base}/") for path in (staged[0], staged["final"])
        )
        try:
            if not _is_there(store, target, _size_of(row)):
                store.copy(source, target)
        except NotFoundError:  # a stock process finished, and removed it since
            if not _is_there(store, target, _size_of(row)):
                raise CorruptError(
                    "a version that stock Lance decided has no manifest: neither staged nor final",
                    path=target,
                ) from None
        self._call(
            "UpdateItem",
            Key={name: row[name] for name in ("base_uri", "version")},
            UpdateExpression="SET #p = :final",
            ConditionExpression="attribute_exists(#p)",
            ExpressionAttributeNames={"#p": "path"},
            ExpressionAttributeValues={":final": {"S": staged["final"]}},
        )

    def _put(self, version: int) -> bool:
        """Put our row as a version, if absent; tell whether it is there now."""
        item = {
            "base_uri": {"S": self._base},
            "version": {"N": str(version)},
            "path": {"S": f"{self._base}/{_CLOSED}"},
            "size": {"N": "0"},
            "committer": {"S": _COMMITTER},
        }
        condition = "attribute_not_exists(base_uri) AND attribute_not_exists(#v)"
        try:
            self._call(
                "PutItem",
                Item=item,
                ConditionExpression=condition,
                ExpressionAttributeNames={"#v": "version"},
            )
        except _TakenError:
            return False
        return True

    def _call(self, operation: str, **arguments: object) -> Any:  # noqa: ANN401 - its JSON
        with extra("dynamodb"):
            import botocore.exceptions as failures  # noqa: PLC0415 - in an extra

        try:
            return self._client._make_api_call(  # noqa: SLF001 - by name
                operation, {"TableName": self.table, **arguments}
            )
        except failures.ClientError as error:
            raise self._meaning(str(error.response.get("Error", {}).get("Code", ""))) from None
        except (failures.NoCredentialsError, failures.PartialCredentialsError) as error:
            raise PermissionDeniedError(
                "DynamoDB needs credentials: give them as storage options, or in AWS's places",
                table=self.table,
                reason=type(error).__name__,
            ) from None
        except failures.BotoCoreError as error:  # not its text: it holds the address
            raise UnavailableError(
                "DynamoDB gave no usable answer", table=self.table, reason=type(error).__name__
            ) from None

    def _meaning(self, code: str) -> Exception:
        if code == _TAKEN:
            return _TakenError()
        meaning: type[HoldfastError] = UnavailableError
        if code in _REFUSED:
            meaning = PermissionDeniedError
        elif code == "ResourceNotFoundException":
            meaning = NotFoundError
        return meaning("DynamoDB refused the request", table=self.table, reason=code)


class _TakenError(Exception):
    """A row is there already."""


def _without_endpoint(options: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in options.items() if "endpoint" not in key}


def _is_ours(row: Row) -> bool:
    return bool(row["committer"]["S"] == _COMMITTER)


def _size_of(row: Row) -> int | None:
    return int(row["size"]["N"]) if "size" in row else None


def _is_there(store: ObjectStore, path: str, size: int | None) -> bool:
    try:
        return size in {None, store.head(path).size}
    except NotFoundError:
        return False


def _connect(endpoint: str | None, options: StorageOptions) -> Any:  # noqa: ANN401 - made when asked
    with extra("dynamodb"):
        import botocore.config  # noqa: PLC0415 - in an extra
        import botocore.session  # noqa: PLC0415

    config = translate("s3", options).config
    place = {
        "aws_access_key_id": config.get("access_key_id"),
        "aws_secret_access_key": config.get("secret_access_key"),
        "aws_session_token": config.get("session_token"),
        "region_name": config.get("region") or os.environ.get("AWS_REGION") or "us-east-1",
        "endpoint_url": endpoint,
    }
    settings = botocore.config.Config(connect_timeout=10, read_timeout=30)
    return botocore.session.get_session().create_client(
        "dynamodb", config=settings, **{key: value for key, value in place.items() if value}
    )
