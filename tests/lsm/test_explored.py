"""Upkeep under every schedule, and each of its safeguards taken out in turn."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from holdfast.testing import Violation, explore, mutate
from lsm.world import (
    Code,
    Lsm,
    append,
    flush,
    flush_and_merge,
    flush_in_pairs,
    flush_singly,
    hasty_append,
    long_zombie,
    merge,
    overwrite,
    put,
    read,
    recorded,
    vacuum,
    zombie,
)

pytestmark = [pytest.mark.requirement("W13"), pytest.mark.requirement("L12")]

TWO = (("a",), ("b",))
MAX_STATES = int(os.environ.get("HOLDFAST_LSM_STATES", "1200"))

SCENARIOS = [
    Lsm(name="two mergers", actors={"m1": merge, "m2": merge}, flushed=TWO, log=(), crashes=1),
    Lsm(name="two flushes", actors={"f1": flush, "f2": flush_singly}, crashes=1),
    Lsm(
        name="a flush and a merger", actors={"f": flush, "m": merge}, flushed=(("a",),), log=("b",)
    ),
    Lsm(
        name="a merger, vacuum and a reader",
        actors={"m": merge, "v": vacuum, "r": read},
        flushed=(("a",),),
        log=("b",),
        preemptions=2,
    ),
    Lsm(name="flush, vacuum and a reader", actors={"f": flush, "v": vacuum, "r": read}),
    Lsm(
        name="a live writer and a flush",
        actors={"z": zombie, "f": flush_singly},
        log=("a", "b", "c"),
        crashes=1,
    ),
    Lsm(
        name="a live writer and vacuum",
        actors={"z": zombie, "f": flush, "v": vacuum},
        log=("a", "b", "c"),
    ),
    Lsm(
        name="a live writer and two flushes",
        actors={"z": long_zombie, "f": flush_in_pairs, "g": flush_singly},
        log=("a", "b", "c", "d"),
        crashes=1,
        preemptions=1,
    ),
    Lsm(
        name="a live writer, a flush and a merger",
        actors={"z": zombie, "f": flush_singly, "m": merge},
        log=("a", "b", "c"),
    ),
    Lsm(
        name="a live writer whose answers get lost",
        actors={"z": long_zombie, "f": flush_in_pairs},
        log=("a", "b", "c", "d"),
        faults=1,
    ),
    Lsm(name="all of it", actors={"f": flush_and_merge, "m": merge, "v": vacuum}, preemptions=1),
    Lsm(
        name="answers get lost", actors={"m": flush_and_merge, "f": flush}, faults=1, preemptions=1
    ),
    Lsm(
        name="an overwrite, a put and a flush",
        actors={"o": overwrite, "p": put, "f": flush},
        flushed=(("a",),),
        log=("b",),
    ),
    Lsm(
        name="an overwrite and a merger",
        actors={"o": overwrite, "m": flush_and_merge},
        flushed=(("a",),),
        log=("b",),
        crashes=1,
    ),
    Lsm(
        name="an overwrite and a reader",
        actors={"o": overwrite, "r": read, "v": vacuum},
        flushed=(("a",),),
        log=("b",),
        preemptions=1,
    ),
    Lsm(
        name="an append, a put and a merger",
        actors={"a": append, "p": put, "m": merge},
        flushed=(("a",),),
        log=("b",),
        preemptions=1,
    ),
    Lsm(
        name="a hasty append and a flush",
        actors={"a": hasty_append, "f": flush_and_merge},
        flushed=(("a",),),
        log=("b",),
    ),
    Lsm(
        name="an overwrite by a commit store",
        actors={"o": overwrite, "p": put},
        flushed=(("a",),),
        log=("b",),
        make=recorded,
        honest=False,
        preemptions=1,
        crashes=1,
    ),
    Lsm(
        name="commit store",
        actors={"m1": flush_and_merge, "m2": flush_and_merge},
        make=recorded,
        honest=False,
        preemptions=1,
        crashes=1,
    ),
]


@pytest.mark.parametrize("setup", SCENARIOS, ids=lambda one: one.name)
def test_every_mark_is_read_once_in_every_state(setup: Lsm) -> None:
    report = explore(setup.scenario(), max_states=MAX_STATES)
    print(report)
    assert report.states > 50


class Mutant(NamedTuple):
    name: str
    scenario: str
    code: Any


COMPACT = "holdfast.upkeep._compact_lsm"
FLUSH = "holdfast.upkeep._flush_log"
PUBLISH = "holdfast.shard._publish"
VACUUM = "holdfast.upkeep._vacuum_log"


def versions_with(*changes: tuple[str, str]) -> Any:
    """Return the versions of a table, with other rules for its log."""
    found: Any = mutate("holdfast.commits._versions")
    rules: Any = mutate("holdfast.commits._log_rules", *changes)
    found.keep_log = rules.keep_log
    return found


MUTANTS = [
    Mutant(
        "an append upon rows that wait",
        "a hasty append and a flush",
        lambda: Code(versions=versions_with(("    if behind:", "    if False:"))),
    ),
    Mutant(
        "an append that merges what is flushed only",
        "an append, a put and a merger",
        lambda: Code(
            waiting=mutate(
                "holdfast.upkeep._waiting",
                ("after = {one: shards.flush(one) for one in shards.shard_ids()}", "after = {}"),
            )
        ),
    ),
    Mutant(
        "an overwrite that drops the log's entry",
        "an overwrite and a merger",
        lambda: Code(versions=versions_with(("if head.replaces_rows and", "if False and"))),
    ),
    Mutant(
        "an overwrite that carries the marker on as it was",
        "an overwrite and a merger",
        lambda: Code(
            versions=versions_with(
                (
                    "{**entry.merged, **keeper_of(versions).supersede(fence=not same)}",
                    "entry.merged",
                )
            )
        ),
    ),
    Mutant(
        "an overwrite that supersedes more than was flushed",
        "an overwrite, a put and a flush",
        lambda: Code(
            versions=versions_with(
                (
                    "**keeper_of(versions).supersede(fence=not same)}",
                    "**{k: n + 1 for k, n in keeper_of(versions).supersede(fence=not same).items()}}",  # noqa: E501
                )
            )
        ),
    ),
    Mutant("marker after commit", "two mergers", lambda: Code(mark_after=True)),
    Mutant(
        "no marker",
        "two mergers",
        lambda: Code(
            compact=mutate(
                COMPACT,
                ("return mark_merged(manifest, marked, after=before)", "return manifest"),
                ("tries >= TRIES + len(done)", "tries >= 4"),
            )
        ),
    ),
    Mutant(
        "drain before commit",
        "two mergers",
        lambda: Code(
            compact=mutate(
                COMPACT,
                (
                    "counts = _merge_once(table, shard_id, part)",
                    "drain(manifests, part[-1].generation); counts = _merge_once(table, shard_id, part)",  # noqa: E501
                ),
            )
        ),
    ),
    Mutant(
        "drain what is not merged",
        "a flush and a merger",
        lambda: Code(
            compact=mutate(
                COMPACT, ("drained=drain(manifests, merged)", "drained=drain(manifests, 99)")
            )
        ),
    ),
    Mutant(
        "no re-check of cursor and generation",
        "two flushes",
        lambda: Code(flush=mutate(FLUSH, ("if moved:", "if False:"))),
    ),
    Mutant(
        "a cursor beyond what is in the SSTable",
        "two flushes",
        lambda: Code(
            flush=mutate(
                FLUSH,
                ("            replay_after=position,", "            replay_after=position + 1,"),
            )
        ),
    ),
    Mutant(
        "SSTables go that may still be published",
        "a live writer and vacuum",
        lambda: Code(
            vacuum=mutate(
                VACUUM, ("taken = generation < manifest.current_generation", "taken = True")
            )
        ),
    ),
    Mutant(
        "SSTables go that are named",
        "a merger, vacuum and a reader",
        lambda: Code(
            vacuum=mutate(
                VACUUM,
                (
                    "return taken and name not in {one.path for one in manifest.sstables}",
                    "return taken",
                ),
            )
        ),
    ),
    Mutant(
        "a writer takes another's generation for its own",
        "a live writer, a flush and a merger",
        lambda: Code(
            publish=mutate(
                PUBLISH,
                ("if current.current_generation > table.generation:", "if False:"),
                ("overtaken |= tables.number(manifest.current_generation)", "pass"),
            )
        ),
    ),
    Mutant(
        "a writer keeps what somebody flushed",
        "a live writer whose answers get lost",
        lambda: Code(
            publish=mutate(
                PUBLISH,
                ("if current.replay_after >= first:", "if current.replay_after >= position:"),
            )
        ),
    ),
    Mutant(
        "a writer lets go of what nobody flushed",
        "a live writer and a flush",
        lambda: Code(
            tables=mutate(
                "holdfast.shard._tables",
                ("if position >= table.last_position:", "if position >= table.first_position:"),
            )
        ),
    ),
    Mutant(
        "entries go that are not flushed",
        "flush, vacuum and a reader",
        lambda: Code(
            collect=mutate(
                "holdfast.wal._collect",
                ("log, manifest.replay_after, manifest.version", "log, 99, manifest.version"),
            )
        ),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_safeguard_taken_out_is_noticed(mutant: Mutant) -> None:
    setup = next(one for one in SCENARIOS if one.name == mutant.scenario)
    with pytest.raises(Violation) as found:
        explore(replace(setup, code=mutant.code()).scenario(), max_states=30_000)
    print(found.value)
