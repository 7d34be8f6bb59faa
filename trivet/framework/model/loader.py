"""A model from a path: converted if it must be, its memory planned and reserved, its plan bound to the device.

After loading, nothing grows: what does not fit is an error here, with the option that makes it fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trivet._native import trim_heap
from trivet.base.dtypes import Array, DType
from trivet.base.errors import CheckpointError, ConfigError, GraphError, ResourceError
from trivet.base.formats import KvFormat, MatrixFormat
from trivet.base.settings import Settings, read_settings
from trivet.base.units import KIB, format_bytes
from trivet.driver.devices.device import Device, DeviceName
from trivet.driver.devices.table import open_device
from trivet.driver.readers.placement import read_placement_facts
from trivet.framework.graph.binding import BINDINGS, Request
from trivet.framework.graph.cost import stream_bytes
from trivet.framework.graph.fetches import with_fetches
from trivet.framework.graph.ir import Graph
from trivet.framework.graph.laws import check
from trivet.framework.graph.passes import MAX_LEVEL, keep_cache, optimise, target_for
from trivet.framework.graph.plan import BoundPlan, Bring, Limits
from trivet.framework.memory.slots import SlotLayout, lay_out
from trivet.framework.memory.tiers import Tiers
from trivet.framework.model.cache import made_before, packaged
from trivet.framework.model.chat_template import ChatTemplate
from trivet.framework.model.checkpoints.digest import check_exists
from trivet.framework.model.config import ModelConfig, parse_config
from trivet.framework.model.families import build_graph
from trivet.framework.model.kv_tiers import TierSizes, open_tiers, tier_sizes
from trivet.framework.model.loading.engines import EngineName
from trivet.framework.model.loading.read import ReadOptions, ReadReport
from trivet.framework.model.loading.times import LoadTimes
from trivet.framework.model.loading.weights import PackageWeights
from trivet.framework.model.manifest import is_package, read_manifest
from trivet.framework.model.package import Package, open_package
from trivet.framework.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from trivet.framework.model.steps import Progress

# By default the KV pool takes at most this share of what is available: page cache and others need the rest.
_POOL_SHARE = 0.4


@dataclass(frozen=True)
class Memory:
    """The three pools, in bytes, and what the KV pool holds."""

    weight_bytes: int
    kv_bytes: int
    activation_bytes: int
    num_slots: int
    slot_tokens: int

    @property
    def kv_tokens(self) -> int:
        return self.num_slots * self.slot_tokens


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run."""

    name: str
    config: ModelConfig
    package: Package
    plan: BoundPlan
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    device: Device
    memory: Memory
    times: LoadTimes
    brought: PackageWeights
    tiers: Tiers | None = None  # behind the KV pool; whoever makes an engine of the plan gives it these

    @property
    def weights(self) -> ReadReport:
        """How they came from storage."""
        return self.brought.report

    def settle(self) -> None:
        """Return when the weights lie where they stay, as who measures wants it: `PackageWeights.settle`."""
        self.brought.settle()


