"""The one description of Lance's messages, compared with what pylance writes.

Everything is read with the whole description and held against pylance's own answers. Fields that
pylance writes and the description lacks are listed here: a release that adds one is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from holdfast.formats import version_name
from holdfast.formats._lance_messages import CHECKED_RELEASE, LANCE_MESSAGES, lance_view
from holdfast.formats._protobuf import main_section, read_section

# Written by pylance, and needed by nobody here: message -> field numbers.
UNREAD = {
    "Manifest": {8, 14},
    "Field": {1, 7, 8, 9, 11},
    "DataFragment": {5, 6, 7, 8, 9, 10},
    "DataFile": set(),
    "Index": {4, 5, 7, 8, 11, 12},
    "Transaction": {3, 4},
    "Delete": {3},
    "Rewrite": {4},
    "RewriteGroup": {2},
    "Update": {3, 6},
}

WHOLE = lance_view(
    "holdfast.test_whole",
    {
        message: " ".join(name for name, _, _ in fields)
        for message, fields in LANCE_MESSAGES.items()
    },
)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string(), metadata={"note": "kept"}),
        pa.field("place", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
    ],
    metadata={"made": "here"},
)


def rows(count: int) -> pa.Table:
    return pa.table(
        {
            "id": list(range(count)),
            "text": [f"text {number}" for number in range(count)],
            "place": [{"x": 1.0, "y": 2.0}] * count,
        },
        schema=SCHEMA,
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    """Return a table that went through what leaves marks in manifests, the last version open."""
    uri = str(tmp_path_factory.mktemp("messages") / "t.lance")
    dataset = lance.write_dataset(rows(100), uri, data_storage_version="stable")
    dataset = lance.write_dataset(rows(10), uri, mode="append")
    dataset.delete("id = 3")
    dataset.update({"text": "'new'"}, where="id = 4")
    dataset.update_config({"kept": "yes"})
    dataset = lance.write_dataset(rows(5), uri, mode="append")
    dataset.optimize.compact_files(target_rows_per_fragment=1000)
    dataset.create_scalar_index("id", "BTREE", name="by_id")
    dataset = lance.write_dataset(rows(5), uri, mode="append")
    dataset.delete("id = 1")
    return lance.dataset(uri)


def read_manifest(table: lance.LanceDataset, version: int) -> tuple[Any, Any, Any]:
    """Return a manifest, its indexes and its transaction."""
    body = (Path(table.uri) / version_name(version).path).read_bytes()
    manifest: Any = read_section(body, main_section(body), WHOLE["Manifest"])[0]
    indexes: Any = None
    if manifest.HasField("index_section"):
        indexes = read_section(body, manifest.index_section, WHOLE["IndexSection"])[0]
    file = Path(table.uri) / "_transactions" / manifest.transaction_file
    transaction: Any = WHOLE["Transaction"]()
    transaction.ParseFromString(file.read_bytes())
    return manifest, indexes, transaction


def parts(message: Message) -> Iterator[Message]:
    """Yield a message and all inside it that the description names."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        inside = value if field.is_repeated else [value]
        for part in inside:
            yield from parts(part)


def test_the_release_that_was_checked_is_the_one_that_is_locked() -> None:
    lock = (Path(__file__).resolve().parents[2] / "locks" / "all.txt").read_text()
    assert f"pylance=={CHECKED_RELEASE} " in lock, "run this file, then change the constant"


def test_schema_and_fragments_are_as_pylance_says(table: lance.LanceDataset) -> None:
    manifest, _, _ = read_manifest(table, table.version)
    names = [field.name for field in manifest.fields]
    assert names == ["id", "text", "place", "x", "y"]
    assert [field.id for field in manifest.fields] == [0, 1, 2, 3, 4]
    assert [field.parent_id for field in manifest.fields] == [-1, -1, -1, 2, 2]
    assert [field.nullable for field in manifest.fields] == [False, True, True, True, True]
    assert [field.logical_type for field in manifest.fields][:3] == ["int64", "string", "struct"]
    assert dict(manifest.fields[1].metadata) == {"note": b"kept"}
    assert dict(manifest.schema_metadata) == {"made": b"here"}
    assert manifest.version == table.version
    assert dict(manifest.config) == table.config()
    assert manifest.timestamp.seconds > 0
    assert manifest.writer_version.version == lance.__version__
    shown = [fragment.metadata for fragment in table.get_fragments()]
    assert len(manifest.fragments) == len(shown) > 1
    for ours, theirs in zip(manifest.fragments, shown, strict=True):
        check_fragment(ours, theirs)
    assert manifest.max_fragment_id == max(fragment.id for fragment in shown)


def check_fragment(ours: Any, theirs: Any) -> None:
    assert (ours.id, ours.physical_rows) == (theirs.id, theirs.physical_rows)
    for file, shown in zip(ours.files, theirs.files, strict=True):
        assert (file.path, list(file.fields)) == (shown.path, list(shown.fields))
        assert list(file.column_indices) == list(shown.column_indices)
        assert file.file_size_bytes == shown.file_size_bytes
        assert file.file_major_version == shown.file_major_version
        assert file.file_minor_version == shown.file_minor_version
    assert ours.HasField("deletion_file") == (theirs.deletion_file is not None)
    if theirs.deletion_file is not None:
        deletions = theirs.deletion_file
        assert ours.deletion_file.read_version == deletions.read_version
        assert ours.deletion_file.id == deletions.id
        assert ours.deletion_file.num_deleted_rows == deletions.num_deleted_rows


def test_indexes_are_as_pylance_says(table: lance.LanceDataset) -> None:
    _, indexes, _ = read_manifest(table, table.version)
    (ours,) = [index for index in indexes.indices if index.name == "by_id"]
    (theirs,) = [index for index in table.describe_indices() if index.name == "by_id"]
    (segment,) = theirs.segments
    assert ours.uuid.uuid.hex() == str(segment.uuid).replace("-", "")
    assert list(ours.fields) == [0]
    folder = Path(table.uri) / "_indices" / str(segment.uuid)
    assert {file.path for file in ours.files} == {file.name for file in folder.iterdir()}
    assert all(file.size_bytes == (folder / file.path).stat().st_size for file in ours.files)


def test_transactions_are_as_pylance_says(table: lance.LanceDataset) -> None:
    seen = []
    for version in range(1, table.version + 1):
        _, _, ours = read_manifest(table, version)
        theirs: Any = table.read_transaction(version)
        assert (ours.uuid, ours.read_version) == (theirs.uuid, theirs.read_version)
        known = [field.message_type.name for field, _ in ours.ListFields() if field.message_type]
        (operation,) = known
        # pylance gives some operations no class of their own.
        assert type(theirs.operation).__name__ in {operation, "BaseOperation"}
        seen.append(operation)
    assert {"Overwrite", "Append", "Delete", "Update", "UpdateConfig", "CreateIndex"} <= set(seen)
    assert "Rewrite" in seen


def test_no_field_is_new(table: lance.LanceDataset) -> None:
    unread: dict[str, set[int]] = {}
    for version in range(1, table.version + 1):
        for message in read_manifest(table, version):
            for part in parts(message) if message is not None else ():
                name = part.DESCRIPTOR.name
                fields: Any = UnknownFieldSet(part)  # Any: its stubs lack iteration
                numbers = {field.field_number for field in fields}
                if LANCE_MESSAGES[name]:  # into others nobody looks
                    unread.setdefault(name, set()).update(numbers)
    new = {name: numbers - UNREAD.get(name, set()) for name, numbers in unread.items()}
    assert {name: numbers for name, numbers in new.items() if numbers} == {}
