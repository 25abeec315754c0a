"""The metrics of examples/cloudrun arrive, and alerts, dashboard and objectives name these."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

import userlock_emulator
from tests.documents import ROOT, Page, pages

EXAMPLES = ROOT / "examples"
ALERTS = sorted((EXAMPLES / "monitoring/alerts").glob("*.yaml"))

#: A worker of the example: it reports, something happens, and it ends.
WORKER = """
import dataclasses

import telemetry
from google.cloud import ndb

import userlock
from tests.unit.docs.test_reference import EVENTS, example
from userlock.events import LISTENERS
from userlock.outbox import Outbox
from userlock.stores import MemoryStore

client = ndb.Client()
telemetry.report(Outbox("inline://", client=client))
userlock.configure(service=userlock.LockService(MemoryStore()))
for priority in ("interactive", "batch"):
    with userlock.scope(priority=priority), userlock.global_lock("ann"):
        pass
for kind in EVENTS:
    names = {field.name for field in dataclasses.fields(kind)}
    cases = [{"outcome": each} for each in ("done", "dead", "failed", "lost", "unfinished")]
    for case in cases if "outcome" in names else [{}]:
        for also in [{"degraded": True}, {"degraded": False}] if "degraded" in names else [{}]:
            LISTENERS.emit(example(kind, **case, **also))
"""
#: Each metric that has arrived: its kind, and each attribute with its values.
Arrived = dict[str, tuple[str, dict[str, set[str]]]]


@pytest.fixture(scope="module")
def arrived() -> Arrived:
    """Receive what a worker sends before it has ended."""
    found: Arrived = {}

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/metrics"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            take(ExportMetricsServiceRequest.FromString(body), found)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server,
        userlock_emulator.start() as datastore,
    ):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            subprocess.run(
                [sys.executable, "-W", "ignore", "-c", WORKER],
                env={
                    **os.environ,
                    **datastore.env,
                    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
                    "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
                    "OTEL_SERVICE_NAME": "points",
                    "PYTHONPATH": os.pathsep.join(
                        [str(EXAMPLES / "cloudrun"), str(ROOT), os.environ.get("PYTHONPATH", "")]
                    ),
                },
                check=True,
                timeout=60,
            )
        finally:
            server.shutdown()
            thread.join()
    return found


def take(request: ExportMetricsServiceRequest, found: Arrived) -> None:
    for resource in request.resource_metrics:
        process = {each.key for each in resource.resource.attributes}
        assert {"service.name", "service.instance.id"} <= process
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = str(metric.WhichOneof("data"))
                _, attributes = found.setdefault(metric.name, (kind, defaultdict(set)))
                for point in getattr(metric, kind).data_points:
                    for each in point.attributes:
                        value = each.value
                        attributes[each.key].add(str(getattr(value, value.WhichOneof("value"))))


#: A selector of PromQL, and a filter of Cloud Monitoring.
SELECTOR = re.compile(r'\{"([\w.]+)"((?:, "[\w.]+"=~?"[\w|]+")*)\}')
FILTER = re.compile(r'metric\.type="prometheus\.googleapis\.com/([\w.]+)/(\w+)"')
FILTER_LABEL = re.compile(r'metric\.labels\."([\w.]+)"=(?:one_of\()?("[\w", ]+")')


def named(text: str) -> Iterator[tuple[str, str, set[str]]]:
    """Yield each metric that a text names, each with an attribute and its values, or without."""
    for name, labels in SELECTOR.findall(text):
        yield name, "", set()
        for label, values in re.findall(r'"([\w.]+)"=~?"([\w|]+)"', labels):
            yield name, label, set(values.split("|"))
    for label in re.findall(r'by \("([\w.]+)"\)', text):
        for name, _ in SELECTOR.findall(text):
            yield name, label, set()
    for name, _ in FILTER.findall(text):
        yield name, "", set()
        for label, values in FILTER_LABEL.findall(text):
            yield name, label, set(re.findall(r"\w+", values))


def texts(document: Any) -> Iterator[str]:
    """Yield the queries and filters in a document."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name in ("query", "prometheusQuery") or name.endswith("Filter"):
                yield value
            else:
                yield from texts(value)
    elif isinstance(document, list):
        for value in document:
            yield from texts(value)


