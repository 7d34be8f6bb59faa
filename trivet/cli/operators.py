"""`trivet operators`: the contracts, whether they hold on this device, and which implementation a model gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # imported when the command runs, so that `trivet --help` need not
    from trivet.base.dtypes import DType


_EXIT_OPERATORS = 3


@click.group()
def operators() -> None:
    """List, verify or explain operators."""


@operators.command(name="list")
def list_operators() -> None:
    """Every operator, who implements it, and what it computes."""
    from trivet.operators import OPERATORS
    from trivet.operators.contract import IMPLEMENTATIONS

    for name, operator in sorted(OPERATORS.items()):
        devices = [f"{device}: {', '.join(each.variant for each in found)}"
                   for (owner, device), found in IMPLEMENTATIONS.items() if owner == name]  # fmt: skip
        implemented = "; ".join(devices) or ("view, moves no byte" if operator.is_view else "nobody")
        click.echo(f"{name:<14} {implemented:<20} {operator.summary}")


@operators.command()
@click.option("--target", help="Kernel target to verify  [default: all that this CPU supports]")
def verify(target: str | None) -> None:
    """Compare every implementation with its operator's reference; memory-bound operators first."""
    from trivet._native import Team, targets
    from trivet.base.errors import TrivetError
    from trivet.operators import OPERATORS
    from trivet.operators.native_sample import on_cpu
    from trivet.operators.verify import memory_bound_first
    from trivet.operators.verify import verify as verify_operator

    if target is not None and target not in targets():
        raise TrivetError(f"--target {target}: this CPU does not run it", f"it runs {', '.join(targets())}")
    team = Team([None, None])
    all_passed = True
    click.echo(f"{'operator':<14} {'target':<8} {'samples':>7}  worst error, as a share of what is tolerated")
    for name in memory_bound_first(OPERATORS):
        for each in (target,) if target else targets():
            verdict = verify_operator(OPERATORS[name], on_cpu(team, each))
            all_passed &= verdict.passed
            outcome = f"{verdict.worst:6.1%}" if verdict.passed else f"FAILED: {verdict.failure}"
            click.echo(f"{name:<14} {each:<8} {verdict.num_samples:>7}  {outcome}")
    if not all_passed:
        raise click.exceptions.Exit(_EXIT_OPERATORS)


@operators.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True,
              help="Precision to assign")  # fmt: skip
def explain(model: Path, dtype: DType) -> None:
    """Per node of MODEL's graph: the implementation it gets on the CPU, or who refused and why."""
    from trivet.framework.graph.ir import format_spec
    from trivet.framework.model.loader import model_config, model_graph
    from trivet.operators.contract import Implementation, choose, operator_named

    graph = model_graph(model_config(model), dtype)
    refused = 0
    for node in graph.nodes:
        if operator_named(node.operator).is_view:
            outcome = "view"
        else:
            chosen = choose(graph.call(node), "cpu")
            is_taken = isinstance(chosen, Implementation)
            outcome = chosen.variant if isinstance(chosen, Implementation) else f"REFUSED {chosen}"
            refused += not is_taken
        weights = [format_spec(graph.values[name]) for name in node.names if name in graph.weights]
        click.echo(f"{node.outputs[0]:<28} {node.operator:<14} {outcome:<8} {' '.join(weights)}")
    if refused:
        raise click.exceptions.Exit(_EXIT_OPERATORS)
