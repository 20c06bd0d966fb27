"""The catalog and commits of Lance's REST namespace, over `holdfast.Namespace`.

What destroys something asks for `confirm: true` in the request's context, or in the header
`x-lance-ctx-confirm`, and tells without it what would go. Storage credentials stay here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import lance
import lance_namespace as models
import pyarrow as pa

from holdfast import adopt_table, release_table
from holdfast.commits import Namespace, translate_errors
from holdfast.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
)
from holdfast.server._answers import Answer, Call, json_answer
from holdfast.server._settings import ServerSettings
from holdfast.server._tables import OpenTables

CONFIRM_HEADER = "x-lance-ctx-confirm"
_SMALL_ROWS = 100_000
_MAX_PAGE = 10_000


class ProtocolError(Exception):
    """An error that only the protocol has a name for."""

    def __init__(self, code: int, text: str, kind: str) -> None:
        super().__init__(text)
        self.code = code
        self.kind = kind


class Catalog(Protocol):
    """What the handlers here work with."""

    settings: ServerSettings
    namespace: Namespace
    tables: OpenTables
    writers: Any  # Any: what holds a table's log writers, used for rows alone


def list_tables(here: Catalog, call: Call) -> Answer:
    """Return the tables of a namespace."""
    return _answer(here.namespace.list_tables(_request(call, _page_request(call))))


def list_namespaces(here: Catalog, call: Call) -> Answer:
    """Return the namespaces of a namespace."""
    return _answer(here.namespace.list_namespaces(_request(call, _page_request(call))))


def describe_namespace(here: Catalog, call: Call) -> Answer:
    """Return whether a namespace is there."""
    here.namespace.describe_namespace(_request(call))
    return json_answer({"properties": {}})


def namespace_exists(here: Catalog, call: Call) -> Answer:
    """Return whether a namespace is there."""
    here.namespace.namespace_exists(_request(call))
    return json_answer({})


def create_namespace(here: Catalog, call: Call) -> Answer:
    """Make an empty namespace."""
    mode = call.text(call.fields(), "mode") or "create"
    modes = {"existok": "exist_ok"}
    here.namespace.create_namespace(_request(call, {"mode": modes.get(mode.lower(), mode)}))
    return json_answer({"properties": {}})


def drop_namespace(here: Catalog, call: Call) -> Answer:
    """Remove an empty namespace."""
    fields = call.fields()
    if (call.text(fields, "behavior") or "restrict").lower() != "restrict":
        raise InvalidInputError("only an empty namespace is dropped: drop its tables first")
    try:
        here.namespace.drop_namespace(_request(call))
    except NotFoundError:
        if (call.text(fields, "mode") or "fail").lower() != "skip":
            raise
    return json_answer({})


def declare_table(here: Catalog, call: Call) -> Answer:
    """Tie a new table to its arbiter."""
    _check_location(here, call)
    return _answer(here.namespace.declare_table(_request(call)))


def describe_table(here: Catalog, call: Call) -> Answer:
    """Say where a table is; more of it when asked."""
    fields = call.fields()
    described = dict(here.namespace.describe_table(_request(call)))
    described["table"], described["namespace"] = call.id[-1], list(call.id[:-1])
    if fields.get("with_table_uri") is True:
        described["table_uri"] = described["location"]
    version = call.number(fields, "version")
    if fields.get("branch") is not None:
        raise InvalidInputError("branches are not decided by Holdfast")
    detailed = fields.get("load_detailed_metadata") is True
    if fields.get("check_declared") is True or detailed or version is not None:
        _add_details(here, call, described, version=version, detailed=detailed)
    return _answer(described)


def table_exists(here: Catalog, call: Call) -> Answer:
    """Return whether there is such a table."""
    here.namespace.table_exists(_request(call))
    return json_answer({})


def drop_table(here: Catalog, call: Call) -> Answer:
    """Destroy a table, if the request confirms it."""
    dropped = here.namespace.drop_table(_request(call, {"context": _context(call)}))
    here.tables.forget(call.id)
    here.writers.forget(call.id)
    return _answer(dropped)


def register_table(here: Catalog, call: Call) -> Answer:
    """Adopt the plain Lance table that lies where this id's table belongs."""
    mode = (call.text(call.fields(), "mode") or "create").lower()
    if mode != "create":
        raise InvalidInputError("a table is registered once, never over another", mode=mode[:40])
    location = _check_location(here, call)
    try:
        here.namespace.table_exists(_request(call))
    except NotFoundError:
        pass
    else:
        raise AlreadyExistsError("the table is registered already", location=location)
    adopt_table(
        location,
        commit_store=here.settings.commit_store,
        storage_options=here.settings.storage_options,
    ).close()
    return json_answer({"location": location, "properties": {}})


