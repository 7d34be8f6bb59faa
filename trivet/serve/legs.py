"""The three legs in their strict order: driver, operators, framework. The climb stops at the first that cannot carry.

Nothing is served on a leg that has not been verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trivet.base.errors import TrivetError
from trivet.base.findings import Finding, Leg, Outcome, verdict
from trivet.base.settings import Settings
from trivet.base.units import format_bytes, format_seconds
from trivet.driver.checks import examine_driver_leg
from trivet.driver.devices.device import DeviceName
from trivet.driver.need import need_of
from trivet.driver.readers.host import read_facts
from trivet.framework.engine import probe
from trivet.framework.graph import laws
from trivet.framework.graph.binding import BINDINGS
from trivet.framework.graph.passes import optimise, target_for
from trivet.framework.graph.profile import OperatorProfile, one_sequence, profile
from trivet.framework.model.config import ModelConfig
from trivet.framework.model.families import build_graph
from trivet.framework.model.loader import LoadedModel, load, model_config
from trivet.operators.contract import OPERATORS, operator_named
from trivet.operators.verify import memory_bound_first, verify
from trivet.serve.bench.limits import memory_speeds

EXIT_STATUS: dict[Leg, int] = {"driver": 2, "operators": 3, "framework": 4}

_BANDWIDTH_REPEATS = 3


@dataclass
class LegReport:
    """What was found on one leg, and what was measured there."""

    leg: Leg
    findings: list[Finding] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        return verdict(tuple(self.findings))

    def add(self, name: str, outcome: Outcome, detail: str, *remedy: str) -> None:
        self.findings.append(Finding(self.leg, name, outcome, detail, remedy))


@dataclass
class Climb:
    """The legs climbed so far; `model` once all of them carry."""

    legs: list[LegReport] = field(default_factory=list)
    model: LoadedModel | None = None
    decode_profile: list[OperatorProfile] = field(default_factory=list)

    @property
    def failed_leg(self) -> Leg | None:
        return next((report.leg for report in self.legs if report.outcome == "failed"), None)


def climb(
    model: str, settings: Settings, on_leg: Callable[[LegReport], None], *, root: Path = Path("/"), **options: Any
) -> Climb:
    """Climb with `model`, telling `on_leg` of each leg as it is done. `options` are those of `load`.

    The driver leg is that of the host whose files lie under `root`: a captured one where the device is emulated.

    A leg that cannot carry is a failed finding, not an exception. Raises CheckpointError or ConfigError when there is
    no model to climb with.
    """
    climbed = Climb()
    config = model_config(model, settings)
    steps: tuple[tuple[Leg, Callable[[LegReport], None]], ...] = (
        ("driver", lambda report: _driver(report, model, settings, root, options)),
        ("operators", lambda report: _operators(report, config, settings, options)),
        ("framework", lambda report: _framework(report, model, settings, options, climbed)),
    )
    for leg, step in steps:
        report = LegReport(leg)
        with _timed(report):
            try:
                step(report)
            except TrivetError as error:
                report.add("cannot_be_climbed", "failed", error.message, *([error.hint] if error.hint else []))
        climbed.legs.append(report)
        on_leg(report)
        if report.outcome == "failed":
            climbed.model = None
            break
    return climbed


@contextmanager
def _timed(report: LegReport) -> Iterator[None]:
    start = time.perf_counter()
    yield
    report.seconds = time.perf_counter() - start


def _driver(report: LegReport, model: str, settings: Settings, root: Path, options: dict[str, Any]) -> None:
    device: Literal["cpu", "npu"] = "npu" if options.get("device") == "npu" else "cpu"
    need = need_of(Path(model), device, settings.cache_dir.absolute())
    facts = read_facts(root.resolve(), [path for path in (need.disk_path, need.model_path) if path])
    report.findings += examine_driver_leg(facts, need)


def _operators(report: LegReport, config: ModelConfig, settings: Settings, options: dict[str, Any]) -> None:
    """Every operator of the model's graph against its reference, on the target that will run it."""
    device: DeviceName = options.get("device") or "cpu"
    made_for = target_for(device, options.get("dtype") or "bfloat16", matrices=options.get("weights"))
    graph = optimise(build_graph(config), made_for)
    binding = BINDINGS[device]
    run, target = binding.run_samples(settings.cpu_target), binding.describe(settings.cpu_target)
    used = {node.operator for node in graph.nodes}
    for name in memory_bound_first(used):
        result = verify(operator_named(name), run, made_for.activations)
        detail = f"{result.num_samples} samples on {target}, worst error {result.worst:.0%} of what is tolerated"
        report.add(name, "passed" if result.passed else "failed", result.failure or detail)
    views = sorted(name for name in used if OPERATORS[name].is_view)
    if views:
        report.add(", ".join(views), "passed", "a view: no byte moves")


