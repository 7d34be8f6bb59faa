"""The dense decoder that Llama and Qwen share: pre-norm attention with grouped heads, then a gated MLP.

The families differ in two switches of the configuration: Qwen2 has biases on q, k and v, Qwen3 normalises each head
of q and k before the rotation.
"""

from __future__ import annotations

from trivet.framework.graph.builder import GraphBuilder
from trivet.framework.graph.ir import Graph
from trivet.framework.model.config import ModelConfig, rope_frequencies
from trivet.framework.model.families.names import published_name


def dense_decoder(config: ModelConfig) -> Graph:
    """One step of the model: `tokens` at `positions` in, `logits` of the wanted `rows` out."""
    builder = GraphBuilder(config.family)
    builder.input("tokens", ("tokens",), "int32")
    builder.input("positions", ("tokens",), "int32")
    builder.input("starts", ("sequence_starts",), "int32")
    builder.input("slots", ("sequences", "max_slots"), "int32")
    builder.input("rows", ("rows",), "int32")

    frequencies = builder.constant("rope.frequencies", rope_frequencies(config))
    builder.apply("rope_angles", ("positions", frequencies), "angles", scale=1.0)
    table = _weight(builder, config, "embed.weight", (config.vocab_size, config.hidden_size))
    hidden = builder.apply("embed", ("tokens", table), "layers.0.input")
    for layer in range(config.num_layers):
        hidden = _attention_block(builder, config, layer, hidden)
        hidden = _mlp_block(builder, config, layer, hidden)

    last = builder.apply("take_rows", (hidden, "rows"), "last")
    norm = _weight(builder, config, "norm.weight", (config.hidden_size,))
    normed = builder.apply("rms_norm", (last, norm), "normed", epsilon=config.rms_norm_eps)
    head = table
    if not config.has_tied_embeddings:
        head = _weight(builder, config, "head.weight", (config.vocab_size, config.hidden_size))
    logits = builder.apply("linear", (normed, head, None), "logits")
    return builder.finish((logits,))


def _attention_block(builder: GraphBuilder, config: ModelConfig, layer: int, hidden: str) -> str:
    ours = f"layers.{layer}"
    norm = _weight(builder, config, f"{ours}.input_norm.weight", (config.hidden_size,))
    normed = builder.apply("rms_norm", (hidden, norm), f"{ours}.input_normed", epsilon=config.rms_norm_eps)

    heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    made = {}
    for name, num_heads in heads.items():
        width = num_heads * config.head_dim
        weight = _weight(builder, config, f"{ours}.{name}.weight", (width, config.hidden_size))
        bias = _weight(builder, config, f"{ours}.{name}.bias", (width,)) if config.has_qkv_bias else None
        made[name] = builder.apply("linear", (normed, weight, bias), f"{ours}.{name}")
    for name in ("q", "k"):
        if config.has_qk_norm:
            norm = _weight(builder, config, f"{ours}.{name}_norm.weight", (config.head_dim,))
            output = f"{ours}.{name}_normed"
            made[name] = builder.apply("rms_norm", (made[name], norm), output, epsilon=config.rms_norm_eps)
    for name in ("q", "k"):
        output = f"{ours}.{name}_rotated"
        made[name] = builder.apply("rope", (made[name], "angles"), output, head_dim=config.head_dim)

    cache = builder.stream(f"{ours}.cache", config.num_kv_heads, config.head_dim)
    batch = ("positions", "starts", "slots")
    cache = builder.apply("kv_store", (made["k"], made["v"], cache, *batch), f"{cache}'")
    scale = config.head_dim**-0.5
    mixed = builder.apply("attention", (made["q"], cache, *batch), f"{ours}.mixed", scale=scale)

    shape = (config.hidden_size, config.num_heads * config.head_dim)
    out = _weight(builder, config, f"{ours}.o.weight", shape)
    projected = builder.apply("linear", (mixed, out, None), f"{ours}.o")
    return builder.apply("add", (hidden, projected), f"{ours}.attended")


def _mlp_block(builder: GraphBuilder, config: ModelConfig, layer: int, hidden: str) -> str:
    ours = f"layers.{layer}"
    norm = _weight(builder, config, f"{ours}.mlp_norm.weight", (config.hidden_size,))
    normed = builder.apply("rms_norm", (hidden, norm), f"{ours}.mlp_normed", epsilon=config.rms_norm_eps)

    wide = (config.intermediate_size, config.hidden_size)
    gate_weight = _weight(builder, config, f"{ours}.gate.weight", wide)
    up_weight = _weight(builder, config, f"{ours}.up.weight", wide)
    down_weight = _weight(builder, config, f"{ours}.down.weight", wide[::-1])
    gate = builder.apply("linear", (normed, gate_weight, None), f"{ours}.gate")
    up = builder.apply("linear", (normed, up_weight, None), f"{ours}.up")
    activated = builder.apply("silu_mul", (gate, up), f"{ours}.activated")
    down = builder.apply("linear", (activated, down_weight, None), f"{ours}.down")
    return builder.apply("add", (hidden, down), f"layers.{layer + 1}.input")


def _weight(builder: GraphBuilder, config: ModelConfig, name: str, shape: tuple[int, ...]) -> str:
    return builder.weight(name, published_name(config.family, name), shape)
