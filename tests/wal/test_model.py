"""The log under every schedule; and each of its rules taken out, to see that it is missed."""

from __future__ import annotations

# ruff: noqa: E501, ISC004 - mutants quote source lines as they are
import logging

import pytest

from holdfast.formats._wal_names import entry_name
from holdfast.testing import Outcome, Violation, explore, merge_outcomes, wander
from wal.log_scenarios import SHARD, Code, Shard, inline, staged

SCENARIOS = [
    Shard(name="two writers, a fault", faults=1, preemptions=1),
    Shard(name="two writers, every interleaving, a crash", crashes=1),
    Shard(name="two writers, two crashes", crashes=2, preemptions=1),
    Shard(name="flush and collect", scripts=("oafag", "obf"), preemptions=2),
    Shard(name="flush and a fault", scripts=("oaf", "ob"), faults=1, preemptions=0),
    Shard(name="flush and a crash", scripts=("oafg", "ob"), crashes=1, preemptions=1),
    Shard(name="without replay", scripts=("wa", "waa"), preemptions=3),
    Shard(name="three writers", scripts=("oa", "wb", "wc"), preemptions=2),
    Shard(
        name="a zombie, a successor that flushes and collects",
        scripts=("oaa", "obfg"),
        preemptions=2,
    ),
    Shard(name="a reader", prepared=("oa",), scripts=("oabfg", "r"), preemptions=2),
    Shard(name="a follower", scripts=("oafgb", "t"), preemptions=2),
    Shard(name="a reader of all", prepared=("oafb",), scripts=("mg", "s"), preemptions=2),
    Shard(name="a reader of all, flushes", prepared=("oa",), scripts=("obfg", "s"), preemptions=2),
    Shard(
        name="owners of collected versions",
        prepared=("oa",),
        scripts=("wa", "obfgb"),
        preemptions=2,
    ),
    Shard(name="a reader and a fault", scripts=("oab", "r"), faults=1, preemptions=1),
    Shard(name="a slow claimer, upkeep", prepared=("oab",), scripts=("oa", "mg"), preemptions=2),
    Shard(
        name="a slow claimer, upkeep, a listing in pages",
        prepared=("oab",),
        scripts=("oa", "mg"),
        preemptions=1,
        page=2,
    ),
    Shard(
        name="two slow claimers, upkeep",
        prepared=("oa",),
        scripts=("wa", "wb", "mg"),
        preemptions=1,
    ),
    Shard(
        name="a slow claimer, commit store",
        make=inline,
        honest=False,
        prepared=("oab",),
        scripts=("oa", "mg"),
        preemptions=1,
    ),
    Shard(name="commit store", make=inline, honest=False, preemptions=2),
    Shard(name="commit store, a crash", make=inline, honest=False, preemptions=1, crashes=1),
    Shard(
        name="commit store, flush and collect",
        make=inline,
        honest=False,
        scripts=("oafag", "obf"),
        preemptions=1,
    ),
    Shard(name="commit store, staged", make=staged, honest=False, preemptions=1),
]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast")  # until the test ends


@pytest.mark.requirement("L1", "L2", "L3", "L5", "L6", "L10", "L11", "L12", "C6")
@pytest.mark.parametrize("shard", SCENARIOS, ids=lambda s: s.name)
def test_every_schedule_keeps_what_was_acknowledged(shard: Shard) -> None:
    report = explore(shard.scenario())
    print(report)
    assert not report.capped


@pytest.mark.requirement("L1", "L3", "L12")
def test_random_schedules_of_four_writers() -> None:
    shard = Shard(
        name="four writers",
        scripts=("oaafa", "obfbg", "ocfc", "oagbf"),
        faults=4,
        crashes=2,
    )
    report = wander(shard.scenario(), seeds=range(300))
    print(report)
    assert set(merge_outcomes([report])) >= set(Outcome) - {Outcome.OK}


