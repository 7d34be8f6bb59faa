"""What the unit tests take for vLLM has the signatures and the fields of vLLM's own."""

import inspect
from dataclasses import fields

import pytest
from vllm.config import LoadConfig, ModelConfig
from vllm.model_executor import model_loader
from vllm.model_executor.model_loader import base_loader, weight_utils

from tests.unit import pretend_vllm


def parameters(function):
    """Names, kinds and defaults; annotations are vLLM's own affair."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", ["__init__", "download_model", "load_weights"])
def test_a_loader_has_the_methods_that_ours_has(name):
    theirs = getattr(base_loader.BaseModelLoader, name)

    assert parameters(theirs) == parameters(getattr(pretend_vllm.BaseModelLoader, name))


def test_a_loader_must_have_no_other_methods():
    assert base_loader.BaseModelLoader.__abstractmethods__ == pretend_vllm.BaseModelLoader.__abstractmethods__


@pytest.mark.parametrize("function", [
    pretend_vllm.register_model_loader, pretend_vllm.get_model_loader, pretend_vllm.maybe_download_from_modelscope,
    pretend_vllm.download_weights_from_hf, pretend_vllm.download_safetensors_index_file_from_hf,
])  # fmt: skip
def test_the_functions_that_are_called_take_what_they_are_given(function):
    where = model_loader if hasattr(model_loader, function.__name__) else weight_utils

    assert parameters(getattr(where, function.__name__)) == parameters(function)


@pytest.mark.parametrize(
    ("theirs", "ours"), [(LoadConfig, pretend_vllm.LoadConfig), (ModelConfig, pretend_vllm.ModelConfig)]
)
def test_a_configuration_has_the_fields_that_are_read(theirs, ours):
    assert {each.name for each in fields(ours)} <= {each.name for each in fields(theirs)}
