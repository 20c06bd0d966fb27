"""What an index build writes down: its record, the manifest of a task, the frozen plan.

All three are JSON with a format number and a token. Whoever reads one gets a checked value
or `CorruptError`, never half of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.errors import CorruptError
from holdfast.formats._index import PART_FILES, check_index_id, part_path
from holdfast.formats._names import check_path

_FORMAT = 1
_MD5_CHARS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFile:
    """One of the files of a part: which, how long, and the MD5 of its bytes if computed."""

    file: str
    size: int
    md5: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of an index where it was written first: by an attempt, or in an older segment."""

    folder: str
    id: int
    files: tuple[PartFile, ...]

    def path(self, file: PartFile) -> str:
        """Return where one of its files is."""
        return part_path(self.folder, self.id, file.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecord:
    """What is to be built.

    Attributes:
        token: marks the record.
        build_id: the UUID of the index.
        name: the index's name.
        column: what is indexed.
        version: the table version that every task reads.
        parameters: the tokenizer's settings, as Lance takes them.
        memory_mb: what a task may use to build, in MiB; None for Lance's own choice.
        tasks: the fragments of each task.
        kept: parts of the existing index that become parts of this one.
        kept_fragments: the fragments which those cover.
        properties: what the existing index says of its files; None for a new one.
        replace: take the place of an index with other parameters.
        started: when, by the wall clock; only shown.
    """

    token: str
    build_id: str
    name: str
    column: str
    version: int
    parameters: Mapping[str, Any]
    memory_mb: int | None
    tasks: tuple[tuple[int, ...], ...]
    kept: tuple[Part, ...] = ()
    kept_fragments: tuple[int, ...] = ()
    properties: Mapping[str, str] | None = None
    replace: bool = False
    started: float = 0.0

    @property
    def fragments(self) -> tuple[int, ...]:
        """Return everything that the index will cover."""
        return tuple(sorted({f for task in self.tasks for f in task} | set(self.kept_fragments)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What Lance wants to be told of an index when it is committed."""

    fields: tuple[int, ...]
    index_version: int
    type_url: str
    value_hex: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManifest:
    """What one attempt built, decided to be what counts for its task."""

    token: str
    build_id: str
    task: int
    attempt: str
    fragments: tuple[int, ...]
    parts: tuple[Part, ...]
    properties: Mapping[str, str]
    details: Details
    documents: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which part becomes which: the n-th of `parts` is final part n."""

    token: str
    build_id: str
    name: str
    column: str
    version: int
    replace: bool
    fragments: tuple[int, ...]
    parts: tuple[Part, ...]
    attempts: tuple[str, ...]
    properties: Mapping[str, str]
    details: Details
    documents: int


def encode_index_record(record: BuildRecord | TaskManifest | Plan) -> bytes:
    """Return the bytes of a record; equal records give equal bytes."""
    fields = {"v": _FORMAT, "kind": type(record).__name__, **asdict(record)}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def decode_build(body: bytes) -> BuildRecord:
    """Return the build record behind its bytes.

    Raises:
        CorruptError: they are not one of a known format.
    """
    with _Fields(body, BuildRecord) as fields:
        return BuildRecord(
            **{
                **fields,
                "build_id": check_index_id(fields["build_id"]),
                "version": int(fields["version"]),
                "tasks": tuple(_numbers(task) for task in fields["tasks"]),
                "kept": _parts(fields["kept"]),
                "kept_fragments": _numbers(fields["kept_fragments"]),
            }
        )


def decode_task(body: bytes) -> TaskManifest:
    """Return the task manifest behind its bytes.

    Raises:
        CorruptError: they are not one of a known format.
    """
    with _Fields(body, TaskManifest) as fields:
        return TaskManifest(
            **{
                **fields,
                "build_id": check_index_id(fields["build_id"]),
                "attempt": check_index_id(fields["attempt"]),
                "task": int(fields["task"]),
                "fragments": _numbers(fields["fragments"]),
                "parts": _parts(fields["parts"]),
                "properties": _texts(fields["properties"]),
                "details": _details(fields["details"]),
            }
        )


def decode_plan(body: bytes) -> Plan:
    """Return the plan behind its bytes.

    Raises:
        CorruptError: they are not one of a known format.
    """
    with _Fields(body, Plan) as fields:
        return Plan(
            **{
                **fields,
                "build_id": check_index_id(fields["build_id"]),
                "version": int(fields["version"]),
                "fragments": _numbers(fields["fragments"]),
                "parts": _parts(fields["parts"]),
                "attempts": tuple(check_index_id(a) for a in fields["attempts"]),
                "properties": _texts(fields["properties"]),
                "details": _details(fields["details"]),
            }
        )


class _Fields:
    """The fields of a record; what goes wrong while they are read becomes `CorruptError`."""

    def __init__(self, body: bytes, kind: type) -> None:
        self._body = body
        self._kind = kind.__name__

    def __enter__(self) -> dict[str, Any]:
        try:
            record = json.loads(self._body)
            if record.pop("v") != _FORMAT:
                raise CorruptError("an index record of a newer format: upgrade Holdfast")
            if record.pop("kind") != self._kind:
                raise ValueError("another kind of record")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._corrupt() from error
        return dict(record)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ValueError | KeyError | TypeError | AttributeError):
            raise self._corrupt() from error

    def _corrupt(self) -> CorruptError:
        return CorruptError("a record of an index build cannot be read", kind=self._kind)


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(number) for number in values)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in values.items()}


def _parts(values: Sequence[Any]) -> tuple[Part, ...]:
    return tuple(_part(part) for part in values)


def _part(fields: Mapping[str, Any]) -> Part:
    files = tuple(
        PartFile(file=f["file"], size=int(f["size"]), md5=_md5(f["md5"])) for f in fields["files"]
    )
    if tuple(f.file for f in files) != PART_FILES:
        raise ValueError("a part lacks a file")
    return Part(folder=check_path(fields["folder"]), id=int(fields["id"]), files=files)


def _md5(digest: str | None) -> str | None:
    if digest is not None and len(digest) != _MD5_CHARS:
        raise ValueError("no MD5")
    return digest


def _details(fields: Mapping[str, Any]) -> Details:
    return Details(
        fields=_numbers(fields["fields"]),
        index_version=int(fields["index_version"]),
        type_url=str(fields["type_url"]),
        value_hex=bytes.fromhex(fields["value_hex"]).hex(),
    )
