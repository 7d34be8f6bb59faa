"""Checkpoints in one GGUF file, as llama.cpp writes them, under the names and in the row order of the original.

Facts of that format (names, the order of llama's query and key rows, what the metadata leaves out) are from
llama.cpp's convert_hf_to_gguf.py and gguf-py's tensor_mapping.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from trivet.base.dtypes import Array, DType
from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.checkpoint import Checkpoint, TensorEntry, read_bytes
from trivet.framework.model.checkpoints.gguf_header import GgufTensor, read_gguf_header
from trivet.framework.model.checkpoints.gguf_tokenizer import read_gguf_tokenizer
from trivet.framework.model.config import parse_config, rope_frequencies

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# Models that tie the head to the embedding, by architecture and hidden size. A quantised file may hold the matrix
# twice, in two formats, and its metadata does not say that the two are one.
_TIED = {("qwen2", 896), ("qwen2", 1536), ("qwen3", 1024), ("qwen3", 2048), ("qwen3", 2560)}

# Rotary factors are kept as a tensor and not as the numbers they come from; every Llama from 3.1 has these.
_ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3_SCALING = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192


@dataclass(frozen=True)
class _Rows:
    """A tensor, and the height of the heads whose two halves of rows llama.cpp has interleaved (None: it has not)."""

    tensor: GgufTensor
    head_dim: int | None


def read_gguf(path: Path) -> Checkpoint:
    """The checkpoint in a GGUF file, tokenizer and chat template included.

    Raises CheckpointError for another architecture, a truncated file, metadata or a tokenizer that is not known.
    """
    metadata, tensors = read_gguf_header(path)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        raise CheckpointError(
            f"{path}: architecture {architecture!r} is not known",
            f"the known architectures are: {', '.join(_ARCHITECTURES)}",
        )
    if metadata.get(f"{architecture}.expert_count"):
        raise CheckpointError(f"{path}: {architecture} with experts, a dense model was wanted")
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{path}: tensor token_embd.weight is missing")
    config = _config(path, architecture, metadata, tensors)
    named = _named_rows(path, config, tensors)

    def read_rows(name: str, start: int, stop: int) -> tuple[Array, DType]:
        if name not in named:
            raise CheckpointError(f"{path}: tensor {name} is not in the checkpoint")
        return _read_rows(path, named[name], start, stop)

    return Checkpoint(
        path=path,
        config=config,
        tokenizer=read_gguf_tokenizer(path, metadata),
        tensors={name: _entry(name, rows.tensor) for name, rows in named.items()},
        files=(path,),
        read_rows=read_rows,
    )


def _config(
    path: Path, architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, GgufTensor]
) -> dict[str, Any]:
    def number(key: str, default: float | None = None) -> Any:
        found = metadata.get(f"{architecture}.{key}", default)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < inf:
            raise CheckpointError(f"{path}: metadata {architecture}.{key} is {found!r:.80}, above 0 was wanted")
        return found

    hidden_size, num_heads = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", hidden_size // num_heads)
    # The file has the epsilon in float32: three digits give the number that was meant.
    epsilon = float(f"{number('attention.layer_norm_rms_epsilon'):.3g}")
    config = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": number("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": epsilon,
        "rope_theta": number("rope.freq_base", 10000.0),
        "rope_scaling": None,
        "partial_rotary_factor": number("rope.dimension_count", head_dim) / head_dim,
        "tie_word_embeddings": "output.weight" not in tensors or (architecture, hidden_size) in _TIED,
    }
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        config["rope_scaling"] = {"rope_type": scaling}
    if _ROPE_FACTORS in tensors:
        context = number("rope.scaling.original_context_length", _LLAMA3_CONTEXT)
        config["rope_scaling"] = _llama3_scaling(path, config, tensors[_ROPE_FACTORS], context)
    return config


def _llama3_scaling(path: Path, config: dict[str, Any], tensor: GgufTensor, context: int) -> dict[str, Any]:
    """The scaling whose factors the file has, proved by computing them from it."""
    factors, _ = _read_rows(path, _Rows(tensor, None), 0, tensor.shape[0])
    scaling = {**_LLAMA3_SCALING, "factor": float(factors.max()), "original_max_position_embeddings": context}
    plain = np.array(rope_frequencies(parse_config({**config, "rope_scaling": None})))
    scaled = rope_frequencies(parse_config({**config, "rope_scaling": scaling}))
    if plain.shape != factors.shape or not np.allclose(plain, scaled * factors, rtol=1e-3, atol=0):
        raise CheckpointError(f"{path}: {_ROPE_FACTORS} holds rotary factors that are not those of Llama 3 scaling")
    return scaling


def _named_rows(path: Path, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> dict[str, _Rows]:
    """The tensors under their published names."""
    tensors = {name: tensor for name, tensor in tensors.items() if name != _ROPE_FACTORS}
    if config["tie_word_embeddings"] and "output.weight" in tensors:
        head = tensors.pop("output.weight")
        tensors["token_embd.weight"] = max(head, tensors["token_embd.weight"], key=lambda tensor: tensor.num_bytes)
    interleaved = ("attn_q", "attn_k") if config["model_type"] == "llama" else ()
    rows = {}
    for name, tensor in tensors.items():
        is_interleaved = any(f".{part}." in name for part in interleaved)
        if is_interleaved and tensor.shape[0] % config["head_dim"]:
            raise CheckpointError(f"{path}: tensor {name} has {tensor.shape[0]} rows, whole heads were wanted")
        rows[_published_name(path, name)] = _Rows(tensor, config["head_dim"] if is_interleaved else None)
    return rows


def _published_name(path: Path, name: str) -> str:
    match name.split("."):
        case ["blk", layer, part, kind] if part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
        case [part, kind] if part in _TOP_NAMES:
            return f"{_TOP_NAMES[part]}.{kind}"
    raise CheckpointError(f"{path}: tensor {name} is not one of a dense llama, qwen2 or qwen3 model")


def _entry(name: str, tensor: GgufTensor) -> TensorEntry:
    return TensorEntry(name, _read_as(tensor), tensor.shape, tensor.format)


def _read_as(tensor: GgufTensor) -> DType:
    return "bfloat16" if tensor.format == "BF16" else "float32"


def _read_rows(path: Path, rows: _Rows, start: int, stop: int) -> tuple[Array, DType]:
    if rows.head_dim is None:
        return _read_file_rows(path, rows.tensor, start, stop), _read_as(rows.tensor)
    # Within a head, row i of the first half lies at 2i and row i of the second at 2i + 1: read whole heads and pick.
    height = rows.head_dim
    low, high = start // height * height, -(-stop // height) * height
    block = _read_file_rows(path, rows.tensor, low, high)
    wanted = np.arange(start, stop)
    half, index = np.divmod(wanted % height, height // 2)
    return block[wanted - wanted % height + 2 * index + half - low], _read_as(rows.tensor)


def _read_file_rows(path: Path, tensor: GgufTensor, start: int, stop: int) -> Array:
    """Rows in the order of the file, decoded to float32 (bfloat16 stays as it is)."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    row_bytes, rest = divmod(tensor.num_bytes, tensor.shape[0])
    if rest:
        raise CheckpointError(f"{path}: tensor {tensor.name} is a vector in {tensor.format}, which has no rows to read")
    block = read_bytes(path, tensor.offset + start * row_bytes, (stop - start) * row_bytes).reshape(stop - start, -1)
    shape = (stop - start, *tensor.shape[1:])
    if tensor.format == "BF16":
        return block.view(np.uint16).reshape(shape)
    try:
        return np.asarray(dequantize(block, GGMLQuantizationType[tensor.format]), np.float32).reshape(shape)
    except NotImplementedError:
        raise CheckpointError(
            f"{path}: tensor {tensor.name} is {tensor.format}, which is not decoded here",
            "use a file in F32, F16, BF16, Q8_0 or a K-quant",
        ) from None
