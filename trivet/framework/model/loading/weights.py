"""The weights of a package or of a published checkpoint, read into memory: arrays in one arena, and how they came."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.base.dtypes import Array, DType, storage
from trivet.base.errors import CheckpointError
from trivet.driver.devices.memory import Memory
from trivet.framework.memory.arena import Arena
from trivet.framework.model.checkpoints.digest import check_exists
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.read import ReadOptions, ReadReport, joined, read_into_arena
from trivet.framework.model.loading.times import LoadTimes
from trivet.framework.model.manifest import StoredWeight

if TYPE_CHECKING:
    from trivet.framework.model.checkpoints.stored import StoredTensor

# A published format and what holds its bits: bfloat16 as uint16, eight-bit floats as uint8.
_HOLDS: dict[str, DType] = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "U8": "uint8", "I8": "uint8", "BOOL": "uint8", "F8_E4M3": "uint8", "F8_E5M2": "uint8", "F8_E8M0": "uint8",
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """Arrays in stored shape and storage dtype. The arena lives as long as any of them."""

    arrays: Mapping[str, Array]
    report: ReadReport


class PackageWeights:
    """The weights of a package, or those of them that `stored` names, for a plan to take; `times` has their "read".

    Where they go the plan's device says: all into one arena on the host, or what is asked for into its own memory.
    Both raise as `read_package`.
    """

    def __init__(
        self, folder: Path, stored: Mapping[str, StoredWeight], options: ReadOptions, times: LoadTimes
    ) -> None:
        self._folder = folder
        self._stored = stored
        self._options = options
        self._times = times
        self._reports: list[ReadReport] = []
        self._arena: Arena | None = None  # on the host

    def on_host(self, node: int | None, meanwhile: Callable[[], None]) -> Mapping[str, Array]:
        """All of them; `meanwhile` as `ReadOptions` has it."""
        with self._times.phase("read"):
            ranges, shapes = package_ranges(self._folder, self._stored), _package_shapes(self._stored)
            options = replace(self._options, meanwhile=meanwhile)
            arrays, self._arena, report = _read(ranges, shapes, options, node)
        self._arena.take_in()
        self._reports.append(report)
        return arrays

    def bring(self, names: Sequence[str], memory_for: Callable[[int], Memory]) -> tuple[Memory, Mapping[str, int]]:
        """As `trivet.framework.graph.plan.Bring`."""
        from trivet.framework.model.loading.staging import read_to_device  # a host without a device does without

        ranges = package_ranges(self._folder, {name: self._stored[name] for name in names})
        with self._times.phase("read"):
            memory, places, report = read_to_device(ranges, memory_for, self._options)
        self._times.part("read", "copy", report.copy_s or 0.0)
        self._reports.append(report)
        return memory, places

    def settle(self) -> None:
        """Return when the weights lie where they stay: files that were in the page cache stand in for a while."""
        if self._arena is not None:
            self._arena.settle()

    @property
    def report(self) -> ReadReport:
        """How those came that were taken. Which of the host's pages are huge the kernel is asked now: it looks
        through all that the process has mapped, which takes a start as long as the host's facts."""
        report = joined(self._reports)
        return report if self._arena is None else replace(report, huge_bytes=self._arena.huge_bytes())


def package_ranges(folder: Path, stored: Mapping[str, StoredWeight]) -> list[Range]:
    return [
        Range(name, folder / each.shard, each.offset, each.bytes, int(each.xxh3, 16)) for name, each in stored.items()
    ]


def read_package(
    folder: Path, stored: Mapping[str, StoredWeight], options: ReadOptions, node: int | None = None
) -> Weights:
    """The weights of a package, or those of them that `stored` names, in memory of the NUMA `node`.

    Raises CheckpointError (unreadable, too short, another checksum) and ResourceError (memory, an engine).
    """
    return _with_pages(*_read(package_ranges(folder, stored), _package_shapes(stored), options, node))


def read_checkpoint(folder: Path, options: ReadOptions, node: int | None = None) -> Weights:
    """Every tensor of a published safetensors folder as it is stored, read directly into place: nothing is converted.

    There is nothing to compare the bytes with. Raises as `read_package`, and CheckpointError for a format of numbers
    that NumPy cannot hold.
    """
    ranges, shapes = checkpoint_ranges(folder)
    return _with_pages(*_read(ranges, shapes, options, node))


def checkpoint_ranges(folder: Path) -> tuple[list[Range], dict[str, tuple[DType, tuple[int, ...]]]]:
    """Where the tensors of a published safetensors folder lie, and what they are; raises as `read_checkpoint`."""
    ranges: list[Range] = []
    shapes: dict[str, tuple[DType, tuple[int, ...]]] = {}
    for file, tensor in stored_tensors(folder):
        dtype = _HOLDS.get(tensor.dtype)
        if dtype is None:
            known = ", ".join(_HOLDS)
            raise CheckpointError(f"{file}: tensor {tensor.name} is {tensor.dtype}, one of {known} was wanted")
        ranges.append(Range(tensor.name, file, tensor.offset, tensor.num_bytes))
        shapes[tensor.name] = (dtype, tensor.shape)
    return ranges, shapes


def stored_tensors(folder: Path) -> list[tuple[Path, StoredTensor]]:
    """The tensors of a published safetensors folder and the file of each; raises CheckpointError as its readers do."""
    # The readers of published formats, which no package needs, and so no start of a server.
    from trivet.framework.model.checkpoints.folder import files_of
    from trivet.framework.model.checkpoints.readers import SAFETENSORS

    check_exists(folder)
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder of safetensors files: nothing else is read as it is stored", "trivet load MODEL"
        )
    files = files_of(folder, SAFETENSORS)[0]
    return [(file, tensor) for file in files for tensor in SAFETENSORS.read_header(file)]


def _package_shapes(stored: Mapping[str, StoredWeight]) -> dict[str, tuple[DType, tuple[int, ...]]]:
    return {name: (each.dtype, each.shape) for name, each in stored.items()}


def _with_pages(arrays: Mapping[str, Array], arena: Arena, report: ReadReport) -> Weights:
    return Weights(arrays, replace(report, huge_bytes=arena.huge_bytes()))


def _read(
    ranges: Iterable[Range],
    shapes: Mapping[str, tuple[DType, tuple[int, ...]]],
    options: ReadOptions,
    node: int | None,
) -> tuple[Mapping[str, Array], Arena, ReadReport]:
    arena, places, report = read_into_arena(ranges, lambda num_bytes: Arena(num_bytes, "weights", node=node), options)
    arrays = {
        # A tensor without elements is nowhere.
        name: arena.view(places.get(name, 0), shape, storage(dtype))
        for name, (dtype, shape) in shapes.items()
    }
    return arrays, arena, report
