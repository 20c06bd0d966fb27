"""Indexes that Lance builds in one process: of single values (BTREE, BITMAP) and of vectors (IVF).

Lance commits them itself, through the table's own arbiter, so the commit happens once or not at
all. An index of the same name, kind and column is left alone: the call may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import lance
from pyarrow import types

from holdfast._clock import Clock
from holdfast.commits import translate_errors
from holdfast.errors import InvalidInputError
from holdfast.index._results import IndexResult

Kind: TypeAlias = Literal["fts", "btree", "bitmap", "label_list", "ivf_flat", "ivf_pq", "ivf_sq",
                          "ivf_hnsw_pq", "ivf_hnsw_sq"]  # fmt: skip
"""What an index is: of text, of single values, of vectors."""

SCALAR = ("btree", "bitmap", "label_list")
VECTOR = ("ivf_flat", "ivf_pq", "ivf_sq", "ivf_hnsw_pq", "ivf_hnsw_sq")


def create_by_lance(
    open_newest: Callable[[], lance.LanceDataset],
    column: str,
    kind: str,
    *,
    name: str | None,
    replace: bool,
    parameters: Mapping[str, Any],  # Any: Lance's own
    clock: Clock,
) -> IndexResult:
    """Build an index; it is in the table when this returns.

    Raises:
        InvalidInputError: no such column, one that the kind is not for, an unknown parameter, or
            an index of this name that is another one.
        ConflictError: the table changed so that the index fits no more: repeat.
        HoldfastError: a store did not do its part; repeat.
    """
    begun = clock.elapsed()
    dataset = open_newest()
    name = name or f"{column}_idx"
    _check_column(dataset, column, kind)
    if kind in SCALAR and parameters:
        names = ", ".join(parameters)
        raise InvalidInputError("an index of values has no parameter", kind=kind, given=names)
    there = next((one for one in dataset.describe_indices() if one.name == name), None)
    same = there is not None and _is_same(there, column, kind)
    replaced = replace and there is not None and list(there.field_names) == [column]
    if there is not None and not same and not replaced:
        raise InvalidInputError(
            "there is another index of this name: give another name; replace=True takes the place "
            "of one of the same column",
            name=name,
            kind=str(there.index_type),
        )
    if same and not replace and not parameters:
        return _result(dataset, name, None, clock.elapsed() - begun)
    with translate_errors(dataset.uri):
        try:
            _build(dataset, column, kind, name, replace=replace, parameters=parameters)
        except TypeError as error:
            raise InvalidInputError(
                "Lance does not know a parameter", kind=kind, reason=str(error)[:200]
            ) from error
    newest = open_newest()
    return _result(newest, name, int(dataset.count_rows()), clock.elapsed() - begun)


def _build(
    dataset: lance.LanceDataset,
    column: str,
    kind: str,
    name: str,
    *,
    replace: bool,
    parameters: Mapping[str, Any],
) -> None:
    given: dict[str, Any] = {"name": name, "replace": replace, **parameters}
    if kind in SCALAR:
        scalar: Any = kind.upper()  # one of pylance's words
        dataset.create_scalar_index(column, scalar, **given)
    else:
        dataset.create_index(column, kind.upper(), **given)


def _check_column(dataset: lance.LanceDataset, column: str, kind: str) -> None:
    if column not in dataset.schema.names:
        raise InvalidInputError("the table has no such column", column=column)
    vector = types.is_fixed_size_list(dataset.schema.field(column).type)
    if vector != (kind in VECTOR):
        fitting = VECTOR if vector else SCALAR
        raise InvalidInputError(
            f"an index of this column is one of {', '.join(fitting)}", column=column, kind=kind
        )


def _is_same(index: Any, column: str, kind: str) -> bool:  # noqa: ANN401 - pylance's description
    plain = str(index.index_type).lower().replace("_", "")
    return list(index.field_names) == [column] and plain == kind.replace("_", "")


def _result(
    dataset: lance.LanceDataset, name: str, indexed: int | None, elapsed: float
) -> IndexResult:
    return IndexResult(
        version=int(dataset.version),
        rows=indexed or 0,
        txn=None,
        applied=indexed is not None,
        elapsed=elapsed,
        name=name,
        build_id=None,
        partitions=1,
        reused=0,
        uncovered=0,
    )
