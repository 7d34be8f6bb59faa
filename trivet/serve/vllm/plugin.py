"""What vLLM calls in each of its processes, of whoever has both installed: a load format gets its name, no more.

It refuses to fail: a vLLM that it does not fit must start as if it were not there.
"""

from __future__ import annotations

import logging

_LOG = logging.getLogger("vllm.trivet")  # vLLM's own handlers print what is below `vllm`


def register() -> None:
    """Make `--load-format trivet` known to vLLM. The entry point of the group `vllm.general_plugins`."""
    try:  # here, because the entry point is found where vLLM is absent, too, and what it imports changes with releases
        from vllm.model_executor.model_loader import register_model_loader

        from trivet.serve.vllm.loader import TrivetModelLoader
    except ImportError as error:
        _LOG.warning("--load-format trivet is not there: this vLLM takes no loaders from plugins (%s)", error)
        return
    register_model_loader("trivet")(TrivetModelLoader)
