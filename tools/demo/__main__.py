"""The demo: what vanishes on a store that ignores put-if-absent, and what Holdfast keeps.

Ends with the verdict of an independent reader, a fresh process that imports only `lance`: exit
code 0 when every write that Holdfast acknowledged is in its table exactly once.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import time
from pathlib import Path

from tools.demo import loss, zombie
from tools.demo.ledger import READER, Ledger
from tools.demo.terminal import chapter, line

from holdfast.errors import HoldfastError
from holdfast.testing import FaultyS3Process

OUT = Path(".cache/demo")
SAFEGUARDS = ("conditional-put", "fence", "plan")


def main() -> int:
    """Tell the story; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="./run demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--without",
        choices=SAFEGUARDS,
        metavar="SAFEGUARD",
        help="take one safeguard out and see it end red: " + ", ".join(SAFEGUARDS),
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only the loss and the fenced writer: no Spark, under 20 seconds",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="FOLDER",
        help="ingest the Parquet, CSV and JSON files of this folder instead",
    )
    parser.add_argument("--seed", type=int, default=7, help="of the data (default: 7)")
    arguments = parser.parse_args()
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    begun = time.monotonic()
    out = fresh_folder()
    ledger = Ledger(out / "ledger.json")
    try:
        if arguments.folder is not None:
            from tools.demo import folder as files  # noqa: PLC0415 - needs Spark

            files.ingest(arguments.folder, out, ledger)
            code = verdict(ledger, 2)
        elif arguments.quick:
            code = tell_quickly(ledger, out)
        else:
            code = tell(ledger, out, arguments.without, arguments.seed)
    except HoldfastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    line(f"everything is in {out}; took {time.monotonic() - begun:.0f} s")
    line(f"look at the tables: .venv/bin/holdfast serve {out}, then open http://127.0.0.1:8181/")
    return code


def tell_quickly(ledger: Ledger, out: Path) -> int:
    """Tell what needs no Spark."""
    with FaultyS3Process(conditions="ignoring") as ignoring:
        loss.show_loss(ledger, ignoring, out, 1, trusting=False)
        zombie.run(ledger, out, 2, fenced=True)
        return verdict(ledger, 3)


def tell(ledger: Ledger, out: Path, without: str | None, seed: int) -> int:
    """Tell the story, or the part of it that a safeguard is taken out of."""
    from tools.demo import index, pipeline  # noqa: PLC0415 - they need Spark

    if without == "fence":
        zombie.run(ledger, out, 1, fenced=False)
        return verdict(ledger, 2)
    if without == "plan":
        index.run(ledger, out, 1, seed, planned=False)
        return verdict(ledger, 2)
    with (
        FaultyS3Process(conditions="honest") as honest,
        FaultyS3Process(conditions="ignoring") as ignoring,
    ):
        loss.probe_both(honest, ignoring)
        loss.show_loss(ledger, ignoring, out, 2, trusting=without == "conditional-put")
        if without == "conditional-put":
            return verdict(ledger, 3)
        pipeline.run(ledger, out, seed)
        index.run(ledger, out, 4, seed, planned=True)
        zombie.run(ledger, out, 5, fenced=True)
        return verdict(ledger, 6)


def fresh_folder() -> Path:
    """Return an empty folder for this run; what an earlier run left is removed."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    # A verdict that the demo plants or finds is not for the user's cache.
    os.environ["XDG_CACHE_HOME"] = str(OUT.resolve() / "cache")
    return OUT.resolve()


def verdict(ledger: Ledger, number: int) -> int:
    """Let the independent reader count all tables; print the end and return the exit code."""
    chapter(number, "Verdict, by an independent reader that imports only lance")
    ours = [name for name in ledger.pages if name != "stock"]
    counts = ledger.count(*ours)
    for found in counts:
        line(
            f"{found.name:<10} acknowledged {found.acknowledged}, present {found.present}, "
            f"lost {found.lost}, doubled {found.doubled}"
            + (f"; a search finds {found.hits[0]} of {found.hits[1]}" if found.hits else "")
        )
    kept = all(found.kept for found in counts)
    line(
        "everything acknowledged is there, once"
        if kept
        else "RED: this is not what was acknowledged"
    )
    again = [page.name for page in ledger.pages.values() if page.uri.startswith("/")]
    ledger.write(*again)  # what outlives this run: the S3 servers end with it
    line(f"check again: {sys.executable} {READER} {ledger.file}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