def deregister_table(here: Catalog, call: Call) -> Answer:
    """Give a plain Lance table back, if the request confirms it; its files stay."""
    location = here.namespace.location(call.id)
    here.namespace.table_exists(_request(call))
    if not _confirms(call):
        raise PermissionDeniedError(
            "nothing was released: afterwards nobody would decide this table's versions any more. "
            "Stop its writers, then say `confirm: true` in the request's context",
            location=location,
        )
    release_table(location, here.settings.storage_options)
    here.namespace.forget(call.id)
    here.tables.forget(call.id)
    here.writers.forget(call.id)
    return json_answer({"id": list(call.id), "location": location})


def create_version(here: Catalog, call: Call) -> Answer:
    """Decide one version; Lance asks for it in every commit."""
    fields = call.fields()
    wanted = {
        "version": _require(call.number(fields, "version"), "version"),
        "manifest_path": _require(call.text(fields, "manifest_path"), "manifest_path"),
        "naming_scheme": call.text(fields, "naming_scheme"),
        "branch": call.text(fields, "branch"),
    }
    return _answer(here.namespace.create_table_version(_request(call, wanted)))


def list_versions(here: Catalog, call: Call) -> Answer:
    """Return versions; Lance asks for the newest one."""
    fields = {**call.fields(), **_page_request(call)}
    _refuse_branch(fields)
    limit = call.number(fields, "limit")
    descending = call.query.get("descending", "").lower() == "true" or fields.get("descending")
    asked = models.ListTableVersionsRequest(
        id=list(call.id),
        limit=limit,
        descending=bool(descending),
        page_token=call.text(fields, "page_token"),
    )
    versions = here.namespace.list_table_versions(asked)
    return _answer(versions.model_dump(exclude_none=True))


def describe_version(here: Catalog, call: Call) -> Answer:
    """Return one version; of one that nobody decided, where it would be, as Lance wants it."""
    fields = call.fields()
    _refuse_branch(fields)
    version = call.number(fields, "version")
    if version is None:
        newest = here.namespace.list_table_versions(_request(call))
        if not newest["versions"]:
            version = int(here.tables.open(call.id).dataset().version)
        else:
            return _answer({"version": newest["versions"][0]})
    request = _request(call, {"version": version})
    return _answer(here.namespace.describe_table_version(request))


def delete_versions(here: Catalog, call: Call) -> Answer:
    """Delete nothing: `vacuum` alone lets versions go."""
    return _answer(here.namespace.batch_delete_table_versions(_request(call)))


def list_tags(here: Catalog, call: Call) -> Answer:
    """Return the tags of a table."""
    table = here.tables.open(call.id)
    with translate_errors(table.uri):
        named = dict(table.dataset().tags.list())
    tags = {
        name: {"version": int(tag["version"]), "manifestSize": int(tag["manifest_size"])}
        for name, tag in named.items()
    }
    return json_answer({"tags": tags})


def tag_version(here: Catalog, call: Call) -> Answer:
    """Return the version behind a tag."""
    _, tags, name = _tags(here, call)
    if name not in tags:
        raise _no_tag(name)
    return json_answer({"version": int(tags[name]["version"])})


def create_tag(here: Catalog, call: Call) -> Answer:
    """Name a version."""
    dataset, tags, name = _tags(here, call)
    if name in tags:
        raise ProtocolError(9, f"there is a tag of this name already (tag={name[:80]})", "tag")
    with translate_errors(here.namespace.location(call.id)):
        dataset.tags.create(name, _tagged_version(call))
    return json_answer({})


def update_tag(here: Catalog, call: Call) -> Answer:
    """Let a tag name another version."""
    dataset, tags, name = _tags(here, call)
    if name not in tags:
        raise _no_tag(name)
    with translate_errors(here.namespace.location(call.id)):
        dataset.tags.update(name, _tagged_version(call))
    return json_answer({})


def delete_tag(here: Catalog, call: Call) -> Answer:
    """Remove a tag; the version stays."""
    dataset, tags, name = _tags(here, call)
    if name not in tags:
        raise _no_tag(name)
    with translate_errors(here.namespace.location(call.id)):
        dataset.tags.delete(name)
    return json_answer({})


def table_stats(here: Catalog, call: Call) -> Answer:
    """Return the sizes of a table and of its fragments."""
    table = here.tables.open(call.id)
    dataset = table.dataset()
    with translate_errors(table.uri):
        return json_answer(stats_of(dataset))


def list_indexes(here: Catalog, call: Call) -> Answer:
    """Return the indexes of a table."""
    table = here.tables.open(call.id)
    dataset: Any = table.dataset()  # Any: pylance's stubs lack it
    with translate_errors(table.uri):
        descriptions = dataset.describe_indices()
        indexes = [
            {
                "index_name": one.name,
                "index_uuid": str(one.segments[0].uuid) if one.segments else "",
                "columns": list(one.field_names),
                "status": "ready",
                "index_type": str(one.index_type),
                "num_indexed_rows": int(one.num_rows_indexed),
                "num_segments": len(one.segments),
            }
            for one in descriptions
            if one.field_names
        ]
    return json_answer({"indexes": indexes})


