"""The charts of the documentation: drawn from what the benchmarks kept."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

from tools import bench_report

ROOT = Path(__file__).parents[1]
ROWS = [
    {"verb": "vacuum", "when": "first", "seconds": 4.0, "cpu_seconds": 3.0, "requests": None},
    {"verb": "doctor <&>", "when": "again", "seconds": 0.5, "cpu_seconds": 0.4, "requests": None},
]


def test_a_report_shows_date_machine_charts_and_figures(tmp_path: Path) -> None:
    (tmp_path / "docs" / "benchmarks").mkdir(parents=True)
    (tmp_path / "docs" / "reference").mkdir()
    kept = {
        "benchmark": "upkeep",
        "arguments": ["--appends", "5"],
        "date": "2026-11-18",
        "machine": "2 cores",
        "rows": ROWS,
    }
    (tmp_path / "docs" / "benchmarks" / "upkeep.json").write_text(json.dumps(kept))
    page = bench_report.write_report(tmp_path).read_text()
    assert "2026-11-18; 2 cores." in page
    assert "./run bench upkeep --appends 5" in page
    assert "(../benchmarks/upkeep-seconds.svg)" in page
    assert "| vacuum | first | 4.00 | 3.00 |" in page
    drawn = (tmp_path / "docs" / "benchmarks" / "upkeep-seconds.svg").read_text()
    texts = [one.text for one in ET.fromstring(drawn).iter() if one.text]
    assert "doctor <&>, again" in texts
    assert "prefers-color-scheme: dark" in drawn
    # No figures, no chart.
    assert not (tmp_path / "docs" / "benchmarks" / "upkeep-requests.svg").exists()


def test_the_parts_of_a_benchmark_have_a_table_each() -> None:
    rows = [{"part": "a", "x": 1}, {"part": "b", "y": 2.0}, {"part": "a", "x": 3, "z": None}]
    first, second = bench_report.tables(rows)
    assert first.splitlines() == ["| x | z |", "| --- | --- |", "| 1 |  |", "| 3 |  |"]
    assert second.splitlines() == ["| y |", "| --- |", "| 2.00 |"]


def test_parts_and_places_have_charts_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / bench_report.KEPT
    folder.mkdir(parents=True)
    (tmp_path / bench_report.PAGE).parent.mkdir(parents=True)
    latency = {"part": "latency", "sink": "log", "trigger": "1 s", "p50_s": 0.4, "p99_s": 0.9}
    rows = [latency, {"part": "kills", "table": "log", "files": 105, "versions": 14}]
    places = [{"place": p, "way": "thin", "processes": 8, "rate": 9.0} for p in ("local", "s3")]
    for name, kept in (("stream", rows), ("serve", places), ("serve-long", places[:1])):
        about = {"benchmark": name.partition("-")[0], "arguments": [], "date": "d", "machine": "m"}
        (folder / f"{name}.json").write_text(json.dumps({**about, "rows": kept}))
    (folder / "serve-gone.svg").write_text("of an older run")
    page = bench_report.write_report(tmp_path).read_text()
    assert {file.stem for file in folder.glob("*.svg")} == {
        *("stream-visible", "stream-files"),
        *("serve-rate-local", "serve-rate-s3", "serve-long-rate-local"),
    }
    assert (
        "![Commits per second, directly and through a server: s3](../benchmarks/serve-rate-s3.svg)"
        in page
    )
    assert "| sink | trigger | p50_s | p99_s |" in page
    assert "| log | 105 | 14 |" in page


def test_every_benchmark_keeps_what_it_measured() -> None:
    """By `--json`, as the report draws it; `tools/bench_report.py` says what of it."""
    scripts = [path for path in (ROOT / "benchmarks").glob("*.py") if path.stem[0] != "_"]
    assert {path.stem for path in scripts} == set(bench_report.CHARTS)
    for script in scripts:
        if script.stem != "spark":
            assert "write_json(" in script.read_text(), script.stem


def test_the_page_is_drawn_from_what_is_kept(tmp_path: Path) -> None:
    for file in (ROOT / bench_report.KEPT).glob("*.json"):
        (tmp_path / bench_report.KEPT).mkdir(parents=True, exist_ok=True)
        (tmp_path / bench_report.KEPT / file.name).write_text(file.read_text())
    (tmp_path / bench_report.PAGE).parent.mkdir(parents=True)
    page = bench_report.write_report(tmp_path)
    assert page.read_text() == (ROOT / bench_report.PAGE).read_text(), "run: ./run bench --report"
    for picture in (tmp_path / bench_report.KEPT).glob("*.svg"):
        assert picture.read_text() == (ROOT / bench_report.KEPT / picture.name).read_text()
