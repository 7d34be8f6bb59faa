"""`trivet load`: a model comes into memory, and what that took is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trivet.cli.options import check_folder, load_options, model_options


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@model_options
@click.option("--engine", type=click.Choice(["io_uring", "direct", "buffered"]),
              help="Read every file this way  [default: what fits each]")  # fmt: skip
@click.option("--as-stored", is_flag=True, help="Read a checkpoint's tensors as they were published: nothing is bound")
@click.option("--staged", is_flag=True,
              help="Read through pinned buffers into a pretend device's memory: nothing is bound")  # fmt: skip
@click.option("--explain", is_flag=True, help="Say how each file would be read and why, and read none")
@click.option("--svg", "svg_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write a picture of the load to this file")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON")
def load(
    model: Path,
    engine: Any,
    as_stored: bool,
    staged: bool,
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

    if staged and as_stored:
        raise click.UsageError("--staged and --as-stored are two ways; name one")
    settings = read_settings()
    if svg_file is not None:
        check_folder(svg_file)
    wanted = {**load_options(**options), "engine": engine, "settings": settings}
    if explain:
        rows = trial.explain(model, as_stored=as_stored, **wanted)
        click.echo(_json(rows) if as_json else trial.table(rows))
        return
    measure = trial.read_staged if staged else trial.load_once
    if as_stored:
        measure = trial.read_as_stored
    told = measure(model, **wanted)
    if svg_file is not None:
        svg_file.write_text(timeline.timeline(told))
    click.echo(_json(report.to_json(told)) if as_json else report.text(told))


def _json(document: Any) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(document)).decode()
