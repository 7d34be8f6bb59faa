"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trivet.base.errors import TrivetError
from trivet.base.units import parse_bytes

if TYPE_CHECKING:
    from trivet.framework.model.loader import LoadedModel

Command = TypeVar("Command", bound=Callable[..., Any])


class Size(click.ParamType[int]):
    """A number of bytes as people write it: 512MiB, 2GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(value)
        except TrivetError as error:
            self.fail(f"{error.message}: {error.hint}", param, ctx)


_MODEL_OPTIONS = (
    click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True,
                 help="Format of weights and KV cache; sums are float32 in both"),
    click.option("--threads", type=click.IntRange(1), help="Worker threads  [default: cores of the NUMA node]"),
    click.option("--max-context", type=click.IntRange(1), help="Positions of one sequence  [default: the model's]"),
    click.option("--kv-memory", type=Size(), help="Size of the KV pool, such as 2GiB  [default: planned]"),
    click.option("--max-sequences", type=click.IntRange(1), default=64, show_default=True,
                 help="Sequences of one step"),
    click.option("--max-step-tokens", type=click.IntRange(1), default=512, show_default=True,
                 help="Tokens of one step: decodes first, then as much prefill as fits"),
    click.option("--no-verify", is_flag=True, help="Do not compare the weights with their checksums"),
)  # fmt: skip


def model_options(command: Command) -> Command:
    """How a model is loaded: the keyword arguments of `load`."""
    for option in reversed(_MODEL_OPTIONS):
        command = option(command)
    return command


def load_model(model: str, no_verify: bool, **options: Any) -> LoadedModel:
    """`load` with what `model_options` gathered, telling on stderr when a conversion takes time."""
    from trivet.framework.model.loader import load

    return load(model, verify=not no_verify, progress=_say_progress, **options)


def _say_progress(done_bytes: int, total_bytes: int) -> None:
    """One line on a terminal, rewritten in place; nothing where stderr is a file."""
    import sys

    if not sys.stderr.isatty():
        return
    end = "\n" if done_bytes >= total_bytes else ""
    click.echo(f"\rconverting {done_bytes / max(1, total_bytes):4.0%}{end}", err=True, nl=False)
