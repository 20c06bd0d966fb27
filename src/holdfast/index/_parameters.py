"""Parameters of a full-text index: checked, and spelled out in full, before anything is built.

A sample index over one empty row tells what Lance makes of the parameters. So a wrong one is
refused before a task starts, and two ways to say the same thing compare as equal.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from holdfast.commits import told_by
from holdfast.errors import CorruptError, InvalidInputError
from holdfast.formats import BuildRecord, Details, index_folder, index_id
from holdfast.index._lance import details_of, stage
from holdfast.index._marker import LanceMarkers
from holdfast.options import suggestion

KNOWN = (
    "analyzer",
    "ascii_folding",
    "base_tokenizer",
    "block_size",
    "custom_stop_words",
    "format_version",
    "index_operators",
    "language",
    "lower_case",
    "max_ngram_length",
    "max_token_length",
    "min_ngram_length",
    "prefix_only",
    "preserve_original",
    "remove_stop_words",
    "split_identifiers",
    "split_on_numerics",
    "stem",
    "with_position",
)
"""What may be said about a full-text index, by Lance's names."""

_SAMPLE_ID = index_id("hf-" + "0" * 31 + "1")
_MIN_MEMORY_MB = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition:
    """What Lance makes of parameters."""

    properties: Mapping[str, str]
    details: Details


def check_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given.

    Raises:
        InvalidInputError: one is not known, or no plain value.
    """
    for key, value in parameters.items():
        if key not in KNOWN:
            raise InvalidInputError(
                f"unknown index parameter {key!r}{suggestion(key, list(KNOWN))}",
                known=", ".join(KNOWN),
            )
        plain = isinstance(value, str | int | bool)
        words = isinstance(value, list) and all(isinstance(word, str) for word in value)
        if value is not None and not plain and not words:
            raise InvalidInputError(f"index parameter {key!r} is a plain value", given=repr(value))
    return {key: value for key, value in parameters.items() if value is not None}


def check_memory(memory_mb: int | None) -> int | None:
    """Return the memory of a task in MiB.

    Raises:
        InvalidInputError: too little to build anything.
    """
    if memory_mb is not None and memory_mb < _MIN_MEMORY_MB:
        raise InvalidInputError(
            f"memory_mb is what a task may build with, at least {_MIN_MEMORY_MB} MiB",
            given=memory_mb,
        )
    return memory_mb


def define_index(column: str, field: pa.Field, parameters: Mapping[str, Any]) -> IndexDefinition:
    """Return what Lance makes of parameters for a column of this type.

    Raises:
        InvalidInputError: the column is not text, or Lance refuses a value.
    """
    name = column.rpartition(".")[2]
    rows = pa.table(
        [pa.nulls(1, field.type)],
        schema=pa.schema([field.with_name(name).with_nullable(nullable=True)]),
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        try:
            table = lance.write_dataset(rows, folder)
            made = stage(table, _sample(name, parameters), (0,), _SAMPLE_ID)
        except (TypeError, ValueError, OSError) as error:
            raise InvalidInputError(
                "this column cannot be indexed so", column=column, reason=told_by(error)
            ) from error
        files = [Path(folder) / index_folder(_SAMPLE_ID) / file.path for file in made.files or ()]
        marker_file = next((file for file in files if file.name.endswith("metadata.lance")), None)
        if marker_file is None:
            raise CorruptError("Lance staged no metadata for a sample index")
        marker = LanceMarkers().decode(marker_file.read_bytes())
    return IndexDefinition(properties=marker.properties, details=details_of(made))


def parameters_from(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters with which an index of these properties is built again.

    Raises:
        CorruptError: the properties do not say.
    """
    try:
        given = json.loads(properties["params"])
        version = int(properties["format_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError("an index does not say how it was built: build it anew") from error
    kept = {key: value for key, value in given.items() if key in KNOWN and value is not None}
    if given.get("lance_tokenizer") == "code":
        kept["analyzer"] = "code"
    return {**kept, "format_version": version}


def _sample(column: str, parameters: Mapping[str, Any]) -> BuildRecord:
    return BuildRecord(
        token="",
        build_id=_SAMPLE_ID,
        name="sample",
        column=column,
        version=1,
        parameters=parameters,
        memory_mb=None,
        tasks=((0,),),
    )
