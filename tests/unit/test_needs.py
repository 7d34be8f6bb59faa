"""What a host is held against: a model by its own files, and the other hosts of a job by their reports."""

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.errors import ConfigError
from trivet.cli.doctor import doctor
from trivet.driver.model_shape import read_model_shape
from trivet.driver.peers import read_peer

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
CONFIG = {
    "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "num_experts": 128, "quantization_config": {"quant_method": "fp8"},
    "transformers_version": "4.51.0",
}  # fmt: skip


def model(folder: Path, config: object, num_bytes: int = 4000) -> Path:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * num_bytes)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def test_a_model_says_its_shape(tmp_path):
    shape = read_model_shape(model(tmp_path, CONFIG))

    assert ("qwen3_moe", "bfloat16", 48, 32, 4, 128, "fp8", "4.51.0", ()) == (
        shape.model_type, shape.dtype, shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.num_experts,
        shape.quantisation, shape.transformers, shape.cut_shards)  # fmt: skip


def test_a_model_that_also_sees_says_the_shape_of_its_text(tmp_path):
    shape = read_model_shape(model(tmp_path, {"model_type": "qwen3_vl", "text_config": CONFIG}))

    assert ("qwen3_vl", 48) == (shape.model_type, shape.num_layers)


def test_msmodelslim_leaves_a_description_and_that_is_what_counts(tmp_path):
    (tmp_path / "quant_model_description.json").write_text("{}")

    assert "ascend" == read_model_shape(model(tmp_path, CONFIG)).quantisation


@pytest.mark.parametrize(
    ("num_bytes", "cut"), [(3999, ("model.safetensors",)), (4000, ()), (0, ("model.safetensors",))]
)
def test_a_file_that_ends_before_its_last_tensor_is_cut(tmp_path, num_bytes, cut):
    assert cut == read_model_shape(model(tmp_path, CONFIG, num_bytes)).cut_shards


@given(st.text(max_size=100) | st.dictionaries(st.sampled_from(sorted(CONFIG)), st.none() | st.text() | st.integers()))
def test_a_configuration_that_says_anything_gives_a_shape_or_none(tmp_path_factory, config):
    folder = model(tmp_path_factory.mktemp("model"), config)
    shape = read_model_shape(folder)

    assert shape is None or shape.num_layers is None or shape.num_layers > 0


def test_what_a_report_does_not_know_is_held_against_nobody(tmp_path):
    arguments = ["--root", str(HOSTS / "kunpeng-910b"), "--json"]
    report = json.loads(CliRunner().invoke(doctor, arguments).stdout)
    (tmp_path / "same.json").write_text(json.dumps(report))

    assert {} == read_peer(tmp_path / "same.json").versions  # of a tree with no stack nothing is known


@pytest.mark.parametrize("text", ["", "{}", "[]", "not JSON", '{"facts": 1}'])
def test_what_is_no_report_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)

    with pytest.raises(ConfigError, match="is no report of a host"):
        read_peer(tmp_path / "x.json")
