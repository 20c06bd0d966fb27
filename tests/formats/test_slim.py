"""Manifests without the fragments that another one has: nothing is overlooked, whatever differs."""

from __future__ import annotations

import random
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from holdfast.errors import CorruptError
from holdfast.formats import read_config, shown_files
from holdfast.formats._slim import Reference
from holdfast.formats._transaction import VersionFacts

pytestmark = pytest.mark.requirement("O3")


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Return the manifests of a table that was appended to, changed, indexed and compacted."""
    uri = tmp_path_factory.mktemp("slim") / "t.lance"
    for number in range(12):
        rows = pa.table({"id": range(number * 4, number * 4 + 4)})
        data = lance.write_dataset(rows, uri, mode="append" if number else "create")
    data.delete("id = 5")
    data.create_scalar_index("id", "BTREE")
    lance.write_dataset(pa.table({"id": [100]}), uri, mode="append")
    data = lance.dataset(uri)
    data.delete("id >= 40")
    data.update_config({"some": "thing"})
    data.optimize.compact_files()
    for number in range(3):
        lance.write_dataset(pa.table({"id": [200 + number]}), uri, mode="append")
    files = sorted(Path(uri, "_versions").glob("*.manifest"), reverse=True)
    return [file.read_bytes() for file in files]


def test_an_append_leaves_nothing_behind(manifests: list[bytes]) -> None:
    before, after = manifests[3], manifests[4]
    small = Reference(after).without_known(before)
    assert len(small) < len(before)
    assert VersionFacts(small).fragments == 0
    assert VersionFacts(Reference(before).without_known(after)).fragments == 1


def test_every_pair_together_shows_every_file(manifests: list[bytes]) -> None:
    for one in manifests:
        reference = Reference(one)
        for other in manifests:
            small = reference.without_known(other)
            assert shown_files(small) | shown_files(one) >= shown_files(other)
            assert shown_files(small) <= shown_files(other)
            assert read_config(small) == read_config(other)
            facts, whole = VersionFacts(small), VersionFacts(other)
            assert (facts.version, facts.token) == (whole.version, whole.token)
            assert facts.transaction == whole.transaction


@pytest.mark.parametrize("seed", range(200))
def test_bytes_that_are_none_are_left_as_they_are(manifests: list[bytes], seed: int) -> None:
    chance = random.Random(seed)
    reference = Reference(manifests[0])
    noise = chance.randbytes(chance.randrange(200))
    assert reference.without_known(noise) == noise
    damaged = bytearray(manifests[chance.randrange(len(manifests))])
    for _ in range(chance.randrange(1, 4)):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    whole = bytes(damaged[: chance.randrange(len(damaged) // 2, len(damaged) + 1)])
    small, seen = shown_or_none(reference.without_known(whole)), shown_or_none(whole)
    if seen is not None:
        assert small is not None
        assert small | shown_files(manifests[0]) >= seen


def shown_or_none(manifest: bytes) -> set[str] | None:
    try:
        return shown_files(manifest)
    except CorruptError:
        return None
