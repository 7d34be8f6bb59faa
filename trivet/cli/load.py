"""`trivet load`: a model comes into memory, and what that took is told."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from trivet.cli.options import check_folder, load_options, model_options


def _address(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    if given is not None and not (given.rpartition(":")[0] and given.rpartition(":")[2].isdecimal()):
        raise click.BadParameter("wanted HOST:PORT, the same for every rank, such as 10.0.0.1:29500")
    return given


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@model_options
@click.option("--engine", type=click.Choice(["io_uring", "direct", "buffered", "mapped"]),
              help="Read every file this way  [default: what fits each]")  # fmt: skip
@click.option("--as-stored", is_flag=True, help="Read a checkpoint's tensors as they were published: nothing is bound")
@click.option("--staged", is_flag=True,
              help="Read through pinned buffers into a pretend device's memory: nothing is bound")  # fmt: skip
@click.option("--rank", type=click.IntRange(0), help="Read what this rank of several reads: nothing is bound")
@click.option("--tensor-parallel", "num_ranks", type=click.IntRange(1), metavar="N",
              help="With --rank: cut a checkpoint for N ranks first; a package must be cut for so many")  # fmt: skip
@click.option("--broadcast", metavar="HOST:PORT", callback=_address,
              help="With --rank: rank 0 reads what all have, and the others meet it here to get it")  # fmt: skip
@click.option("--ranks", "num_processes", type=click.IntRange(2), metavar="N",
              help="With --broadcast: how many load together  [default: as the package is cut]")  # fmt: skip
@click.option("--explain", is_flag=True, help="Say how each file would be read and why, and read none")
@click.option("--svg", "svg_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write a picture of the load to this file")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON")
def load(
    model: Path,
    engine: Any,
    as_stored: bool,
    staged: bool,
    rank: int | None,
    num_ranks: int | None,
    broadcast: str | None,
    num_processes: int | None,
    explain: bool,
    svg_file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Load MODEL as `trivet serve` would, answer one token, and say where the time went.

    Each file is read in the way that fits it: through the page cache where it is there already, past it with O_DIRECT
    where it is not. MODEL is what `trivet up` takes; a checkpoint is converted first.
    """
    from trivet.base.settings import read_settings
    from trivet.framework.model.loading import report, timeline, trial

    if staged + as_stored + (rank is not None) > 1:
        raise click.UsageError("--staged, --as-stored and --rank are ways of their own; name one")
    if rank is None and (num_ranks or broadcast):
        raise click.UsageError("--tensor-parallel and --broadcast are of a rank: name it with --rank")
    if num_processes is not None and broadcast is None:
        raise click.UsageError("--ranks is how many meet at --broadcast HOST:PORT")
    settings = read_settings()
    if svg_file is not None:
        check_folder(svg_file)
    wanted = {**load_options(**options), "engine": engine, "settings": settings}
    if explain:
        rows = trial.explain(model, as_stored=as_stored, rank=rank, num_ranks=num_ranks, **wanted)
        click.echo(_json(rows) if as_json else trial.table(rows))
        return
    measure = trial.read_staged if staged else trial.load_once
    if as_stored:
        measure = trial.read_as_stored
    if rank is not None:
        measure = partial(
            trial.read_as_rank, rank=rank, num_ranks=num_ranks, meet=broadcast, num_processes=num_processes
        )
    told = measure(model, **wanted)
    if svg_file is not None:
        svg_file.write_text(timeline.timeline(told))
    click.echo(_json(report.to_json(told)) if as_json else report.text(told))


def _json(document: Any) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document)).decode()
