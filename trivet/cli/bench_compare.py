"""`trivet bench compare`: this engine beside others, on the same weights and cores."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--peer", "names", multiple=True, help="Only peers whose names begin so; may be repeated")
@click.option("--question", "asked", multiple=True, help="Only questions whose names begin so; may be repeated")
@click.option("--pairs", type=click.IntRange(1), default=5, show_default=True, help="Ratios of each question")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True, help="Of every engine")
@click.option("--random-1b", is_flag=True, help="A Llama of 1.1 billion random parameters, with MODEL's tokenizer")
@click.option("--llama-cpp", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Folder of llama-bench, llama-batched-bench and llama-server")  # fmt: skip
@click.option("--ik-llama-cpp", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The same of ik_llama.cpp")  # fmt: skip
@click.option("--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), help="Append the rows to this file")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture of the ratios (SVG)")
def bench_compare(
    model: Path | None, names: tuple[str, ...], asked: tuple[str, ...], pairs: int, threads: int, random_1b: bool,
    llama_cpp: Path | None, ik_llama_cpp: Path | None, csv_file: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Measure this engine and others in turn with MODEL, a GGUF file; without one, the demo's.

    Peers run in environments of their own under the cache, which are made when they are missing: some gigabytes.
    A peer is timed only if its greedy answer is ours.
    """
    import signal
    import sys
    from dataclasses import asdict

    from trivet.base.errors import TrivetError
    from trivet.base.settings import read_settings
    from trivet.cli.options import check_folder
    from trivet.driver.devices.table import open_device
    from trivet.driver.readers.placement import read_placement_facts
    from trivet.framework.model.checkpoints.readers import open_checkpoint
    from trivet.serve.bench.peers.compare import compare
    from trivet.serve.bench.peers.engines import PEERS, Place
    from trivet.serve.bench.peers.picture import picture
    from trivet.serve.bench.peers.questions import QUESTIONS
    from trivet.serve.bench.peers.rows import append
    from trivet.serve.bench.peers.weights import random_weights, weights_of
    from trivet.serve.bench.run import default_model
    from trivet.serve.bench.stamp import stamp

    # Peers are frozen between their turns: what ends this process has to end them.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    settings = read_settings()
    for file in (csv_file, plot):
        if file is not None:
            check_folder(file)
    source = model or default_model(settings.cache_dir)
    home = settings.cache_dir.absolute() / "peers"
    peers = [each for each in PEERS if not names or each.name.startswith(names)]
    questions = [each for each in QUESTIONS if not asked or each.name.startswith(asked)]
    if not peers or not questions:
        raise TrivetError(
            f"nothing to ask: {len(peers)} peers and {len(questions)} questions begin so",
            f"the peers: {', '.join(each.name for each in PEERS)}; "
            f"the questions: {', '.join(each.name for each in QUESTIONS)}",
        )
    weights = (random_weights if random_1b else weights_of)(source, home, _tell)
    place = Place(weights, home, threads, llama_cpp, ik_llama_cpp, _tell)
    facts = read_placement_facts()
    circumstances = stamp(None, facts, open_device("cpu", facts, threads), settings.cpu_target or "best")
    vocab_size = open_checkpoint(place.form("bf16.gguf")).config["vocab_size"]
    ratios = []
    # A row is kept when it is there: all of them take half an hour.
    for ratio in compare(peers, place, vocab_size=vocab_size, pairs=pairs, questions=questions, tell=click.echo):
        ratios.append(ratio)
        if csv_file is not None:
            append(csv_file, [{"model": weights.name, **asdict(ratio)}], circumstances)
    if plot is not None and ratios:
        plot.write_text(picture(f"{weights.name}: speed beside other engines, {threads} threads", ratios))


def _tell(words: str) -> None:
    click.echo(words, err=True)
