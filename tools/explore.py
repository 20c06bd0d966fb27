"""Explore for as long as there is time: `./run explore --minutes N --seed S`.

Goes round after round: deeper exhaustive explorations, random schedules from fresh seeds,
kills twice in a row, long histories of every commit store. Stops at the first violation
with its trace, its schedule and the seed that repeats it; otherwise when the time is up.

`./run explore --streams --seed S` kills real Spark instead: streams from many seeds (`--seeds`),
long ones (`--batches`, `--kill-every`), and a log of 100,000 entries. That takes hours; with
`--minutes N` half of the time is for the seeds, the other half for the long ones, and what it does
not reach is shown as skipped.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from holdfast.testing import Exploration, Scenario, Violation, explore, wander  # noqa: E402
from index.build_scenarios import DEEPER as INDEX_DEEPER  # noqa: E402
from model.create_scenarios import creators  # noqa: E402
from model.decide_scenarios import Setup, conditional, inline, staged  # noqa: E402
from model.move_scenarios import DEEPER as MOVE_DEEPER  # noqa: E402
from read.snapshot_scenarios import DEEPER as READ_DEEPER  # noqa: E402
from wal.log_scenarios import DEEPER as LOG_DEEPER  # noqa: E402
from wal.log_scenarios import WILD as LOG_WILD  # noqa: E402

SEEDS_PER_ROUND = 500
DEFAULT_MINUTES = 5.0
# What the default test run leaves out: more faults, more crashes, more actors.
DEEPER = [
    Setup(name="conditional, 3 actors, 2 faults", make=conditional, actors=3, faults=2, crashes=1),
    Setup(name="inline, 2 faults", make=inline, faults=2, crashes=1, honest=False),
    Setup(name="inline, 3 actors", make=inline, actors=3, preemptions=2, faults=1, honest=False),
    Setup(name="staged, honest store", make=staged, faults=1, crashes=1),
    Setup(name="staged, 3 actors", make=staged, actors=3, preemptions=1, faults=1, honest=False),
    Setup(name="staged, 2 crashes", make=staged, crashes=2, faults=1, honest=False),
    Setup(name="collector and crash", make=staged, collector=True, crashes=1, honest=False),
    Setup(name="reader and fault", make=inline, reader=True, faults=1, honest=False),
    Setup(name="twins, staged", make=staged, twins=True, faults=1, crashes=1, honest=False),
    Setup(name="forgets twice", make=inline, forgets=2, crashes=1),
    Setup(name="forgets twice, lying", make=inline, forgets=2, honest=False),
]
WILD = [
    Setup(name=f"{kind}, 4 actors", make=make, actors=4, faults=5, crashes=3, honest=honest)
    for kind, make, honest in [
        ("conditional", conditional, True),
        ("inline", inline, False),
        ("staged", staged, False),
    ]
]


def main() -> int:
    """Explore until the time is up or something is found."""
    arguments = _arguments()
    if arguments.streams:
        return _streams(arguments)
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    minutes = DEFAULT_MINUTES if arguments.minutes is None else arguments.minutes
    until = time.monotonic() + minutes * 60
    print(f"exploring for {minutes:g} minutes, seed {arguments.seed}", flush=True)
    total = 0
    try:
        for report in _rounds(arguments.seed, until):
            total += report.states
            print(f"  {report}", flush=True)
    except Violation as violation:
        print(f"\nFOUND, with seed {arguments.seed}:\n{violation}", flush=True)
        return 1
    print(f"{total:,} states, nothing found", flush=True)
    return _real_servers(arguments.seed) if arguments.servers else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run explore", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        help=f"how long (default {DEFAULT_MINUTES:g}; of streams, until all are done)",
    )
    parser.add_argument("--seed", type=int, default=0, help="where random schedules begin")
    parser.add_argument(
        "--servers",
        action="store_true",
        help="afterwards: 10,000 histories per commit store and every pair of kills "
        "(some 15 minutes more)",
    )
    parser.add_argument(
        "--streams",
        action="store_true",
        help="instead: real streams into the log whose parts are killed",
    )
    parser.add_argument("--seeds", type=int, default=30, help="streams with kills (default 30)")
    parser.add_argument("--batches", type=int, default=2_000, help="of a long stream (2,000)")
    parser.add_argument("--kill-every", type=int, default=50, help="so many batches (50)")
    return parser.parse_args()


def _rounds(seed: int, until: float) -> Iterator[Exploration]:
    """Yield reports; the exhaustive part first, then random schedules to the end."""
    scenarios: list[Scenario] = [
        *(setup.scenario() for setup in DEEPER),
        *(shard.scenario() for shard in LOG_DEEPER),
        *(builds.scenario() for builds in INDEX_DEEPER),
        *(reads.scenario() for reads in READ_DEEPER),
        *(moving.scenario() for moving in MOVE_DEEPER),
        creators(stores=1, faults=1, crashes=1),
        creators(stores=2, faults=1, crashes=1),
    ]
    # Equal shares of what is left, and one share for the random schedules.
    for left, scenario in zip(range(len(scenarios), 0, -1), scenarios, strict=True):
        now = time.monotonic()
        yield explore(scenario, until=now + (until - now) / (left + 1))
    first = seed * 1_000_000
    while time.monotonic() < until:
        for scenario in [s.scenario() for s in WILD] + [s.scenario() for s in LOG_WILD]:
            seeds = range(first, first + SEEDS_PER_ROUND)
            yield wander(scenario, seeds=seeds, until=until)
        first += SEEDS_PER_ROUND


def _real_servers(seed: int) -> int:
    """Run the long forms of the tests that use real processes and servers."""
    environment = {
        **os.environ,
        "HOLDFAST_EXPLORE": "1",
        "HOLDFAST_HISTORIES": "10000",
        "HOLDFAST_SEED": str(seed),
        "HOLDFAST_LSM_STATES": "50000",
        "HOLDFAST_STORM_SECONDS": "60",
        "HOLDFAST_STORM_SEEDS": "50",
        "HOLDFAST_STREAM_BATCHES": "10000",
        "HOLDFAST_STREAM_KILLS": "20",
    }
    tests = [
        "tests/crash",
        "tests/vendors/test_nfs.py",
        "tests/vendors/test_old_pylance.py",
        "tests/vendors/test_real_servers.py",
        "tests/arbiter/stores/test_suite.py",
        "tests/wal/test_processes.py",
        "tests/wal/test_interop.py",
        "tests/lsm/test_explored.py",
        "tests/lsm/test_slots.py",
        "tests/lsm/test_storm.py",
        "tests/shard/test_slots.py",
        "tests/spark/test_ingest_kills.py",
        "tests/spark/test_long_stream.py",
        "tests/server/test_fuzz.py",
        "tests/server/test_kills.py",
        "tests/server/test_node.py",
    ]
    return _pytest(tests, environment)


def _streams(given: argparse.Namespace) -> int:
    """Run streams into the log through kills, and open a very long log."""
    environment = {
        **os.environ,
        "HOLDFAST_EXPLORE": "1",
        "HOLDFAST_SEED": str(given.seed),
        "HOLDFAST_STREAM_SEEDS": str(given.seeds),
        "HOLDFAST_STREAM_BATCHES": str(given.batches),
        "HOLDFAST_STREAM_KILLS": str(given.kill_every),
    }
    budget = "no limit of time"
    if given.minutes is not None:
        environment["HOLDFAST_STREAM_MINUTES"] = str(given.minutes / 2)
        budget = f"{given.minutes:g} minutes"
    print(
        f"streams with kills: {given.seeds} seeds from {given.seed} on, then {given.batches:,} "
        f"batches with a kill every {given.kill_every}; {budget}",
        flush=True,
    )
    tests = [
        "tests/spark/test_ingest_kills.py",
        "tests/spark/test_long_stream.py",
        "tests/shard/test_slots.py",
    ]
    return _pytest([*tests, "-rPs"], environment)


def _pytest(tests: list[str], environment: dict[str, str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=3600"]
    command += ["-o", "faulthandler_timeout=3500"]
    return subprocess.run([*command, *tests], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
