"""The manifest of an append is the one that Lance makes, or Lance is left to make it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from holdfast.errors import CorruptError
from holdfast.formats import version_name
from holdfast.formats._append import AppendBase, AppendTransaction
from holdfast.formats._protobuf import FOOTER, LENGTH, main_section
from holdfast.formats._transaction import decode_transaction
from holdfast.formats._version_files import newest_version

ROWS = pa.table({"id": [1, 2], "text": ["a", "b"], "both": [{"x": 1, "y": 1.5}, None]})


def index(table: lance.LanceDataset) -> None:
    table.create_scalar_index("id", "BTREE")
    table.create_scalar_index("text", "INVERTED")


TABLES: dict[str, Callable[[lance.LanceDataset], object]] = {
    "new": lambda _: None,
    "grown": lambda t: t.insert(ROWS),
    "indexed": index,
    "deleted from": lambda t: t.delete("id = 1"),
    "compacted": lambda t: (t.insert(ROWS), t.optimize.compact_files()),
    "configured": lambda t: t.update_config({"some": "thing"}),
    "described": lambda t: t.update_metadata({"some": "thing"}),
    "with a schema's metadata": lambda t: t.update_schema_metadata({"some": "thing"}),
    "updated": lambda t: t.update({"text": "'c'"}, where="id = 2"),
    "widened": lambda t: t.add_columns({"more": "id * 2"}),
    "overwritten by nothing": lambda t: lance.write_dataset(ROWS[:0], t, mode="overwrite"),
}


def manifest_of(uri: str, version: int) -> bytes:
    return Path(uri, version_name(version).path).read_bytes()


def message_of(manifest: bytes) -> Any:
    return AppendBase(manifest, lance.__version__)._message


@pytest.mark.parametrize("kind", TABLES)
def test_it_is_what_lance_makes(tmp_path: Path, kind: str) -> None:
    uri = str(tmp_path / "t.lance")
    TABLES[kind](lance.write_dataset(ROWS, uri))
    below = lance.dataset(uri)
    newest = lance.write_dataset(ROWS, uri, mode="append")
    theirs = manifest_of(uri, newest.version)
    base = AppendBase(manifest_of(uri, below.version), lance.__version__)
    (file,) = Path(uri, "_transactions").glob(f"{below.version}-*")
    read = decode_transaction(file.read_bytes())

    made = AppendTransaction(read.read_version, read.uuid.replace("-", ""), read.added)
    assert (made.file, made.body) == (file.name, file.read_bytes())
    assert base.is_plain
    assert base.takes(made.added)
    ours = base.append(made, {}, 1.5)

    assert ours[: main_section(ours)] == theirs[: main_section(theirs)]  # indexes, transaction
    mine, wanted = message_of(ours), message_of(theirs)
    assert (mine.timestamp.seconds, mine.timestamp.nanos) == (1, 500_000_000)
    mine.timestamp.CopyFrom(wanted.timestamp)
    for message in (mine, wanted):  # maps: Lance writes them in any order
        for name in ("schema_metadata", "table_metadata"):
            entries = sorted(getattr(message, name))
            del getattr(message, name)[:]
            getattr(message, name).extend(entries)
    assert mine.SerializeToString(deterministic=True) == wanted.SerializeToString(
        deterministic=True
    )
    assert FOOTER.unpack(ours[-FOOTER.size :])[1:] == FOOTER.unpack(theirs[-FOOTER.size :])[1:]


def test_entries_of_the_config_are_set_and_removed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(ROWS, uri).update_config({"stays": "1", "goes": "2"})
    base = AppendBase(manifest_of(uri, 2), lance.__version__)
    made = base.append(AppendTransaction(2, f"hf-{7:032x}", []), {"goes": None, "new": "3"}, 0.0)
    assert AppendBase(made, lance.__version__).config == {"stays": "1", "new": "3"}
    assert AppendBase(made, lance.__version__).version == 3


def with_field(manifest: bytes, change: Callable[[Any], object]) -> bytes:
    """Return a manifest without its other sections, changed."""
    message = message_of(manifest)
    change(message)
    body = message.SerializeToString()
    return LENGTH.pack(len(body)) + bytes(body) + FOOTER.pack(0, 0, 2, b"LANC")


STRANGE: dict[str, Callable[[Any], object]] = {
    "an unknown field": lambda m: m.MergeFromString(b"\xf8\x07\x01"),
    "an unknown feature": lambda m: setattr(m, "writer_feature_flags", 1 << 20),
    "an unknown feature to read": lambda m: setattr(m, "reader_feature_flags", 2),
    "another release": lambda m: setattr(m, "writer_version", b"\n\x05lance\x12\x0510.0."),
    "a setting for commits": lambda m: m.config.update({"lance.auto_cleanup.interval": "3"}),
    "fragments without a highest number": lambda m: m.ClearField("max_fragment_id"),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_what_is_not_known_is_left_to_lance(tmp_path: Path, strange: str) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(ROWS, uri)
    manifest = manifest_of(uri, 1)
    assert AppendBase(with_field(manifest, lambda m: m), lance.__version__).is_plain
    assert not AppendBase(with_field(manifest, STRANGE[strange]), lance.__version__).is_plain


@pytest.mark.parametrize("settings", [{"enable_stable_row_ids": True}, {"initial_bases": True}])
def test_features_of_lance_that_appends_have_to_do_with(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    uri = str(tmp_path / "t.lance")
    if "initial_bases" in settings:
        settings = {"initial_bases": [lance.DatasetBasePath(str(tmp_path / "other"), "other")]}
    lance.write_dataset(ROWS, uri, **settings)
    assert not AppendBase(manifest_of(uri, 1), lance.__version__).is_plain


def test_files_of_another_format_are_left_to_lance(tmp_path: Path) -> None:
    uri, other = str(tmp_path / "t.lance"), str(tmp_path / "other.lance")
    rows = ROWS.select(["id"])
    lance.write_dataset(rows, uri, data_storage_version="2.0")
    lance.write_dataset(rows, uri, mode="append")
    lance.write_dataset(rows, other)
    (file,) = Path(uri, "_transactions").glob("1-*")
    added = decode_transaction(file.read_bytes()).added
    assert AppendBase(manifest_of(uri, 2), lance.__version__).takes(added)
    assert not AppendBase(manifest_of(other, 1), lance.__version__).takes(added)


@pytest.mark.parametrize("body", [b"", b"LANC", b"\xff" * 40 + b"LANC"])
def test_bytes_that_are_no_manifest(body: bytes) -> None:
    with pytest.raises(CorruptError):
        AppendBase(body, lance.__version__)


def test_the_newest_version_among_files() -> None:
    files = [version_name(number).path.partition("/")[2] for number in (1, 2, 19, 7)]
    assert newest_version(files) == 19
    staged = version_name(20).path.partition("/")[2]
    others = [".tmpA", f"{staged}-uuid", f"{staged}#1", "d12.manifest", "latest_version_hint.json"]
    assert newest_version([*others, *files]) == 19
    assert newest_version(others) is None
    assert newest_version([]) is None
