"""The named steps from a checkpoint to a verified package. Each takes what those before it made.

The first five only think, and take milliseconds; the last two write. Where they write is the caller's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import xxhash

from trivet import __version__
from trivet.base.dtypes import DType
from trivet.base.errors import CheckpointError
from trivet.base.formats import MatrixFormat
from trivet.base.units import format_bytes
from trivet.driver.devices.device import DeviceName
from trivet.framework.graph import ir
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.passes import MAX_LEVEL, optimise, target_for
from trivet.framework.model.checkpoints.checkpoint import Checkpoint
from trivet.framework.model.checkpoints.digest import model_name, source_digest
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.config import ModelConfig, parse_config, published_config
from trivet.framework.model.families import build_graph
from trivet.framework.model.families.names import is_unneeded
from trivet.framework.model.injection import inject
from trivet.framework.model.journal import Journal
from trivet.framework.model.json_file import write_json
from trivet.framework.model.manifest import Manifest, StoredWeight
from trivet.framework.model.pieces import cut
from trivet.framework.model.shards import SHARD_BYTES, Shard, plan_shards, stored_bytes
from trivet.framework.model.tokenizer_files import write_tokenizer_files
from trivet.framework.model.tokenizer_merges import joined_merges
from trivet.framework.model.verification import Verification, verify

Progress = Callable[[str, int, int], None]  # what is being done, bytes done, bytes in all


@dataclass(frozen=True)
class Wanted:
    """What is asked of a conversion."""

    dtype: DType = "bfloat16"
    level: int = MAX_LEVEL
    target: DeviceName = "cpu"
    overrides: tuple[tuple[str, DType], ...] = ()  # formats by name, as shell patterns of weights and values
    num_ranks: int = 1  # tensor-parallel ranks to cut the weights for
    shard_bytes: int = SHARD_BYTES
    ignored: tuple[str, ...] = ()  # shell patterns of tensors that may have no place in the graph
    memory_bytes: int | None = None  # the most that verifying may take; None: what is free
    matrices: MatrixFormat | None = None  # another format for what linears multiply with


@dataclass
class Conversion:
    """A conversion under way: what was asked for, then what each step made, which the next ones take."""

    source: Path
    wanted: Wanted
    folder: Path  # where the package is made
    progress: Progress
    checkpoint: Checkpoint = field(init=False)
    config: ModelConfig = field(init=False)
    digest: str = field(init=False)
    graph: Graph = field(init=False)
    shards: tuple[Shard, ...] = field(init=False)
    journal: Journal = field(init=False)
    tensors: Mapping[str, tuple[StoredWeight, ...]] = field(init=False)
    verification: Verification = field(init=False)

    @property
    def manifest(self) -> Manifest:
        return Manifest(
            config=self.config,
            dtype=self.wanted.dtype,
            level=self.wanted.level,
            graph=self.graph,
            source_name=model_name(self.checkpoint.path),
            source_digest=self.digest,
            num_ranks=self.wanted.num_ranks,
            shards={shard.file: shard.num_bytes for shard in self.shards},
            tensors={name: self.tensors[name] for name in self.graph.weights},
        )


@dataclass(frozen=True)
class Step:
    """A named step. `run` gives what it made, for people and for the journal: the same whenever it is run again."""

    name: str
    run: Callable[[Conversion], tuple[str, str]]  # in a sentence, as a digest
    writes: bool = False


def parse(conversion: Conversion) -> tuple[str, str]:
    """What the checkpoint has: its configuration, and which tensors of which shape lie where."""
    conversion.checkpoint = open_checkpoint(conversion.source)
    conversion.config = parse_config(conversion.checkpoint.config)
    conversion.digest = source_digest(conversion.checkpoint.path)
    checkpoint = conversion.checkpoint
    made = f"{len(checkpoint.tensors)} tensors, {format_bytes(checkpoint.size_bytes)} in {len(checkpoint.files)} files"
    return made, f"{__version__} {conversion.digest}"


def build(conversion: Conversion) -> tuple[str, str]:
    """The graph as the family writes it."""
    conversion.graph = build_graph(conversion.config)
    return f"{conversion.config.architecture}, {len(conversion.graph.nodes)} nodes", _digest(
        ir.to_json(conversion.graph)
    )


def map_names(conversion: Conversion) -> tuple[str, str]:
    """Which tensors every weight is made from: each is there as the configuration has it, and none is left over."""
    checkpoint, config = conversion.checkpoint, conversion.config
    used: dict[str, str] = {}
    for weight, recipe in conversion.graph.weights.items():
        for wanted in recipe.sources:
            used[wanted.tensor] = weight
            _check_source(checkpoint, weight, wanted.tensor, wanted.shape)
    left = [name for name in checkpoint.tensors if name not in used and not is_unneeded(config, name)]
    unused = [name for name in left if not any(fnmatchcase(name, pattern) for pattern in conversion.wanted.ignored)]
    if unused:
        more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
        raise CheckpointError(
            f"{checkpoint.path}: {len(unused)} tensors have no place in {config.architecture}: "
            f"{', '.join(unused[:5])}{more}",
            "the model computes something that this family does not, its answers would be wrong; where you know that "
            "they are not needed, name them with --ignore",
        )
    return f"{len(used)} tensors have their place, {len(checkpoint.tensors) - len(used)} left out", _digest(used)


def optimise_graph(conversion: Conversion) -> tuple[str, str]:
    """The graph as it will run; its weights' recipes are rewritten with it."""
    wanted = conversion.wanted
    target = target_for(wanted.target, wanted.dtype, wanted.overrides, wanted.matrices)
    conversion.graph = optimise(conversion.graph, target, wanted.level)
    made = f"level {wanted.level} for {wanted.target}: {len(conversion.graph.nodes)} nodes"
    return made, _digest(ir.to_json(conversion.graph))


