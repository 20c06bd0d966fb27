"""What a Ray driver does in a process of its own: the page's code, then the script of #6595.

Prints one JSON object. Ray starts a dozen processes and leaves threads: not for the process of
the tests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import lance
import lance_ray
import ray

from commits.table_worker import Place, rows
from holdfast.errors import HoldfastError

WORKERS = 5
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "ray.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"^print\((.*)\)  # (.+)$", re.MULTILINE)


def run_page() -> tuple[dict[str, Any], list[list[str]]]:
    """Run the page; return its names, and what it shows beside what was printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    lines: list[list[str]] = []
    for text in _BLOCK.findall(PAGE.read_text()):
        told: list[str] = []
        names["print"] = lambda *values, told=told: told.append(" ".join(map(str, values)))
        exec(compile(text, str(PAGE), "exec"), names)
        lines += [
            [shown, line] for (_, shown), line in zip(_SHOWN.findall(text), told, strict=True)
        ]
    return names, lines


def issue_6595(page: dict[str, Any], place: Place) -> dict[str, Any]:
    """Let workers append at the same time, on a store that takes every create for the first."""
    table = place.create()
    acknowledged = ray.get([page["append"].remote(table, number) for number in range(WORKERS)])
    sink = page["HoldfastDatasink"](table, ("job", 1), place.options)
    ray.data.from_arrow([rows(100), rows(101)]).write_datasink(sink)
    return {
        "acknowledged": acknowledged,
        "committed": sink.result.rows,
        "present": place.ids(),
    }


def past_holdfast(uri: str, commit_store: str | None) -> dict[str, Any]:
    """Append by lance-ray alone, then through Holdfast."""
    place = Place(uri=uri, commit_store=commit_store)
    table = place.create()
    table.append(rows(1))
    lance_ray.write_lance(ray.data.from_arrow(rows(2)), uri, mode="append")
    error = None
    try:
        table.append(rows(3))
    except HoldfastError as caught:
        error = caught.kind.value
    foreign = [info.version for info in table.history() if info.foreign]
    return {"error": error, "foreign": foreign, "present": place.ids()}


def main(uri: str, options: str, commit_store: str) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="hf-ray-") as short:  # sockets need a short path
        ray.init(
            num_cpus=WORKERS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=100 << 20,
            _temp_dir=short,
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            with contextlib.redirect_stdout(sys.stderr):
                page, shown = run_page()
                place = Place(uri=uri, options=json.loads(options), commit_store=commit_store)
                told = {
                    "page": shown,
                    "issue": issue_6595(page, place),
                    "welcome": past_holdfast("welcome.lance", None),
                    "foreign": past_holdfast("foreign.lance", "sqlite"),
                    "stock": lance.dataset("lake/ray.lance").count_rows(),
                }
        finally:
            ray.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
