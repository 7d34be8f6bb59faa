"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, get_args

import click

from trivet.base.errors import TrivetError
from trivet.base.formats import KvFormat, MatrixFormat, ModelFormat
from trivet.base.settings import Language
from trivet.base.units import format_bytes, format_seconds, parse_bytes
from trivet.driver.devices.device import DeviceName
from trivet.framework.memory.reclaim import DEFAULT_RECLAIM, ReclaimName

if TYPE_CHECKING:
    from trivet.framework.engine.targets import Targets
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


class Bandwidth(Size):
    """Bytes a second: 3GB/s."""

    name = "bandwidth"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        bytes_per_s = super().convert(value.removesuffix("/s") if isinstance(value, str) else value, param, ctx)
        if bytes_per_s == 0:
            self.fail("nothing moves at 0 bytes a second", param, ctx)
        return bytes_per_s


class Finite(click.FloatRange):
    """A number in a range. Not NaN, which no bound refuses, and nothing without end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is no number to reckon with", param, ctx)
        return number


POSITIVE = Finite(0, min_open=True)
DEVICE = click.Choice(get_args(DeviceName))
DTYPE = click.Choice(get_args(ModelFormat))
WEIGHTS = click.Choice(get_args(MatrixFormat))
KV_DTYPE = click.Choice(get_args(KvFormat))
KV_RECLAIM = click.Choice(get_args(ReclaimName))

# Of the commands that look at a host.
ROOT = click.option("--root", type=click.Path(exists=True, file_okay=False, path_type=Path), default="/",
                    help="Look at the captured host whose /proc and /sys lie under this directory")  # fmt: skip
SOURCE = click.option("--from", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                      help="Look at the host in this bundle")  # fmt: skip
LANG = click.option("--lang", type=click.Choice(get_args(Language)),
                    help="Language of what is said  [default: the locale's]")  # fmt: skip

_MODEL_OPTIONS = (
    click.option("--device", type=DEVICE, default="cpu", show_default=True,
                 help="What runs the model; torch is the second opinion, PyTorch on the CPU"),
    click.option("--dtype", type=DTYPE,
                 help="Format of weights and KV cache; sums are float32 in both  [default: bfloat16]"),
    click.option("--weights", type=WEIGHTS,
                 help="Keep the matrices in 8 bits: half the bytes a token reads  [default: as --dtype]"),
    click.option("--kv-dtype", type=KV_DTYPE,
                 help="Format of the KV cache; int8 holds almost twice the tokens  [default: as --dtype]"),
    click.option("--threads", type=click.IntRange(1), help="Worker threads  [default: cores of the NUMA node]"),
    click.option("--max-context", type=click.IntRange(1), help="Positions of one sequence  [default: the model's]"),
    click.option("--kv-memory", type=Size(), help="Size of the KV pool, such as 2GiB  [default: planned]"),
    click.option("--kv-host-bytes", type=Size(),
                 help="Host memory for KV cache that the pool cannot keep, such as 8GiB  [default: none]"),
    click.option("--kv-dir", type=click.Path(file_okay=False, path_type=Path),
                 help="Folder for KV cache that outlives the process; several may share it  [default: none]"),
    click.option("--kv-dir-bytes", type=Size(), help="Most that the folder may hold  [default: 16GiB]"),
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


_SERVER_OPTIONS = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on"),
    click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes any free one"),
    click.option("--served-name", help="What clients call the model  [default: the name of its path]"),
    click.option("--insecure", is_flag=True, help="Serve other machines without TRIVET_API_KEY set"),
    click.option("--lanes", type=click.Choice(["auto", "1", "2"]), default="1", show_default=True,
                 help="Decodes and prefill in one step (1), or side by side on cores of their own (2); auto measures, "
                      "and says why"),
    click.option("--target-itl", type=POSITIVE, metavar="MS",
                 help="Milliseconds between two tokens that prefill may not push a step beyond  "
                      "[default: what decodes take and three steps of one]"),
    click.option("--target-ttft", type=POSITIVE, metavar="MS",
                 help="Milliseconds to the first token; refuse with 429 what would wait longer  [default: no target]"),
    click.option("--max-waiting", type=click.IntRange(1), default=512, show_default=True,
                 help="Sequences that may wait for their turn; refuse with 429 beyond"),
    click.option("--kv-reclaim", type=KV_RECLAIM, default=DEFAULT_RECLAIM, show_default=True,
                 help="What the KV pool gives up first: what is computed again the soonest, or was used longest ago"),
    click.option("--pin-prompt", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True,
                 metavar="FILE",
                 help="A system prompt to compute at start and keep in the KV pool; may be repeated"),
)  # fmt: skip


def server_options(command: Command) -> Command:
    """Where a model is served, and what is promised."""
    for option in reversed(_SERVER_OPTIONS):
        command = option(command)
    return command


def load_options(no_verify: bool, **options: Any) -> dict[str, Any]:
    """What `model_options` gathered as keyword arguments of `load`, telling on stderr while a conversion takes time."""
    return {**options, "verify": not no_verify, "progress": Progress(sys.stderr)}


def load_model(model: str, **options: Any) -> LoadedModel:
    """`load` with what `model_options` gathered."""
    from trivet.framework.model.loader import load

    return load(model, **load_options(**options))


def read_prompts(files: tuple[Path, ...]) -> list[str]:
    """The system prompts of `--pin-prompt`, as they are in the files. Raises TrivetError as `read_text` does."""
    return [read_text("--pin-prompt", file).removesuffix("\n") for file in files]  # the one that editors add


def read_text(option: str, file: Path) -> str:
    """What is in the file that the option names. Raises TrivetError where that is no text, or nothing."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrivetError(f"{option} {file}: {error}", "give a text file in UTF-8") from None
    if not text.strip():
        raise TrivetError(f"{option} {file} is empty", "give a file with some text")
    return text


def targets_of(target_itl: float | None, target_ttft: float | None, max_waiting: int) -> Targets:
    """What `server_options` gathered of promises, in seconds."""
    from trivet.framework.engine.targets import Targets

    itl_s, ttft_s = (None if each is None else each / 1e3 for each in (target_itl, target_ttft))
    return Targets(itl_s, ttft_s, max_waiting)


def check_folder(file: Path) -> None:
    """Raise TrivetError unless the folder of a file to be written exists: asked before minutes of work."""
    if not file.absolute().parent.is_dir():
        raise TrivetError(f"{file}: its folder does not exist", "name a file in a folder that does")


class Progress:
    """Bytes done of bytes in all, on one line of a terminal with the time left; silent where `stream` is none."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._doing = ""
        self._started = 0.0

    def __call__(self, doing: str, done_bytes: int, total_bytes: int) -> None:
        if not self._stream.isatty() or done_bytes == 0:
            return
        if doing != self._doing:
            self._doing, self._started = doing, time.monotonic()
        left_s = (time.monotonic() - self._started) * (total_bytes / done_bytes - 1)
        is_done = done_bytes >= total_bytes
        tail = "\n" if is_done else f", {format_seconds(left_s)} left  "
        self._stream.write(f"\r{doing} {done_bytes / total_bytes:4.0%} of {format_bytes(total_bytes)}{tail}")
        self._stream.flush()
