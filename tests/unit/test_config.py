import json
import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import LLAMA_CONFIG, TINY

from trivet.base.errors import ConfigError
from trivet.framework.model.config import RopeScaling, from_json, parse_config, rope_frequencies, to_json

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def changed(**keys):
    return {**LLAMA_CONFIG, **keys}


def test_the_published_files_of_each_family_are_understood():
    configs = {family: parse_config(json.loads((TINY / family / "config.json").read_text()))
               for family in ("llama", "qwen2", "qwen3")}  # fmt: skip

    assert ["llama", "qwen2", "qwen3"] == [config.family for config in configs.values()]
    assert [False, True, False] == [config.has_qkv_bias for config in configs.values()]
    assert [False, False, True] == [config.has_qk_norm for config in configs.values()]
    assert [False, True, True] == [config.has_tied_embeddings for config in configs.values()]
    assert [16, 16, 32] == [config.head_dim for config in configs.values()]
    assert RopeScaling("llama3", 8.0, 1.0, 4.0, 32) == configs["llama"].rope_scaling


def test_both_spellings_of_rope_settings_mean_the_same():
    older = parse_config(changed(rope_theta=500000.0, rope_scaling={**LLAMA3, "type": LLAMA3["rope_type"]}))
    newer = parse_config(changed(rope_parameters={"rope_theta": 500000.0, **LLAMA3}))

    assert 500000.0 == newer.rope_theta
    assert older == newer


def test_what_old_files_leave_out_has_its_published_default():
    document = changed()
    del document["num_key_value_heads"]
    config = parse_config(document)

    assert (16, 4, 10000.0, None) == (config.head_dim, config.num_kv_heads, config.rope_theta, config.rope_scaling)


def test_json_round_trips():
    config = parse_config(changed(rope_parameters={"rope_theta": 500000.0, **LLAMA3}))

    assert config == from_json(json.loads(json.dumps(to_json(config))))


@pytest.mark.parametrize(
    "key",
    ["architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
     "rms_norm_eps", "max_position_embeddings"],
)  # fmt: skip
def test_a_missing_key_is_named(key):
    document = changed()
    del document[key]

    with pytest.raises(ConfigError, match=f"{key} is missing"):
        parse_config(document)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"architectures": ["FalconForCausalLM"]}, "'FalconForCausalLM' is not known\n.*LlamaForCausalLM, Qwen2"),
        ({"hidden_size": "64"}, "hidden_size is '64', a whole number above 0"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 1 << 31}, "num_hidden_layers is 2147483648, at most 4096"),
        ({"head_dim": 1 << 30}, "head_dim is 1073741824, at most 4096"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1, a number above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', true or false"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, "hidden_size 64 is not a multiple"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is true"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantised \(fp8\)"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is below 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn' is not known\n.*default, llama3"),
        ({"architectures": [["LlamaForCausalLM"]]}, "is not known"),
        ({"layer_types": 3}, "layer_types is 3, a list was wanted"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8', a dict was wanted"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], a dict was wanted"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', a dict was wanted"),
        ({"rope_theta": 10**400}, "rope_theta is 1000.*, a number above 0"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor is not above"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_key(keys, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(changed(**keys))


LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from([1e300, 10**400, "llama3"])
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
    st.sampled_from(["rope_type", "type", "factor", "quant_method"]), inner, max_size=2), max_leaves=4)  # fmt: skip
KEYS = [*LLAMA_CONFIG, "head_dim", "rope_theta", "rope_scaling", "rope_parameters", "layer_types", "hidden_act",
        "quantization_config", "partial_rotary_factor", "use_sliding_window", "tie_word_embeddings"]  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=3))
@settings(max_examples=500)
def test_whatever_stands_there_is_understood_or_refused(keys):
    with suppress(ConfigError):
        config = parse_config(changed(**keys))

        assert config == from_json(to_json(config))


def test_frequencies_fall_from_one_by_equal_ratios():
    frequencies = rope_frequencies(parse_config(changed(rope_theta=10000.0)))

    np.testing.assert_allclose([10000.0 ** (-i / 8) for i in range(8)], frequencies, rtol=1e-6)
    assert list(frequencies) == [float(np.float32(frequency)) for frequency in frequencies]


def test_llama3_scaling_keeps_short_waves_stretches_long_ones_and_blends_between():
    config = parse_config(changed(head_dim=128, rope_parameters={"rope_theta": 500000.0, **LLAMA3}))
    plain = [500000.0 ** (-i / 64) for i in range(64)]
    expected = []
    for frequency in plain:
        wavelength = 2 * math.pi / frequency
        smooth = (8192 / wavelength - 1) / (4 - 1)
        blended = (1 - smooth) * frequency / 8 + smooth * frequency
        expected.append(frequency if wavelength < 8192 / 4 else frequency / 8 if wavelength > 8192 else blended)

    np.testing.assert_allclose(expected, rope_frequencies(config), rtol=2e-6)
