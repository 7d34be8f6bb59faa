"""`trivet accuracy`: how far a device and a format are from a reference, and from which layer on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trivet.cli.options import DEVICE, DTYPE, KV_DTYPE, WEIGHTS, read_text

if TYPE_CHECKING:  # imported when the command runs, so that `trivet --help` need not
    from trivet.base.dtypes import DType
    from trivet.base.formats import KvFormat, MatrixFormat
    from trivet.driver.devices.device import DeviceName
    from trivet.framework.engine.accuracy import Agreement, Published, Side


@click.command()
@click.argument("model")
@click.option("--device", type=DEVICE, default="cpu", show_default=True, help="What is judged")
@click.option("--dtype", type=DTYPE, default="bfloat16", show_default=True, help="In which format")
@click.option("--weights", type=WEIGHTS, help="With its matrices in 8 bits")
@click.option("--kv-dtype", type=KV_DTYPE, help="With its KV cache in that format")
@click.option("--against", metavar="REFERENCE", default="cpu", show_default=True,
              help="A device; hf: transformers in float32; package[:PATH]: a package as it is")  # fmt: skip
@click.option("--against-dtype", type=DTYPE, default="float32", show_default=True,
              help="The format of a reference that is a device")  # fmt: skip
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A text to compare on  [default: a page of prose]")  # fmt: skip
@click.option("--tokens", metavar="IDS", help="Token ids to compare on, separated by commas, instead of a text")
@click.option("--greedy", type=click.IntRange(0), default=16, show_default=True,
              help="Tokens by which both continue, to see where they part")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON")
def accuracy(
    model: str, device: DeviceName, dtype: DType, weights: MatrixFormat | None, kv_dtype: KvFormat | None,
    against: str, against_dtype: DType, text: Path | None, tokens: str | None, greedy: int, as_json: bool,
) -> None:  # fmt: skip
    """Compare MODEL on a device and in a format with a reference: logits, choices, and the drift layer by layer."""
    import msgspec

    from trivet.base.settings import read_settings
    from trivet.driver.devices.table import open_device
    from trivet.driver.readers.placement import read_placement_facts
    from trivet.framework.engine.accuracy import Side, measure, sample_tokens
    from trivet.framework.model.loader import open_model
    from trivet.framework.model.tokenizer import Tokenizer

    settings = read_settings()
    subject, reference = Side(device, dtype, weights, kv_dtype=kv_dtype), _reference(against, against_dtype)
    words = None if text is None else read_text("--text", text)
    package = open_model(model, device=device, dtype=dtype, weights=weights, settings=settings)
    most = max(0, package.config.max_context - greedy)
    if tokens is not None:
        ids = _token_ids(tokens, package.config.vocab_size, most)
    elif words is not None:
        ids = Tokenizer(package.tokenizer).encode(words, add_special=True)[:most]
    else:
        ids = sample_tokens(package)[:most]
    found = measure(model, ids, subject, reference, open_device("cpu", read_placement_facts()).cpus, settings, greedy)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    click.echo(f"{subject} against {reference}, {found.num_tokens} tokens")
    _print(found)


def _reference(against: str, dtype: DType) -> Side | Published:
    from typing import cast

    from trivet.base.errors import ConfigError
    from trivet.framework.engine.accuracy import Published, Side

    kind, _, path = against.partition(":")
    if against == "hf":
        return Published()
    if kind == "package":
        return Side("cpu", None, model=path or None)
    if against in DEVICE.choices:
        return Side(cast("DeviceName", against), dtype)
    raise ConfigError(
        f"--against {against}: no such reference", f"one of: {', '.join(DEVICE.choices)}, hf, package[:PATH]"
    )


def _token_ids(text: str, vocab_size: int, most: int) -> list[int]:
    from trivet.base.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not part.isdecimal() or int(part) >= vocab_size), None)
    if wrong is not None:
        raise ConfigError(f"--tokens: {wrong!r} is no token id, wanted numbers from 0 to {vocab_size - 1}")
    if len(parts) > most:
        raise ConfigError(f"--tokens: {len(parts)} are given, {most} leave room for --greedy", "give fewer of either")
    return [int(part) for part in parts]


def _print(found: Agreement) -> None:
    click.echo(f"  perplexity  {found.perplexity:.3f}, the reference {found.reference_perplexity:.3f}")
    click.echo(f"  logits      mean error {found.mean_error:.2g}, greatest {found.max_error:.2g}")
    click.echo(f"  divergence  mean {found.mean_kl:.2g} nats, greatest {found.max_kl:.2g}")
    click.echo(f"  likeliest   the same at {found.top_1:.2%} of positions, of the first five {found.top_5:.2%} shared")
    if found.first_difference is not None:
        click.echo(f"              differs first at position {found.first_difference}, where the reference's first two"
                   f" are {found.margin_there:.2g} apart")  # fmt: skip
    if found.greedy_tokens:
        click.echo(f"  greedy      {found.greedy_agreed} of {found.greedy_tokens} tokens after the text are the same,"
                   " from the first on")  # fmt: skip
    most = max(*found.layers, 1e-30)
    click.echo("  drift       error of each layer's input, as a share of its size")
    for layer, error in enumerate(found.layers):
        click.echo(f"    {layer:>3} {error:8.1e} {'█' * round(40 * error / most)}")
