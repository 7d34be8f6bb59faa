"""How fast do weights come into memory, beside what others load them with? In turn (A, B, …, A, B, …), cold and warm.

    python benchmarks/loaders.py [--size 4GiB] [--rounds 5] [--only trivet --only safetensors …]

Everybody loads the same published checkpoint, made here, in a process of its own; the clock starts after the imports.
Done is who has every byte in memory of its own, or has hashed it where the page cache has it: of each kind there are
ways of ours and of the others. Afterwards every tensor is compared with what was written. Each
peer gets an environment of its own below build/loaders; fio, where it is installed, is the device's own figure: with
its usual buffers, and with huge pages (which only root can give it).

Before each load all free memory is touched once (`trivet.serve.bench.free_memory`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any

import click
import numpy as np
import xxhash

from trivet._native import targets
from trivet.base.errors import TrivetError
from trivet.base.units import MIB, format_bytes
from trivet.cli.options import Size
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.model.checkpoints.safetensors_header import format_header
from trivet.serve.bench.fio import read_by_fio, reserved_huge_pages
from trivet.serve.bench.free_memory import TOUCH
from trivet.serve.bench.load import drop_from_page_cache
from trivet.serve.bench.rows import append_rows
from trivet.serve.bench.stamp import stamp

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "loaders.csv"
NUM_SHARDS = 4
HIDDEN, INTERMEDIATE, KV = 2048, 8192, 512

# Around every way of loading: what is timed, and what is compared when the clock has stopped.
_FRAME = """
import json, resource, subprocess, sys, time
folder, files, sums = sys.argv[1], json.loads(sys.argv[2]), json.load(open(sys.argv[3]))
def disk_bytes():
    return next(int(l.split()[1]) for l in open("/proc/self/io") if l.startswith("read_bytes"))
{imports}
subprocess.run([sys.executable, "-c", sys.argv[4]], check=True)
before, cpu, start = disk_bytes(), time.process_time(), time.perf_counter()
{load}
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
told = dict(seconds=seconds, cpu_s=cpu, disk_bytes=disk_bytes() - before,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
import xxhash
wrong = [name for name, wanted in sums.items() if xxhash.xxh3_64_intdigest({as_bytes}(loaded.pop(name))) != wanted]
assert not wrong and not loaded, (wrong, list(loaded))
print(json.dumps(told))
"""

_TORCH = "(lambda t: t.contiguous().view(torch.uint8).numpy().data)"
_OURS = """
from pathlib import Path
from trivet.framework.model.loading.read import ReadOptions, read_into_arena
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.weights import checkpoint_ranges
from trivet.framework.model.checkpoints import readers
from trivet.framework.memory.arena import Arena
from dataclasses import replace
import numpy, os
num_cpus = len(os.sched_getaffinity(0))
"""
_VERIFIED = """
ranges = [replace(each, xxh3=sums[each.name]) for each in checkpoint_ranges(Path(folder))[0]]
arena, places, _ = read_into_arena(ranges, lambda size: Arena(size, "weights"), ReadOptions(num_cpus))
loaded = {each.name: arena.view(places[each.name], (each.num_bytes,), numpy.uint8) for each in ranges}
"""
# Until the page cache's pages are not used any more; what was read into memory of its own is there already.
_TAKEN_IN = f"{_VERIFIED}arena.take_in()\narena.settle()\n"
_MAPPED = """
loaded = {name: tensor for file in files for name, tensor in load_file(file).items()}
with ThreadPoolExecutor(num_cpus) as pool:  # which a hash does not hold
    list(pool.map(lambda t: xxhash.xxh3_64_intdigest(t.view(torch.uint8).numpy().data), loaded.values()))
"""
_RUNAI = """
loaded = {}
with SafetensorsStreamer() as streamer:
    streamer.stream_files(files)
    for name, tensor in streamer.get_tensors():
        loaded[name] = tensor.clone()  # its buffers are used again
"""
_FAST = """
loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
loader.add_filenames({0: files})
buffers = loader.copy_files_to_device()
loaded = {name: buffers.get_tensor(name) for name in buffers.key_to_rank_lidx}
"""
_TRANSFORMERS = """
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
loaded = {name: tensor.clone() for name, tensor in model.state_dict().items()}  # what it returns is mapped
"""

# A way: the packages it needs (none: this environment), its imports, its load, how its tensors become bytes.
Way = tuple[tuple[str, ...], str, str, str]
WAYS: dict[str, Way] = {
    "trivet, verified": ((), _OURS, _VERIFIED, "(lambda a: a.data)"),
    "trivet, verified, taken in": ((), _OURS, _TAKEN_IN, "(lambda a: a.data)"),
    "safetensors, mapped and hashed": (("safetensors",),
                                       "import os, torch, xxhash\nfrom concurrent.futures import ThreadPoolExecutor\n"
                                       "from safetensors.torch import load_file\n"
                                       "num_cpus = len(os.sched_getaffinity(0))", _MAPPED, _TORCH),
    "safetensors": (("safetensors",), "import torch\nfrom safetensors.torch import load_file",
                    "loaded = {name: t.clone() for file in files for name, t in load_file(file).items()}", _TORCH),
    "runai-model-streamer": (("runai-model-streamer",),
                             "import torch\nfrom runai_model_streamer import SafetensorsStreamer", _RUNAI, _TORCH),
    "fastsafetensors": (("fastsafetensors",),
                        "import torch\nfrom fastsafetensors import SafeTensorsFileLoader, SingleGroup", _FAST, _TORCH),
    "tensorizer, 4 readers": (("tensorizer",), "import torch\nfrom tensorizer import TensorDeserializer",
                              "file = folder + '/model.tensors'\n"
                              "loaded = dict(TensorDeserializer(file, device='cpu', num_readers=4))",
                              _TORCH),
    "transformers": (("transformers",), "import torch\nfrom transformers import AutoModelForCausalLM",
                     _TRANSFORMERS, _TORCH),
}  # fmt: skip

# The storage's own figure, with the buffers that fio takes and with such as make its requests as large as ours.
FIO = ("fio", "fio, huge pages")
# What as many new bytes cost that nobody reads anything into: the kernel clears a page before it gives it away.
MEMORY = "new memory"
_MEMORY = """
import ctypes, json, mmap, os, subprocess, sys, threading, time
size, populate_write, huge = int(sys.argv[1]), 23, 2 << 20
subprocess.run([sys.executable, "-c", sys.argv[2]], check=True)
libc = ctypes.CDLL(None)
cpu, start = time.process_time(), time.perf_counter()
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
address, count = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(os.sched_getaffinity(0))
share = -(-size // count // huge) * huge
parts = [(address + at, min(share, size - at)) for at in range(0, size, share)]
populate = lambda begin, length: libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), populate_write)
threads = [threading.Thread(target=populate, args=part) for part in parts]
for thread in threads: thread.start()
for thread in threads: thread.join()
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
print(json.dumps(dict(seconds=seconds, cpu_s=cpu, peak_rss_bytes=size, disk_bytes=0)))
"""

_SERIALIZE = """
import json, sys, torch
from safetensors.torch import load_file
from tensorizer import TensorSerializer
serializer = TensorSerializer(sys.argv[1] + "/model.tensors")
serializer.write_state_dict({name: t for file in json.loads(sys.argv[2]) for name, t in load_file(file).items()})
serializer.close()
"""

COLUMNS = (
    "way", "files", "round", "seconds", "bytes_per_s", "cpu_s", "peak_rss_bytes", "disk_bytes", "size_bytes", "cpu",
    "num_threads", "kernel", "governor", "huge_pages", "trivet", "commit", "is_dirty", "date",
)  # fmt: skip


@click.command()
@click.option("--size", type=Size(), default="4GiB", show_default=True, help="Of the checkpoint, about")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--only", multiple=True, type=click.Choice((*WAYS, MEMORY, *FIO)), help="Only this; may be repeated")
def loaders(size: int, rounds: int, only: tuple[str, ...]) -> None:
    """Measure in turn, print medians and spreads, and append a row for each load to results/loaders.csv."""
    place = ROOT / "build" / "loaders"
    names = only or (*WAYS, MEMORY, *(FIO if which("fio") else []))
    folder = make_checkpoint(place / f"llama-{size // MIB}m", size)
    pythons = {name: environment(place, name) for name in names if name in WAYS}
    if "tensorizer, 4 readers" in names and not (folder / "model.tensors").exists():
        run([pythons["tensorizer, 4 readers"], "-c", _SERIALIZE, folder, json.dumps(shards(folder))])
    rows = list(measure(folder, pythons, names, rounds))
    append(rows)
    for files in ("cold", "warm"):
        click.echo(f"\n{files}, {format_bytes(rows[0]['size_bytes'])}")
        for name in names:
            click.echo(summary(name, [row for row in rows if (row["way"], row["files"]) == (name, files)]))


def measure(folder: Path, pythons: dict[str, Path], names: Sequence[str], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each load. Cold: the page cache has dropped the files; warm: they were read just now."""
    facts = read_placement_facts()
    taken = asdict(stamp(None, facts, open_device("cpu", facts), targets()[0]))
    files = [Path(file) for file in shards(folder)]
    size = sum(file.stat().st_size for file in files)
    for number in range(rounds):
        for state in ("cold", "warm"):
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                if name in FIO and state == "warm":
                    continue
                extra = [folder / "model.tensors"] if name.startswith("tensorizer") else []
                drop_from_page_cache([*files, *extra]) if state == "cold" else _read([*extra, *files])
                click.echo(f"round {number + 1}, {state}: {name}", err=True)
                if name in WAYS:
                    told = by_way(folder, pythons[name], name)
                else:
                    told = by_fio(files, name) if name in FIO else by_memory(size)
                yield {**{column: taken.get(column) for column in COLUMNS}, "way": name, "files": state,
                       "round": number, "bytes_per_s": size / told["seconds"], "size_bytes": size, **told}  # fmt: skip


