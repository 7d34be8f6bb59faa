"""`trivet convert`: a checkpoint becomes a package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # imported when the command runs, so that `trivet --help` need not
    from trivet.base.dtypes import DType
    from trivet.framework.graph.passes import DeviceName


def _overrides(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Each PATTERN=DTYPE taken apart."""
    parts = [each.rpartition("=") for each in given]
    for pattern, _, dtype in parts:
        if not pattern or dtype not in ("bfloat16", "float32"):
            raise click.BadParameter("wanted PATTERN=bfloat16 or PATTERN=float32, such as 'head.weight=float32'")
    return tuple((pattern, dtype) for pattern, _, dtype in parts)


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True,
              help="Format of weights and KV cache")  # fmt: skip
@click.option(
    "--precision",
    "overrides",
    metavar="PATTERN=DTYPE",
    multiple=True,
    callback=_overrides,
    help="Another format for the weights that the pattern names, such as 'head.weight=float32'; repeatable",
)
@click.option("--level", type=click.IntRange(0, 2), default=2, show_default=True,
              help="0 only what is needed to run, 1 merged weights, 2 fused operators")  # fmt: skip
@click.option("--target", type=click.Choice(["cpu", "torch", "npu"]), default="cpu", show_default=True,
              help="The device the weights are laid out for")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace another package at DESTINATION")
def convert(
    source: Path, destination: Path, dtype: DType, overrides: tuple[tuple[str, DType], ...], level: int,
    target: DeviceName, force: bool,
) -> None:  # fmt: skip
    """Turn the checkpoint SOURCE, a Hugging Face folder or a GGUF file, into a package at DESTINATION."""
    import time

    from trivet.base.units import format_bytes, format_seconds
    from trivet.cli.options import Progress
    from trivet.framework.model import convert as conversion
    from trivet.framework.model.checkpoints.readers import open_checkpoint
    from trivet.framework.model.config import parse_config
    from trivet.framework.model.loader import model_graph

    start = time.perf_counter()
    checkpoint = open_checkpoint(source)
    graph = model_graph(parse_config(checkpoint.config), dtype, level, target, overrides)
    package = conversion.convert(
        checkpoint, graph, destination, dtype=dtype, level=level, replace=force,
        progress=Progress("converting", sys.stderr),
    )  # fmt: skip
    click.echo(
        f"{destination}: {len(package.weights)} weights, {format_bytes(package.weight_bytes)} in {dtype}, "
        f"{format_seconds(time.perf_counter() - start)}"
    )
    device = "" if target == "cpu" else f" --device {target}"
    click.echo(f"serve it with: trivet up {destination}{device}")
