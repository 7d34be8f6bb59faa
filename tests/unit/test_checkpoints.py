import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_model import TINY, write_folder
from small_model import safetensors as safetensors_file

from trivet.base.errors import CheckpointError
from trivet.framework.model.checkpoints.digest import source_digest
from trivet.framework.model.checkpoints.readers import open_checkpoint
from trivet.framework.model.checkpoints.safetensors_header import read_header

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((7, 5)).astype(np.float32)


def write_shards(folder, weight_map, shards):
    write_folder(folder, {})
    (folder / "model.safetensors").unlink()
    for name, tensors in shards.items():
        (folder / name).write_bytes(safetensors_file(tensors))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_folder_lists_its_tensors_under_their_published_names(family):
    checkpoint = open_checkpoint(TINY / family)
    entry = checkpoint.tensors["model.layers.0.self_attn.k_proj.weight"]

    assert ("bfloat16", "BF16") == (entry.dtype, entry.stored)
    assert family == checkpoint.config["model_type"]
    assert 1 == checkpoint.tokenizer.generation_config["eos_token_id"]
    assert "add_generation_prompt" in checkpoint.tokenizer.chat_template
    assert (TINY / family / "model.safetensors").stat().st_size == checkpoint.size_bytes


def test_rows_are_those_another_reader_gives(tmp_path):
    arrays = {"f32": MATRIX, "f16": MATRIX.astype(np.float16), "vector": MATRIX[:, 0].copy()}
    write_folder(tmp_path, {})
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)

    for name, array in arrays.items():
        rows, dtype = checkpoint.read_rows(name, 2, 5)

        assert "float32" == dtype
        np.testing.assert_array_equal(array[2:5].astype(np.float32), rows)


def test_bfloat16_rows_come_as_their_bits(tmp_path):
    bits = np.arange(12, dtype=np.uint16).reshape(4, 3)
    rows, dtype = open_checkpoint(write_folder(tmp_path, {"w": bits})).read_rows("w", 1, 3)

    assert "bfloat16" == dtype
    np.testing.assert_array_equal(bits[1:3], rows)


def test_shards_make_one_checkpoint(tmp_path):
    write_shards(tmp_path, {"x": "a.safetensors", "y": "b.safetensors"},
                 {"a.safetensors": {"x": MATRIX}, "b.safetensors": {"y": MATRIX * 2}})  # fmt: skip
    checkpoint = open_checkpoint(tmp_path)

    assert ["x", "y"] == list(checkpoint.tensors)
    np.testing.assert_array_equal(MATRIX[:2] * 2, checkpoint.read_rows("y", 0, 2)[0])


@pytest.mark.parametrize("shard", ["../a.safetensors", "/etc/passwd", "sub/../../a.safetensors"])
def test_an_index_cannot_name_a_file_outside_the_folder(tmp_path, shard):
    write_shards(tmp_path, {"x": shard}, {})

    with pytest.raises(CheckpointError, match="a file inside the folder was wanted"):
        open_checkpoint(tmp_path)


def test_a_link_cannot_lead_outside_the_folder(tmp_path):
    (tmp_path / "elsewhere").write_bytes(safetensors_file({"x": MATRIX}))
    folder = write_shards(tmp_path / "model", {"x": "a.safetensors"}, {})
    (folder / "a.safetensors").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(CheckpointError, match="outside the checkpoint"):
        open_checkpoint(folder)


def test_a_snapshot_of_the_hub_cache_links_to_its_blobs(tmp_path):
    folder = write_folder(tmp_path / "snapshots" / "0a1b", {"x": MATRIX})
    (tmp_path / "blobs").mkdir()
    (folder / "model.safetensors").rename(tmp_path / "blobs" / "c0ffee")
    (folder / "model.safetensors").symlink_to("../../blobs/c0ffee")

    assert ["x"] == list(open_checkpoint(folder).tensors)


def test_a_missing_shard_is_named(tmp_path):
    write_shards(tmp_path, {"x": "a.safetensors", "y": "b.safetensors"}, {"a.safetensors": {"x": MATRIX}})

    with pytest.raises(CheckpointError, match=r"1 of 2 shards are missing: b\.safetensors"):
        open_checkpoint(tmp_path)