def load(
    model: str | Path,
    *,
    device: DeviceName = "cpu",
    dtype: DType | None = None,
    weights: MatrixFormat | None = None,
    kv_dtype: KvFormat | None = None,
    threads: int | None = None,
    max_context: int | None = None,
    kv_memory: int | None = None,
    kv_host_bytes: int | None = None,
    kv_dir: Path | None = None,
    kv_dir_bytes: int | None = None,
    max_sequences: int = 64,
    max_step_tokens: int = 512,
    verify: bool = True,
    engine: EngineName | None = None,
    progress: Progress | None = None,
    settings: Settings | None = None,
) -> LoadedModel:
    """The model at `model` (a package, a Hugging Face folder or a GGUF file), bound to `device` on this host.

    `max_context` positions of one sequence (the model's own if None); `kv_memory` bytes of the KV pool (planned from
    the available memory if None); `kv_host_bytes` of host memory and `kv_dir_bytes` of files in `kv_dir` keep what the
    pool cannot (nothing does if neither is given); `max_sequences` and `max_step_tokens` bound one step. `progress` is
    told of (what is done, bytes done, bytes in all) while a checkpoint is converted. `verify` compares every weight
    with its checksum while it is read, by `engine`, or by what fits the files if None.

    `dtype` None takes a package as it is, and converts a checkpoint to bfloat16. `weights` "int8" keeps the matrices in
    8 bits; None those of a package as they are, and of a checkpoint in `dtype`. `kv_dtype` is the format of the KV
    cache, whatever that of the weights is; None that of all that is not in 8 bits.

    Raises CheckpointError or ConfigError for the model, ConfigError for a format in which the device keeps no cache,
    ResourceError when it does not fit this host.
    """
    settings = settings or read_settings()
    times = LoadTimes()
    with times.phase("facts"):
        placed = open_device("cpu", read_placement_facts(), threads)
        tiers = tier_sizes(kv_host_bytes, kv_dir, kv_dir_bytes)
        placed = replace(placed, memory_bytes=BINDINGS[device].free_bytes() or _beside(tiers, placed))
    with times.phase("open"):
        package = open_model(
            model,
            device=device,
            dtype=dtype,
            weights=weights,
            kv_dtype=kv_dtype,
            verify=False,
            progress=progress,
            settings=settings,
            times=times,
        )
    context = _context(package.config, max_context)
    layout = lay_out(stream_bytes(package.graph), slot_tokens=BINDINGS[device].slot_tokens)
    num_slots = _num_slots(layout, context, max_sequences, kv_memory, placed, package)  # before the weights take theirs
    options = ReadOptions(len(placed.cpus), engine, verify)
    limits = Limits(max(max_step_tokens, max_sequences), max_sequences, max_sequences, context)
    brought = PackageWeights(package.path, package.stored, options, times)
    parsed: list[Tokenizer] = []

    def parse() -> None:
        parsed.append(Tokenizer(package.tokenizer))

    wanted: Mapping[str, Array] | Bring
    if BINDINGS[device].has_own_memory:  # they are brought when its plan is bound
        wanted = brought.bring
        with times.phase("tokenizer"):
            parse()
    else:
        # Files are read without the GIL, which the tokenizer's parser holds to its end: begun first, it would hold up
        # the reading's begin.
        wanted = brought.on_host(placed.numa_node, parse)
    trim_heap()  # the tokenizer's parser leaves a quarter of what it took
    with times.phase("bind"):
        has_files = tiers is not None and tiers.folder is not None
        graph = with_fetches(package.graph) if has_files and BINDINGS[device].awaits_streams else package.graph
        plan = BINDINGS[device].bind(
            Request(graph, wanted, limits, layout, num_slots, placed.cpus, settings.cpu_target)
        )
    behind = None if tiers is None else open_tiers(tiers, plan, package, layout, device)
    memory = Memory(package.weight_bytes, plan.pool_bytes, plan.activation_bytes, num_slots, layout.slot_tokens)
    return LoadedModel(
        package.source_name, package.config, package, plan, parsed[0], ChatTemplate(package.tokenizer), placed, memory,
        times, brought, behind,
    )  # fmt: skip


