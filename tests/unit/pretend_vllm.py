"""What the loader stands on of vLLM 0.32 and of PyTorch, where neither is installed; tests/vllm holds it to vLLM's own.

Its tensors are NumPy's arrays, bfloat16 as uint16.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class BaseModelLoader(ABC):
    def __init__(self, load_config):
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config):
        raise NotImplementedError

    @abstractmethod
    def load_weights(self, model, model_config):
        raise NotImplementedError


LOADERS: dict[str, type[BaseModelLoader]] = {}


def register_model_loader(load_format):
    def register(loader):
        assert issubclass(loader, BaseModelLoader)
        LOADERS[load_format] = loader
        return loader

    return register


def get_model_loader(load_config):
    return LOADERS[load_config.load_format](load_config)


def maybe_download_from_modelscope(
    model, revision=None, download_dir=None, ignore_patterns=None, allow_patterns=None
):  # fmt: skip
    return None


def download_weights_from_hf(
    model_name_or_path, cache_dir, allow_patterns, revision=None, subfolder=None, ignore_patterns=None
):  # fmt: skip
    raise NotImplementedError


def download_safetensors_index_file_from_hf(
    model_name_or_path, index_file, cache_dir, subfolder=None, revision=None
):  # fmt: skip
    raise NotImplementedError


@dataclass
class LoadConfig:
    """The fields that the loader reads."""

    load_format: str = "trivet"
    download_dir: str | None = None
    model_loader_extra_config: Any = field(default_factory=dict)
    ignore_patterns: list[str] | str = field(default_factory=lambda: ["original/**/*"])


@dataclass
class ModelConfig:
    """The fields that the loader reads."""

    model: str
    revision: str | None = None
    quantization: str | None = None


class Model:
    """A model of vLLM: it asks for tensors and says which parameters got one. Here both have the published names."""

    def __init__(self, parameters: list[str]) -> None:
        self._parameters = parameters
        self.got: dict[str, np.ndarray] = {}

    def named_parameters(self):
        return [(name, None) for name in self._parameters]

    def load_weights(self, weights):
        for name, tensor in weights:
            assert name not in self.got, f"{name} came twice"
            self.got[name] = tensor.copy()  # as a parameter would: what was read may go
        return set(self.got)


def modules() -> dict[str, ModuleType]:
    """By name, as in `sys.modules`."""
    loaders, base, utils = (ModuleType(f"vllm.model_executor.model_loader{part}")
                            for part in ("", ".base_loader", ".weight_utils"))  # fmt: skip
    loaders.register_model_loader, loaders.get_model_loader = register_model_loader, get_model_loader
    loaders.weight_utils, base.BaseModelLoader = utils, BaseModelLoader
    for function in (
        maybe_download_from_modelscope,
        download_weights_from_hf,
        download_safetensors_index_file_from_hf,
    ):
        setattr(utils, function.__name__, function)
    torch = ModuleType("torch")
    torch.__version__ = "2.13.0"
    torch.from_numpy = lambda array: array
    torch.distributed = SimpleNamespace(is_initialized=lambda: True, get_world_size=lambda: 1)
    kinds = {"bool": "u1", "bfloat16": "u2", "float8_e4m3fn": "u1"}
    same = ("uint8", "int8", "int32", "int64", "float16", "float32")
    for name, kind in {**kinds, **{each: each for each in same}}.items():
        setattr(torch, name, np.dtype(kind))
    parents = {name: ModuleType(name) for name in ("vllm", "vllm.model_executor")}
    return {**parents, **{module.__name__: module for module in (loaders, base, utils, torch)}}
