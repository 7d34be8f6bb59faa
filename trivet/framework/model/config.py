"""What a model is, read from its published configuration. What a family cannot compute is refused, never ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from sys import float_info
from typing import Any, Literal, TypeVar

import numpy as np

from trivet.base.errors import ConfigError

Family = Literal["llama", "qwen2", "qwen3"]
Kept = TypeVar("Kept", list[Any], dict[str, Any])

# What the classes of published implementations default to when the file does not say: old Llama files do not.
_DEFAULT_ROPE_THETA = 10000.0

# Several times the largest published layer count and head size: a damaged file must not make a graph without end.
_MAX_LAYERS = 4096
_MAX_HEAD_DIM = 4096


@dataclass(frozen=True)
class RopeScaling:
    """Rotary frequencies stretched beyond the context a model was trained on, as Llama 3.1 does it."""

    kind: Literal["llama3"]
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int  # positions before stretching


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and choices from which a family builds its graph."""

    architecture: str  # the published class name, such as LlamaForCausalLM
    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_context: int  # positions
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_qk_norm: bool


@dataclass(frozen=True)
class Architecture:
    """A published architecture: the family that computes it and what its configuration file leaves unsaid."""

    family: Family
    has_qkv_bias: bool
    has_qk_norm: bool


ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture("llama", has_qkv_bias=False, has_qk_norm=False),
    "Qwen2ForCausalLM": Architecture("qwen2", has_qkv_bias=True, has_qk_norm=False),
    "Qwen3ForCausalLM": Architecture("qwen3", has_qkv_bias=False, has_qk_norm=True),
}


