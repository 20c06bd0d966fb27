"""How to use a table from elsewhere, as text to copy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

import pyarrow as pa

_PYLANCE = """\
import lance
from lance.namespace import RestNamespace

tables = RestNamespace(uri="{url}")
table = lance.dataset(namespace_client=tables, table_id=[{names}])"""

_LANCEDB = """\
import lancedb

database = lancedb.connect_namespace("rest", {{"uri": "{url}"}})
table = database.open_table("{name}"{namespace})"""

_SPARK = """spark.read.format("holdfast").load("{location}")"""

_CURL = """\
curl -X POST{token} -H 'Content-Type: application/json' -H 'Holdfast-Txn: my-app/1' \\
  -d {rows} '{url}/v1/table/{path}/insert'
curl -X POST{token} -H 'Accept: application/json' -d '{{"k": 10}}' '{url}/v1/table/{path}/query'"""


def snippets(
    table_id: Sequence[str],
    schema: pa.Schema,
    *,
    url: str,
    location: str,
    path: str,
    with_token: bool,
) -> list[tuple[str, str]]:
    """Return what to call each way of using a table, and its text."""
    *namespace, name = table_id
    row = {field.name: _example(field.type) for field in schema}
    values = {
        "url": url,
        "location": location,
        "path": path,
        "name": name,
        "names": ", ".join(f'"{part}"' for part in table_id),
        "namespace": f", namespace_path={namespace!r}" if namespace else "",
        "token": ' -H "Authorization: Bearer $TOKEN"' if with_token else "",
        "rows": shlex.quote(json.dumps([row])),
    }
    texts = (("pylance", _PYLANCE), ("LanceDB", _LANCEDB), ("Spark", _SPARK), ("curl", _CURL))
    return [(title, text.format(**values)) for title, text in texts]


def _example(kind: pa.DataType) -> object:
    """Return a value for a column as JSON has it; null where there is no short one."""
    if pa.types.is_boolean(kind):
        return True
    if pa.types.is_integer(kind):
        return 1
    if pa.types.is_floating(kind):
        return 0.5
    if pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type):
        return [0.5] * kind.list_size
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    return None
