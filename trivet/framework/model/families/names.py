"""What each family's weights are called in published checkpoints, how ranks divide them, and what no graph needs."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from trivet.framework.model.config import Family, ModelConfig

# How tensor-parallel ranks divide a linear's weight: by rows, so that each makes some of the outputs, or by columns,
# so that each takes some of the inputs and the ranks' sums are added. None: every rank has all of it.
Split = Literal["outputs", "inputs"]


@dataclass(frozen=True)
class Published:
    """A weight's published name, without `.weight` or `.bias`; `*` is the number of the layer."""

    tensor: str
    split: Split | None = None


# Megatron's division (https://arxiv.org/abs/1909.08053, section 3): one sum over ranks after attention, one after the
# MLP. The embedding stays whole, so that a head tied to it does too.
DENSE_DECODER: dict[str, Published] = {
    "embed": Published("model.embed_tokens"),
    "layers.*.input_norm": Published("model.layers.*.input_layernorm"),
    "layers.*.q": Published("model.layers.*.self_attn.q_proj", "outputs"),
    "layers.*.k": Published("model.layers.*.self_attn.k_proj", "outputs"),
    "layers.*.v": Published("model.layers.*.self_attn.v_proj", "outputs"),
    "layers.*.q_norm": Published("model.layers.*.self_attn.q_norm"),
    "layers.*.k_norm": Published("model.layers.*.self_attn.k_norm"),
    "layers.*.o": Published("model.layers.*.self_attn.o_proj", "inputs"),
    "layers.*.mlp_norm": Published("model.layers.*.post_attention_layernorm"),
    "layers.*.gate": Published("model.layers.*.mlp.gate_proj", "outputs"),
    "layers.*.up": Published("model.layers.*.mlp.up_proj", "outputs"),
    "layers.*.down": Published("model.layers.*.mlp.down_proj", "inputs"),
    "norm": Published("model.norm"),
    "head": Published("lm_head", "outputs"),
}

NAMES: dict[Family, dict[str, Published]] = {"llama": DENSE_DECODER, "qwen2": DENSE_DECODER, "qwen3": DENSE_DECODER}

# What old checkpoints carry and no graph needs: rotary frequencies follow from the configuration.
UNNEEDED = ("*rotary_emb.inv_freq",)


def published_name(family: Family, weight: str) -> str:
    """`layers.3.q.weight` as `model.layers.3.self_attn.q_proj.weight`."""
    stem, kind = weight.rsplit(".", 1)
    layer = next((part for part in stem.split(".") if part.isdigit()), "")
    row = NAMES[family][stem.replace(f".{layer}.", ".*.", 1)]
    return f"{row.tensor.replace('*', layer)}.{kind}"


def split_of(family: Family, tensor: str) -> Split | None:
    """How ranks divide the weight that is published as `tensor`."""
    stem = tensor.rsplit(".", 1)[0]
    return next(row.split for row in NAMES[family].values() if fnmatchcase(stem, row.tensor))


def is_unneeded(config: ModelConfig, tensor: str) -> bool:
    """Whether leaving the tensor out changes no answer."""
    is_copy = config.has_tied_embeddings and tensor == "lm_head.weight"
    return is_copy or any(fnmatchcase(tensor, pattern) for pattern in UNNEEDED)
