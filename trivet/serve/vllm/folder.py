"""Where the files of a model are that vLLM was told to serve: a folder, or what vLLM fetches from its hubs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.model_executor.model_loader import weight_utils

_INDEX = "model.safetensors.index.json"


def folder_of(model_config: Any, load_config: Any) -> Path:
    """The folder of the model's weights. What is not a path here is fetched as `--load-format safetensors` would."""
    model = model_config.model
    if Path(model).exists():
        return Path(model)
    fetched = weight_utils.maybe_download_from_modelscope(model, model_config.revision)
    if fetched is not None:
        return Path(fetched)
    folder = weight_utils.download_weights_from_hf(
        model,
        load_config.download_dir,
        ["*.safetensors"],
        model_config.revision,
        ignore_patterns=load_config.ignore_patterns,
    )
    weight_utils.download_safetensors_index_file_from_hf(
        model, _INDEX, load_config.download_dir, revision=model_config.revision
    )
    return Path(folder)