def open_model(
    model: str | Path,
    *,
    device: DeviceName = "cpu",
    dtype: DType | None = None,
    weights: MatrixFormat | None = None,
    kv_dtype: KvFormat | None = None,
    level: int = MAX_LEVEL,
    num_ranks: int = 1,
    rank: int | None = None,
    verify: bool = True,
    progress: Progress | None = None,
    settings: Settings | None = None,
    times: LoadTimes | None = None,
) -> Package:
    """The package at `model`, or that of the checkpoint there: converted into the cache once, found again by digest.

    `dtype` None takes a package as it is, and converts a checkpoint to bfloat16; `weights` and `kv_dtype` as `load` has
    them. The files have no cache, so there is one package for all formats of it: its graph is opened with the one asked
    for.
    `num_ranks` is how many ranks a checkpoint is cut for; `rank` whose weights to open of what is cut.
    Converting is the phase "transform".
    """

    _check_cache(device, kv_dtype)
    wanted: DType = dtype or "bfloat16"
    layout = "cpu" if device == "cpu" else "torch"  # an NPU takes what PyTorch takes

    def build(checkpoint: Path, destination: Path) -> Package:
        # Imported here: a package that was made before, as at most starts, is opened in less time than this takes.
        from trivet.framework.model.convert import convert
        from trivet.framework.model.steps import Wanted

        asked = Wanted(wanted, level, device, num_ranks=num_ranks, matrices=weights)
        with (times or LoadTimes()).phase("transform"):
            made = convert(checkpoint, destination, asked, progress=progress).package
        return made if rank is None else open_package(destination, verify=False, rank=rank)

    settings = settings or read_settings()
    cut = [f"{num_ranks}ranks"] if num_ranks > 1 else []
    variant = "-".join([wanted, *([weights] if weights else []), f"level{level}", layout, *cut])
    package = packaged(Path(model), settings.cache_dir, variant, build, verify=verify, rank=rank)
    _check_graph(package)
    if dtype not in (None, package.dtype):
        raise CheckpointError(
            f"{model} is a package in {package.dtype}, {dtype} was asked for",
            f"give the checkpoint it was made of, or convert that again with --dtype {dtype}",
        )
    if weights is not None and not has_int8(package.graph):
        raise CheckpointError(
            f"{model} is a package whose weights are in {package.dtype}, {weights} was asked for",
            f"give the checkpoint it was made of, or convert that again with --weights {weights}",
        )
    if layout_of(package.graph) != layout:
        raise CheckpointError(
            f"{model} is a package laid out for {layout_of(package.graph)}, --device {device} was asked for",
            f"give the checkpoint it was made of, or convert that again with --target {layout}",
        )
    return package if kv_dtype is None else replace(package, graph=keep_cache(package.graph, kv_dtype))


def _check_graph(package: Package) -> None:
    """Raise CheckpointError unless the graph keeps its laws: kernels take them for granted, and a package may come from
    anywhere."""
    graph = package.graph
    try:
        check(graph, "reading")
    except GraphError as error:
        raise CheckpointError(f"{package.path}: {error.message}", "convert the model again") from None
    except (ArithmeticError, AssertionError, KeyError, TypeError, ValueError) as error:  # of attributes that are none
        raise CheckpointError(f"{package.path}: its graph is damaged: {error!r}", "convert the model again") from None
    if unassigned := [name for name, spec in graph.values.items() if spec.dtype is None]:
        raise CheckpointError(f"{package.path}: {unassigned[0]} has no format", "convert the model again")
    num_logits = {graph.values[name].axes[-1] for name in graph.outputs}
    num_rows = {graph.values[str(node.inputs[1])].axes[0] for node in graph.nodes if node.operator == "embed"}
    if len(num_logits) != 1 or num_rows != num_logits:
        raise CheckpointError(
            f"{package.path}: tokens are chosen from {num_logits} logits, and looked up in {num_rows} rows",
            "convert the model again",
        )


def layout_of(graph: Graph) -> str:
    """For which devices the weights of the graph are laid out: "cpu", or "torch" for all others."""
    return "torch" if any(graph.values[stream.name].layout == "blocks" for stream in graph.streams) else "cpu"


def has_int8(graph: Graph) -> bool:
    """Whether matrices of the graph are kept in 8 bits."""
    return any(recipe.dtype == "int8" for recipe in graph.weights.values())


def model_config(model: str | Path, settings: Settings | None = None) -> ModelConfig:
    """The configuration of a package or a checkpoint, without reading its weights.

    From the cached package where there is one: the vocabulary of a GGUF file takes longer to read than all of that.
    """
    path = Path(model)
    check_exists(path)
    if is_package(path):
        return read_manifest(path).config
    before = made_before(path, (settings or read_settings()).cache_dir)
    if before is not None:
        with suppress(CheckpointError):  # damaged, or of another layout: it may not be the one that will be loaded
            return read_manifest(before).config
    from trivet.framework.model.checkpoints.readers import open_checkpoint  # as the converter: rarely needed

    return parse_config(open_checkpoint(path).config)


