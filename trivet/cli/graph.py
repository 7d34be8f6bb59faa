"""`trivet graph`: what a model computes, as the family wrote it and after each pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trivet.cli.options import DTYPE

if TYPE_CHECKING:  # imported when the command runs, so that `trivet --help` need not
    from trivet.base.dtypes import DType


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--dtype", type=DTYPE, default="bfloat16", show_default=True, help="Precision to assign")
@click.option("--level", type=click.IntRange(0, 3), default=3, show_default=True, help="Passes up to this level")
@click.option("--after", metavar="PASS", help="Print the graph after this pass whole, 'built' for before any")
def graph(model: Path, dtype: DType, level: int, after: str | None) -> None:
    """Print the graph of MODEL: a line per pass with what it changed, or one stage whole."""
    from collections import Counter

    from trivet.base.errors import TrivetError
    from trivet.framework.graph.passes import stages, target_for
    from trivet.framework.model.families import build_graph
    from trivet.framework.model.loader import model_config

    made = dict(stages(build_graph(model_config(model)), target_for("cpu", dtype), level))
    if after is not None:
        if after not in made:
            raise TrivetError(f"--after {after}: no such pass at level {level}", f"there are {', '.join(made)}")
        click.echo(made[after].text(), nl=False)
        return
    before: Counter[str] = Counter()
    for name, stage in made.items():
        operators = Counter(node.operator for node in stage.nodes)
        changes = [f"{operators[key] - before[key]:+d} {key}" for key in sorted(operators | before)
                   if operators[key] != before[key]]  # fmt: skip
        click.echo(f"{name:<17} {len(stage.nodes):>5} nodes  {', '.join(changes)}")
        before = operators
    click.echo(f"print one whole with: trivet graph {model} --after {next(reversed(made))}")
