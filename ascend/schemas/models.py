"""Published models at their full width, two layers deep: every node of their graphs as a call for the device."""

from __future__ import annotations

from ascend.schemas.fake import Case
from trivet.framework.graph.passes import optimise, target_for
from trivet.framework.model.config import parse_config
from trivet.framework.model.families import build_graph
from trivet.operators.torch.lengths import StepLengths

CONFIGS = {
    "llama-3-8b": {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
    },
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_attention_heads": 14, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
        "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "head_dim": 128,
    },
}  # fmt: skip
# A prefill of 200 tokens onto 56, three decodes, a prefill of 17.
LENGTHS = StepLengths((200, 201, 202, 203, 220), (256, 1, 300, 128, 17))
SIZES = {
    "tokens": 220, "rows": 5, "sequences": 5, "sequence_starts": 6, "max_slots": 3, "num_slots": 40, "slot_tokens": 128,
}  # fmt: skip


def model_cases(name: str, level: int) -> list[Case]:
    """The nodes of the model's graph after the passes of `level`, in bfloat16, in run order."""
    more = {"max_position_embeddings": 4096, "num_hidden_layers": 2, "eos_token_id": 1}
    graph = optimise(build_graph(parse_config(CONFIGS[name] | more)), target_for("torch", "bfloat16"), level)
    return [Case(graph.call(node), SIZES, LENGTHS) for node in graph.nodes]
