"""The page of metrics, as Prometheus reads it. Imported by who scrapes: no answer needs its client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric

from trivet.framework.engine.kv_metrics import KvMetrics
from trivet.serve.service import Service

CONTENT_TYPE = CONTENT_TYPE_LATEST


class RequestMetrics:
    """A collector of what was answered: how often, by method, handler and status."""

    def __init__(self, requests: Mapping[tuple[str, str, int], int]) -> None:
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily("http_requests", "Answered requests.", labels=("method", "handler", "status"))
        for (method, handler, status), count in list(self._requests.items()):
            counter.add_metric((method, handler, str(status)), count)
        yield counter


def page(service: Service) -> bytes:
    """All there is: of the server, and of its model's engine and KV cache once it has one."""
    registry = CollectorRegistry()
    registry.register(RequestMetrics(service.requests))
    if service.opened is not None:
        registry.register(service.opened.metrics)
        registry.register(KvMetrics(service.model_name, service.opened.kv_counts))
    return generate_latest(registry)
