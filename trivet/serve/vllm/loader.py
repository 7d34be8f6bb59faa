"""vLLM's interface of a model loader. What is behind it is imported by whoever asks for it.

Every process of vLLM imports this module, and few load a model by it.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.model_loader.base_loader import BaseModelLoader


class TrivetModelLoader(BaseModelLoader):
    """A checkpoint's tensors, or a package's, into the parameters of a model that vLLM has made.

    Raises ConfigError for options that there are not.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        from trivet.serve.vllm.options import parse_options

        self._options = parse_options(load_config.model_loader_extra_config)

    def download_model(self, model_config: Any) -> None:
        """Fetch a model that is named as on a hub, by vLLM's own means."""
        from trivet.serve.vllm.folder import folder_of

        folder_of(model_config, self.load_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Give the model every tensor; raises as `load_into` does."""
        from trivet.serve.vllm.folder import folder_of
        from trivet.serve.vllm.weights import load_into

        load_into(model, model_config, folder_of(model_config, self.load_config), self._options)