def test_an_index_that_lies_about_a_tensor_is_refused(tmp_path):
    write_shards(tmp_path, {"x": "a.safetensors", "y": "a.safetensors"}, {"a.safetensors": {"x": MATRIX}})

    with pytest.raises(CheckpointError, match=r"says that y is in a\.safetensors, which does not have it"):
        open_checkpoint(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    write_shards(tmp_path, {"x": "a.safetensors", "y": "b.safetensors"},
                 {"a.safetensors": {"x": MATRIX}, "b.safetensors": {"y": MATRIX, "x": MATRIX}})  # fmt: skip

    with pytest.raises(CheckpointError, match=r"tensor x is in a\.safetensors and again in b\.safetensors"):
        open_checkpoint(tmp_path)


def test_a_truncated_file_says_how_much_is_wanted(tmp_path):
    write_folder(tmp_path, {"w": MATRIX})
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-8])

    with pytest.raises(CheckpointError, match=f"is {len(whole) - 8} bytes, its header wants {len(whole)}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "w": 1}', "w is twice"),
        ('{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "bytes 0 to 4, F32.* takes 8"),
        ('{"w": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}', "neither overlap nor leave holes"),
        ('{"w": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}', "shape and data_offsets were wanted"),
        ('{"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}', "its header wants"),
        ('{"w": {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]}}', "unknown dtype 'F31'"),
        ('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},'
         ' "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}', "neither overlap nor leave holes"),
        ('{"w": {"dtype": "F32", "shape": [1, 1, 1, 1, 1, 1, 1, 1, 2], "data_offsets": [0, 8]}}', "were wanted"),
        ("[1, 2]", "not a JSON object"),
        ("{", "not JSON"),
    ],
)  # fmt: skip
def test_a_header_that_lies_is_refused(tmp_path, header, message):
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))

    with pytest.raises(CheckpointError, match=message):
        read_header(file)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: json.dumps({"w": {"dtype": "F32", "shape": [9] * 10**6, "data_offsets": [0, 8]}}), "wanted"),
        (lambda: json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [10**4300 - 9, 10**4300 - 1]}}),
         "wanted"),
        (lambda: "{" + ", ".join(f'"{i}": 0' for i in [*range(10**5), "x", "x"]) + "}", "x is twice"),
    ],
    ids=["axes", "digits", "names"],
)  # fmt: skip
def test_a_header_without_measure_is_refused_at_once(tmp_path, make, message):
    header = make().encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))

    with pytest.raises(CheckpointError, match=message):
        read_header(file)


@given(st.binary(max_size=200), st.integers(0, 300))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_to_a_header_is_more_than_an_error(tmp_path, noise, position):
    whole = safetensors_file({"w": MATRIX, "v": MATRIX})
    file = tmp_path / "model.safetensors"
    file.write_bytes(whole[:position] + noise + whole[position + len(noise) :])

    try:
        tensors = read_header(file)
    except CheckpointError:
        return
    assert file.stat().st_size == max(tensor.offset + tensor.num_bytes for tensor in tensors)


def test_a_format_that_is_not_read_is_an_error_only_when_its_rows_are(tmp_path):
    checkpoint = open_checkpoint(write_folder(tmp_path, {"w": MATRIX, "q": np.zeros((2, 2), np.int8)}))

    assert (None, "I8") == (checkpoint.tensors["q"].dtype, checkpoint.tensors["q"].stored)
    with pytest.raises(CheckpointError, match="tensor q is I8, F32, F16 or BF16 was wanted"):
        checkpoint.read_rows("q", 0, 1)


def test_rows_of_an_absent_tensor_are_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="tensor v is not in the checkpoint"):
        open_checkpoint(write_folder(tmp_path, {"w": MATRIX})).read_rows("v", 0, 1)


def test_the_digest_follows_content_and_not_the_place(tmp_path):
    first = open_checkpoint(write_folder(tmp_path / "a", {"w": MATRIX}))
    first_digest = source_digest(first.path)
    (tmp_path / "a").rename(tmp_path / "b")
    moved = open_checkpoint(tmp_path / "b")
    digest = source_digest(moved.path)
    (tmp_path / "b" / "tokenizer_config.json").write_text('{"add_bos_token": true}')

    assert 32 == len(digest)
    assert first.path != moved.path and digest == first_digest
    assert digest != source_digest(tmp_path / "b")


def test_a_model_without_generation_defaults_takes_them_from_its_config(tmp_path):
    assert {"eos_token_id": 1} == open_checkpoint(write_folder(tmp_path, {})).tokenizer.generation_config


def test_a_chat_template_in_the_tokenizer_config_is_found(tmp_path):
    write_folder(tmp_path, {})
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "bos_token": "<bos>"}))
    files = open_checkpoint(tmp_path).tokenizer

    assert "yes" == files.chat_template
    assert {"bos_token": "<bos>"} == files.tokenizer_config


def test_what_is_not_a_model_says_what_to_give_instead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "model.safetensors").write_bytes(safetensors_file({"w": MATRIX}))
    (tmp_path / "quantised").mkdir()
    (tmp_path / "quantised" / "x.gguf").write_bytes(b"")
    expected = {
        "org/name": "not a local path.*\n.*hf download org/name --local-dir name",
        "/no/such/place": "does not exist",
        "notes.txt": "is not a model",
        "empty": "neither safetensors, PyTorch's .bin nor a GGUF file",
        "one/model.safetensors": "one file of a checkpoint\n.*its folder: one",
        "one": r"config\.json is missing",
        "quantised": r"give the file itself: quantised/x\.gguf",
    }

    for path, message in expected.items():
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)


def test_a_folder_without_tokenizer_json_says_how_to_make_one(tmp_path):
    write_folder(tmp_path, {"w": MATRIX})
    (tmp_path / "tokenizer.json").unlink()

    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing.*\n.*save_pretrained"):
        open_checkpoint(tmp_path)


def test_several_files_without_an_index_are_refused(tmp_path):
    write_folder(tmp_path, {})
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(safetensors_file({}))

    with pytest.raises(CheckpointError, match="2 safetensors files and no model"):
        open_checkpoint(tmp_path)
