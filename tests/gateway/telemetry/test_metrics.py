"""Metrics: what Prometheus reads is what was counted, and the dashboard shows nothing that does not exist."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.metrics import Metrics

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "millrace.json"


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_what_was_counted_is_what_is_read() -> None:
    metrics = Metrics.create()
    metrics.requests.labels("pool", 'odd "name"\n').inc()
    metrics.charged_nano.inc(7)
    metrics.in_flight.set(3)
    for seconds in (0.005, 0.3, 0.5, 1000):
        metrics.request_seconds.labels("pool").observe(seconds)
    metrics.foretold("pool", "first_token", 2.0, 1.0)
    metrics.foretold("pool", "token", 2.0, 0.0)
    found = samples(metrics)
    assert found["millrace_requests_total", ("pool", 'odd "name"\n')] == 1
    assert found["millrace_charged_nano_total", ()] == 7
    assert found["millrace_in_flight", ()] == 3
    of_bounds = {
        bound: found["millrace_request_seconds_bucket", ("pool", bound)] for bound in ("0.005", "0.25", "0.5")
    }
    assert of_bounds == {"0.005": 1, "0.25": 1, "0.5": 3}
    assert found["millrace_request_seconds_bucket", ("pool", "+Inf")] == 4
    assert found["millrace_request_seconds_count", ("pool",)] == 4
    assert found["millrace_request_seconds_sum", ("pool",)] == 1000.805
    assert found["millrace_first_token_error_ratio_bucket", ("pool", "2.0")] == 1
    assert ("millrace_token_error_ratio_count", ("pool",)) not in found


def test_labels_that_callers_choose_do_not_fill_the_memory() -> None:
    metrics = Metrics.create()
    for number in range(5000):
        metrics.cache_hits.labels(f"kind {number}").inc()
    of_hits = [value for (name, _), value in samples(metrics).items() if name == "millrace_cache_hits_total"]
    assert len(of_hits) < 2100
    assert sum(of_hits) == 5000


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    suffixes = {"counter": "_total", "histogram": "_bucket", "gauge": ""}
    known = {each.name + suffixes[each.kind] for each in Metrics.create().instruments}
    assert set(re.findall(r"millrace_[a-z_]+", asked)) == known
