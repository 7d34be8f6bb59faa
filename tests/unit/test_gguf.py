from contextlib import suppress
from unittest.mock import patch

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import TINY, add_tokenizer, finish, gguf_writer

from trivet.base.errors import CheckpointError, ConfigError
from trivet.framework.model.checkpoints import gguf
from trivet.framework.model.checkpoints.gguf_header import read_gguf_header
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.config import parse_config
from trivet.framework.model.tokenizer import Tokenizer

RNG = np.random.default_rng(0)
EMBEDDING = RNG.standard_normal((96, 64)).astype(np.float32)
LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}  # fmt: skip
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def small_gguf(path, tensors, architecture="llama", pre="smollm", **changes):
    writer = gguf_writer(path, architecture, **changes)
    add_tokenizer(writer, pre)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    finish(writer)
    return path


def interleave(rows, num_heads):
    """The order llama.cpp stores query and key rows of llama models in."""
    height = rows.shape[0] // num_heads
    return rows.reshape(num_heads, 2, height // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name):
    part, kind = name.rsplit(".", 1)
    if part in TOP:
        return f"{TOP[part]}.{kind}"
    _, _, layer, part = part.split(".", 3)
    return f"blk.{layer}.{LAYER[part]}.{kind}"


def interleaved_heads(family, name):
    if family != "llama":
        return None
    return 4 if ".q_proj." in name else 2 if ".k_proj." in name else None


def published_as_gguf(family, path):
    """A tiny checkpoint of `family` as llama.cpp would write it, in float32."""
    checkpoint = open_checkpoint(TINY / family)
    config = checkpoint.config
    writer = gguf_writer(path, family, block_count=4, attention__key_length=config.get("head_dim", 16))
    add_tokenizer(writer)
    for name, entry in checkpoint.tensors.items():
        bits, _ = checkpoint.read_rows(name, 0, entry.shape[0])
        rows = (bits.astype(np.uint32) << 16).view(np.float32)
        writer.add_tensor(
            gguf_name(name), interleave(rows, heads) if (heads := interleaved_heads(family, name)) else rows
        )
    finish(writer)
    return checkpoint


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_gguf_gives_the_tensors_of_the_checkpoint_it_was_made_from(tmp_path, family):
    original = published_as_gguf(family, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")

    assert set(original.tensors) == set(checkpoint.tensors)
    for name, entry in original.tensors.items():
        bits, _ = original.read_rows(name, 0, entry.shape[0])
        rows, dtype = checkpoint.read_rows(name, 0, entry.shape[0])

        assert (entry.shape, "float32") == (checkpoint.tensors[name].shape, dtype)
        np.testing.assert_array_equal((bits.astype(np.uint32) << 16).view(np.float32), rows)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_configuration_is_in_the_published_form(tmp_path, family):
    published_as_gguf(family, tmp_path / "m.gguf")
    expected = parse_config(open_checkpoint(TINY / family).config)
    config = parse_config(open_checkpoint(tmp_path / "m.gguf").config)

    assert (expected.architecture, expected.head_dim) == (config.architecture, config.head_dim)
    assert (expected.num_kv_heads, expected.vocab_size) == (config.num_kv_heads, config.vocab_size)
    assert expected.has_tied_embeddings == config.has_tied_embeddings
    assert 1e-5 == config.rms_norm_eps


@pytest.fixture(scope="module")
def interleaved(tmp_path_factory):
    rows = RNG.standard_normal((64, 64)).astype(np.float32)
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    small_gguf(path, {"token_embd.weight": EMBEDDING, "blk.0.attn_q.weight": interleave(rows, 4)})
    return rows, open_checkpoint(path)


@given(start=st.integers(0, 63), count=st.integers(1, 64))
def test_any_range_of_interleaved_rows_is_that_of_the_original(interleaved, start, count):
    rows, checkpoint = interleaved
    stop = min(start + count, 64)
    read, _ = checkpoint.read_rows("model.layers.0.self_attn.q_proj.weight", start, stop)

    np.testing.assert_array_equal(rows[start:stop], read)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16", "BF16"])
def test_rows_of_a_block_format_are_those_the_gguf_package_decodes(tmp_path, name):
    kind = GGMLQuantizationType[name]
    blocks = quants.quantize(EMBEDDING, kind)
    writer = gguf_writer(tmp_path / "m.gguf")
    add_tokenizer(writer)
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=kind)
    finish(writer)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    rows, dtype = checkpoint.read_rows("model.embed_tokens.weight", 31, 66)
    wide = (rows.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else rows

    assert name == checkpoint.tensors["model.embed_tokens.weight"].stored
    np.testing.assert_array_equal(quants.dequantize(blocks, kind)[31:66], wide)


def test_the_header_is_the_one_the_gguf_package_reads(tmp_path):
    path = small_gguf(tmp_path / "m.gguf", {"token_embd.weight": EMBEDDING, "output_norm.weight": EMBEDDING[0]})
    reader = GGUFReader(path)
    metadata, tensors = read_gguf_header(path)

    assert {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")} == metadata
    assert {t.name: (t.data_offset, t.n_bytes) for t in reader.tensors} == {
        t.name: (t.offset, t.num_bytes) for t in tensors.values()
    }


def test_a_matrix_held_twice_is_read_from_the_finer_copy_where_the_model_ties_them(tmp_path):
    writer = gguf_writer(tmp_path / "m.gguf", "qwen2", embedding_length=896, attention__head_count=14)
    add_tokenizer(writer, "qwen2")
    matrix = RNG.standard_normal((96, 896)).astype(np.float32)
    for name, kind in (("token_embd.weight", "Q4_0"), ("output.weight", "Q8_0")):
        number = GGMLQuantizationType[kind]
        writer.add_tensor(name, quants.quantize(matrix, number), raw_dtype=number)
    finish(writer)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")

    assert checkpoint.config["tie_word_embeddings"]
    assert ["model.embed_tokens.weight"] == list(checkpoint.tensors)
    assert "Q8_0" == checkpoint.tensors["model.embed_tokens.weight"].stored


def test_a_head_of_its_own_stays_apart(tmp_path):
    checkpoint = open_checkpoint(
        small_gguf(tmp_path / "m.gguf", {"token_embd.weight": EMBEDDING, "output.weight": EMBEDDING * 2})
    )

    assert not checkpoint.config["tie_word_embeddings"]
    np.testing.assert_array_equal(EMBEDDING * 2, checkpoint.read_rows("lm_head.weight", 0, 96)[0])


def llama3_factors(factor, context):
    """As llama.cpp computes rope_freqs.weight for head_dim 16 and theta 10000."""
    wavelengths = 2 * np.pi * 10000.0 ** (np.arange(8) / 8)
    smooth = np.clip((context / wavelengths - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def test_llama3_scaling_is_found_again_in_its_factors(tmp_path):
    tensors = {"token_embd.weight": EMBEDDING, "rope_freqs.weight": llama3_factors(8, 8192)}
    checkpoint = open_checkpoint(small_gguf(tmp_path / "m.gguf", tensors))

    assert ["model.embed_tokens.weight"] == list(checkpoint.tensors)
    assert 8.0 == parse_config(checkpoint.config).rope_scaling.factor
    assert 8192 == parse_config(checkpoint.config).rope_scaling.original_context


@pytest.mark.parametrize("factors", [np.linspace(1, 8, 8), np.ones((8, 3))])
def test_rotary_factors_of_another_kind_are_refused(tmp_path, factors):
    tensors = {"token_embd.weight": EMBEDDING, "rope_freqs.weight": factors.astype(np.float32)}

    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight holds rotary factors that are not"):
        open_checkpoint(small_gguf(tmp_path / "m.gguf", tensors))


@pytest.mark.parametrize(
    ("pre", "expected"),
    [("smollm", ["1", "2", "3"]), ("qwen2", ["1", "2", "3"]), ("llama-bpe", ["<|im_start|>", "123"])],
)
def test_the_named_pre_tokenizer_splits_digits_as_the_original_does(tmp_path, pre, expected):
    path = small_gguf(tmp_path / "m.gguf", {"token_embd.weight": EMBEDDING}, pre=pre)
    tokenizer = Tokenizer(open_checkpoint(path).tokenizer)

    assert expected == [tokenizer.token_text(i) for i in tokenizer.encode("123", add_special=True)]


def test_words_are_split_before_spaces_and_special_tokens_are_whole(tmp_path):
    path = small_gguf(tmp_path / "m.gguf", {"token_embd.weight": EMBEDDING}, "qwen2", pre="qwen2")
    tokenizer = Tokenizer(open_checkpoint(path).tokenizer)
    ids = tokenizer.encode("a b<|im_end|>", add_special=True)

    assert ["a", " ", "b", "<|im_end|>"] == [tokenizer.token_text(i) for i in ids]
    assert frozenset({0, 2}) == tokenizer.eos_ids
    assert 1 == tokenizer.bos_id


@pytest.mark.parametrize(
    ("architecture", "changes", "tensors", "message"),
    [
        ("gemma3", {}, {}, "architecture 'gemma3' is not known\n.*llama, qwen2, qwen3"),
        ("llama", {"expert_count": 8}, {}, "llama with experts"),
        ("llama", {"attention__head_count": 0}, {}, "attention.head_count is 0"),
        ("llama", {}, {"blk.0.attn_q.weight": EMBEDDING[:40]}, "40 rows, whole heads"),
        ("llama", {}, {"blk.0.attn_sinks.weight": EMBEDDING}, "tensor blk.0.attn_sinks.weight is not one of"),
        ("llama", {}, {"blk.0.attn_rot_embd.weight": EMBEDDING}, "is not one of a dense"),
    ],
)
def test_another_kind_of_model_is_refused_by_name(tmp_path, architecture, changes, tensors, message):
    path = small_gguf(tmp_path / "m.gguf", {"token_embd.weight": EMBEDDING, **tensors}, architecture, **changes)

    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_a_scaling_that_is_not_known_is_refused_when_the_configuration_is_read(tmp_path):
    writer = gguf_writer(tmp_path / "m.gguf")
    add_tokenizer(writer)
    writer.add_string("llama.rope.scaling.type", "yarn")
    writer.add_tensor("token_embd.weight", EMBEDDING)
    finish(writer)

    with pytest.raises(ConfigError, match="'yarn' is not known"):
        parse_config(open_checkpoint(tmp_path / "m.gguf").config)


def test_another_tokenizer_is_refused_with_the_known_ones(tmp_path):
    path = small_gguf(tmp_path / "m.gguf", {"token_embd.weight": EMBEDDING}, pre="tekken")

    with pytest.raises(CheckpointError, match=r"pre-tokenizer 'tekken' is not known\n.*smollm, qwen2, llama-bpe"):
        open_checkpoint(path)


def test_an_integer_tensor_is_an_error_when_it_is_read(tmp_path):
    path = small_gguf(tmp_path / "m.gguf", {"token_embd.weight": np.zeros((96, 64), np.int32)})

    with pytest.raises(CheckpointError, match=r"token_embd\.weight is I32, which is not decoded here"):
        open_checkpoint(path).read_rows("model.embed_tokens.weight", 0, 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return path, small_gguf(path, {"token_embd.weight": EMBEDDING[:8], "output_norm.weight": EMBEDDING[0]}).read_bytes()


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused_wherever_it_ends(whole, share):
    path, content = whole
    path.write_bytes(content[: int(share * len(content))])

    with pytest.raises(CheckpointError):
        open_checkpoint(path)


LEAVES = (
    st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from([2**63, "llama", "gpt2", "none", "a b", "\xe9"])
)


@given(data=st.data())
@settings(max_examples=300)
def test_metadata_of_other_types_are_an_error_or_understood(whole, data):
    path, content = whole
    path.write_bytes(content)
    metadata, tensors = read_gguf_header(path)
    changes = st.dictionaries(st.sampled_from(list(metadata)), LEAVES | st.lists(LEAVES, max_size=3), max_size=3)
    changed = {**metadata, **data.draw(changes)}

    with (
        patch.object(gguf, "read_gguf_header", return_value=(changed, tensors)),
        suppress(CheckpointError, ConfigError),
    ):
        checkpoint = gguf.read_gguf(path)
        parse_config(checkpoint.config)
        Tokenizer(checkpoint.tokenizer)


@given(position=st.integers(0, 6000), noise=st.binary(min_size=1, max_size=12))
@settings(max_examples=300)
def test_no_damage_is_more_than_an_error(whole, position, noise):
    path, content = whole
    path.write_bytes(content[:position] + noise + content[position + len(noise) :])

    try:
        checkpoint = open_checkpoint(path)
        parse_config(checkpoint.config)
        read = [checkpoint.read_rows(name, 0, entry.shape[0])[0] for name, entry in checkpoint.tensors.items()]
    except (CheckpointError, ConfigError):
        return
    assert [entry.shape for entry in checkpoint.tensors.values()] == [rows.shape for rows in read]
