"""The files for Prometheus and Grafana name pods, ports, metrics and labels that exist, and all metrics."""

import json
import re

from manifests import KUBERNETES, documents

from tempscale_jobs.runs.observing import METRICS
from tempscale_jobs.workers.meter import COUNTERS, LABELS

MONITORING = KUBERNETES / "monitoring"


def named():
    """The labels of every metric, by the name that Prometheus reads."""
    runs = {f"ray_tempscale_{name}{'_total' * (kind == 'Counter')}": set(own) for name, (kind, _, own) in METRICS.items()}
    return runs | {f"ray_tempscale_worker_{name}_total": set(LABELS) for name in COUNTERS}


def test_the_dashboard_shows_every_metric_by_labels_that_it_has():
    board = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))
    known, shown = named(), set()
    for target in (target for panel in board["panels"] for target in panel["targets"]):
        metrics = re.findall(r"ray_tempscale_\w+", target["expr"])
        used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        grouped = {label for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(", ")}
        assert metrics
        assert used <= grouped, target
        for metric in metrics:
            assert grouped | {"run"} <= known[metric] | {"run"}, (metric, grouped)
            assert "run" in known[metric]
        shown |= set(metrics)
    assert shown == set(known)
    assert [panel["id"] for panel in board["panels"]] == list(range(1, len(board["panels"]) + 1))


def test_prometheus_reads_the_pods_and_the_port_that_there_are():
    (monitor,) = documents((MONITORING / "podmonitor.yaml").read_text("utf-8"))
    (job,) = documents((KUBERNETES / "base" / "rayjob.yaml").read_text("utf-8"))
    cluster = job["spec"]["rayClusterSpec"]
    templates = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    for template in templates:
        assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
        assert {point["port"] for point in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert monitor["metadata"]["namespace"] == job["metadata"]["namespace"]
