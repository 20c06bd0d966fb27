"""The embedded commit store is gone: what its error advises brings the table back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.cli import main
from holdfast.errors import NotFoundError


@pytest.mark.requirement("P1", "P2")
def test_a_table_whose_commits_db_is_gone_goes_on_after_its_advice(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    schema = pa.schema([("id", pa.int64()), ("w", pa.string())])
    table = holdfast.create_table(uri, schema, primary_key=["id"], commit_store="sqlite")
    table.append([{"id": 1, "w": "a"}])
    writer = table.claim_writer("unsharded")
    writer.put([{"id": 2, "w": "b"}])
    writer.flush()
    writer.put([{"id": 3, "w": "c"}])
    writer.abort()
    table.close()
    for file in (uri / "_holdfast").glob("commits.db*"):
        file.unlink()

    with pytest.raises(NotFoundError, match=r"repair URI --new-commit-store sqlite --confirm"):
        holdfast.open_table(uri).count()
    assert not list((uri / "_holdfast").glob("commits.db*"))
    assert main(["repair", str(uri), "--new-commit-store", "sqlite", "--confirm"]) == 0

    again = holdfast.open_table(uri)
    assert again.count() == 3
    again.append([{"id": 4, "w": "d"}])
    with again.claim_writer("unsharded") as writer:
        writer.put([{"id": 5, "w": "e"}])
    again.compact_lsm()
    assert sorted(again.to_table()["id"].to_pylist()) == [1, 2, 3, 4, 5]
