"""How much memory does a conversion take, and how long? A checkpoint of zeros, as large as you like, in sparse files.

    python benchmarks/convert.py [--size 16GB] [--place FOLDER]

The checkpoint takes no space, its package takes SIZE at FOLDER and is removed again. The conversion runs in a process
of its own, whose peak of resident memory the kernel counts, whatever that memory is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from math import prod
from pathlib import Path

import click

from trivet.base.units import format_bytes
from trivet.cli.options import Size
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.model.checkpoints.safetensors_header import format_header
from trivet.framework.model.config import parse_config
from trivet.framework.model.families import build_graph
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.stamp import stamp

RESULTS = Path(__file__).parent / "results" / "convert.csv"
TOKENIZER = Path(__file__).parents[1] / "tests" / "fixtures" / "tiny" / "llama"
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192,
}  # fmt: skip
_SHARD_BYTES = 5 * 10**9


def sparse_checkpoint(folder: Path, num_bytes: int) -> tuple[int, int]:
    """A Llama of bfloat16 zeros that has about `num_bytes`; the bytes it has, and those of its largest tensor."""
    one, two = (_tensor_bytes({**SHAPE, "num_hidden_layers": layers}) for layers in (1, 2))
    layer_bytes = sum(two.values()) - sum(one.values())
    num_layers = max(1, 1 + (num_bytes - sum(one.values())) // layer_bytes)
    config = {**SHAPE, "num_hidden_layers": num_layers}
    shapes = _shapes(config)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, shape in shapes.items():
        if filled > _SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = shape
        filled += 2 * prod(shape)
    weight_map = {}
    for i, tensors in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        header = format_header([(name, "BF16", shape, 2 * prod(shape)) for name, shape in tensors.items()], 8)
        (folder / file).write_bytes(header)
        os.truncate(folder / file, len(header) + sum(2 * prod(shape) for shape in tensors.values()))
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(TOKENIZER / "tokenizer.json", folder)
    sizes = _tensor_bytes(config)
    return sum(sizes.values()), max(sizes.values())


def converted(source: Path, destination: Path) -> tuple[int, float]:
    """Convert in a process of its own: the peak of its resident memory in bytes, and the seconds it took.

    The process tells its peak itself: to whoever waits for it, Linux counts in what the starter had in memory.
    """
    start = time.perf_counter()
    left = destination.with_name("status-at-exit")
    program = (
        "import atexit\nfrom pathlib import Path\nfrom trivet.cli import main\n"
        f"atexit.register(lambda: Path({str(left)!r}).write_text(Path('/proc/self/status').read_text()))\nmain()"
    )
    command = [sys.executable, "-c", program, "convert", str(source), str(destination), "--memory", "0"]
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    seconds = time.perf_counter() - start
    (peak,) = (line.split()[1] for line in left.read_text().splitlines() if line.startswith("VmHWM:"))
    left.unlink()
    return int(peak) * 1024, seconds


def _shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    weights = build_graph(parse_config(config)).weights.values()
    return {source.tensor: source.shape for recipe in weights for source in recipe.sources}


def _tensor_bytes(config: dict[str, object]) -> dict[str, int]:
    return {name: 2 * prod(shape) for name, shape in _shapes(config).items()}


@click.command()
@click.option("--size", type=Size(), default="16000000000", help="Of the checkpoint  [default: 16 GB]")
@click.option("--place", type=click.Path(path_type=Path), help="A folder with room for it  [default: a temporary one]")
def convert(size: int, place: Path | None) -> None:
    """Convert a sparse checkpoint, print what it took, and append the row to results/convert.csv."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        source = Path(folder) / "checkpoint"
        source.mkdir()
        num_bytes, largest = sparse_checkpoint(source, size)
        peak, seconds = converted(source, Path(folder) / "package")
    click.echo(f"{format_bytes(num_bytes)} converted and verified in {seconds:.0f} s; peak resident memory "
               f"{format_bytes(peak)}, the largest tensor is {format_bytes(largest)}")  # fmt: skip
    facts = read_placement_facts()
    row = {
        "checkpoint_bytes": num_bytes, "largest_tensor_bytes": largest, "peak_rss_bytes": peak,
        "seconds": round(seconds, 1), **asdict(stamp(None, facts, open_device("cpu", facts), "none")),
    }  # fmt: skip
    append_rows(RESULTS, [row])


if __name__ == "__main__":
    convert()
