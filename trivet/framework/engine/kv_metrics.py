"""What the KV cache found and moved, for Prometheus: read from an engine's counts when it is scraped.

A table: each metric's name, kind, meaning, and its value or one for each tier. Where vLLM has the number, its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from trivet.framework.engine.kv_counts import KvCounts

Value = Callable[[KvCounts], float | Mapping[str, float]]

_TABLE: tuple[tuple[str, type[CounterMetricFamily | GaugeMetricFamily], str, str, Value], ...] = (
    ("vllm:prefix_cache_queries", CounterMetricFamily, "Tokens looked for in the KV pool", "",
     lambda kv: kv.prefixes.asked),
    ("vllm:prefix_cache_hits", CounterMetricFamily, "Tokens found in the KV pool", "", lambda kv: kv.prefixes.pool),
    ("vllm:external_prefix_cache_queries", CounterMetricFamily, "Tokens looked for beyond the KV pool", "",
     lambda kv: kv.prefixes.asked - kv.prefixes.pool),
    ("vllm:external_prefix_cache_hits", CounterMetricFamily, "Tokens found beyond the KV pool", "",
     lambda kv: kv.prefixes.host + kv.prefixes.files),
    ("trivet:kv_found_tokens", CounterMetricFamily, "Tokens not computed again, by where they were found", "tier",
     lambda kv: {"pool": kv.prefixes.pool, "host": kv.prefixes.host, "files": kv.prefixes.files}),
    ("trivet:kv_moved_bytes", CounterMetricFamily, "Bytes of KV cache moved, by the tier they came to", "tier",
     lambda kv: {"pool": (kv.tiers.restored_host + kv.tiers.restored_files) * kv.slot_bytes,
                 "host": (kv.tiers.sunk + kv.tiers.fetched) * kv.slot_bytes,
                 "files": kv.files.written * kv.slot_bytes}),
    ("trivet:kv_corrupt_blocks", CounterMetricFamily, "Blocks that did not prove themselves: not served", "tier",
     lambda kv: {"host": kv.tiers.corrupt_host, "files": kv.files.corrupt}),
    ("trivet:kv_dropped_blocks", CounterMetricFamily, "Blocks that found no room in host memory", "",
     lambda kv: kv.tiers.dropped),
    ("trivet:kv_evicted_blocks", CounterMetricFamily, "Blocks removed from files, for others", "",
     lambda kv: kv.files.evicted),
    ("trivet:kv_scrubbed_blocks", CounterMetricFamily, "Blocks of files read only to be proved", "",
     lambda kv: kv.files.scrubbed),
    ("trivet:kv_file_failures", CounterMetricFamily, "Reads and writes of files that failed", "",
     lambda kv: kv.files.failures),
    ("trivet:kv_refused_fetches", CounterMetricFamily, "Prefixes in files that were sooner computed than read", "",
     lambda kv: kv.tiers.refused),
    ("trivet:kv_cheaper_blocks", CounterMetricFamily,
     "Blocks given up or not copied from host memory: computing was sooner", "", lambda kv: kv.tiers.cheaper),
    ("trivet:kv_pinned_slots", GaugeMetricFamily, "Slots that are never given up", "", lambda kv: kv.pinned),
    ("trivet:kv_stall_seconds", CounterMetricFamily, "Seconds of waiting for files, before steps and in them",
     "", lambda kv: kv.prefixes.stalled_s),
    ("trivet:kv_arrivals", CounterMetricFamily, "Prefixes of which blocks came from files while their step ran",
     "outcome", lambda kv: {"whole": kv.prefixes.arrived, "failed": kv.prefixes.failed}),
    ("trivet:kv_files_bytes", GaugeMetricFamily, "Physical bytes of the folder, where this process writes it", "",
     lambda kv: kv.files_bytes),
    ("trivet:kv_allocations", CounterMetricFamily, "Sequences that were given slots, again after a preemption too", "",
     lambda kv: kv.turns),
    ("trivet:kv_delayed_allocations", CounterMetricFamily, "Of these, those that had to wait for slots", "",
     lambda kv: kv.held_up),
    ("trivet:kv_internal_fragmentation", GaugeMetricFamily,
     "Share of the held slots that no token is in, 0 to 1; slots are equal, so there is no other fragmentation", "",
     lambda kv: kv.fragmentation),
)  # fmt: skip


class KvMetrics:
    """A collector for a Prometheus registry; `counts` may be called by any thread."""

    def __init__(self, model_name: str, counts: Callable[[], KvCounts], engine: str = "0") -> None:
        self._labels = {"model_name": model_name, "engine": engine}
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts()
        for name, family, text, label, value in _TABLE:
            found = value(counts)
            metric = family(name, text, labels=[*self._labels, *([label] if label else [])])
            for key, number in found.items() if isinstance(found, Mapping) else [("", found)]:
                metric.add_metric([*self._labels.values(), *([key] if label else [])], number)
            yield metric