def stats_of(dataset: lance.LanceDataset) -> dict[str, Any]:
    """Return a version's sizes as the protocol has them."""
    opened: Any = dataset  # Any: pylance's stubs lack it
    parts = [part.metadata for part in opened.get_fragments()]
    lengths = sorted(int(part.num_rows) for part in parts)
    size = sum(int(file.file_size_bytes or 0) for part in parts for file in part.files)
    return {
        "total_bytes": size,
        "num_rows": sum(lengths),
        "num_indices": len([one for one in opened.describe_indices() if one.field_names]),
        "fragment_stats": {
            "num_fragments": len(parts),
            "num_small_fragments": len([n for n in lengths if n < _SMALL_ROWS]),
            "lengths": _summary(lengths),
        },
    }


def _summary(lengths: list[int]) -> dict[str, int]:
    if not lengths:
        return dict.fromkeys(("min", "max", "mean", "p25", "p50", "p75", "p99"), 0)
    last = len(lengths) - 1
    at = {f"p{part}": lengths[round(last * part / 100)] for part in (25, 50, 75, 99)}
    return {
        "min": lengths[0],
        "max": lengths[-1],
        "mean": sum(lengths) // len(lengths),
        **at,
    }


def _request(call: Call, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"id": list(call.id), **(fields or {})}


def _answer(fields: Mapping[str, Any]) -> Answer:
    return json_answer({key: value for key, value in fields.items() if key != "storage_options"})


def _page_request(call: Call) -> dict[str, Any]:
    """Return which page is asked for, as a request's parameters or body say it."""
    fields = call.fields()
    token = call.query.get("page_token") or call.text(fields, "page_token")
    text = call.query.get("limit")
    if text is not None and not (text.isdecimal() and len(text) < 10):  # noqa: PLR2004 - digits
        raise InvalidInputError("a limit is a whole number", limit=text[:40])
    limit = call.number(fields, "limit") if text is None else int(text)
    return {"page_token": token, "limit": None if not limit else min(limit, _MAX_PAGE)}


def _context(call: Call) -> dict[str, str]:
    return {"confirm": "true"} if _confirms(call) else {}


def _confirms(call: Call) -> bool:
    context = call.fields().get("context")
    given = context.get("confirm") if isinstance(context, dict) else None
    return str(given or call.headers.get(CONFIRM_HEADER)).lower() == "true"


def _check_location(here: Catalog, call: Call) -> str:
    """Return where the table belongs; a client may say it, but not choose another place."""
    location = here.namespace.location(call.id)
    given = call.text(call.fields(), "location")
    if given is not None and given.rstrip("/") not in {location, location.rpartition("/")[2]}:
        raise InvalidInputError(
            "a table's place follows from its id, below the server's root", belongs=location
        )
    return location


def _require(value: Any, name: str) -> Any:  # noqa: ANN401 - as it came
    if value is None:
        raise InvalidInputError("this field is missing", field=name)
    return value


def _refuse_branch(fields: Mapping[str, Any]) -> None:
    if fields.get("branch") is not None:
        raise InvalidInputError("branches are not decided by Holdfast")


def _tags(here: Catalog, call: Call) -> tuple[lance.LanceDataset, dict[str, Any], str]:
    fields = call.fields()
    _refuse_branch(fields)
    name = _require(call.text(fields, "tag"), "tag")
    table = here.tables.open(call.id)
    dataset = table.dataset()
    with translate_errors(table.uri):
        return dataset, dict(dataset.tags.list()), name


def _tagged_version(call: Call) -> int:
    return int(_require(call.number(call.fields(), "version"), "version"))


def _no_tag(name: str) -> ProtocolError:
    return ProtocolError(8, f"there is no tag of this name (tag={name[:80]})", "tag")


def _add_details(
    here: Catalog, call: Call, described: dict[str, Any], *, version: int | None, detailed: bool
) -> None:
    try:
        table = here.tables.open(call.id)
        dataset = table.dataset(version)
    except NotFoundError:
        if version is not None:
            raise
        described["is_only_declared"] = True
        return
    described["is_only_declared"] = False
    described["version"] = int(dataset.version)
    if detailed:
        parts: Iterable[Any] = dataset.get_fragments()
        deleted = [int(part.num_deletions or 0) for part in parts]
        described["stats"] = {"num_deleted_rows": sum(deleted), "num_fragments": len(deleted)}
        described["schema"] = {"fields": [_json_field(field) for field in dataset.schema]}
        described["metadata"] = {}


def _json_field(field: pa.Field) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": str(field.type).split("<")[0].split("[")[0]}
    if pa.types.is_nested(field.type):
        children = [field.type.field(number) for number in range(field.type.num_fields)]
        kind["fields"] = [_json_field(child) for child in children]
    if pa.types.is_fixed_size_list(field.type):
        kind["length"] = field.type.list_size
    return {"name": field.name, "nullable": field.nullable, "type": kind}
