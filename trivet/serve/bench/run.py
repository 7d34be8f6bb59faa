"""One run: the questions asked of a model on this machine, between two measurements of the machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trivet._native import targets
from trivet.base.dtypes import DType
from trivet.base.errors import ResourceError
from trivet.base.formats import MatrixFormat
from trivet.base.settings import Settings
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.model.demo_model import FILE_NAME, SIZE_BYTES
from trivet.framework.model.loader import load, model_config, open_model
from trivet.framework.model.steps import Progress
from trivet.serve.bench.decode import measure_decode
from trivet.serve.bench.figure import Measurement, Question, judge, speeds_of_limits
from trivet.serve.bench.kernels import measure_kernels
from trivet.serve.bench.limits import measure_limits
from trivet.serve.bench.load import measure_load
from trivet.serve.bench.prefill import measure_prefill
from trivet.serve.bench.rows import Row, to_row
from trivet.serve.bench.stamp import stamp

_MAX_CONTEXT = 2304  # of the longest question, and a little more; a KV pool for more would only take memory
_MAX_SEQUENCES = 32
_STEP_TOKENS = 512  # what the server takes by default


def default_model(cache_dir: Path) -> Path:
    """The demo's weights in the cache. Raises ResourceError where they are not."""
    path = cache_dir / "demo" / FILE_NAME
    if not path.is_file() or path.stat().st_size != SIZE_BYTES:
        raise ResourceError(
            f"MODEL: none was named, and the demo's weights are not at {path}",
            "fetch them with `trivet demo`, or name a model: trivet bench MODEL",
        )
    return path


def run(
    questions: Sequence[Question],
    model: Path | None,
    *,
    dtype: DType | None,
    weights: MatrixFormat | None,
    threads: int | None,
    repeats: int,
    settings: Settings,
    tell: Callable[[str], None],
    progress: Progress,
) -> list[Row]:
    """The rows of the questions, and of the limits they are held against, measured first and again last.

    `model` may be None when only the limits are asked for; otherwise it is what `load` takes, with `dtype`. `tell`
    hears what is being measured and what is left out with the reason, `progress` of a conversion.
    Raises what `load` raises.
    """
    facts = read_placement_facts()
    device = open_device("cpu", facts, threads)
    target = settings.cpu_target or targets()[0]
    package = None
    if model is not None:
        package = open_model(model, dtype=dtype, weights=weights, verify=False, progress=progress, settings=settings)
    taken = stamp(package, facts, device, target)  # now: the checkout may move on while the run takes its minutes
    tell("limits, first")
    measurements = measure_limits(device.cpus, target, repeats, "first")
    if package is not None:
        path, weight_bytes, num_threads = package.path, package.weight_bytes, len(device.cpus)
        del package  # while it is open its files cannot be dropped from the page cache
        if "load" in questions:
            measurements += measure_load(path, weight_bytes, threads=num_threads, repeats=repeats, tell=tell)
        measurements += _loaded(questions, path, num_threads, repeats, settings, tell)
    tell("limits, last")
    measurements += measure_limits(device.cpus, target, repeats, "last")
    speeds = speeds_of_limits(measurements)
    return [to_row(judge(each, speeds), taken) for each in measurements]


def _loaded(
    questions: Sequence[Question],
    package: Path,
    threads: int,
    repeats: int,
    settings: Settings,
    tell: Callable[[str], None],
) -> Iterator[Measurement]:
    """The questions that need the model in memory; it is gone when they are answered."""
    if not {"prefill", "decode", "kernels"} & set(questions):
        return
    context = min(model_config(package).max_context, _MAX_CONTEXT)
    loaded = load(package, threads=threads, max_context=context, max_sequences=_MAX_SEQUENCES,
                  max_step_tokens=_STEP_TOKENS, settings=settings)  # fmt: skip
    loaded.settle()
    if "prefill" in questions:
        yield from measure_prefill(loaded.plan, step_tokens=_STEP_TOKENS, repeats=repeats, tell=tell)
    if "decode" in questions:
        yield from measure_decode(loaded.plan, step_tokens=_STEP_TOKENS, repeats=repeats, tell=tell)
    if "kernels" in questions:
        yield from measure_kernels(loaded.plan, repeats=repeats, tell=tell)
    loaded.plan.close()
