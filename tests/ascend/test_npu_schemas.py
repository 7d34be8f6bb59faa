"""Every call of torch_npu that Trivet makes, against the signatures of each version's wheel. Needs neither."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from ascend.schemas.calls import calls_in, calls_under
from ascend.schemas.dump import FOLDER
from ascend.schemas.signature import Argument, drifting_defaults, parse, problems, read_signatures

SOURCES = Path(__file__).parents[2] / "trivet"
VERSIONS = {path.stem: read_signatures(path) for path in sorted(FOLDER.glob("*.json"))}
CALLS = calls_under(SOURCES)


def test_the_versions_we_claim_are_there() -> None:
    assert ["2.10.0", "2.10.0.post7", "2.13.0", "2.14.0"] == list(VERSIONS)


def test_the_operators_that_are_called_are_found_in_the_source() -> None:
    called = {call.operator for call in CALLS if call.where.startswith("operators/npu/")}

    assert called == {
        "_npu_fused_infer_attention_score_get_max_workspace",
        "npu_add_rms_norm",
        "npu_format_cast",
        "npu_fused_infer_attention_score",
        "npu_fused_infer_attention_score.out",
        "npu_grouped_matmul",
        "npu_moe_gating_top_k",
        "npu_moe_init_routing_v2",
        "npu_moe_token_unpermute",
        "npu_mrope",
        "npu_prefetch",
        "npu_rms_norm",
        "npu_rotary_mul",
        "npu_scatter_pa_kv_cache",
        "npu_swiglu",
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_call_fits_every_version(version: str) -> None:
    assert [] == [problem for call in CALLS for problem in problems(call, VERSIONS[version])]


def test_no_call_leaves_out_an_argument_whose_default_changed_between_versions() -> None:
    left = [
        (call.where, name)
        for call in CALLS
        for name in drifting_defaults(call.operator, VERSIONS)
        if name not in call.given
    ]

    assert [] == left


def test_nothing_calls_the_operators_in_a_way_that_is_not_read() -> None:
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] != "torch_npu", path
            if isinstance(node, ast.Import):
                assert [] == [name for name in node.names if name.name.startswith("torch_npu") and name.asname], path
            if isinstance(node, ast.Attribute):
                assert "torch.ops.npu" not in ast.unparse(node), path


GOOD = "torch_npu.npu_rms_norm(input=x, gamma=w, epsilon=1e-5)"
PLANTED = {
    "torch_npu.npu_rms_norm(input=x, gamma=w, eps=1e-5)": "no argument eps, it takes input, gamma, epsilon",
    "torch_npu.npu_rms_norm(self=x, gamma=w, epsilon=1e-5)": "no argument self",  # the name in the published pages
    "torch_npu.npu_rms_norm(input=x, epsilon=1e-5)": "gamma is required",
    "torch_npu.npu_rms_norm(input=x, gamma=w)": "epsilon is left to its default 1e-06",
    "torch_npu.npu_rms_norm(w, x, 1e-5)": "an argument is not named",
    "torch_npu.npu_rms_norm(**arguments)": "an argument is not named",
    "torch_npu.npu_rms_norm(input=x, gamma=None, epsilon=1e-5)": "gamma is None, it takes Tensor",
    "torch_npu.npu_rms_norm(input=x, gamma=1e-5, epsilon=w)": "gamma is 1e-05, it takes Tensor",
    "torch_npu.npu_rms_norm(input=x, gamma=w, epsilon='1e-5')": "epsilon is '1e-5', it takes float",
    "torch_npu.npu_swiglu(input=x, dim=1.0)": "dim is 1.0, it takes int",
    "torch_npu.npu_swiglu(input=x, dim=-1 if y else None)": "dim is None, it takes int",
    "torch_npu.npu_swiglu(input=x, dim=[1])": "dim is [1], it takes int",
    "torch_npu.npu_prefetch(input=x, dependency=None, max_size=True)": "max_size is True, it takes int",
    "torch_npu.npu_swish(input=x)": "torch_npu has no npu_swish",
    "torch_npu.npu_swiglu.inplace(input=x)": "torch_npu has no npu_swiglu.inplace",
    "def f():\n    return {'input': x, 'axis': 1}\ntorch_npu.npu_swiglu(**f())": "no argument axis",
    "def f():\n    return {'input': x} | y\ntorch_npu.npu_swiglu(**f())": "an argument is not named",
    "A, B = 0, 'TND'\ntorch_npu.npu_swiglu(input=x, dim=B)": "dim is 'TND', it takes int",
    "torch_npu.npu_scatter_pa_kv_cache(key=k, value=v, key_cache=a, value_cache=b, slot_mapping=s)": (
        "cache_mode is left to its default 'PA_NZ'"
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("source", PLANTED)
def test_a_planted_mistake_is_named(source: str, version: str) -> None:
    (call,) = calls_in(source, "planted.py")

    assert PLANTED[source] in " ".join(problems(call, VERSIONS[version]))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_call_that_the_mistakes_were_planted_in_fits(version: str) -> None:
    (call,) = calls_in(GOOD, "planted.py")

    assert [] == problems(call, VERSIONS[version])


@pytest.mark.parametrize("left_out", ["scale", "input_layout", "sparse_mode", "block_size", "num_key_value_heads"])
def test_attention_without_an_argument_whose_default_is_wrong_for_us_is_named(left_out: str) -> None:
    (call,) = [call for call in CALLS if call.operator == "npu_fused_infer_attention_score"]
    given = {name: value for name, value in call.given.items() if name != left_out}
    (problem,) = problems(replace(call, given=given), VERSIONS["2.13.0"])

    assert f"{left_out} is left to its default" in problem


def test_a_wheel_from_before_the_oldest_we_claim_does_not_fit() -> None:
    # torch_npu 2.7.1 to 2.9.0: the cache was always taken to be in the layout that is the default since.
    older = parse(
        "npu_scatter_pa_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor "
        "slot_mapping, *, Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, Tensor? seq_lens=None) -> ()"
    )
    (call,) = [call for call in CALLS if call.operator == older.operator]

    assert "no argument cache_mode" in " ".join(problems(call, {older.operator: older}))


def test_a_default_that_moved_between_versions_is_seen() -> None:
    layouts = dict.fromkeys(VERSIONS, "'BSND'") | {"2.10.0": "'BSH'"}

    assert layouts == drifting_defaults("npu_apply_rotary_pos_emb", VERSIONS)["layout"]


def test_a_signature_is_read_with_its_quotes_brackets_and_defaults() -> None:
    text = "npu_x.out(Tensor(a!) self, int[2] range=[0, 1], *, str mode='a,b', Tensor[]? more=None) -> (Tensor, Tensor)"

    assert parse(text).arguments == (
        Argument("self", "Tensor(a!)", None),
        Argument("range", "int[2]", "[0, 1]"),
        Argument("mode", "str", "'a,b'"),
        Argument("more", "Tensor[]?", "None"),
    )


def test_what_is_not_a_signature_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a signature"):
        parse("npu_x exec with jit compile: %d")