def by_way(folder: Path, python: Path, name: str) -> dict[str, Any]:
    """What one load told; TrivetError when it failed or its bytes are wrong."""
    _, imports, load, as_bytes = WAYS[name]
    script = _FRAME.format(imports=imports, load=load, as_bytes=as_bytes)
    told: dict[str, Any] = json.loads(
        run([python, "-c", script, folder, json.dumps(shards(folder)), folder / "sums.json", TOUCH]).splitlines()[-1]
    )
    return told


def by_memory(size: int) -> dict[str, Any]:
    """As many bytes of memory, touched by all CPUs."""
    told: dict[str, Any] = json.loads(run([sys.executable, "-c", _MEMORY, str(size), TOUCH]))
    return told


def by_fio(files: Sequence[Path], name: str) -> dict[str, Any]:
    """fio's own figure of the storage."""
    with reserved_huge_pages() as has_pages:
        if name == "fio, huge pages" and not has_pages:
            raise TrivetError("no huge pages for fio's buffers: run as root, or leave it out with --only")
        num_read, seconds = read_by_fio(files, use_huge_pages=name == "fio, huge pages")
    return {"seconds": seconds, "disk_bytes": num_read}


def environment(place: Path, name: str) -> Path:
    """The interpreter that has what the way needs; made at the first call."""
    packages = WAYS[name][0]
    if not packages:
        return Path(sys.executable)
    folder = place / packages[0]
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        click.echo(f"making an environment for {packages[0]}", err=True)
        venv.create(folder, with_pip=True, clear=True)
        run([python, "-m", "pip", "install", "--quiet", "torch", "numpy", "xxhash", "safetensors", *packages])
        (folder / "complete").touch()
    return python


