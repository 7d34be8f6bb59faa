"""What one rank takes of a package: its own bytes from storage, and what all ranks have, alone or from one that reads.

A rank's own bytes are read once whoever reads them, so only what all have is worth sending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from trivet.base.dtypes import Array, storage
from trivet.base.errors import CheckpointError, ResourceError, TrivetError
from trivet.framework.memory.host_memory import HostMemory
from trivet.framework.model.loading.broadcast import Group, read_together
from trivet.framework.model.loading.read import ReadOptions, ReadReport, joined
from trivet.framework.model.loading.times import LoadTimes
from trivet.framework.model.loading.weights import Weights, package_ranges, read_package
from trivet.framework.model.manifest import Manifest, StoredWeight


def read_rank(
    folder: Path,
    manifest: Manifest,
    rank: int,
    options: ReadOptions,
    times: LoadTimes,
    *,
    group: Group | None = None,
    node: int | None = None,
) -> Weights:
    """The weights that rank `rank` has of a package that is cut for ranks, or all of one that is whole.

    With `group`, which has a process for each rank (for a whole package: as many as there are copies of the model),
    rank 0 reads what all have and the others get it from there; `times` has that as "broadcast", the rest as "read".

    Raises CheckpointError for a rank that the package does not have, and what `read_package` and `read_together` raise.
    """
    check_rank(folder, manifest, rank, None if group is None else group.num_ranks)
    wanted = manifest.of_rank(rank)
    if group is None:
        with times.phase("read"):
            return read_package(folder, wanted, options, node)
    shared = {name: wanted[name] for name, pieces in manifest.tensors.items() if len(pieces) == 1}
    own = {name: piece for name, piece in wanted.items() if name not in shared}
    try:
        with times.phase("read"):
            read = read_package(folder, own, options, node)
    except TrivetError as error:
        group.tell(error)
        raise
    with times.phase("broadcast"):
        arrays, report = _shared(folder, shared, options, group, node)
    return Weights({**read.arrays, **arrays}, joined([read.report, report]))


def join(rank: int, num_ranks: int, address: str) -> Group:
    """This process as one of `num_ranks` that meet at `address`, host:port of rank 0. It waits for the others.

    Raises ResourceError when they do not come, or PyTorch, which joins them, is not installed.
    """
    if num_ranks < 2:
        raise ResourceError(
            f"--broadcast {address}: one process has nobody to send to", "say how many load together: --ranks 2"
        )
    try:
        from trivet.driver.devices.torch_group import TorchGroup
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ResourceError(
            f"--broadcast {address}: PyTorch, which joins the ranks, is not installed", "pip install 'trivet[torch]'"
        ) from None
    return TorchGroup(rank, num_ranks, address)


def check_rank(folder: Path, manifest: Manifest, rank: int, num_processes: int | None = None) -> None:
    """Raise CheckpointError unless the package has something for that rank, and for so many processes together."""
    if num_processes is not None and manifest.num_ranks not in (1, num_processes):
        raise CheckpointError(
            f"{folder} is cut for {manifest.num_ranks} ranks, {num_processes} load together",
            f"start {manifest.num_ranks}, or convert its checkpoint again with --tensor-parallel {num_processes}",
        )
    num_ranks = num_processes or manifest.num_ranks
    if not 0 <= rank < num_ranks:
        what = "not cut for ranks" if num_ranks == 1 else f"for ranks 0 to {num_ranks - 1}"
        raise CheckpointError(
            f"{folder} is {what}, rank {rank} was asked for",
            "convert its checkpoint again with --tensor-parallel",
        )


def _shared(
    folder: Path, stored: Mapping[str, StoredWeight], options: ReadOptions, group: Group, node: int | None
) -> tuple[dict[str, Array], ReadReport]:
    memory, places, report = read_together(
        package_ranges(folder, stored), partial(HostMemory, node=node), options, group
    )
    arrays = {
        name: memory.arena.view(places.get(name, 0), each.shape, storage(each.dtype)) for name, each in stored.items()
    }
    return arrays, replace(report, huge_bytes=memory.arena.huge_bytes())
