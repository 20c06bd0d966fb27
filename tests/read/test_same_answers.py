"""The same question, asked of the table, a snapshot and a writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.errors import InvalidInputError

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("vec", pa.list_(pa.float32(), 2)),
    ]
)
TEXTS = ("storm at sea", "old harbour", "storm in the harbour", "calm")
ROWS: list[dict[str, Any]] = [
    {"k": number, "text": text, "vec": [float(number), 0.0]} for number, text in enumerate(TEXTS)
]


def asked(reader: Any) -> list[Any]:
    """Return the answers to one list of questions."""
    rows = reader.scan(["k"], "k > 0", limit=10).read_all()
    assert reader.to_table(["k"], "k > 0", limit=10).equals(rows)
    found = reader.search("text", "storm", 10, columns=["k"], filter="k < 2")
    near = reader.nearest("vec", [3.0, 0.0], 2, columns=["k"], filter="k < 3", metric="l2")
    return [
        sorted(rows["k"].to_pylist()),
        (reader.count(), reader.count("k > 1")),
        reader.lookup([2, 9, 0], ["text"]).to_pylist(),
        found["k"].to_pylist(),
        near["k"].to_pylist(),
    ]


def test_a_writer_s_stream_is_of_the_moment_it_was_asked_for(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", SCHEMA, primary_key=["k"])
    with table.claim_writer("unsharded") as writer:
        writer.put(ROWS)
        stream = writer.scan(["k", "text"], "k < 2")
        writer.put([{**ROWS[0], "text": "newer"}])
        writer.delete_keys([1])
        writer.flush()
        assert sorted(stream.read_all()["text"].to_pylist()) == sorted(TEXTS[:2])


def test_table_snapshot_and_writer_answer_alike(tmp_path: Path) -> None:
    table = holdfast.create_table(tmp_path / "t.lance", SCHEMA, primary_key=["k"])
    table.append(pa.Table.from_pylist([{**ROWS[0], "k": 7}], schema=SCHEMA))
    table.create_index("text")
    table.delete("k = 7")
    with table.claim_writer("unsharded") as writer:
        writer.put([*ROWS, {"k": 8, "text": "storm", "vec": [8.0, 0.0]}])
        writer.delete_keys([8])
        with table.snapshot() as snapshot:
            answers = [asked(reader) for reader in (table, snapshot, writer)]
        with pytest.raises(InvalidInputError):
            writer.search("text", "storm", filter="there is no such thing")
        with pytest.raises(InvalidInputError):
            writer.count("there is no such thing")
    texts = [{"text": TEXTS[2]}, {"text": TEXTS[0]}]
    assert answers[0] == [[1, 2, 3], (4, 2), texts, [0], [2, 1]]
    assert answers[1:] == [answers[0], answers[0]]
