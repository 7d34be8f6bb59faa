"""Every operator's CPU implementation against its reference, on every kernel target this machine can run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trivet.operators  # noqa: F401  registers the contracts
from trivet._native import Team, targets
from trivet.base.dtypes import Array, cast, row_bytes
from trivet.operators.contract import IMPLEMENTATIONS, OPERATORS, Operator, Sample
from trivet.operators.kv_layout import pack_kv, unpack_kv
from trivet.operators.native_sample import on_cpu, run_sample
from trivet.operators.panels import pack_panels, panels_shape, unpack_panels
from trivet.operators.verify import memory_bound_first, reference_outputs, verify

ON_CPU = sorted(name for name, operator in OPERATORS.items() if not operator.is_view)


@pytest.fixture(scope="module")
def team() -> Team:
    return Team([None, None])


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("name", ON_CPU)
def test_an_implementation_agrees_with_its_reference_and_stays_inside_its_buffers(
    name: str, target: str, team: Team
) -> None:
    verdict = verify(OPERATORS[name], on_cpu(team, target))

    assert verdict.failure is None
    assert verdict.num_samples > 0


@pytest.mark.parametrize("name", ON_CPU)
def test_every_target_and_every_team_gives_the_same_bits(name: str, team: Team) -> None:
    alone = Team([None])
    for sample in OPERATORS[name].samples(np.random.default_rng(5)):
        wanted = [array.tobytes() for array in run_sample(OPERATORS[name], sample, alone, "scalar")]
        for target in targets():
            made = run_sample(OPERATORS[name], sample, team, target)
            assert wanted == [array.tobytes() for array in made], (target, sample.call)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_the_reference_makes_the_shapes_the_contract_infers(name: str) -> None:
    operator = OPERATORS[name]
    for sample in operator.samples(np.random.default_rng(1)):
        specs = operator.output_specs(sample.call.inputs, sample.call.attributes)
        shapes = [tuple(axis if isinstance(axis, int) else sample.sizes[axis] for axis in spec.axes) for spec in specs]

        assert shapes == [output.shape for output in reference_outputs(operator, sample)]


def test_every_operator_but_the_views_has_an_implementation_on_the_cpu() -> None:
    assert sorted(name for name, device in IMPLEMENTATIONS if device == "cpu") == ON_CPU


def test_operators_that_only_move_bytes_are_verified_before_those_that_multiply() -> None:
    order = memory_bound_first(OPERATORS)

    assert order.index("take_rows") < order.index("rms_norm") < order.index("linear")


def test_a_wrong_kernel_is_found(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    implementation = IMPLEMENTATIONS["rms_norm", "cpu"][0]
    wrong = implementation.__class__(
        "rms_norm", "cpu", "planted", implementation.refuse,
        lambda call, sizes: implementation.lower(
            call.__class__(call.operator, call.inputs, call.outputs, {"epsilon": 0.5}), sizes),
    )  # fmt: skip
    monkeypatch.setitem(IMPLEMENTATIONS, ("rms_norm", "cpu"), [wrong])

    assert not verify(OPERATORS["rms_norm"], on_cpu(team)).passed


ROW_WISE = ("add", "add_rms_norm", "attention", "linear", "rms_norm", "rope", "silu_mul")


@pytest.mark.parametrize("name", ROW_WISE)
def test_a_row_of_nan_spoils_itself_and_no_other(name: str, team: Team) -> None:
    operator = OPERATORS[name]
    for sample in operator.samples(np.random.default_rng(2)):
        last = sample.sizes["tokens"] - 1
        spoilt = replace(sample, inputs=with_row(operator, sample, last, np.nan))
        wanted, made = run_sample(operator, sample, team), run_sample(operator, spoilt, team)
        for clean, got in zip(wanted, made, strict=True):
            assert clean[:last].tobytes() == got[:last].tobytes()
            assert np.isnan(got[last]).any()


@pytest.mark.parametrize("value", [0.0, 1e-41, -1e-41], ids=["zeros", "denormal", "negative denormal"])
@pytest.mark.parametrize("name", ROW_WISE)
def test_rows_at_the_edge_of_the_format_agree_with_the_reference(name: str, value: float, team: Team) -> None:
    operator = OPERATORS[name]
    for sample in operator.samples(np.random.default_rng(3)):
        edge = replace(sample, inputs=with_row(operator, sample, slice(None), value))
        for want, got in zip(reference_outputs(operator, edge), run_sample(operator, edge, team), strict=True):
            assert (np.abs(got - want) <= operator.tolerance.allows(want, "float32")).all()


def with_row(operator: Operator, sample: Sample, row: int | slice, value: float) -> tuple[Array | None, ...]:
    """The sample's inputs with one row, or all rows, of its activations set to a value; weights as they are."""
    changed = []
    for argument, array in zip(operator.inputs, sample.inputs, strict=True):
        if array is not None and argument.axes[0] == "tokens" and array.dtype == np.float32 and len(argument.axes) == 2:
            array = array.copy()
            array[row] = value
        changed.append(array)
    return tuple(changed)


@given(outputs=st.integers(1, 100), inputs=st.integers(1, 40), is_half=st.booleans(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_packing_panels_is_undone_by_unpacking(outputs: int, inputs: int, is_half: bool, seed: int) -> None:
    matrix = np.random.default_rng(seed).integers(0, 2**16, (outputs, inputs)).astype(np.uint16)
    stored = matrix if is_half else cast(matrix, "bfloat16", "float32")

    assert stored.tobytes() == unpack_panels(pack_panels(stored), outputs).tobytes()


@given(outputs=st.integers(1, 70), inputs=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_packing_panels_of_int8_is_undone_by_unpacking_and_takes_no_more_than_rows(
    outputs: int, inputs: int, seed: int
) -> None:
    values = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)
    stored = cast(values, "float32", "int8")
    panels = pack_panels(stored)

    assert (-(-outputs // 32), 32 * row_bytes(inputs, "int8")) == panels.shape == panels_shape(outputs, inputs, "int8")
    assert stored.tobytes() == unpack_panels(panels, outputs).tobytes()


@given(slots=st.integers(1, 3), blocks=st.integers(1, 3), heads=st.integers(1, 3), head_dim=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_packing_a_cache_is_undone_by_unpacking(slots: int, blocks: int, heads: int, head_dim: int) -> None:
    logical = np.arange(slots * blocks * 16 * 2 * heads * head_dim, dtype=np.float32)
    logical = logical.reshape(slots, blocks * 16, 2, heads, head_dim)

    assert np.array_equal(logical, unpack_kv(pack_kv(logical), blocks * 16, heads, head_dim))
