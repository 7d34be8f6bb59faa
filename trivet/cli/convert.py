"""`trivet convert`: a checkpoint becomes a package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trivet.cli.options import DEVICE, DTYPE, WEIGHTS, Size

if TYPE_CHECKING:  # imported when the command runs, so that `trivet --help` need not
    from trivet.base.dtypes import DType
    from trivet.base.formats import MatrixFormat
    from trivet.driver.devices.device import DeviceName
    from trivet.framework.model.convert import Converted
    from trivet.framework.model.package import Package

_EXIT_INTERRUPTED = 130  # what shells give for SIGINT
_NUM_SLOWEST = 5


def _overrides(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Each PATTERN=DTYPE taken apart."""
    parts = [each.rpartition("=") for each in given]
    for pattern, _, dtype in parts:
        if not pattern or dtype not in ("bfloat16", "float32", "int8"):
            raise click.BadParameter("wanted PATTERN=bfloat16, float32 or int8, such as 'head.weight=float32'")
    return tuple((pattern, dtype) for pattern, _, dtype in parts)


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("destination", type=click.Path(path_type=Path))
@click.option("--dtype", type=DTYPE, default="bfloat16", show_default=True, help="Format of weights and KV cache")
@click.option("--weights", type=WEIGHTS, help="Keep the matrices in 8 bits, half of bfloat16's bytes")
@click.option(
    "--precision",
    "overrides",
    metavar="PATTERN=DTYPE",
    multiple=True,
    callback=_overrides,
    help="Another format for the weights that the pattern names, such as 'head.weight=float32'; repeatable",
)
@click.option("--level", type=click.IntRange(0, 3), default=3, show_default=True,
              help="0 what is needed to run, 1 merged weights, 2 fused operators, 3 fused cache writes")  # fmt: skip
@click.option("--target", type=DEVICE, default="cpu", show_default=True, help="The device the weights are laid out for")
@click.option("--tensor-parallel", "num_ranks", type=click.IntRange(1), default=1, show_default=True,
              help="Ranks to cut the weights for; each then reads its own bytes only")  # fmt: skip
@click.option("--shard-size", type=Size(), default="1000000000", help="Largest file of weights  [default: 1 GB]")
@click.option("--memory", type=Size(), help="The most that verifying may take  [default: what is free]")
@click.option("--ignore", "ignored", metavar="PATTERN", multiple=True,
              help="Tensors that may be left out though the model does not say so; repeatable")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace another package at DESTINATION")
@click.option("--json", "as_json", is_flag=True, help="Print what each step made as JSON")
def convert(
    source: Path, destination: Path, dtype: DType, weights: MatrixFormat | None,
    overrides: tuple[tuple[str, DType], ...], level: int, target: DeviceName, num_ranks: int, shard_size: int,
    memory: int | None, ignored: tuple[str, ...], force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Turn the checkpoint SOURCE into a package at DESTINATION.

    SOURCE is a Hugging Face folder (safetensors, or PyTorch's .bin) or a GGUF file; it is only read. Interrupted or
    killed, the same command continues: what is complete is kept in DESTINATION.partial.
    """
    from trivet.cli.options import Progress
    from trivet.framework.model import convert as conversion
    from trivet.framework.model.steps import Wanted
    from trivet.framework.model.work_folder import work_path

    wanted = Wanted(dtype, level, target, overrides, num_ranks, shard_size, ignored, memory, weights)
    try:
        converted = conversion.convert(
            source, destination, wanted, replace=force, progress=Progress(sys.stderr),
            waiting=lambda path: click.echo(f"waiting for the conversion that writes {path}", err=True),
        )  # fmt: skip
    except KeyboardInterrupt:
        left = work_path(destination.absolute())
        kept = f"what is complete is in {left}: the same command continues" if left.exists() else "nothing was written"
        click.echo(f"trivet: interrupted, {kept}", err=True)
        raise click.exceptions.Exit(_EXIT_INTERRUPTED) from None
    if as_json:
        click.echo(to_json(converted))
    else:
        print_steps(converted, destination, target, num_ranks)
    if weights is not None and target == "cpu" and num_ranks == 1 and converted.steps:
        click.echo(_judge(converted.package, source, dtype), err=as_json)


def print_steps(converted: Converted, destination: Path, target: DeviceName, num_ranks: int) -> None:
    """A line per step, the slowest nodes, and what to do next."""
    from trivet.base.units import format_bytes, format_seconds
    from trivet.framework.model.loader import has_int8

    package, verification = converted.package, converted.verification
    for report in converted.steps:
        click.echo(f"{report.step:<9} {format_seconds(report.seconds):>9}  {report.made}")
    for node in verification.node_times[:_NUM_SLOWEST] if verification else ():
        click.echo(f"{'':<9} {format_seconds(node.seconds):>9}  {node.operator} {node.value}")
    before = "" if converted.steps else ", made before"
    size = format_bytes(package.weight_bytes)
    each = f" for each of {num_ranks} ranks" if num_ranks > 1 else ""
    form = "int8" if has_int8(package.graph) else package.dtype
    click.echo(f"{destination}: {len(package.weights)} weights, {size} in {form}{each}{before}")
    if num_ranks == 1:
        device = "" if target == "cpu" else f" --device {target}"
        click.echo(f"serve it with: trivet up {destination}{device}")


def to_json(converted: Converted) -> str:
    """The package, the steps that made it and what verifying found, as one JSON document."""
    import msgspec

    package = converted.package
    document = {
        "package": str(package.path),
        "num_weights": len(package.weights),
        "weight_bytes": package.weight_bytes,
        "steps": converted.steps,
        "verification": converted.verification,
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _judge(package: Package, source: Path, dtype: DType) -> str:
    """What the package lost against its checkpoint in `dtype`, in a sentence; in full in its accuracy.json."""
    from trivet.base.settings import read_settings
    from trivet.cli.options import Progress
    from trivet.driver.devices.table import open_device
    from trivet.driver.readers.placement import read_placement_facts
    from trivet.framework.engine.accuracy import between, sample_tokens, write_accuracy
    from trivet.framework.model.loader import open_model

    settings = read_settings()
    reference = open_model(source, dtype=dtype, settings=settings, progress=Progress(sys.stderr))
    tokens, cpus = sample_tokens(package), open_device("cpu", read_placement_facts()).cpus
    found = between(tokens, package, reference, cpus, settings)
    write_accuracy(package.path, f"{dtype} on cpu", found)
    lost = found.perplexity / found.reference_perplexity - 1
    return (
        f"against {dtype}, on {found.num_tokens} tokens of prose: perplexity {found.perplexity:.3f} ({lost:+.2%}), "
        f"the same likeliest token at {found.top_1:.1%} of positions"
    )
