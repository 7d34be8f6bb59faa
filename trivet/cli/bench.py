"""`trivet bench`: what this machine can do at best, and how near a model comes to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trivet.cli.options import DTYPE, WEIGHTS
from trivet.serve.bench.figure import QUESTIONS, Question

if TYPE_CHECKING:  # imported when the command runs, so that `--help` need not
    from trivet.base.dtypes import DType
    from trivet.base.formats import MatrixFormat


@click.command()
@click.argument("words", nargs=-1, metavar=f"[{'|'.join(QUESTIONS)}]... [MODEL]")
@click.option("--repeats", type=click.IntRange(5), default=5, show_default=True, help="Samples of each figure")
@click.option("--dtype", type=DTYPE, help="Format of weights and KV cache  [default: bfloat16]")
@click.option("--weights", type=WEIGHTS, help="Keep the matrices in 8 bits  [default: as --dtype]")
@click.option("--threads", type=click.IntRange(1), help="Worker threads  [default: cores of the NUMA node]")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON")
@click.option("--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), help="Append the rows to this file")
def bench(
    words: tuple[str, ...], repeats: int, dtype: DType | None, weights: MatrixFormat | None, threads: int | None,
    as_json: bool, csv_file: Path | None,
) -> None:  # fmt: skip
    """Measure decode, prefill, kernels and load to first token of MODEL, each beside the limit of this machine.

    All questions, or those that are named. MODEL is what `trivet up` takes; without one, the demo's. A figure is the
    median of its repeats, with the least and the greatest. The limits are measured first and again last: where the two
    differ, the machine was not quiet.

    `trivet bench lanes`, `trivet bench compare` and `trivet bench storage` measure other things.
    """
    import msgspec

    from trivet.base.settings import read_settings
    from trivet.cli.options import Progress
    from trivet.serve.bench.rows import append_csv, check_csv
    from trivet.serve.bench.run import default_model, run
    from trivet.serve.bench.table import table

    settings = read_settings()
    questions, model = _told(words)
    if csv_file is not None:
        check_csv(csv_file)
    if set(questions) == {"limits"}:
        model = None
    elif model is None:
        model = default_model(settings.cache_dir)
    rows = run(
        questions, model, dtype=dtype, weights=weights, threads=threads, repeats=repeats, settings=settings,
        tell=lambda line: click.echo(line, err=True), progress=Progress(sys.stderr),
    )  # fmt: skip
    if csv_file is not None:
        append_csv(csv_file, rows)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)))
    else:
        click.echo(table(rows))


def _told(words: Sequence[str]) -> tuple[tuple[Question, ...], Path | None]:
    """The questions that come first, all where none does, and the model behind them. One that is called like a question
    is ./limits."""
    questions = tuple(QUESTIONS[QUESTIONS.index(word)] for word in takewhile(QUESTIONS.__contains__, words))
    rest = words[len(questions) :]
    if len(rest) > 1:
        raise click.UsageError(f"one MODEL at most, after the questions: {' '.join(rest)!r} is {len(rest)} words")
    return questions or QUESTIONS, Path(rest[0]) if rest else None