def model_graph(
    config: ModelConfig,
    dtype: DType,
    level: int = MAX_LEVEL,
    device: DeviceName = "cpu",
    overrides: tuple[tuple[str, DType], ...] = (),
    matrices: DType | None = None,
    kv_dtype: KvFormat | None = None,
) -> Graph:
    """The graph as it runs on the device: built by the family, then optimised. Raises ConfigError as `load` does."""
    _check_cache(device, kv_dtype)
    graph = optimise(build_graph(config), target_for(device, dtype, overrides, matrices), level)
    return graph if kv_dtype is None else keep_cache(graph, kv_dtype)


def _check_cache(device: DeviceName, kv_dtype: KvFormat | None) -> None:
    formats = BINDINGS[device].cache_formats
    if kv_dtype is not None and kv_dtype not in formats:
        raise ConfigError(
            f"--kv-dtype {kv_dtype}: {device} keeps its KV cache in {' or '.join(formats)}",
            "leave --kv-dtype out: the cache is in the format of --dtype",
        )


def _context(config: ModelConfig, asked: int | None) -> int:
    if asked is not None and asked > config.max_context:
        raise ResourceError(
            f"--max-context is {asked}, the model was made for {config.max_context} positions",
            f"ask for at most {config.max_context}",
        )
    return asked or config.max_context


def _beside(tiers: TierSizes | None, device: Device) -> int | None:
    """The host's memory that is left for weights and pools; None where it is unknown."""
    if tiers is None or device.memory_bytes is None:
        return device.memory_bytes
    if tiers.host_bytes >= device.memory_bytes:
        raise ResourceError(
            f"--kv-host-bytes is {format_bytes(tiers.host_bytes)}, {format_bytes(device.memory_bytes)} of memory is "
            "available",
            "ask for less",
        )
    return device.memory_bytes - tiers.host_bytes


def _num_slots(
    layout: SlotLayout, context: int, max_sequences: int, asked: int | None, device: Device, package: Package
) -> int:
    """As many slots as asked for; else enough for every sequence to be as long as it may, within a share of memory."""
    left = None if device.memory_bytes is None else device.memory_bytes - package.weight_bytes
    if left is not None and left < layout.stride_bytes:
        raise ResourceError(
            f"memory: the weights need {format_bytes(package.weight_bytes)} and a slot of KV cache "
            f"{format_bytes(layout.stride_bytes)}, {format_bytes(device.memory_bytes or 0)} is available",
            "free memory, or load a smaller model",
        )
    if asked is not None:
        if asked < layout.stride_bytes:
            raise ResourceError(
                f"--kv-memory is {format_bytes(asked)}, one slot of this model is {format_bytes(layout.stride_bytes)}",
                f"ask for at least {-(-layout.stride_bytes // KIB)}KiB",
            )
        if left is not None and asked > left:
            raise ResourceError(
                f"--kv-memory is {format_bytes(asked)}, {format_bytes(max(0, left))} of memory is free beside "
                f"{format_bytes(package.weight_bytes)} of weights",
                "ask for less, or leave --kv-memory out",
            )
        return asked // layout.stride_bytes
    wanted = max_sequences * layout.slots_for(context)
    if left is None:
        return wanted
    affordable = int(left * _POOL_SHARE) // layout.stride_bytes
    least = layout.slots_for(context)
    if affordable < least:
        raise ResourceError(
            f"memory: one sequence of {context} positions needs {format_bytes(layout.pool_bytes(least))} of KV cache"
            f" beside {format_bytes(package.weight_bytes)} of weights; {format_bytes(max(0, left))} is free",
            f"--max-context {max(1, affordable * layout.slot_tokens)}, or free memory",
        )
    return min(wanted, affordable)
