"""Metrics as Debian's Prometheus reads them; every expression of the dashboard and the alerts."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import holdfast
import servers
from conftest import skip_without
from holdfast.events import METRICS
from server.serving import rows_of, serving, wait_until

DOCS = Path(__file__).resolve().parents[2] / "docs"
MONITORING = DOCS / "monitoring"


def dashboard_expressions() -> list[str]:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    texts = [target["expr"] for panel in panels for target in panel["targets"]]
    filled = {"$__rate_interval": "1m", "$table": ".*"}
    return [re.sub(r"\$\w+", lambda match: filled[match[0]], text) for text in texts]


def alert_expressions() -> list[str]:
    return re.findall(r"^ +expr: (.+)$", (MONITORING / "alerts.yaml").read_text(), re.MULTILINE)


def named(expressions: list[str]) -> set[str]:
    words = {word for text in expressions for word in re.findall(r"holdfast_\w+|process_\w+", text)}
    return {word.removesuffix("_bucket").removesuffix("_count") for word in words}


@pytest.mark.requirement("N3")
def test_prometheus_scrapes_a_server_and_runs_every_expression(tmp_path: Path) -> None:
    program, tool = (servers.find_program(name) for name in ("prometheus", "promtool"))
    skip_without(None if program and tool else "prometheus is not installed")
    assert program and tool
    checked = subprocess.run(
        [tool, "check", "rules", MONITORING / "alerts.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    root = tmp_path / "root"
    table = holdfast.create_table(root / "t.lance", rows_of([]).schema, primary_key=["id"])
    with table.claim_writer("unsharded") as writer:
        writer.put(rows_of([1]))
    table.close()
    with serving(root, log=tmp_path / "log") as server:
        client = server.client()
        for number in range(5):
            client.insert("t", rows_of([number + 10]))
        text = client.get("/metrics").body.decode()
        for metric in METRICS.values():
            assert f"# TYPE {metric.name.replace('.', '_')}_total counter" in text
        assert 'holdfast_commit_seconds_count{table="t"} ' in text
        wait_until(lambda: 'holdfast_table_rows{table="t"}' in client.get("/metrics").body.decode())
        text = client.get("/metrics").body.decode()
        for name in named([*dashboard_expressions(), *alert_expressions()]):
            assert f"\n# TYPE {name} " in text, name
        client.close()
        port = servers.free_port()
        settings = tmp_path / "prometheus.yml"
        settings.write_text(
            "scrape_configs: [{job_name: holdfast, scrape_interval: 1s, static_configs: "
            f"[{{targets: ['127.0.0.1:{server.port}']}}]}}]\n"
        )
        with (tmp_path / "prometheus.log").open("wb") as log:
            prometheus = subprocess.Popen(
                [
                    program,
                    f"--config.file={settings}",
                    f"--storage.tsdb.path={tmp_path / 'series'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(lambda: len(ask(port, 'holdfast_table_rows{table="t"}')) == 1)
            for expression in [*dashboard_expressions(), *alert_expressions()]:
                ask(port, expression)
            assert ask(port, "up")[0]["value"][1] == "1"
        finally:
            prometheus.terminate()
            prometheus.wait(60)


def ask(port: int, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}") as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return []  # it listens, and is not ready yet
        raise AssertionError(f"{expression}: {error.read()[:300]!r}") from error
    except urllib.error.URLError:
        return []  # it does not listen yet
    assert found["status"] == "success", expression
    result: list[dict[str, Any]] = found["data"]["result"]
    return result