def unknown(text: str, arrived: Arrived) -> list[str]:
    """Return what a query or filter names that does not arrive."""
    found = []
    for name, label, values in named(text):
        metric = name.removesuffix("_bucket")
        kind, attributes = arrived.get(metric, ("", {}))
        if not kind or (name != metric) != (kind == "histogram" and "/" not in text):
            found.append(name)
        elif label and not (label in attributes and values <= attributes[label]):
            found.append(f"{name} {label} {sorted(values)}")
    return found


def documents() -> dict[str, Any]:
    others = [EXAMPLES / "monitoring" / name for name in ("dashboard.json", "slo-acquired.json")]
    others.append(EXAMPLES / "monitoring/slo-wait.json")
    return {path.stem: yaml.safe_load(path.read_text()) for path in [*ALERTS, *others]}


@pytest.mark.parametrize("name", documents())
def test_each_query_is_of_what_arrives(name: str, arrived: Arrived) -> None:
    queries = list(texts(documents()[name]))
    assert queries
    for query in queries:
        assert list(named(query)), query
        assert "{" not in SELECTOR.sub("", query), f"a selector that cannot be read: {query}"
        assert unknown(query, arrived) == []


@pytest.mark.parametrize(
    "query",
    [
        'sum({"userlock.aquisitions"})',
        'sum({"userlock.acquisitions", "userlock.outcome"="lost"})',
        'sum({"userlock.acquisitions", "outcome"="timed_out"})',
        'sum by ("userlock.jobs") ({"userlock.releases"})',
        'sum({"userlock.wait.duration"})',
        'sum({"userlock.breaks_bucket"})',
        'metric.type="prometheus.googleapis.com/userlock.waits/histogram"',
    ],
)
def test_what_does_not_arrive_is_found(query: str, arrived: Arrived) -> None:
    """The negative control."""
    assert unknown(query, arrived)


def test_the_page_has_each_policy_with_its_severity() -> None:
    section = Page("docs/operate.md").text.split("## Alerts\n")[1].split("\n## ")[0]
    _, page, day = re.split("Page somebody:|On the same day:", section)
    severities = {path.stem: yaml.safe_load(path.read_text())["severity"] for path in ALERTS}
    named = re.compile(rf"`({'|'.join(severities)})`")
    listed = dict.fromkeys(named.findall(page), "CRITICAL")
    assert {**listed, **dict.fromkeys(named.findall(day), "WARNING")} == severities


@pytest.mark.parametrize("path", ALERTS, ids=lambda path: path.stem)
def test_a_policy(path: Path) -> None:
    """Its fields are those of Cloud Monitoring's AlertPolicy, and its run-book is in the pages."""
    policy = yaml.safe_load(path.read_text())
    assert set(policy) == {"displayName", "severity", "combiner", "conditions", "documentation"}
    assert policy["severity"] in ("CRITICAL", "WARNING")
    (condition,) = policy["conditions"]
    assert set(condition) == {"displayName", "conditionPrometheusQueryLanguage"}
    language = condition["conditionPrometheusQueryLanguage"]
    assert set(language) == {"query", "duration", "evaluationInterval", "disableMetricValidation"}
    assert re.fullmatch(r"\d+s", language["duration"])
    assert language["query"].count("(") == language["query"].count(")")
    title = policy["documentation"]["content"].removeprefix("Run-book: ")
    assert any(title in Page(page).text for page in pages()), title


def test_the_script_applies_all() -> None:
    script = (EXAMPLES / "monitoring/apply.sh").read_text()
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    for name in ("alerts/*.yaml", "dashboard.json", "slo-*.json"):
        assert name in script
    dashboard = json.loads((EXAMPLES / "monitoring/dashboard.json").read_text())
    assert len(dashboard["gridLayout"]["widgets"]) == 9
