"""A package: a converted model as a folder, opened without copying a byte.

Its weights are read-only views of mapped files, in the order and layout in which the graph uses them.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import xxhash

from trivet.base.dtypes import Array, DType, storage
from trivet.base.errors import CheckpointError
from trivet.framework.graph.ir import Graph
from trivet.framework.model.config import ModelConfig
from trivet.framework.model.manifest import Manifest, StoredWeight, is_package, read_manifest
from trivet.framework.model.tokenizer_files import TokenizerFiles, read_tokenizer_files


@dataclass(frozen=True)
class Package:
    """An open package, or one rank's part of it."""

    path: Path
    config: ModelConfig
    dtype: DType
    level: int
    graph: Graph
    tokenizer: TokenizerFiles
    source_name: str
    source_digest: str
    stored: Mapping[str, StoredWeight]  # where each weight lies in the files, and its checksum
    weights: Mapping[str, Array]  # mapped from there; in stored shape and storage dtype (bfloat16 as uint16), read-only

    @property
    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self.weights.values())

    def verify(self, num_threads: int = 1) -> None:
        """Read every weight once. Raises CheckpointError for the first that differs from its checksum."""
        with ThreadPoolExecutor(num_threads) as threads:
            found = threads.map(lambda weight: xxhash.xxh3_64_hexdigest(weight.data), self.weights.values())
            for (name, stored), checksum in zip(self.stored.items(), found, strict=True):
                if checksum != stored.xxh3:
                    raise damaged(self.path / stored.shard, name, stored, checksum)


def open_package(path: str | Path, *, verify: bool = True, rank: int | None = None) -> Package:
    """The package in the folder; with `verify`, every weight is read once and compared with its checksum.

    `rank` is whose pieces to open of a package that is cut for several; no other rank's bytes are read.

    Raises CheckpointError when it is not a package or a newer one, a file is absent or of another size, it is cut for
    ranks and none or none of those is asked for, or a checksum differs (naming file, tensor and offset).
    """
    path = Path(path)
    if not is_package(path):
        raise CheckpointError(f"{path} is not a package", "make one with: trivet convert MODEL PACKAGE")
    manifest = read_manifest(path)
    return map_package(path, manifest, verify=verify, rank=_checked_rank(path, manifest, rank))


def map_package(path: Path, manifest: Manifest, *, verify: bool, rank: int) -> Package:
    """The package that `manifest` says is in the folder, whether or not the folder says so itself already."""
    tensors = manifest.of_rank(rank)
    files = {stored.shard for stored in tensors.values()}
    shards = {file: _map(path / file, size) for file, size in manifest.shards.items() if file in files}
    weights = {name: _view(shards[stored.shard], stored) for name, stored in tensors.items()}
    package = Package(
        path=path,
        config=manifest.config,
        dtype=manifest.dtype,
        level=manifest.level,
        graph=manifest.graph,
        tokenizer=read_tokenizer_files(path, {}),
        source_name=manifest.source_name,
        source_digest=manifest.source_digest,
        stored=tensors,
        weights=weights,
    )
    if verify:
        package.verify()
    return package


def damaged(file: Path, name: str, stored: StoredWeight, found: str) -> CheckpointError:
    """What to say of a weight whose bytes have another checksum than was written."""
    return CheckpointError(
        f"{file}: tensor {name} at byte {stored.offset} has the checksum {found}, {stored.xxh3} was written",
        "the file changed since conversion (a bad disk or copy): copy it again or convert again",
    )


def _checked_rank(path: Path, manifest: Manifest, rank: int | None) -> int:
    if rank is None and manifest.num_ranks > 1:
        raise CheckpointError(
            f"{path} is cut for {manifest.num_ranks} tensor-parallel ranks, one process runs whole models",
            "convert its checkpoint again without --tensor-parallel",
        )
    if rank is not None and not 0 <= rank < manifest.num_ranks:
        raise CheckpointError(
            f"{path} is cut for ranks 0 to {manifest.num_ranks - 1}, rank {rank} was asked for",
            "convert its checkpoint again with --tensor-parallel",
        )
    return rank or 0


def _map(file: Path, size: int) -> mmap.mmap:
    if not file.is_file():
        raise CheckpointError(f"{file} is missing", "copy the package again, with all its files, or convert again")
    found = file.stat().st_size
    if found != size:
        raise CheckpointError(f"{file} is {found} bytes, {size} wanted", "copy the file again or convert again")
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def _view(shard: mmap.mmap, stored: StoredWeight) -> Array:
    flat: Array = np.frombuffer(shard, storage(stored.dtype), prod(stored.shape), stored.offset)
    return flat.reshape(stored.shape)
