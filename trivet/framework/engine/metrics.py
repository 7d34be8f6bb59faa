"""The engine's numbers for Prometheus, under vLLM's names, so that dashboards and routers written for it read ours.

What vLLM has no name for is called `trivet:`.

A sequence counts as a request here, as it does there: a request with n = 3 is three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from trivet.framework.engine.histogram import Histogram
from trivet.framework.engine.lanes import LaneName
from trivet.framework.engine.observer import Finish, Load, Step
from trivet.framework.engine.sequence import FinishReason
from trivet.framework.engine.targets import RefusalReason

if TYPE_CHECKING:  # who collects imports it: a server's first answer need not wait for that
    from prometheus_client.metrics_core import Metric

_REASONS: tuple[FinishReason, ...] = ("stop", "length", "timeout", "abort", "error")
_REFUSALS: tuple[RefusalReason, ...] = ("queue", "ttft")

# vLLM's buckets, with finer ones from 100 to 200 ms: that is where latency goals are set, and a p99 read off a
# histogram is only as fine as its buckets.
_FINE = (0.11, 0.12, 0.13, 0.15, 0.175, 0.2)
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
                  40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_TOKEN_GAP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                80.0)  # fmt: skip
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
              960.0, 1920.0, 7680.0)  # fmt: skip
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_STEP_S = (0.001, 0.0025, 0.005, *_TOKEN_GAP_S)
_ERROR = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
_STEP_TOKENS = tuple(float(1 << power) for power in range(15))

# Of each histogram: what it is of, and its buckets.
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "vllm:time_to_first_token_seconds": ("Arrival to first token", _FIRST_TOKEN_S + _FINE),
    "vllm:inter_token_latency_seconds": ("Between two tokens", _TOKEN_GAP_S + _FINE),
    "vllm:e2e_request_latency_seconds": ("Arrival to last token", _REQUEST_S),
    "vllm:request_queue_time_seconds": ("Arrival to first step", _REQUEST_S),
    "vllm:request_prefill_time_seconds": ("First step to first token", _REQUEST_S),
    "vllm:request_decode_time_seconds": ("First token to last", _REQUEST_S),
    "vllm:request_prompt_tokens": ("Prompt tokens of a sequence", _TOKENS),
    "vllm:request_generation_tokens": ("Tokens a sequence generated", _TOKENS),
    "vllm:iteration_tokens_total": ("Tokens computed in a step", _STEP_TOKENS),
}  # fmt: skip

# Of a step, by the lanes that it computes: "both" on all cores, or "decode" and "prefill" beside each other.
_LANE_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "trivet:step_seconds": ("Time of a step", _STEP_S + _FINE),
    "trivet:step_predicted_seconds": ("Time of a step, predicted before it ran", _STEP_S + _FINE),
    "trivet:step_prediction_error_ratio": (
        "How far a step's time was from its prediction, as a share of the time", _ERROR),
}  # fmt: skip


class EngineMetrics:
    """An observer that counts, and a collector that a Prometheus registry takes."""

    def __init__(self, model_name: str, engine: str = "0") -> None:
        self._labels = {"model_name": model_name, "engine": engine}
        self._load = Load(0, 0, 0.0)
        self._prompt_tokens = self._generation_tokens = self._preemptions = 0
        self._finished: dict[str, int] = dict.fromkeys(_REASONS, 0)
        self._refused: dict[str, int] = dict.fromkeys(_REFUSALS, 0)
        self._histograms = {name: Histogram(sorted(set(edges))) for name, (_, edges) in _HISTOGRAMS.items()}
        self._of_lanes: dict[str, dict[LaneName, Histogram]] = {
            name: {lane: Histogram(sorted(set(edges))) for lane in get_args(LaneName)}
            for name, (_, edges) in _LANE_HISTOGRAMS.items()
        }

    def load(self, load: Load) -> None:
        self._load = load

    def step(self, step: Step) -> None:
        self._observe("vllm:iteration_tokens_total", step.num_tokens)
        self._preemptions += step.num_preemptions
        self._of_lanes["trivet:step_seconds"][step.lane].observe(step.seconds)
        if step.predicted_s is not None and step.seconds > 0:
            error = abs(step.predicted_s - step.seconds) / step.seconds
            self._of_lanes["trivet:step_predicted_seconds"][step.lane].observe(step.predicted_s)
            self._of_lanes["trivet:step_prediction_error_ratio"][step.lane].observe(error)

    def first_token(self, seconds: float, num_prompt_tokens: int) -> None:
        self._observe("vllm:time_to_first_token_seconds", seconds)
        self._prompt_tokens += num_prompt_tokens
        self._generation_tokens += 1

    def tokens(self, gaps_s: Sequence[float]) -> None:
        if gaps_s:
            self._histograms["vllm:inter_token_latency_seconds"].observe_all(gaps_s)
        self._generation_tokens += len(gaps_s)

    def refused(self, reason: RefusalReason) -> None:
        self._refused[reason] += 1

    def finish(self, finish: Finish) -> None:
        self._finished[finish.reason] += 1
        self._observe("vllm:e2e_request_latency_seconds", finish.total_s)
        self._observe("vllm:request_prompt_tokens", finish.num_prompt_tokens)
        self._observe("vllm:request_generation_tokens", finish.num_generated_tokens)
        for name, seconds in (
            ("vllm:request_queue_time_seconds", finish.queue_s),
            ("vllm:request_prefill_time_seconds", finish.prefill_s),
            ("vllm:request_decode_time_seconds", finish.decode_s),
        ):
            if seconds is not None:
                self._observe(name, seconds)

    def collect(self) -> Iterator[Metric]:
        """What was counted so far; any thread may ask."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        labels, values = list(self._labels), list(self._labels.values())
        for name, text, level in (
            ("vllm:num_requests_running", "Sequences that hold slots", self._load.num_running),
            ("vllm:num_requests_waiting", "Sequences that wait for slots", self._load.num_waiting),
            ("vllm:kv_cache_usage_perc", "Share of the KV pool's slots that are held, 0 to 1", self._load.kv_usage),
        ):
            gauge = GaugeMetricFamily(name, text, labels=labels)
            gauge.add_metric(values, level)
            yield gauge
        counts: tuple[tuple[str, str, str, dict[str, int]], ...] = (
            ("vllm:prompt_tokens", "Prompt tokens, computed or found", "", {"": self._prompt_tokens}),
            ("vllm:generation_tokens", "Tokens generated", "", {"": self._generation_tokens}),
            ("vllm:num_preemptions", "Times a sequence's slots were taken back", "", {"": self._preemptions}),
            ("vllm:request_success", "Sequences finished, by reason", "finished_reason", self._finished),
            ("trivet:requests_refused", "Requests not taken: the queue was full, or the first token predicted too late",
             "reason", self._refused),
        )  # fmt: skip
        for name, text, label, found in counts:
            counter = CounterMetricFamily(name, text, labels=[*labels, *([label] if label else [])])
            for key, count in found.items():
                counter.add_metric([*values, *([key] if label else [])], count)
            yield counter
        for name, (text, _) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, text, labels=labels)
            histogram.add_metric(values, self._histograms[name].buckets(), self._histograms[name].sum)
            yield histogram

        for name, (text, _) in _LANE_HISTOGRAMS.items():
            histogram = HistogramMetricFamily(name, text, labels=[*labels, "lane"])
            for lane, each in self._of_lanes[name].items():
                histogram.add_metric([*values, lane], each.buckets(), each.sum)
            yield histogram

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)