def parse_config(document: Mapping[str, Any]) -> ModelConfig:
    """A ModelConfig from the contents of a `config.json`.

    Raises ConfigError for a missing key, a wrong type, an unknown architecture, or a feature no family here computes.
    """
    name = _architecture(document)
    architecture = ARCHITECTURES[name]
    _refuse_unsupported(document, architecture)
    hidden_size = _count(document, "hidden_size")
    num_heads = _count(document, "num_attention_heads")
    num_kv_heads = _count(document, "num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"config: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}",
            "each key-value head serves the same number of heads; check both keys against the published file",
        )
    rope = _rope(document)
    return ModelConfig(
        architecture=name,
        family=architecture.family,
        vocab_size=_count(document, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(document, "intermediate_size"),
        num_layers=_count(document, "num_hidden_layers", at_most=_MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(document, hidden_size, num_heads),
        rms_norm_eps=_number(document, "rms_norm_eps"),
        rope_theta=_number(rope, "rope_theta", default=_DEFAULT_ROPE_THETA),
        rope_scaling=_rope_scaling(rope),
        max_context=_count(document, "max_position_embeddings"),
        has_tied_embeddings=_flag(document, "tie_word_embeddings"),
        has_qkv_bias=architecture.has_qkv_bias,
        has_qk_norm=architecture.has_qk_norm,
    )


def published_config(document: Mapping[str, Any], dtype: str, generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The `config.json` of a package, for other engines that open it: as published, but for the format of its numbers.

    A GGUF file's configuration has no token ids; those of its `generation_config` stand in.
    """
    kept = {key: value for key, value in document.items() if key != "dtype"}
    ids = {key: value for key, value in generation_config.items() if key.endswith("_token_id") and key not in kept}
    return {**kept, **ids, "torch_dtype": dtype}  # the older spelling of dtype, which newer releases read as well


def rope_frequencies(config: ModelConfig) -> tuple[float, ...]:
    """The angle per position of each rotated pair, [head_dim / 2], rounded to float32.

    Computed in float32 throughout, as the published implementations do: the models were trained on that rounding.
    """
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies = np.float32(1) / np.power(np.float32(config.rope_theta), exponents)
    scaling = config.rope_scaling
    if scaling is not None:
        wavelengths = np.float32(2 * math.pi) / frequencies
        cycles = np.float32(scaling.original_context) / wavelengths  # in the context it was trained on
        low, high = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
        # 0 where a wavelength is long against that context (stretched), 1 where it is short (kept), a blend between
        kept = np.clip((cycles - low) / (high - low), 0, 1)
        frequencies = (1 - kept) * frequencies / np.float32(scaling.factor) + kept * frequencies
    return tuple(float(frequency) for frequency in frequencies)


_COUNTS = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
           "max_context")  # fmt: skip
_NUMBERS = ("rms_norm_eps", "rope_theta")
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_context")


def to_json(config: ModelConfig) -> dict[str, Any]:
    return asdict(config)


def from_json(document: Mapping[str, Any]) -> ModelConfig:
    """The inverse of `to_json`. Raises ConfigError for a number that is none, KeyError or TypeError for another key."""
    scaling = document["rope_scaling"]
    for key in _COUNTS:
        _count(document, key)
    for key in _NUMBERS:
        _number(document, key)
    for key in () if scaling is None else _SCALING:
        _number(scaling, key)
    return ModelConfig(**{**document, "rope_scaling": None if scaling is None else RopeScaling(**scaling)})


def _architecture(document: Mapping[str, Any]) -> str:
    known = ", ".join(ARCHITECTURES)
    names = document.get("architectures")
    if not isinstance(names, list) or not names:
        raise ConfigError("config: architectures is missing", f"name one of the known architectures: {known}")
    name = names[0]
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ConfigError(f"config: architecture {name!r} is not known", f"the known architectures are: {known}")
    return name


def _refuse_unsupported(document: Mapping[str, Any], architecture: Architecture) -> None:
    activation = document.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"config: hidden_act is {activation!r}, {architecture.family} here computes silu only")
    # Qwen2's biases are fixed by its class and its published code reads neither key.
    biases = ("attention_bias", "mlp_bias") if not architecture.has_qkv_bias else ()
    for key in biases:
        if _flag(document, key):
            raise ConfigError(f"config: {key} is true, {architecture.family} here has no biases in its linear layers")
    layer_types = _kept_as(list, document, "layer_types")
    if _flag(document, "use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise ConfigError(
            "config: the model uses sliding-window attention, full attention is what is computed here",
            "if the checkpoint allows full attention, set use_sliding_window to false in config.json",
        )
    if document.get("quantization_config") is not None:
        method = _kept_as(dict, document, "quantization_config").get("quant_method", "unnamed")
        raise ConfigError(
            f"config: the checkpoint is quantised ({method}), float32, bfloat16 or float16 weights were wanted",
            "use the unquantised checkpoint, or a GGUF file of the model",
        )


def _head_dim(document: Mapping[str, Any], hidden_size: int, num_heads: int) -> int:
    if document.get("head_dim") is None and hidden_size % num_heads:
        raise ConfigError(
            f"config: hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}",
            "give head_dim in config.json where it is not their quotient",
        )
    head_dim = _count(document, "head_dim", default=hidden_size // num_heads, at_most=_MAX_HEAD_DIM)
    if head_dim % 2:
        raise ConfigError(f"config: head_dim {head_dim} is odd, rotary positions turn pairs of it")
    return head_dim


def _rope(document: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary settings of both published spellings in the newer one, `rope_parameters`."""
    parameters = _kept_as(dict, document, "rope_parameters")
    if document.get("rope_parameters") is None:
        parameters = {"rope_theta": document.get("rope_theta"), **_kept_as(dict, document, "rope_scaling")}
    if parameters.get("partial_rotary_factor", document.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise ConfigError("config: partial_rotary_factor is below 1, whole heads are rotated here")
    return parameters


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(f"config: rope_type {kind!r} is not known", "the known kinds are: default, llama3")
    scaling = RopeScaling(
        kind="llama3",
        factor=_number(rope, "factor"),
        low_freq_factor=_number(rope, "low_freq_factor"),
        high_freq_factor=_number(rope, "high_freq_factor"),
        original_context=_count(rope, "original_max_position_embeddings"),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ConfigError("config: high_freq_factor is not above low_freq_factor, llama3 scaling blends between them")
    return scaling


def _count(document: Mapping[str, Any], key: str, default: int | None = None, at_most: int = 2**31 - 1) -> int:
    value = _value(document, key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"config: {key} is {value!r}, a whole number above 0 was wanted")
    if value > at_most:
        raise ConfigError(
            f"config: {key} is {value}, at most {at_most} makes sense", "the file is damaged: copy it again"
        )
    return value


def _number(document: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = _value(document, key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= float_info.max:
        raise ConfigError(f"config: {key} is {value!r}, a number above 0 was wanted")
    return float(value)


def _flag(document: Mapping[str, Any], key: str) -> bool:
    value = _value(document, key, default=False)
    if not isinstance(value, bool):
        raise ConfigError(f"config: {key} is {value!r}, true or false was wanted")
    return value


def _kept_as(kind: type[Kept], document: Mapping[str, Any], key: str) -> Kept:
    """What is under `key`, empty where nothing is."""
    value = document.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ConfigError(f"config: {key} is {value!r:.80}, a {kind.__name__} was wanted")
    return value


def _value(document: Mapping[str, Any], key: str, default: Any) -> Any:
    value = document.get(key)
    if value is None:
        value = default
    if value is None:
        raise ConfigError(f"config: {key} is missing", "take config.json from the checkpoint's publisher unchanged")
    return value
