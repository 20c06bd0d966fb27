"""Opening a table in Lance, or making one, so that every commit of it goes through a hook.

`lance.dataset` and `lance.write_dataset` ask a hook where its table is by a request that is
a generated model, and importing those models takes longer than all the rest of a short
process: over a second. So the same is asked here without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from holdfast.commits._namespace_errors import load_errors
from holdfast.commits._operation import TABLE_ID, TableAnswer
from holdfast.commits._release import check_release


def open_hooked(hook: Any, version: int | None = None) -> lance.LanceDataset:  # noqa: ANN401 - a namespace by its methods
    """Return one version, the newest by default, that commits through `hook`."""
    table = hook.describe_table(None)
    return lance.LanceDataset(table.location, version, **_through(hook, table))


def create_hooked(
    hook: Any,  # noqa: ANN401 - as above
    schema: pa.Schema,
    fragments: Sequence[FragmentMetadata] = (),
) -> lance.LanceDataset:
    """Make version 1, with these columns, and the rows of fragments that were written for it.

    It says that it read version 0: so a hook that only creates can tell it from a version
    that replaces a table which appeared meanwhile.
    """
    table = hook.declare_table(None)
    operation = lance.LanceOperation.Overwrite(schema, list(fragments))
    return lance.LanceDataset.commit(
        table.location, operation, read_version=0, **_through(hook, table)
    )


def _through(hook: Any, table: TableAnswer) -> dict[str, Any]:  # noqa: ANN401 - as above
    check_release()
    load_errors()  # not inside the first commit that meets a conflict: see there
    return {
        "storage_options": table.storage_options,
        "namespace_client": hook,
        "table_id": TABLE_ID,
        "namespace_client_managed_versioning": table.managed_versioning,
    }