APPENDER = "_appender"
TWO: dict[str, object] = {"scripts": ("oa", "oab")}
FAULTY: dict[str, object] = {"scripts": ("oab", "ob"), "faults": 1, "preemptions": 1}
SLOW: dict[str, object] = {"prepared": ("oab",), "scripts": ("oa", "mg"), "preemptions": 2}
OWNERS: dict[str, object] = {"prepared": ("oa",), "scripts": ("wa", "obfgb"), "preemptions": 2}
ALL: dict[str, object] = {"prepared": ("oafb",), "scripts": ("obfg", "s"), "preemptions": 2}
UNCHECKED = (
    "self.manifest = self.manifests.check(self.epoch)\n            if fence",
    "self.manifest = self.manifests.latest()\n            if fence",
)
MUTANTS: dict[str, tuple[dict[str, list[tuple[str, str]]], dict[str, object]]] = {
    "M1 the store ignores the condition": ({}, {"honest": False, **TWO}),
    "M2 plain put instead of put-if-absent": (
        {
            "_conditional": [
                ("self._store.put_if_absent, path, body)", "self._store.put, path, body)")
            ]
        },
        TWO,
    ),
    "M3, #7110 no fence": (
        {
            APPENDER: [
                (
                    "            fence = self._fence_from(draft, position)\n",
                    "            fence = position\n",
                ),
                ("self.next_position = fence + 1", "self.next_position = fence"),
            ]
        },
        TWO,
    ),
    "M4, #7110 replay before the fence": (
        {
            APPENDER: [
                (
                    "        self._fence(listed)\n",
                    "        self._early = list(self._early_replay())\n        self._fence(listed)\n",
                ),
                (
                    "    def replay(self) -> Iterator[Entry]:",
                    "    def _early_replay(self):\n"
                    "        end = max([self._replay_after, *self._log.list_entries()])\n"
                    "        return [e for e in self._log.entries(self._replay_after, end) if not e.fence]\n\n"
                    "    def replay(self):\n        return self._early\n\n"
                    "    def replay_late(self) -> Iterator[Entry]:",
                ),
            ]
        },
        {"scripts": ("oab", "of")},
    ),
    "M5 an entry of our own is not recognised": (
        {
            "_conditional": [
                ("Won() if token.encode() in body_there else Lost(body_there)", "Lost(body_there)")
            ],
            APPENDER: [
                ("        if entry.fence and entry.epoch < self.epoch:", "        if True:")
            ],
        },
        FAULTY,
    ),
    "M6, #7547 the position advances after an unknown outcome": (
        {
            APPENDER: [
                (
                    "                self._stop(self._unknown(position, error), draft.batches, error)\n"
                    "            except HoldfastError",
                    "                self.next_position += 1\n                raise\n"
                    "            except HoldfastError",
                )
            ]
        },
        {"scripts": ("oab",), "faults": 3, "kinds": (Outcome.LOST_REQUEST,)},
    ),
    "M11, #6699, #352 fences are collected, too": (
        {"_collect": [("        if _may_be_fence(log, position, info):", "        if False:")]},
        {"scripts": ("oaa", "obfg")},
    ),
    "M12, #1682 the epoch is not read again after the fence": (
        {APPENDER: [UNCHECKED]},
        {"scripts": ("wa", "waa")},
    ),
    "M13 manifests are put, not decided": (
        {
            "_manifests": [
                (
                    "decision = self._core.arbiter.decide(name, body, token)",
                    "decision = self._core.store.put(name.path, body)",
                )
            ]
        },
        TWO,
    ),
    "M14 a flush does not look at the epoch": (
        {"_manifests": [("        if current.writer_epoch > epoch:", "        if False:")]},
        {"scripts": ("oaf", "obf")},
    ),
    "M15 HTTP 409 is believed": (
        {
            "_conditional": [
                (
                    "                continue  # a 409, or a request that was lost: the same bytes again",
                    "                return Lost(b'')",
                )
            ]
        },
        FAULTY,
    ),
    "#6767 replay loads what is flushed": (
        {
            APPENDER: [
                (
                    "return -1 if self._from_zero else self.manifest.replay_after",
                    "return max(self.manifest.replay_after - 1, 0)",
                )
            ]
        },
        {"scripts": ("oaf", "obf")},
    ),
    "#1694 replay ends at the listed tip, not at the own fence": (
        {
            APPENDER: [
                (
                    "                self.fence_position = fence\n",
                    "                self.fence_position = max([self.manifest.replay_after, *listed])\n",
                )
            ]
        },
        {"scripts": ("oab", "of")},
    ),
    "a claimer goes forward past a newer owner": (
        {
            APPENDER: [
                (
                    "            if entry.epoch > self.epoch:\n                raise",
                    "            if False:\n                raise",
                ),
                UNCHECKED,
            ]
        },
        {"scripts": ("wa", "waa")},
    ),
    "byte-identical claims": (
        {
            "_manifests": [
                ("        token = self._core.ids.token()\n", "        token = 'hf-' + '0' * 32\n")
            ]
        },
        {"scripts": ("wa", "wa"), "faults": 1, "kinds": (Outcome.LOST_REQUEST, Outcome.DOUBLED)},
    ),
    "byte-identical fences": (
        {
            APPENDER: [
                ("        token = self._core.ids.token()\n", "        token = 'hf-' + '0' * 32\n")
            ]
        },
        {"scripts": ("wab", "wab")},
    ),
    "a higher epoch in the way is stepped over": (
        {
            APPENDER: [
                (
                    "        if entry.epoch > self.epoch:\n            self._stop",
                    "        if False:\n            self._stop",
                ),
                ("        if entry.fence and entry.epoch < self.epoch:", "        if True:"),
            ]
        },
        {"scripts": ("oab", "obf")},
    ),
    "a fence below the cursor that was stored after it counts": (
        {APPENDER: [("if fence is not None and fence > self.manifest.replay_after:", "if fence:")]},
        SLOW,
    ),
    "the cursor of before the fence is looked at": (
        {
            APPENDER: [
                (
                    "            self.manifest = self.manifests.check(self.epoch)\n            if fence",
                    "            self.manifests.check(self.epoch)\n            if fence",
                )
            ]
        },
        SLOW,
    ),
    "a collected place is a newer owner": (
        {
            APPENDER: [
                (
                    "                return None\n            if entry is None:\n                return place",
                    "                raise fenced_error(self.shard_id, self.epoch, 0) from None\n"
                    "            if entry is None:\n                return place",
                )
            ]
        },
        {"make": inline, "honest": False, **SLOW},
    ),
    "entries that were collected during replay are a hole": (
        {
            APPENDER: [
                (
                    "            if not self._is_flushed(gap):\n                raise\n            raise Coll",
                    "            raise\n            raise Coll",
                )
            ]
        },
        SLOW,
    ),
    "a listing in pages is a snapshot": (
        {
            "_log": [
                (
                    "self._present(position, self.read(position))\n\n    def gap",
                    "raise self.gap(position)\n\n    def gap",
                )
            ]
        },
        {"scripts": ("oab", "o"), "page": 1, "preemptions": 3},
    ),
    "the boundary is read before the entry": (
        {
            "_tailer": [
                (
                    "        later = max(self._log.list_entries(), default=0) > position\n",
                    "        boundary = self._boundary.read()\n"
                    "        later = max(self._log.list_entries(), default=0) > position\n",
                ),
                ("        boundary = self._boundary.read()  # after", "        # after"),
            ]
        },
        {"scripts": ("oafgb", "t"), "preemptions": 2},
    ),
    "a version that was collected is decided again": (
        {"_manifests": [("and self._is_collected(wanted.version):", "and False:")]},
        OWNERS,
    ),
    "an owner does not look at the boundary": (
        {
            "_manifests": [
                ("if current is not None and version > boundary:", "if current is not None:")
            ]
        },
        OWNERS,
    ),
    "the newest version is not read last": (
        {
            "_manifests": [
                (
                    "            newest = self._read(version) if version else None\n",
                    "            newest = before or (self._read(version) if version else None)\n",
                ),
                (
                    "            version = self._follow(version)\n            # Read",
                    "            before = self._known or (self._read(version) if version else None)\n            version = self._follow(version)\n            before = before if before and before.version == version else None\n            # Read",
                ),
            ]
        },
        ALL,
    ),
    "versions are deleted in any order": (
        {
            "_collect": [
                ("    for version in versions:\n", "    for version in reversed(versions):\n")
            ]
        },
        ALL,
    ),
    "everything listed is collected": (
        {"_collect": [("        if position > flushed:\n            break\n", "")]},
        {"scripts": ("oafag",)},
    ),
}


@pytest.mark.mutant
@pytest.mark.requirement("L1", "L2", "L3", "L5", "L10", "L11", "L12")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str) -> None:
    replacements, settings = MUTANTS[name]
    shard = Shard(name=name, code=Code(replacements), **settings)  # type: ignore[arg-type]
    with pytest.raises(Violation) as caught:
        explore(shard.scenario(), max_states=40_000)
    print(caught.value)
    assert len(caught.value.schedule) <= 90


@pytest.mark.requirement("L2", "L12")
def test_a_leftover_does_not_shift_the_fence() -> None:
    leftover = entry_name(SHARD, 2).path + ".tmp.0"
    shard = Shard(name="a leftover", leftovers=(leftover,), preemptions=2)
    assert not explore(shard.scenario()).capped
    lax = Code({"_log": [("position_of(info.path)", "position_of(info.path.split('.tmp')[0])")]})
    mutant = Shard(name="lax names", leftovers=(leftover,), code=lax)
    with pytest.raises(Violation):
        explore(mutant.scenario())
