"""The engine's numbers for Prometheus, under vLLM's names, so that dashboards and routers written for it read ours.

What vLLM has no name for is called `trivet:`.

A sequence counts as a request here, as it does there: a request with n = 3 is three.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trivet.framework.engine.gap_histogram import GapHistogram
from trivet.framework.engine.observer import Finish, Load, Step
from trivet.framework.engine.sequence import FinishReason
from trivet.framework.engine.targets import RefusalReason

_LABELS = ("model_name", "engine")
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


class EngineMetrics:
    """An observer that fills a registry of its own; `registry` is what an exporter renders."""

    def __init__(self, model_name: str, engine: str = "0") -> None:
        self.registry = CollectorRegistry()
        labels = (model_name, engine)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(*labels)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(*labels)

        def histogram(name: str, text: str, buckets: tuple[float, ...], prefix: str = "vllm") -> Histogram:
            edges = tuple(sorted(set(buckets)))
            return Histogram(f"{prefix}:{name}", text, _LABELS, registry=self.registry, buckets=edges).labels(*labels)

        self._running = gauge("num_requests_running", "Sequences that hold slots")
        self._waiting = gauge("num_requests_waiting", "Sequences that wait for slots")
        self._kv_usage = gauge("kv_cache_usage_perc", "Share of the KV pool's slots that are held, 0 to 1")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens, computed or found")
        self._generation_tokens = counter("generation_tokens", "Tokens generated")
        self._preemptions = counter("num_preemptions", "Times a sequence's slots were taken back")
        success = Counter("vllm:request_success", "Sequences finished, by reason", (*_LABELS, "finished_reason"),
                          registry=self.registry)  # fmt: skip
        self._finished = {reason: success.labels(*labels, reason) for reason in _REASONS}
        self._first_token_s = histogram(
            "time_to_first_token_seconds", "Arrival to first token", _FIRST_TOKEN_S + _FINE)  # fmt: skip
        self._token_gaps_s = GapHistogram(
            "vllm:inter_token_latency_seconds", "Between two tokens", _LABELS, labels,
            sorted({*_TOKEN_GAP_S, *_FINE}))  # fmt: skip
        self.registry.register(self._token_gaps_s)
        self._total_s = histogram("e2e_request_latency_seconds", "Arrival to last token", _REQUEST_S)
        self._queue_s = histogram("request_queue_time_seconds", "Arrival to first step", _REQUEST_S)
        self._prefill_s = histogram("request_prefill_time_seconds", "First step to first token", _REQUEST_S)
        self._decode_s = histogram("request_decode_time_seconds", "First token to last", _REQUEST_S)
        self._request_prompt = histogram("request_prompt_tokens", "Prompt tokens of a sequence", _TOKENS)
        self._request_generation = histogram("request_generation_tokens", "Tokens a sequence generated", _TOKENS)
        self._step_tokens = histogram("iteration_tokens_total", "Tokens computed in a step", _STEP_TOKENS)
        self._step_s = histogram("step_seconds", "Time of a step", _STEP_S + _FINE, "trivet")
        self._step_predicted_s = histogram(
            "step_predicted_seconds", "Time of a step, predicted before it ran", _STEP_S + _FINE, "trivet")  # fmt: skip
        self._step_error = histogram(
            "step_prediction_error_ratio", "How far a step's time was from its prediction, as a share of the time",
            _ERROR, "trivet")  # fmt: skip
        refused = Counter("trivet:requests_refused", "Requests not taken: the queue was full, or the first token "
                          "predicted too late", (*_LABELS, "reason"), registry=self.registry)  # fmt: skip
        self._refused = {reason: refused.labels(*labels, reason) for reason in _REFUSALS}

    def load(self, load: Load) -> None:
        self._running.set(load.num_running)
        self._waiting.set(load.num_waiting)
        self._kv_usage.set(load.kv_usage)

    def step(self, step: Step) -> None:
        self._step_tokens.observe(step.num_tokens)
        self._preemptions.inc(step.num_preemptions)
        self._step_s.observe(step.seconds)
        if step.predicted_s is not None and step.seconds > 0:
            self._step_predicted_s.observe(step.predicted_s)
            self._step_error.observe(abs(step.predicted_s - step.seconds) / step.seconds)

    def first_token(self, seconds: float, num_prompt_tokens: int) -> None:
        self._first_token_s.observe(seconds)
        self._prompt_tokens.inc(num_prompt_tokens)
        self._generation_tokens.inc()

    def tokens(self, gaps_s: Sequence[float]) -> None:
        if gaps_s:
            self._token_gaps_s.observe(gaps_s)
        self._generation_tokens.inc(len(gaps_s))

    def refused(self, reason: RefusalReason) -> None:
        self._refused[reason].inc()

    def finish(self, finish: Finish) -> None:
        self._finished[finish.reason].inc()
        self._total_s.observe(finish.total_s)
        self._request_prompt.observe(finish.num_prompt_tokens)
        self._request_generation.observe(finish.num_generated_tokens)
        for histogram, seconds in (
            (self._queue_s, finish.queue_s),
            (self._prefill_s, finish.prefill_s),
            (self._decode_s, finish.decode_s),
        ):
            if seconds is not None:
                histogram.observe(seconds)
