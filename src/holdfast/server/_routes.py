"""Which request does what: the operations of Lance's REST namespace that are here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

from holdfast.errors import InvalidInputError
from holdfast.server import _catalog as catalog
from holdfast.server import _rows as rows
from holdfast.server._answers import Answer, Call
from holdfast.server._tokens import Role

_MAX_ID_CHARS = 2048
_MAX_DELIMITER_CHARS = 8
LaneName = Literal["catalog", "rows", "queries", "pages"]
Handler = Callable[[Any, Call], Answer]  # Any: the service, as far as a handler needs it


@dataclass(frozen=True, slots=True)
class RestOperation:
    """What is done for a request, who may ask for it, and where it runs."""

    name: str
    handler: Handler
    role: Role
    lane: LaneName = "catalog"
    methods: frozenset[str] = frozenset({"POST"})


_READ, _WRITE, _ADMIN = Role.READ, Role.WRITE, Role.ADMIN
_BOTH = frozenset({"GET", "POST"})

NAMESPACE_OPERATIONS: Mapping[str, RestOperation] = {
    "create": RestOperation("create_namespace", catalog.create_namespace, _WRITE),
    "describe": RestOperation("describe_namespace", catalog.describe_namespace, _READ),
    "drop": RestOperation("drop_namespace", catalog.drop_namespace, _ADMIN),
    "exists": RestOperation("namespace_exists", catalog.namespace_exists, _READ),
    "list": RestOperation("list_namespaces", catalog.list_namespaces, _READ, methods=_BOTH),
    "table/list": RestOperation("list_tables", catalog.list_tables, _READ, methods=_BOTH),
}
TABLE_OPERATIONS: Mapping[str, RestOperation] = {
    "count_rows": RestOperation("count_rows", rows.count_rows, _READ, "queries"),
    "create": RestOperation("create", rows.create, _WRITE, "rows"),
    "declare": RestOperation("declare", catalog.declare_table, _WRITE),
    "delete": RestOperation("delete", rows.delete, _WRITE, "rows"),
    "deregister": RestOperation("deregister", catalog.deregister_table, _ADMIN),
    "describe": RestOperation("describe", catalog.describe_table, _READ),
    "drop": RestOperation("drop", catalog.drop_table, _ADMIN),
    "exists": RestOperation("exists", catalog.table_exists, _READ),
    "index/list": RestOperation("list_indexes", catalog.list_indexes, _READ),
    "insert": RestOperation("insert", rows.insert, _WRITE, "rows"),
    "query": RestOperation("query", rows.query, _READ, "queries"),
    "register": RestOperation("register", catalog.register_table, _ADMIN),
    "stats": RestOperation("stats", catalog.table_stats, _READ),
    "tags/create": RestOperation("create_tag", catalog.create_tag, _WRITE),
    "tags/delete": RestOperation("delete_tag", catalog.delete_tag, _WRITE),
    "tags/list": RestOperation("list_tags", catalog.list_tags, _READ, methods=_BOTH),
    "tags/update": RestOperation("update_tag", catalog.update_tag, _WRITE),
    "tags/version": RestOperation("tag_version", catalog.tag_version, _READ),
    "version/create": RestOperation("create_version", catalog.create_version, _WRITE),
    "version/delete": RestOperation("delete_versions", catalog.delete_versions, _WRITE),
    "version/describe": RestOperation("describe_version", catalog.describe_version, _READ),
    "version/list": RestOperation("list_versions", catalog.list_versions, _READ, methods=_BOTH),
}
_GROUPS = {"namespace": NAMESPACE_OPERATIONS, "table": TABLE_OPERATIONS}
_RAW = re.compile(rb"/v1/([a-z_]+)/([^/]*)/(.+)")


def find(raw_path: bytes) -> tuple[RestOperation, bytes] | None:
    """Return the operation behind a path, and the id in it as it was sent; None if there is none.

    The path is taken as it came: a slash inside an id is no slash of the path.
    """
    match = _RAW.fullmatch(raw_path)
    if match is None:
        return None
    operations = _GROUPS.get(match[1].decode(), {})
    operation = operations.get(match[3].decode("ascii", "replace"))
    return None if operation is None else (operation, match[2])


def parse_id(raw: bytes, delimiter: str) -> tuple[str, ...]:
    """Return the names of an id; the delimiter alone is the root.

    Whether each can be a folder's name is checked where it becomes one.

    Raises:
        InvalidInputError: it is no text, too long, or the delimiter is none.
    """
    if not 0 < len(delimiter) <= _MAX_DELIMITER_CHARS:
        raise InvalidInputError("a delimiter has 1 to 8 characters")
    if len(raw) > _MAX_ID_CHARS:
        raise InvalidInputError("an id is too long", bytes=len(raw))
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidInputError("an id is text in UTF-8") from None
    return () if text in {delimiter, ""} else tuple(text.split(delimiter))
