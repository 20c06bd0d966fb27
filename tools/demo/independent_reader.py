"""The independent reader: with stock Lance alone, counts what is there of what was promised.

    python tools/demo/independent_reader.py LEDGER.json [--json]

It imports `lance` and nothing of Holdfast. Exit code 0 when every acknowledged id is in its
table exactly once.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import lance


def count(entry: dict[str, Any]) -> dict[str, object]:  # Any: JSON
    """Compare one table with the ids that its writers were told are in it."""
    table = lance.dataset(str(entry["uri"]), storage_options=entry["options"] or None)
    if entry["rows"] is not None:
        return compare(entry, table.version, entry["rows"], table.count_rows())
    present = Counter(table.to_table(columns=["id"])["id"].to_pylist())
    acknowledged = set(entry["acknowledged"])
    return {
        "name": entry["name"],
        "version": table.version,
        "acknowledged": len(acknowledged),
        "present": len(present.keys() & acknowledged),
        "lost": len(acknowledged - present.keys()),
        "doubled": sum(times - 1 for times in present.values()),
        "hits": search(entry, table),
    }


def search(entry: dict[str, Any], table: lance.LanceDataset) -> tuple[int, int] | None:
    """Count what the table's index finds, and the rows that have the word."""
    if entry["search"] is None:
        return None
    column, word = entry["search"]["column"], entry["search"]["word"]
    found = table.to_table(columns=["id"], full_text_query=word)["id"].to_pylist()
    texts = table.to_table(columns=[column])[column].to_pylist()
    return len(found), sum(word in text.split() for text in texts)


def compare(entry: dict[str, Any], version: int, told: int, there: int) -> dict[str, object]:
    """Compare numbers of rows, for a table whose rows have no id that we know of."""
    return {
        "name": entry["name"],
        "version": version,
        "acknowledged": told,
        "present": min(told, there),
        "lost": max(0, told - there),
        "doubled": max(0, there - told),
        "hits": None,
    }


def main() -> int:
    """Print one line per table."""
    entries = json.loads(Path(sys.argv[1]).read_text())
    counts = [count(entry) for entry in entries]
    if "--json" in sys.argv:
        print(json.dumps(counts))
    else:
        for found in counts:
            print("  ".join(f"{key} {value}" for key, value in found.items()))
    wrong = any(found["lost"] or found["doubled"] or differs(found["hits"]) for found in counts)
    return 1 if wrong else 0


def differs(hits: Any) -> bool:  # noqa: ANN401 - JSON
    """Tell whether a search finds something else than it must."""
    return hits is not None and hits[0] != hits[1]


if __name__ == "__main__":
    sys.exit(main())