def _framework(report: LegReport, model: str, settings: Settings, options: dict[str, Any], climbed: Climb) -> None:
    loaded = load(model, settings=settings, **options)
    package, plan, memory = loaded.package, loaded.plan, loaded.memory
    seconds = loaded.times.total
    report.add("weights", "passed", f"{len(package.weights)} tensors, {format_bytes(memory.weight_bytes)} in "
               f"{package.dtype}, {'checksums agree' if options.get('verify', True) else 'not verified'}; "
               f"loaded in {format_seconds(seconds)}")  # fmt: skip
    laws.check(package.graph, "loading")
    report.add("graph", "passed", f"{len(package.graph.nodes)} nodes, every law holds")
    if plan.target != BINDINGS[options.get("device") or "cpu"].describe(settings.cpu_target):
        report.add("plan", "passed", plan.target)  # what only binding could tell
    report.add("memory", "passed", f"KV {format_bytes(memory.kv_bytes)} for {memory.kv_tokens} tokens in "
               f"{memory.num_slots} slots, activations {format_bytes(memory.activation_bytes)}")  # fmt: skip

    prompt = probe.probe_prompt(loaded)
    alone, _ = probe.answer_alone(plan, prompt)
    _same_answer(report, alone, probe.answer_in_a_crowd(plan, prompt))
    _answer_of_before(report, alone, package.path, probe.who_answers(package, options.get("device") or "cpu"))

    loaded.settle()
    answer, speed = probe.answer_alone(plan, prompt)  # warm now
    assert answer == alone, "the same prompt gave two answers"
    bandwidth = max(memory_speeds(loaded.device.cpus, _BANDWIDTH_REPEATS))
    share = speed.decode_tokens_per_s * speed.decode_bytes / bandwidth
    report.measures.update(
        load_s=seconds, ttft_s=speed.ttft_s, prompt_tokens=speed.num_prompt_tokens,
        decode_tokens_per_s=speed.decode_tokens_per_s, read_bandwidth=bandwidth, share_of_bandwidth=share,
    )  # fmt: skip
    report.add("speed", "passed", f"TTFT {format_seconds(speed.ttft_s)} for {speed.num_prompt_tokens} tokens, decode "
               f"{speed.decode_tokens_per_s:.1f} tokens/s: {share:.0%} of the {bandwidth / 1e9:.1f} GB/s that "
               f"{len(loaded.device.cpus)} threads can read")  # fmt: skip
    climbed.decode_profile = profile(plan, one_sequence(1))
    climbed.model = loaded


def _same_answer(report: LegReport, alone: probe.Answer, crowd: probe.Answer) -> None:
    if alone == crowd:
        report.add("same_answer", "passed",
                   f"{len(alone.tokens)} tokens alone and in a batch, bit for bit, log probabilities too")  # fmt: skip
        return
    first = next((i for i, pair in enumerate(zip(alone.tokens, crowd.tokens, strict=False)) if pair[0] != pair[1]), 0)
    report.add("same_answer", "failed", f"an answer differs from itself in a batch, first at token {first}",
               "report this with the output of: trivet version")  # fmt: skip


def _answer_of_before(report: LegReport, answer: probe.Answer, package: Path, who: str) -> None:
    before = probe.recorded_answer(package, who)
    if before is None or before.prompt != answer.prompt:
        kept = probe.record_answer(package, who, answer)
        detail = "recorded now, later starts are compared with it" if kept else "not recorded: the package is read-only"
        report.add("known_answer", "passed", detail)
    elif before.tokens == answer.tokens:
        bits = "bit for bit" if before == answer else "log probabilities differ in their last bits"
        report.add("known_answer", "passed", f"the answer is the one recorded with the package, {bits}")
    else:
        report.add("known_answer", "failed", "the answer is not the one recorded with the package",
                   f"trivet operators verify; if all pass, remove {package / probe.RECORD} to record anew")  # fmt: skip
