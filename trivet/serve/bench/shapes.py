"""The shapes of published models, for what is reckoned of them without their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 131072,
    "hidden_act": "silu",
}  # fmt: skip

# As in the published config.json of Qwen2.5: a token's keys and values are 12, 56 and 192 KiB.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen2.5-0.5b": {
        "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True, **_QWEN,
    },
    "qwen2.5-7b": {
        "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False, **_QWEN,
    },
    "qwen2.5-14b": {
        "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48,
        "num_attention_heads": 40, "num_key_value_heads": 8, "tie_word_embeddings": False, **_QWEN,
    },
}  # fmt: skip
