"""The snapshot under every schedule of a writer, upkeep and readers; and its mutants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.testing import Violation, explore, mutate
from read.snapshot_scenarios import Pinned, Setup

SNAPSHOT = "holdfast.read._snapshot"
SCENARIOS = [
    Setup(name="a log is flushed, merged, drained and collected", preemptions=2),
    Setup(name="an SSTable below a log", flushed=1, logged=1, preemptions=2),
    Setup(name="an SSTable and no log", flushed=1, logged=0),
    Setup(name="beside a writer", flushed=1, logged=0, writes=1, preemptions=1),
    Setup(name="two rounds beside a writer", writes=1, rounds=2, preemptions=1),
    Setup(name="a log is flushed and collected", merges=False, writes=1, preemptions=2),
    Setup(name="two readers", readers=2, preemptions=1),
    Pinned(name="a pinned reader", flushed=1, logged=0, changes=False, preemptions=2),
]


@pytest.mark.requirement("L6", "W13")
@pytest.mark.parametrize("setup", SCENARIOS, ids=lambda setup: setup.name)
def test_every_schedule_reads_a_whole_prefix(setup: Setup) -> None:
    report = explore(setup.scenario())
    print(report)
    assert not report.capped
    assert report.ends


TAKE = "    manifests = [\n        manifest\n"
READ_BASE = "    base = source.base()\n    if not base.has_log:"
CUT_OFF = "return after is None or after.replay_after > end"
NEWER = ">= one.current_generation for one in manifests"
WHOLE = "    _check_whole(manifest, unmerged, merged, base)\n"
AGAIN = "    manifests = [source.manifest(one.shard_id) or one for one in manifests]\n"
EARLY = """\
    early = {
        one: source.tail(found)
        for one in source.shard_ids()
        if (found := source.manifest(one)) is not None
    }
"""
MUTANTS = {
    "manifests are not read again": ((CUT_OFF, "return False"),),
    "a base is taken that has more than the manifests know": (
        (NEWER, "> 99 for one in manifests"),
    ),
    "the base is read first": (
        (TAKE, "    early = source.base()\n" + TAKE),
        (READ_BASE, "    base = early\n    if not base.has_log:"),
        (WHOLE, ""),
    ),
    "merged SSTables still count": (("if one.generation > merged]", "]"),),
    "a drain or flush is not noticed, and files that are gone are passed over": (
        (CUT_OFF, "return False"),
        (
            "        except NotFoundError:\n            before = snapshot.record\n",
            "        except NotFoundError:\n            return act(Snapshot(base=snapshot.base))\n",
        ),
    ),
    "a log is read before its manifest": (
        ("    tails = [source.tail(one)", AGAIN + "    tails = [early[one.shard_id]"),
        (TAKE, EARLY + TAKE),
    ),
}
WORLDS = [
    Setup(name="mutant", logged=1, preemptions=2),
    Setup(name="mutant", flushed=1, logged=0, preemptions=2),
    Setup(name="mutant", flushed=1, logged=1, writes=1, preemptions=1),
    Setup(name="mutant", logged=1, merges=False, preemptions=2),
]


@pytest.mark.mutant
@pytest.mark.requirement("L6")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    careless = mutate(SNAPSHOT, *MUTANTS[name])
    for world in WORLDS:
        try:
            explore(replace(world, name=name, snapshot=careless).scenario())
        except Violation as violation:
            print(violation)
            return
    pytest.fail(f"nobody noticed: {name}")


PIN_FIRST = "        store.put(path, encode_snapshot(None))\n        snapshot = take()\n"


@pytest.mark.mutant
@pytest.mark.parametrize("rule", ["the pin comes first", "garbage is known before pins are read"])
def test_files_of_a_pinned_snapshot_go_without(rule: str) -> None:
    pins = mutate("holdfast.read._pins", (PIN_FIRST, "        snapshot = take()\n"))
    careless = (
        Pinned(name=rule, pins=pins, flushed=1, logged=0, changes=False, preemptions=2)
        if rule == "the pin comes first"
        else Pinned(name=rule, pins_first=True, flushed=1, logged=0, changes=False, preemptions=2)
    )
    with pytest.raises(Violation, match="STOPPED"):
        explore(careless.scenario())