def make_checkpoint(folder: Path, size: int) -> Path:
    """A Llama of random bfloat16 in shards, about `size` bytes, and the XXH3 of every tensor in sums.json."""
    if (folder / "sums.json").exists():
        return folder
    click.echo(f"writing {folder}", err=True)
    folder.mkdir(parents=True, exist_ok=True)
    tensors, config = shapes(size)
    random, sums = np.random.default_rng(0), {}
    share = -(-len(tensors) // NUM_SHARDS)
    names = list(tensors)
    weight_map = {name: f"model-{i // share + 1:05}-of-{NUM_SHARDS:05}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        own = [name for name in names if weight_map[name] == file]
        entries = [(name, "BF16", tensors[name], 2 * int(np.prod(tensors[name]))) for name in own]
        with (folder / file).open("wb") as opened:
            opened.write(format_header(entries, 8))
            for name, _, shape, _ in entries:
                # The upper half of small floats: numbers as weights have them, none of them infinite.
                values = random.standard_normal(shape, np.float32).view(np.uint32) >> 16
                data = values.astype(np.uint16)
                sums[name] = xxhash.xxh3_64_intdigest(data.data)
                opened.write(data.data)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "sums.json").write_text(json.dumps(sums))
    return folder


def shapes(size: int) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """The tensors of a Llama of about `size` bytes, and its config.json."""
    vocab = 128256 if size >= 4 << 30 else 32000
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (HIDDEN,), "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV, HIDDEN),
        "self_attn.v_proj": (KV, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN), "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }  # fmt: skip
    layer_bytes = 2 * sum(int(np.prod(shape)) for shape in layer.values())
    num_layers = max(1, round((size - 4 * vocab * HIDDEN) / layer_bytes))
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, HIDDEN)}
    for i in range(num_layers):
        tensors |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    tensors |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (vocab, HIDDEN)}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": num_layers, "num_attention_heads": HIDDEN // 64,
        "num_key_value_heads": KV // 64, "head_dim": 64, "vocab_size": vocab, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    return tensors, config


def shards(folder: Path) -> list[str]:
    return sorted(str(file) for file in folder.glob("model-*.safetensors"))


def summary(name: str, rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return f"{name:<30}  –"
    speeds = [row["bytes_per_s"] / 1e9 for row in rows]
    told = f"{name:<30}  {median(speeds):6.2f} GB/s  ({min(speeds):.2f} to {max(speeds):.2f})"
    if rows[0].get("cpu_s") is None:
        return told
    cpu_s, peak = median(row["cpu_s"] for row in rows), median(row["peak_rss_bytes"] for row in rows)
    return f"{told}  {cpu_s:5.2f} CPU-s  {format_bytes(peak)} peak"


def append(rows: Sequence[dict[str, Any]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    append_rows(RESULTS, rows, COLUMNS)


def run(command: Sequence[str | Path]) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TrivetError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _read(files: Sequence[Path]) -> None:
    for file in files:
        with file.open("rb", buffering=0) as opened:
            buffer = bytearray(4 * MIB)
            while opened.readinto(buffer):
                pass


if __name__ == "__main__":
    loaders()
