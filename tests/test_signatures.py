"""A verb has the same parameters wherever it appears: same order, same words, same defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import holdfast
import holdfast.arbiter
import holdfast.upkeep
from holdfast.spark import SparkTable

READERS = {
    "TableSnapshot": holdfast.TableSnapshot,
    "ShardWriter": holdfast.ShardWriter,
    "SparkTable": SparkTable,
}
READS = ("scan", "count", "lookup", "nearest", "search")
# What one moment, or what a writer has in memory, cannot be asked for.
LEFT_OUT = {
    "TableSnapshot": {"freshness", "version"},
    "ShardWriter": {"freshness", "version", "options"},
    "SparkTable": set(),
}
# These take a table's address; `url` is a commit store's.
ADDRESSED = (
    holdfast.adopt_table,
    holdfast.create_arbiter,
    holdfast.create_table,
    holdfast.open_arbiter,
    holdfast.open_table,
    holdfast.probe,
    holdfast.release_table,
    holdfast.write_table,
    holdfast.arbiter.forget,
    holdfast.arbiter.move_commit_store,
    holdfast.arbiter.remember,
    holdfast.arbiter.repin,
    holdfast.arbiter.verdict_of,
    holdfast.upkeep.doctor,
    holdfast.upkeep.repair,
    holdfast.upkeep.rescue,
    holdfast.upkeep.vacuum,
    SparkTable.__init__,
)


def shape_of(verb: Callable[..., object]) -> dict[str, tuple[Any, Any]]:
    """Return a verb's parameters in order: how each is given, and its default."""
    parameters = inspect.signature(verb).parameters.values()
    return {one.name: (one.kind, one.default) for one in parameters if one.name != "self"}


def differences(
    wanted: Mapping[str, tuple[Any, Any]], given: Mapping[str, tuple[Any, Any]]
) -> list[str]:
    """Return in what two verbs differ, in words; nothing if they are the same."""
    found = [f"lacks {name}" for name in wanted if name not in given]
    found += [f"has {name}" for name in given if name not in wanted]
    both = [name for name in wanted if name in given]
    found += [f"has another {name}" for name in both if wanted[name] != given[name]]
    if not found and list(wanted) != list(given):
        found.append(f"has another order: {', '.join(given)}")
    return found


@pytest.mark.parametrize("verb", READS)
@pytest.mark.parametrize("name", READERS)
def test_a_read_has_the_parameters_of_the_table_s(name: str, verb: str) -> None:
    wanted = shape_of(getattr(holdfast.Table, verb))
    kept = {key: one for key, one in wanted.items() if key not in LEFT_OUT[name]}
    assert differences(kept, shape_of(getattr(READERS[name], verb))) == []


@pytest.mark.parametrize(("verb", "result"), [("scan", "RecordBatchReader"), ("to_table", "Table")])
@pytest.mark.parametrize("kind", [holdfast.Table, holdfast.TableSnapshot, holdfast.ShardWriter])
def test_a_read_returns_arrow_of_one_kind(kind: type, verb: str, result: str) -> None:
    assert inspect.signature(getattr(kind, verb)).return_annotation == f"pa.{result}"


@pytest.mark.parametrize("name", ["TableSnapshot", "ShardWriter"])
def test_rows_in_memory_are_asked_for_with_the_table_s_words(name: str) -> None:
    wanted = shape_of(holdfast.Table.to_table)
    kept = {key: one for key, one in wanted.items() if key not in LEFT_OUT[name]}
    verb = "to_table"
    assert differences(kept, shape_of(getattr(READERS[name], verb))) == []


@pytest.mark.parametrize("verb", ["delete", "update", "restore"])
def test_spark_changes_rows_with_the_table_s_words(verb: str) -> None:
    given, wanted = getattr(SparkTable, verb), getattr(holdfast.Table, verb)
    assert differences(shape_of(wanted), shape_of(given)) == []


def test_a_writer_deletes_keys_and_a_table_by_a_condition() -> None:
    assert next(iter(shape_of(holdfast.Table.delete))) == "where"
    assert next(iter(shape_of(holdfast.ShardWriter.delete_keys))) == "keys"
    assert not hasattr(holdfast.ShardWriter, "delete")


@pytest.mark.parametrize("function", ADDRESSED, ids=lambda one: one.__qualname__)
def test_a_table_s_address_and_options_have_one_name(function: Callable[..., object]) -> None:
    names = shape_of(function)
    assert {"uri", "storage_options"} <= set(names)
    assert not {"url", "options"} & set(names)


def test_the_comparison_notices() -> None:
    def wanted(columns: object = None, *, limit: int | None = None) -> None: ...
    def swapped(*, limit: int | None = None, columns: object = None) -> None: ...
    def renamed(names: object = None, *, limit: int | None = None) -> None: ...
    def other_default(columns: object = None, *, limit: int | None = 3) -> None: ...
    def by_name(*, columns: object = None, limit: int | None = None) -> None: ...
    def by_name_swapped(limit: int | None = None, columns: object = None) -> None: ...
    def in_order(columns: object = None, limit: int | None = None) -> None: ...

    shape = shape_of(wanted)
    assert differences(shape, shape) == []
    for other in (swapped, renamed, other_default, by_name):
        assert differences(shape, shape_of(other)) != []
    assert differences(shape_of(in_order), shape_of(by_name_swapped)) == [
        "has another order: limit, columns"
    ]
