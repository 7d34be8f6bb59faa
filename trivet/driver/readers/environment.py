"""Reads those variables of the environment that mean something to this stack. All others are nobody's business.

The names come from the documents of CANN, HCCL, ATB, torch_npu, vllm-ascend and MindIE; a whole family is named by its
prefix.
"""

from __future__ import annotations

import re
from pathlib import Path

from trivet.driver.readers.files import read_text

_NAMES = frozenset((
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "HOME", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("LANG", "LC_ALL", "LC_CTYPE", "CPU_AFFINITY_CONF", "TASK_QUEUE_ENABLE", "PER_STREAM_QUEUE"),
    *("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_CONF"),
    *("PYTORCH_NPU_ALLOC_CONF", "TORCH_DEVICE_BACKEND_AUTOLOAD", "OOM_SNAPSHOT_ENABLE", "MULTI_STREAM_MEMORY_REUSE"),
    *("INF_NAN_MODE_ENABLE", "AUTO_USE_UC_MEMORY", "COMBINED_ENABLE", "TOOLCHAIN_HOME", "PROFILING_MODE"),
    *("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK"),
    *("RANK_TABLE_FILE", "RANKTABLEFILE", "RANK_ID", "DEVICE_ID", "TRITON_CACHE_DIR", "SOC_VERSION", "CUDA_HOME"),
    *("CUDA_VISIBLE_DEVICES", "NPU_VISIBLE_DEVICES", "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"),
))  # fmt: skip
_PREFIXES = (
    *("ASCEND_", "ACL_", "HCCL_", "ATB_", "LCCL_", "LCAL_", "GE_", "VLLM_", "MINDIE_", "MIES_", "MS_", "TRIVET_"),
    "MC_",
)
# Of those families, what unlocks something. Its value is never read.
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH")
_MAX_VALUE = 1 << 16


def read_environment(root: Path) -> dict[str, str] | None:
    """In order of their names; None where /proc/self/environ cannot be read."""
    text = read_text(root, "proc/self/environ")
    if text is None:
        return None
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value[:_MAX_VALUE] for name, equals, value in sorted(pairs) if equals and is_known(name)}


def is_known(name: str) -> bool:
    if _SECRET.search(name):
        return False
    return name in _NAMES or name.startswith(_PREFIXES)
