"""FP8 checkpoints with block scales are read as the numbers they stand for."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_model import TINY, write_folder

from trivet.base.dtypes import cast
from trivet.base.errors import CheckpointError, ConfigError
from trivet.framework.model.checkpoints.block_scales import dequantised
from trivet.framework.model.checkpoints.checkpoint import Checkpoint, TensorEntry
from trivet.framework.model.checkpoints.folder import read_folder
from trivet.framework.model.checkpoints.readers import SAFETENSORS, open_checkpoint
from trivet.framework.model.checkpoints.stored import _E4M3
from trivet.framework.model.convert import convert

LAYER = TINY.parent / "fp8_layer"
QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def nearest_codes(values):
    """Each number as the byte of e4m3 that comes nearest."""
    codes = np.array([code for code in range(256) if code not in (0x7F, 0xFF)])
    order = np.argsort(_E4M3[codes], kind="stable")
    known = _E4M3[codes][order]
    middle = (known[1:] + known[:-1]) / 2
    return codes[order][np.searchsorted(middle, values)].astype(np.uint8)


@pytest.mark.parametrize(
    ("code", "value"),
    [(0, 0.0), (1, 2**-9), (7, 7 * 2**-9), (8, 2**-6), (0x38, 1.0), (0x39, 1.125), (0x7E, 448.0), (0xFE, -448.0)],
)
def test_a_byte_of_e4m3_stands_for_what_the_specification_says(code, value):
    assert value == _E4M3[code]


def test_e4m3_has_one_nan_of_each_sign_and_no_infinity():
    assert [0x7F, 0xFF] == np.flatnonzero(~np.isfinite(_E4M3)).tolist()
    assert np.isnan(_E4M3[[0x7F, 0xFF]]).all()


@given(st.data(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_any_rows_are_each_byte_times_the_scale_of_its_block(data, num_rows, num_columns, height, width):
    rng = np.random.default_rng(num_rows * 100 + num_columns)
    values = rng.standard_normal((num_rows, num_columns)).astype(np.float32)
    scales = rng.standard_normal((-(-num_rows // height), -(-num_columns // width))).astype(np.float32)
    start = data.draw(st.integers(0, num_rows - 1))
    stop = data.draw(st.integers(start + 1, num_rows))
    arrays = {"w": values, "w_scale_inv": scales, "v": values}
    formats = {"w": "F8_E4M3", "w_scale_inv": "F32", "v": "F32"}
    checkpoint = dequantised(
        Checkpoint(
            Path("x"), {"quantization_config": {**QUANTIZATION, "weight_block_size": [height, width]}}, None,
            {name: TensorEntry(name, "float32", array.shape, formats[name]) for name, array in arrays.items()}, (),
            lambda name, first, last: (arrays[name][first:last], "float32"),
        )
    )  # fmt: skip
    wanted = [[values[i, j] * scales[i // height, j // width] for j in range(num_columns)] for i in range(start, stop)]

    assert ["w", "v"] == list(checkpoint.tensors)
    np.testing.assert_array_equal(np.float32(wanted), checkpoint.read_rows("w", start, stop)[0])
    np.testing.assert_array_equal(values[start:stop], checkpoint.read_rows("v", start, stop)[0])


@pytest.fixture
def layer(tmp_path):
    """The layer as a folder that can be read: it has no tokenizer of its own."""
    for file in LAYER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_bytes((TINY / "llama" / "tokenizer.json").read_bytes())
    return read_folder(tmp_path, SAFETENSORS)


def test_a_layer_of_deepseek_v3_computes_what_was_recorded(layer):
    config = layer.config
    before, after = np.load(LAYER / "ref.npz")["hidden_fp32"]

    def weight(name):
        entry = layer.tensors[f"model.layers.0.{name}.weight"]
        rows, dtype = layer.read_rows(entry.name, 0, entry.shape[0])
        return cast(rows, dtype, "float32").astype(np.float64)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight(name)

    def linear(x, name):
        return x @ weight(name).T

    num_tokens, num_heads, rotated = len(before), config["num_attention_heads"], config["qk_rope_head_dim"]
    plain, value_dim, rank = config["qk_nope_head_dim"], config["v_head_dim"], config["kv_lora_rank"]
    frequencies, attention_scale = yarn(config["rope_parameters"], rotated)
    turns = np.exp(1j * np.arange(num_tokens)[:, None] * frequencies)

    def rope(x):  # [tokens, …, rotated]: neighbours are the two parts of a complex number
        pairs = x[..., 0::2] + 1j * x[..., 1::2]
        pairs = pairs * turns.reshape(num_tokens, *[1] * (x.ndim - 2), -1)
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    x = norm(before.astype(np.float64), "input_layernorm")
    query = linear(norm(linear(x, "self_attn.q_a_proj"), "self_attn.q_a_layernorm"), "self_attn.q_b_proj")
    query = query.reshape(num_tokens, num_heads, plain + rotated)
    latent = linear(x, "self_attn.kv_a_proj_with_mqa")
    key_rotated = rope(latent[:, rank:])
    pair = linear(norm(latent[:, :rank], "self_attn.kv_a_layernorm"), "self_attn.kv_b_proj")
    pair = pair.reshape(num_tokens, num_heads, plain + value_dim)
    scores = np.einsum("qhd,khd->hqk", query[..., :plain], pair[..., :plain])
    scores += np.einsum("qhd,kd->hqk", rope(query[..., plain:]), key_rotated)
    scores = scores * (plain + rotated) ** -0.5 * attention_scale
    scores[:, np.triu(np.ones((num_tokens, num_tokens), bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    mixed = np.einsum("hqk,khd->qhd", shares, pair[..., plain:]).reshape(num_tokens, -1)
    attended = before + linear(mixed, "self_attn.o_proj")
    x = norm(attended, "post_attention_layernorm")
    gate = linear(x, "mlp.gate_proj")
    computed = attended + linear(gate / (1 + np.exp(-gate)) * linear(x, "mlp.up_proj"), "mlp.down_proj")

    np.testing.assert_allclose(after, computed, rtol=0, atol=2e-5 * np.abs(after).max())


def yarn(rope, width):
    """YaRN's frequencies and factor on attention scores (https://arxiv.org/abs/2309.00071, sections 3.2 and 3.4)."""
    plain = 1 / rope["rope_theta"] ** (np.arange(0, width, 2) / width)

    def pair_of(turns):  # which pair turns so often within the context the model was trained on
        context = rope["original_max_position_embeddings"]
        return width * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    low, high = max(math.floor(pair_of(rope["beta_fast"])), 0), min(math.ceil(pair_of(rope["beta_slow"])), width - 1)
    stretched = np.clip((np.arange(width // 2) - low) / max(high - low, 1e-3), 0, 1)
    scale = (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1) ** 2
    return plain / rope["factor"] * stretched + plain * (1 - stretched), scale


def test_a_checkpoint_in_fp8_gives_the_package_of_its_numbers(tmp_path):
    source, config = open_checkpoint(TINY / "qwen3"), json.loads((TINY / "qwen3" / "config.json").read_text())
    plain, quantised, stored = {}, {}, {}
    for name, entry in source.tensors.items():
        rows, dtype = source.read_rows(name, 0, entry.shape[0])
        if "_proj" not in name:
            plain[name] = quantised[name] = rows
            continue
        values = cast(rows, dtype, "float32")
        grid = tuple(-(-size // 128) for size in values.shape)
        padded = np.zeros((grid[0] * 128, grid[1] * 128), np.float32)
        padded[: values.shape[0], : values.shape[1]] = np.abs(values)
        scales = padded.reshape(grid[0], 128, grid[1], 128).max((1, 3)) / np.float32(448)
        each = np.repeat(np.repeat(scales, 128, 0), 128, 1)[: values.shape[0], : values.shape[1]]
        codes = nearest_codes(values / each)
        quantised |= {name: codes, f"{name}_scale_inv": scales}
        plain[name] = _E4M3[codes] * each
        stored[name] = codes
    write_folder(tmp_path / "plain", plain, config)
    write_folder(tmp_path / "fp8", quantised, {**config, "quantization_config": QUANTIZATION})
    wanted = convert(tmp_path / "plain", tmp_path / "wanted").package
    found = convert(tmp_path / "fp8", tmp_path / "found").package

    assert len(stored) == 7 * found.config.num_layers
    for name, array in wanted.weights.items():
        np.testing.assert_array_equal(array, found.weights[name])


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (None, "with none for a scale"),
        (np.ones((1, 1), np.float32), r"F8_E4M3 \[130, 64\] with F32 \[1, 1\] for a scale, F32 \[2, 1\] was wanted"),
        (np.ones((2, 1), np.int32), "with I32"),
    ],
)
def test_a_matrix_without_its_scale_is_refused(tmp_path, scale, message):
    tensors = {"w": np.zeros((130, 64), np.uint8)} | ({} if scale is None else {"w_scale_inv": scale})
    folder = write_folder(tmp_path, tensors, {"quantization_config": QUANTIZATION})

    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_fp8_of_another_kind_is_refused_by_its_configuration(tmp_path):
    config = json.loads((TINY / "qwen3" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "static"}
    write_folder(tmp_path / "model", {"w": np.zeros((4, 4), np.uint8)}, config)

    with pytest.raises(ConfigError, match=r"the checkpoint is quantised \(fp8\)"):
        convert(tmp_path / "model", tmp_path / "package")
