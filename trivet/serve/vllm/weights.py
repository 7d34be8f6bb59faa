"""A model's published tensors into a model of vLLM: PyTorch's views of the bytes that were read, and a line of log.

vLLM's model takes each tensor by name, cuts this rank's part out and copies it; the bytes go when it has.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trivet.base.errors import CheckpointError
from trivet.base.settings import read_settings
from trivet.base.units import KIB, format_bytes, format_seconds
from trivet.framework.model.checkpoints.digest import model_name
from trivet.framework.model.loading.published import PublishedModel, PublishedTensor, published_model
from trivet.framework.model.loading.read import ReadOptions
from trivet.framework.model.loading.report import LoadReport, bottleneck, explain_read
from trivet.framework.model.loading.storage_limit import recall
from trivet.framework.model.loading.stream import Stream
from trivet.serve.log import event
from trivet.serve.vllm.options import LoaderOptions

_LOG = logging.getLogger("vllm.trivet")  # vLLM's own handlers print what is below `vllm`

# safetensors' formats by PyTorch's names; a release of PyTorch may be too old for the last.
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip

# Their checkpoints are not tensors under published names, and vLLM has loaders of its own for them.
_OTHER_LOADERS = ("bitsandbytes", "gguf", "torchao")


def load_into(model: Any, model_config: Any, folder: Path, options: LoaderOptions) -> None:
    """Give `model`, one of vLLM's, every tensor that is in `folder`, a package or a published safetensors folder.

    Raises CheckpointError for files that are not what they say, for a model whose weights are elsewhere as well, and
    where a parameter of an unquantised model got none; ResourceError for what the host has not.
    """
    _refuse(model, model_config)
    began, cpu_began = time.perf_counter(), time.process_time()
    published, num_ranks = published_model(folder), _num_ranks()
    opened_s = time.perf_counter() - began
    read = ReadOptions(
        num_cpus=options.threads or len(os.sched_getaffinity(0)),
        # Every rank reads all of the files. Through the page cache storage gives each byte once, not once a rank.
        engine=options.engine or ("buffered" if num_ranks > 1 else None),
        verify=options.verify,
    )
    stream = Stream(published.ranges, read)
    loaded = model.load_weights(_tensors(published, stream))
    if model_config.quantization is None and loaded is not None:
        _check_complete(model, loaded, folder)
    taking_s = time.perf_counter() - began - opened_s - stream.waited_s
    report = LoadReport(
        model=model_name(folder),
        phases={"open": opened_s, "read": stream.waited_s, "copying into the model": taking_s},
        read=stream.report,
        cpu_s=time.process_time() - cpu_began,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        numa_node=None,
        num_cpus=read.num_cpus,
        storage=recall(folder, read_settings().cache_dir),
    )
    _LOG.info("%s", line(report, num_ranks))


def line(report: LoadReport, num_ranks: int) -> str:
    """A load in a line for the log of a server."""
    read, share = report.read, report.share_of_storage
    return event(
        "load",
        model=report.model,
        size=format_bytes(read.num_bytes),
        seconds=f"{report.total_s:.2f}",
        read_gb_per_s=f"{read.bytes_per_s / 1e9:.2f}",
        share_of_storage=None if share is None else f"{share:.0%}",
        waited_for_bytes=format_seconds(report.phases["read"]),
        verified=format_bytes(read.verified) if read.verified else "no",
        ranks=num_ranks if num_ranks > 1 else None,
        engine=explain_read(read),
        bottleneck=bottleneck(report)[0],
        peak_memory=format_bytes(report.peak_rss_bytes),
    )


def _refuse(model: Any, model_config: Any) -> None:
    if model_config.quantization in _OTHER_LOADERS:
        raise CheckpointError(
            f"--load-format trivet: {model_config.quantization} is read by vLLM's own loaders only",
            "--load-format auto",
        )
    for attribute in ("secondary_weights", "allow_patterns_overrides"):
        if getattr(model, attribute, None):
            raise CheckpointError(
                f"--load-format trivet: {type(model).__name__} takes weights from other files than the checkpoint's "
                f"own ({attribute})",
                "--load-format auto",
            )


def _num_ranks() -> int:
    """The processes that load this model now."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _tensors(published: PublishedModel, stream: Stream) -> Iterator[tuple[str, Any]]:
    for name, data in stream:
        for tensor in published.tensors_in(name, data):
            yield tensor.name, _as_torch(tensor)


def _as_torch(tensor: PublishedTensor) -> Any:
    dtype = getattr(torch, _DTYPES.get(tensor.dtype, ""), None)
    if dtype is None:
        raise CheckpointError(
            f"tensor {tensor.name} is {tensor.dtype}, which this PyTorch ({torch.__version__}) has not",
            "--load-format auto",
        )
    data = tensor.data
    if data.ctypes.data % dtype.itemsize:  # as it lay in a file whose writer did not align it
        data = data.copy()
    return torch.from_numpy(data).view(dtype).reshape(tensor.shape)


def _check_complete(model: Any, loaded: set[str], folder: Path) -> None:
    """Every parameter got its numbers; the scales of a quantised cache have defaults, and are rarely published."""
    names = {name for name, _ in model.named_parameters() if not name.endswith("_scale")}
    missing = sorted(names - loaded)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise CheckpointError(
            f"{folder}: nothing in it is for {len(missing)} parameters of {type(model).__name__}: "
            f"{', '.join(missing[:5])}{more}",
            "the checkpoint is incomplete, or its config.json is that of another model",
        )
