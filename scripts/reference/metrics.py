"""The page of the Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics import MetricWrapperBase

from graph_agent.interfaces.server.metrics import Metrics
from scripts.reference.markdown import code, document, table


def page() -> str:
    """Return the page."""
    found = [value for value in vars(Metrics()).values() if isinstance(value, MetricWrapperBase)]
    return document(
        "Metrics",
        "`GET /metrics` of `graph-agent serve` returns these in Prometheus's text format, summed over all worker "
        "processes.",
        table(("Metric", "Type", "Labels", "Description"), [_row(each) for each in found]),
    )


def names() -> Iterator[str]:
    """Yield each metric with its labels: `name{label, label}`."""
    for each in vars(Metrics()).values():
        if isinstance(each, MetricWrapperBase):
            name, _, labels, _ = _row(each)
            yield (f"{name}{{{labels}}}" if labels else name).replace("`", "")


def _row(metric: MetricWrapperBase) -> tuple[str, ...]:
    [described] = metric.describe()
    name = f"{described.name}_total" if described.type == "counter" else described.name
    labels = metric._labelnames  # prometheus_client has no public name for them
    return code(name), described.type, ", ".join(code(each) for each in labels), described.documentation
