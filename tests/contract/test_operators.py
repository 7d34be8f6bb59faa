"""Every operator's CPU implementation against its reference, on every kernel target this machine can run."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trivet.operators  # noqa: F401  registers the contracts
from trivet._native import Team, targets
from trivet.base.dtypes import Array, DType, cast, item_bytes, row_bytes, storage
from trivet.operators.contract import IMPLEMENTATIONS, OPERATORS, Call, Operator, Sample, resolve
from trivet.operators.kv_layout import pack_kv, unpack_kv
from trivet.operators.native_sample import on_cpu, run_sample
from trivet.operators.panels import pack_panels, panels_shape, unpack_panels
from trivet.operators.samples import ragged, spec
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
            assert (np.abs(got - want) <= operator.tolerance.allows(want, "float32", sample.call)).all()


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

    assert panels_shape(outputs, inputs, "bfloat16" if is_half else "float32") == pack_panels(stored).shape
    assert stored.tobytes() == unpack_panels(pack_panels(stored), outputs, inputs).tobytes()


@given(outputs=st.integers(1, 70), inputs=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_packing_panels_of_int8_is_undone_by_unpacking_and_takes_no_more_than_rows_of_even_width(
    outputs: int, inputs: int, seed: int
) -> None:
    values = np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)
    stored = cast(values, "float32", "int8")
    panels = pack_panels(stored)

    even = inputs + inputs % 2
    assert (-(-outputs // 32), 32 * row_bytes(even, "int8")) == panels.shape == panels_shape(outputs, inputs, "int8")
    assert stored.tobytes() == unpack_panels(panels, outputs, inputs).tobytes()


@given(slots=st.integers(1, 3), blocks=st.integers(1, 3), heads=st.integers(1, 3), half=st.integers(1, 70),
       dtype=st.sampled_from(["float32", "bfloat16", "int8"]))  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_packing_a_cache_is_undone_by_unpacking_and_takes_no_more_bytes(
    slots: int, blocks: int, heads: int, half: int, dtype: DType
) -> None:
    shape = (slots, blocks * 16, 2, heads, row_bytes(2 * half, dtype) // item_bytes(dtype))
    logical = np.arange(prod(shape), dtype=np.uint64).astype(storage(dtype)).reshape(shape)
    packed = pack_kv(logical)

    assert logical.nbytes == packed.nbytes
    assert logical.tobytes() == unpack_kv(packed, blocks * 16, heads, 2 * half).tobytes()


_SPECIAL = [0.0, -0.0, 1e-45, 1e-40, 3e-38, 1e38, 3.4e38, np.inf, -np.inf, np.nan]


@given(half=st.integers(1, 128), exponent=st.integers(-149, 127), seed=st.integers(0, 2**32 - 1),
       special=st.lists(st.tuples(st.integers(0, 255), st.sampled_from(_SPECIAL)), max_size=4))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_every_target_stores_a_head_in_int8_as_the_format_says_whatever_its_numbers(
    half: int, exponent: int, seed: int, special: list[tuple[int, float]]
) -> None:
    head_dim = 2 * half
    with np.errstate(over="ignore"):
        rows = (np.random.default_rng(seed).standard_normal((2, head_dim)) * 2.0**exponent).astype(np.float32)
    for place, value in special:
        rows.reshape(-1)[place % rows.size] = value
    batch = ragged(np.random.default_rng(seed), 16, [(5, 1)])
    cache = spec(("num_slots", "slot_tokens", 2, 1, head_dim), "int8", "kv")
    row = spec(("tokens", head_dim), "float32")
    integers = [spec(axes, "int32") for axes in (("tokens",), ("sequence_starts",), ("sequences", "max_slots"))]
    call = Call("kv_store", (row, row, cache, *integers), (cache,))
    before = np.zeros((batch.num_slots, 16, 2, 1, row_bytes(head_dim, "int8")), np.uint8)
    sizes = {"tokens": 1, "sequences": 1, "slot_tokens": 16}
    sample = Sample(call, (rows[:1], rows[1:], before, batch.positions, batch.starts, batch.slots), sizes)
    wanted = before.copy()
    wanted[batch.slots[0, 0], 5, :, 0] = cast(rows, "float32", "int8")
    for target in targets():
        (made,) = run_sample(OPERATORS["kv_store"], sample, Team([None]), target)

        assert wanted.tobytes() == made.tobytes(), target


@pytest.mark.parametrize("target", targets())
def test_a_key_in_int8_that_is_no_number_spoils_who_looks_at_it_and_no_other_and_zeros_are_zero(target: str) -> None:
    operator, alone = OPERATORS["attention"], Team([None])
    for sample in operator.samples(np.random.default_rng(4)):
        q, stored, positions, starts, slots = sample.inputs
        cache = sample.call.inputs[1]
        if cache is None or cache.dtype != "int8" or stored is None or starts is None or slots is None:
            continue
        spoilt, empty = stored.copy(), np.zeros_like(stored)
        head = np.full([resolve(axis, sample.sizes) for axis in cache.axes[3:]], np.nan, np.float32)
        spoilt[slots[0, 0], 0, 0] = cast(head, "float32", "int8")
        made, nothing = (
            run_sample(operator, replace(sample, inputs=(q, each, positions, starts, slots)), alone, target)[0]
            for each in (spoilt, empty)
        )

        assert np.isnan(made[: starts[1]]).all()
        assert not np.isnan(made[starts[1] :]).any()
        assert (0 == nothing).all()
