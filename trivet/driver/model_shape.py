"""What a model's own files say that decides whether NPUs can run it: dtype, heads, experts, quantisation.

None is what the files do not say. Source of the names: config.json as transformers writes it, and
quant_model_description.json as msmodelslim does.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONFIG, _DESCRIPTION = "config.json", "quant_model_description.json"
_MAX_HEADER_BYTES = 100_000_000  # the most that a safetensors header may have
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelShape:
    model_type: str | None = None  # "qwen3_moe"
    dtype: str | None = None  # "bfloat16"
    num_layers: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    is_latent: bool = False  # multi-head latent attention
    num_experts: int | None = None
    quantisation: str | None = None  # "fp8", "awq", "gptq", "compressed-tensors", "ascend"
    transformers: str | None = None  # the version that wrote config.json
    cut_shards: tuple[str, ...] = ()  # shorter than their own headers say


def read_model_shape(model: Path) -> ModelShape | None:
    """None where there is no config.json, as beside a GGUF file, and no safetensors."""
    config = _json(model / _CONFIG) if model.is_dir() else None
    cut = tuple(_cut_shards(model))
    if config is None:
        return ModelShape(cut_shards=cut) if cut else None
    inner = config.get("text_config")  # of a model that also sees
    values: dict[str, Any] = dict(inner) if isinstance(inner, dict) else {}
    values |= {name: value for name, value in config.items() if value is not None}
    quantisation = values.get("quantization_config")
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
    return ModelShape(
        model_type=_text(values.get("model_type")),
        dtype=_text(values.get("dtype")) or _text(values.get("torch_dtype")),
        num_layers=_count(values.get("num_hidden_layers")),
        num_heads=_count(values.get("num_attention_heads")),
        num_kv_heads=_count(values.get("num_key_value_heads")),
        is_latent=_count(values.get("kv_lora_rank")) is not None,
        num_experts=next((count for name in _EXPERTS if (count := _count(values.get(name)))), None),
        quantisation="ascend" if (model / _DESCRIPTION).is_file() else _text(method),
        transformers=_text(values.get("transformers_version")),
        cut_shards=cut,
    )


def _cut_shards(model: Path) -> Iterator[str]:
    files = [model] if model.is_file() else sorted(model.glob("*.safetensors"))
    for file in files:
        if file.suffix == ".safetensors" and _is_cut(file):
            yield file.name


def _is_cut(file: Path) -> bool:
    """A safetensors file begins with the length of its header, which says where each tensor ends."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if not 0 < length <= min(_MAX_HEADER_BYTES, size - 8):
                return True
            header = json.loads(stream.read(length))
        ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
        return bool(8 + length + max(ends, default=0) > size)
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return False  # whoever loads the model says what it is


def _json(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _text(value: object) -> str | None:
    return value.removeprefix("torch.") if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
