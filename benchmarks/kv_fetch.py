"""How much of reading a prefix from a slow store does a request wait for?

    python benchmarks/kv_fetch.py [MODEL] [--ratio 0.8]

A prompt whose beginning is in files and whose end is new, from a store that is slowed down so that reading takes RATIO
of the time that computing the end does. Once with blocks that come while the step runs, layer by layer and block by
block; once with those of a layer coming together, when its last would have come; and once with blocks that are all
there before the step begins. Of a model with few layers, `--layers`, the first layer's pieces are a large part of all.
Rows go to results/kv_fetch.csv.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click

from trivet.base.dtypes import Array
from trivet.base.settings import read_settings
from trivet.base.units import GIB, MIB
from trivet.driver.readers.host import read_facts
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.graph.cost import stream_bytes
from trivet.framework.memory.chain import Link
from trivet.framework.memory.file_tier import FileTier
from trivet.framework.memory.host_tier import HostTier
from trivet.framework.memory.slots import lay_out
from trivet.framework.memory.tiers import Tiers
from trivet.framework.model.kv_tiers import kv_identity
from trivet.framework.model.loader import LoadedModel, load
from trivet.serve.bench.peers.weights import first_layers
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.run import default_model
from trivet.serve.bench.stamp import stamp

_WAYS = ("while computing", "by layer", "before computing")
RESULTS = Path(__file__).parent / "results" / "kv_fetch.csv"
_PARAMS = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


class SlowFiles(FileTier):
    """Files that come at `bytes_per_s`, however they are asked for."""

    bytes_per_s: float | None = None  # None: as fast as they do
    num_together = 1  # pieces that come at once, when the last of them would
    _num_pieces = 0
    _free_at_s = 0.0  # when the store has given all that it was asked for

    def read(self, link: Link, into: Array) -> tuple[int, ...] | None:
        found = super().read(link, into)
        self._take(into.nbytes)
        return found

    def read_piece(self, link: Link, number: int, recorded: int, into: Array) -> bool:
        found = super().read_piece(link, number, recorded, into)
        if self._num_pieces % self.num_together == 0:
            self._take(self._piece_bytes[number] * self.num_together)
        self._num_pieces += 1
        return found

    def _take(self, num_bytes: int) -> None:
        """Sleep off what is owed; a sleep that lasts too long is made up for by the next."""
        if self.bytes_per_s is None:
            return
        now = time.monotonic()
        self._free_at_s = max(self._free_at_s, now - 0.05) + num_bytes / self.bytes_per_s
        time.sleep(max(0.0, self._free_at_s - now))


class Waited(NamedTuple):
    """Seconds: of reading, of computing, to the first token with both, and what of reading was waited for."""

    read_s: float
    compute_s: float
    first_token_s: float
    stalled_s: float

    @property
    def exposed(self) -> float:
        return self.stalled_s / self.read_s


class Measured:
    """One way: a plan, and a folder of its own that has the beginning of every prompt."""

    def __init__(self, loaded: LoadedModel, folder: Path, prefix: int, rest: int, *, is_by_layer: bool) -> None:
        self._plan, self._folder, self._rest, self._is_by_layer = loaded.plan, folder, rest, is_by_layer
        self._identity = kv_identity(loaded.package, lay_out(stream_bytes(loaded.package.graph)), "cpu")
        self._num_asked = 0
        self.num_blocks = prefix // loaded.plan.slot_tokens
        self.num_bytes = self.num_blocks * loaded.plan.slot_bytes
        self.beginning = [
            (7 * i + 11) % loaded.plan.vocab_size for i in range(self.num_blocks * loaded.plan.slot_tokens)
        ]

    def prompt(self) -> list[int]:
        """The beginning, and an end that nobody has asked before."""
        self._num_asked += 1
        return [*self.beginning, *((13 * i + 101 * self._num_asked) % self._plan.vocab_size for i in range(self._rest))]

    def engine(self, bytes_per_s: float | None = None) -> Engine:
        """With nothing in its pool, nor in host memory."""
        files = SlowFiles(self._folder, 4 * GIB, self._identity, self._plan.pieces)
        files.bytes_per_s = bytes_per_s
        files.num_together = self.num_blocks if self._is_by_layer else 1
        host = HostTier(512 * MIB, self._plan.slot_bytes)
        return Engine(self._plan, None, tiers=Tiers(self._identity, self._plan, host, files))

    def fill(self) -> None:
        """The folder has the beginning from here on."""
        engine = self.engine()
        first_token_s(engine, self.prompt())
        engine.close()

    def compare(self, share: float) -> Waited:
        """A prompt with its beginning in the pool, then one with its beginning in files that take `share` of what
        computing the end of the first one took."""
        engine = self.engine()
        first_token_s(engine, self.prompt())
        compute_s = first_token_s(engine, self.prompt())
        engine.close()
        read_s = share * compute_s
        engine = self.engine(self.num_bytes / read_s)
        assert engine.tiers is not None
        engine.tiers.worth.token.learn(compute_s, self._rest)
        seconds, counts = first_token_s(engine, self.prompt()), engine.kv_counts().prefixes
        assert counts.files == len(self.beginning), "not all of the beginning came from files"
        engine.close()
        return Waited(read_s, compute_s, seconds, counts.stalled_s)


def first_token_s(engine: Engine, prompt: Sequence[int]) -> float:
    start = time.monotonic()
    engine.add(new_request("it", prompt, _PARAMS))
    while engine.has_work:
        engine.step()
    return time.monotonic() - start


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path), required=False)
@click.option("--prefix", type=click.IntRange(1), default=1024, show_default=True, help="Tokens that are in files")
@click.option("--rest", type=click.IntRange(1), default=256, show_default=True, help="Tokens behind them")
@click.option("--ratio", type=float, multiple=True, default=(0.5, 0.8, 2.0), show_default=True,
              help="Of reading to computing the rest")  # fmt: skip
@click.option("--layers", type=click.IntRange(1), help="Take only the first layers of the model, a GGUF file")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True)
def kv_fetch(
    model: Path | None, prefix: int, rest: int, ratio: tuple[float, ...], layers: int | None, repeats: int
) -> None:
    """Measure, print, and append the rows to results/kv_fetch.csv."""
    settings = read_settings()
    path = model or default_model(settings.cache_dir)
    rows = []
    with TemporaryDirectory() as name:
        if layers is not None:
            source, path = path, Path(name) / f"{path.stem}-{layers}-layers.gguf"
            first_layers(source, layers, path)
        for way in _WAYS:
            folder, is_ahead = Path(name) / way, way == "before computing"
            loaded = load(
                path, max_sequences=8, max_step_tokens=rest, kv_memory=512 * MIB, max_context=prefix + rest + 8,
                kv_dir=None if is_ahead else folder,  # only a plan that expects files waits for them layer by layer
            )  # fmt: skip
            loaded.settle()
            if loaded.tiers is not None:
                loaded.tiers.close()
            measured = Measured(loaded, folder, prefix, rest, is_by_layer=way == "by layer")
            measured.fill()
            for share in ratio:
                found = sorted((measured.compare(share) for _ in range(repeats)), key=lambda waited: waited.exposed)
                middle = found[repeats // 2]
                rows.append({
                    "blocks_come": way, "prefix": len(measured.beginning), "rest": rest, "blocks": measured.num_blocks,
                    "pieces": len(loaded.plan.pieces), "repeats": repeats,
                    **{name: f"{value:.3f}" for name, value in middle._asdict().items()},
                    "exposed": f"{middle.exposed:.3f}", "exposed_most": f"{found[-1].exposed:.3f}",
                    **asdict(stamp(loaded.package, read_facts(), loaded.device, loaded.plan.target)),
                })  # fmt: skip
                click.echo(
                    f"{way}: reading {middle.read_s:.2f} s, computing {middle.compute_s:.2f} s, first token after "
                    f"{middle.first_token_s:.2f} s; {middle.exposed:.0%} of reading were waited for, at most "
                    f"{found[-1].exposed:.0%}"
                )
            loaded.plan.close()
    RESULTS.parent.mkdir(exist_ok=True)
    append_rows(RESULTS, rows)


if __name__ == "__main__":
    kv_fetch()
