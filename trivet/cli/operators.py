"""`trivet operators`: the contracts, whether they hold on this device, and which implementation a model gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trivet.cli.options import DEVICE, DTYPE, model_options

if TYPE_CHECKING:  # imported when the command runs, so that `trivet --help` need not
    from trivet.base.dtypes import DType
    from trivet.driver.devices.device import DeviceName

_EXIT_OPERATORS = 3


@click.group()
def operators() -> None:
    """List, verify, explain or profile operators."""


@operators.command(name="list", short_help="Every operator, and who implements it here")
def list_operators() -> None:
    """Every operator, who implements it on the devices that this host has, and what it computes."""
    from contextlib import suppress

    from trivet.base.errors import ResourceError
    from trivet.framework.graph.binding import SAMPLE_RUNS
    from trivet.operators.contract import IMPLEMENTATIONS, OPERATORS

    for open_device in SAMPLE_RUNS.values():
        with suppress(ResourceError):  # a device that is not here implements nothing here
            open_device(None)
    rows = []
    for name, operator in sorted(OPERATORS.items()):
        devices = [f"{device}: {', '.join(each.variant for each in found)}"
                   for (owner, device), found in IMPLEMENTATIONS.items() if owner == name]  # fmt: skip
        implemented = "; ".join(devices) or ("view, moves no byte" if operator.is_view else "nobody")
        rows.append((name, implemented, operator.summary))
    width = max(len(implemented) for _, implemented, _ in rows)
    for name, implemented, summary in rows:
        click.echo(f"{name:<17} {implemented:<{width}} {summary}")


@operators.command(short_help="Compare every implementation with its reference")
@click.option("--device", type=click.Choice([*DEVICE.choices, "triton"]), default="cpu", show_default=True,
              help="Whose implementations; triton: our own kernels, on a GPU or an NPU")  # fmt: skip
@click.option("--target", help="Kernel target of the CPU  [default: all that this one supports]")
def verify(device: str, target: str | None) -> None:
    """Compare every implementation with its operator's reference; memory-bound operators first."""
    from trivet._native import targets
    from trivet.base.errors import TrivetError
    from trivet.framework.graph.binding import SAMPLE_RUNS
    from trivet.operators.contract import IMPLEMENTATIONS, OPERATORS
    from trivet.operators.verify import memory_bound_first
    from trivet.operators.verify import verify as verify_operator

    if target is not None and target not in targets():
        raise TrivetError(f"--target {target}: this CPU does not run it", f"it runs {', '.join(targets())}")
    # On the CPU every kernel target, in float32; elsewhere both formats that activations may have.
    rows: list[tuple[str, str | None, DType]] = [(device, None, "float32"), (device, None, "bfloat16")]
    if device == "cpu":
        rows = [(each, each, "float32") for each in ((target,) if target else targets())]
    all_passed, runs = True, [SAMPLE_RUNS[device](kernels) for _, kernels, _ in rows]
    click.echo(f"{'operator':<17} {'on':<8} {'rows':<9} {'samples':>7}  worst error, as a share of what is tolerated")
    for name in memory_bound_first(name for name in OPERATORS if (name, device) in IMPLEMENTATIONS):
        for (on, _, activations), run in zip(rows, runs, strict=True):
            verdict = verify_operator(OPERATORS[name], run, activations)
            all_passed &= verdict.passed
            outcome = f"{verdict.worst:6.1%}" if verdict.passed else f"FAILED: {verdict.failure}"
            click.echo(f"{name:<17} {on:<8} {activations:<9} {verdict.num_samples:>7}  {outcome}")
    if not all_passed:
        raise click.exceptions.Exit(_EXIT_OPERATORS)


@operators.command(short_help="Which implementation each node of a model gets, or who refused")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--device", type=DEVICE, default="cpu", show_default=True, help="Whose implementations")
@click.option("--dtype", type=DTYPE, default="bfloat16", show_default=True, help="Precision to assign")
def explain(model: Path, device: DeviceName, dtype: DType) -> None:
    """Per node of MODEL's graph: the implementation it gets on a device, or who refused and why.

    For an NPU also which steps are captured, and which weights are asked for ahead.
    """
    from trivet.framework.graph.binding import BINDINGS
    from trivet.framework.graph.ir import format_spec
    from trivet.framework.model.loader import model_config, model_graph
    from trivet.operators.contract import Implementation, choose, operator_named

    BINDINGS[device].run_samples(None)  # registers the device's implementations
    graph = model_graph(model_config(model), dtype, device=device)
    refused = 0
    for node in graph.nodes:
        chosen = choose(graph.call(node), device)
        if isinstance(chosen, Implementation):
            outcome = chosen.variant
        elif operator_named(node.operator).is_view:
            outcome = "view"
        else:
            outcome = f"REFUSED {'; '.join(f'{variant}: {reason}' for variant, reason in chosen) or 'by nobody'}"
            refused += 1
        weights = [format_spec(graph.values[name]) for name in node.names if name in graph.weights]
        click.echo(f"{node.outputs[0]:<28} {node.operator:<14} {outcome:<8} {' '.join(weights)}")
    for sentence in BINDINGS[device].explain_steps(graph):
        click.echo(sentence)
    if refused:
        raise click.exceptions.Exit(_EXIT_OPERATORS)


@operators.command(short_help="Where the time and the bytes of a step go")
@click.argument("model")
@model_options
@click.option("--tokens", type=click.IntRange(1), default=1, show_default=True,
              help="Tokens of the step: 1 is a decode, more a prefill")  # fmt: skip
@click.option("--past", type=click.IntRange(0), default=0, show_default=True, help="Positions already in the cache")
def profile(model: str, tokens: int, past: int, **options: Any) -> None:
    """Where the time and the bytes of one step of MODEL go.

    `moved` beside `fewest` shows unnecessary copies as a ratio above 1, where the device's kernels can be watched.
    """
    from trivet.base.errors import TrivetError
    from trivet.cli.options import load_model
    from trivet.framework.graph.profile import one_sequence
    from trivet.framework.graph.profile import profile as profile_step

    loaded = load_model(model, **options)
    loaded.settle()
    limits = loaded.plan.limits
    if tokens > limits.max_tokens or past + tokens > limits.max_context:
        raise TrivetError(
            f"--tokens {tokens} after {past} exceeds a step of {limits.max_tokens}, a context of {limits.max_context}",
            "ask for fewer, or raise --max-step-tokens or --max-context",
        )
    rows = profile_step(loaded.plan, one_sequence(tokens, past, loaded.plan.slot_tokens))
    total = sum(row.seconds for row in rows)
    click.echo(f"{'operator':<14} {'nodes':>5} {'time':>10} {'share':>6} {'fewest MB':>10} {'moved MB':>9} "
               f"{'ratio':>6} {'GB/s':>6}")  # fmt: skip
    for row in rows:
        moved = "-" if row.moved_bytes is None else f"{row.moved_bytes / 1e6:.3f}"
        ratio = "-" if row.moved_bytes is None else f"{row.moved_bytes / max(1, row.fewest_bytes):.2f}"
        speed = row.fewest_bytes / max(row.seconds, 1e-9) / 1e9
        click.echo(f"{row.operator:<14} {row.num_nodes:>5} {row.seconds * 1e3:>7.3f} ms {row.seconds / total:>6.1%} "
                   f"{row.fewest_bytes / 1e6:>10.3f} {moved:>9} {ratio:>6} {speed:>6.1f}")  # fmt: skip
