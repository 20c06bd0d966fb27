"""`LanceBuilder`: Lance builds the parts of some fragments, and we write down what it made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import lance
from lance.dataset import Index
from lance.file import LanceFileReader

from holdfast.commits import translate_errors
from holdfast.errors import CorruptError
from holdfast.formats import (
    PART_FILES,
    BuildRecord,
    Details,
    Part,
    PartFile,
    index_folder,
    part_file,
    staging_folder,
)
from holdfast.index._files import BuildFiles
from holdfast.index._marker import LanceMarkers
from holdfast.index._task import Built

_METADATA = re.compile(r"staging/part_(?:empty_)?(\d+)_metadata\.lance")


class LanceBuilder:
    """Builds on a pinned version of one table.

    Args:
        files: where the table's files are.
        open_version: returns the table at a version.
    """

    def __init__(
        self,
        files: BuildFiles,
        open_version: Callable[[int], lance.LanceDataset],
    ) -> None:
        self._files = files
        self._open_version = open_version

    def build(self, record: BuildRecord, fragments: tuple[int, ...], attempt: str) -> Built:
        """Stage the parts of some fragments in the attempt's folder."""
        table = self._open_version(record.version)
        with translate_errors(self._files.core.location):
            made = stage(table, record, fragments, attempt)
        parts, properties = self._read(
            attempt, {f.path: int(f.size_bytes) for f in made.files or ()}
        )
        return Built(
            parts=parts,
            properties=properties,
            details=details_of(made),
            documents=sum(self._documents(part) for part in parts),
        )

    def _read(
        self, attempt: str, files: Mapping[str, int]
    ) -> tuple[tuple[Part, ...], Mapping[str, str]]:
        """Return the parts that were staged, by their own metadata, and how they were made."""
        parts: list[Part] = []
        properties: Mapping[str, str] | None = None
        for path in sorted(files):
            if not _METADATA.fullmatch(path):
                continue
            body = self._files.get(f"{index_folder(attempt)}/{path}")
            marker = LanceMarkers().decode(body or b"")
            properties = marker.properties
            parts += [_part(attempt, part, files) for part in marker.parts]
        if properties is None:
            raise CorruptError("Lance staged no metadata", attempt=attempt)
        return tuple(sorted(parts, key=lambda part: part.id)), properties

    def _documents(self, part: Part) -> int:
        docs = part.path(part.files[PART_FILES.index("docs.lance")])
        with translate_errors(self._files.core.location):
            return int(self.reader(docs).num_rows())

    def reader(self, path: str) -> LanceFileReader:
        """Open one Lance file of the table."""
        core = self._files.core
        return LanceFileReader(f"{core.location}/{path}", storage_options=core.resolved or None)


def stage(
    table: lance.LanceDataset, record: BuildRecord, fragments: tuple[int, ...], attempt: str
) -> Index:
    """Let Lance build; one worker, so that the same input gives the same parts."""
    settings: dict[str, Any] = {**record.parameters, "num_workers": 1}
    if record.memory_mb is not None:
        settings["memory_limit"] = record.memory_mb
    return table.create_index_uncommitted(
        record.column,
        "INVERTED",
        name=record.name,
        replace=True,  # replaces nothing: it only says that the name may be taken
        fragment_ids=list(fragments),
        index_uuid=attempt,
        **settings,
    )


def details_of(made: Index) -> Details:
    """Return what Lance wants to be told again when the index is committed."""
    kind, value = made.index_details or ("", b"")
    return Details(
        fields=tuple(int(field) for field in made.fields),
        index_version=int(made.index_version),
        type_url=str(kind),
        value_hex=bytes(value).hex(),
    )


def _part(attempt: str, part: int, files: Mapping[str, int]) -> Part:
    try:
        sizes = [(file, files[f"staging/{part_file(part, file)}"]) for file in PART_FILES]
    except KeyError as error:
        raise CorruptError("Lance staged a part without all its files", part=part) from error
    return Part(
        folder=staging_folder(attempt),
        id=part,
        files=tuple(PartFile(file=file, size=size) for file, size in sizes),
    )
