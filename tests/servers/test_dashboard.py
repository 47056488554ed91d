"""The Grafana dashboard shows the metrics that the plug-in has, and no others."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"turnstile:\w+")


def metrics() -> set[str]:
    """Return the names on the page of metrics: Prometheus adds `_total` to those of counters."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / "servers/vllm/plugin/metrics.py").read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            match node.args[0]:
                case ast.Constant(value=str(name)) if NAME.fullmatch(name):
                    names.add(name + ("_total" if node.func.id == "Counter" else ""))
    return names


def test_each_metric_of_the_dashboard_exists_and_each_metric_is_shown_or_part_of_another() -> None:
    dashboard = json.loads((ROOT / "examples/grafana/turnstile.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    series = NAME.findall(" ".join(queries))
    shown = {re.sub("_(sum|count|bucket)$", "", name) for name in series}  # of histograms
    assert metrics() - shown == {"turnstile:pinned_kv_blocks"}
    assert shown <= metrics()


def test_the_page_of_deployment_names_each_metric() -> None:
    page = (ROOT / "docs/howto/deploy.md").read_text()
    assert set(NAME.findall(page)) == metrics()
