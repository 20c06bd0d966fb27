"""Nearest vectors by comparing with every one: exact, and fast enough for a MemTable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import InvalidInputError

METRICS = ("l2", "cosine", "dot")

Vector: TypeAlias = "Sequence[float] | npt.NDArray[np.float32] | pa.Array"


def distances(
    column: pa.ChunkedArray, query: Vector, metric: str
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the distance of each vector as Lance has it, and which rows have a vector.

    Raises:
        InvalidInputError: no column of vectors, a query of another length, an unknown metric.
    """
    kind = column.type
    if not (pa.types.is_fixed_size_list(kind) and pa.types.is_floating(kind.value_type)):
        raise InvalidInputError("nearest needs a column of vectors of numbers", type=str(kind))
    if metric not in METRICS:
        raise InvalidInputError("metric is one of " + ", ".join(METRICS), metric=metric)
    wanted = np.asarray(query, np.float32)
    if wanted.shape != (kind.list_size,) or not np.isfinite(wanted).all():
        raise InvalidInputError(
            f"the query is a vector of {kind.list_size} numbers", shape=wanted.shape
        )
    valid = column.is_valid().to_numpy()
    measured = np.full(len(column), np.inf, np.float32)
    if valid.any():
        whole = column.drop_null().combine_chunks()
        flat = whole.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
        measured[valid] = _distances(flat.reshape(-1, kind.list_size), wanted, metric)
    return measured, valid & ~np.isnan(measured)


def _distances(
    vectors: npt.NDArray[np.float32], query: npt.NDArray[np.float32], metric: str
) -> npt.NDArray[np.float32]:
    if metric == "l2":
        moved = vectors - query
        squares: npt.NDArray[np.float32] = np.einsum("ij,ij->i", moved, moved)
        return squares
    products: npt.NDArray[np.float32] = vectors @ query
    if metric == "dot":
        return 1 - products
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(1 - products / lengths, np.float32)