def plan(conversion: Conversion) -> tuple[str, str]:
    """Where every byte will lie: last of what is only thought out, for it follows from the optimised weights."""
    pieces = cut(conversion.graph, conversion.config, conversion.wanted.num_ranks)
    conversion.shards = plan_shards(pieces, conversion.wanted.shard_bytes)
    size = sum(shard.num_bytes for shard in conversion.shards)
    ranks = f", for {conversion.wanted.num_ranks} ranks" if conversion.wanted.num_ranks > 1 else ""
    headers = [[shard.file, shard.header.hex()] for shard in conversion.shards]
    return f"{format_bytes(size)} in {len(conversion.shards)} shards{ranks}", _digest(headers)


def inject_weights(conversion: Conversion) -> tuple[str, str]:
    """Every recipe executed into its shard; the tokenizer's files and the published configuration beside them."""
    files = {shard.file for shard in conversion.shards}
    for left in conversion.folder.iterdir():
        if left.name not in files:
            left.unlink()
    meter = _Meter(conversion, "converting")
    conversion.tensors, num_kept = inject(
        conversion.shards, conversion.checkpoint.read_rows, conversion.folder, conversion.journal, meter
    )
    if source_digest(conversion.checkpoint.path) != conversion.digest:
        raise CheckpointError(
            f"{conversion.checkpoint.path} changed while it was converted", "wait until it is complete, convert again"
        )
    tokenizer = conversion.checkpoint.tokenizer
    write_tokenizer_files(replace(tokenizer, tokenizer=joined_merges(tokenizer.tokenizer)), conversion.folder)
    published = published_config(conversion.checkpoint.config, conversion.wanted.dtype, tokenizer.generation_config)
    write_json(conversion.folder / "config.json", published)
    kept = f", {num_kept} shards were there" if num_kept else ""
    tensors = {name: [asdict(piece) for piece in pieces] for name, pieces in conversion.tensors.items()}
    return f"{len(conversion.tensors)} weights, {format_bytes(meter.total)}{kept}", _digest(tensors)


def verify_package(conversion: Conversion) -> tuple[str, str]:
    """What was written is what is read, keeps the laws, and answers."""
    wanted = conversion.wanted
    made = verify(
        conversion.folder, conversion.manifest, wanted.target, wanted.memory_bytes, _Meter(conversion, "verifying")
    )
    conversion.verification = made
    ran = f"not run: {made.not_run}" if made.not_run else f"{len(made.prompt)} tokens, then token {made.next_token}"
    return f"{format_bytes(made.num_bytes)} read again, laws hold, known prompt {ran}", _digest(made.num_bytes)


STEPS: tuple[Step, ...] = (
    Step("parse", parse),
    Step("build", build),
    Step("map", map_names),
    Step("optimise", optimise_graph),
    Step("plan", plan),
    Step("inject", inject_weights, writes=True),
    Step("verify", verify_package, writes=True),
)


def _check_source(checkpoint: Checkpoint, weight: str, tensor: str, shape: tuple[int, ...]) -> None:
    entry = checkpoint.tensors.get(tensor)
    if entry is None:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {tensor} is missing, weight {weight} is made from it",
            "the checkpoint is incomplete, or its config.json is that of another model",
        )
    if entry.shape != shape:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {tensor} is {list(entry.shape)}, its config.json asks for {list(shape)}"
        )
    if entry.dtype is None:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {tensor} is {entry.stored}, F32, F16 or BF16 was wanted",
            "use the checkpoint's unquantised version",
        )


class _Meter:
    """Counts a step's bytes and tells of them."""

    def __init__(self, conversion: Conversion, doing: str) -> None:
        self._progress = conversion.progress
        self._doing = doing
        self._done = 0
        self.total = sum(stored_bytes(piece.recipe) for shard in conversion.shards for piece in shard.pieces)

    def __call__(self, num_bytes: int) -> None:
        self._done += num_bytes
        self._progress(self._doing, self._done, self.total)


def _digest(made: object) -> str:
    return str(xxhash.xxh3_128_hexdigest(json.dumps(made).encode()))
