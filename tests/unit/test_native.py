"""The native core through Python: the same answer on every target, refusals, the GIL, a clean exit."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivet import _native
from trivet.base.dtypes import Array, DType, cast, rounded
from trivet.operators.panels import pack_panels

TARGETS = _native.targets()
Operand = tuple[int, int, str]
ABSENT: Operand = (0, 0, "float32")


def operand(array: Array, dtype: str = "float32") -> Operand:
    return (array.ctypes.data, array.strides[0], dtype)


def linear(target: str, x: Array, panels: Array, dtype: DType, bias: Array | None, num_outputs: int) -> Array:
    out = np.full((len(x), num_outputs), np.nan, np.float32)
    program = _native.Program(target)
    operands = [operand(x), operand(panels, dtype), ABSENT if bias is None else operand(bias), operand(out), ABSENT]
    program.add("linear", "tokens", operands, [x.shape[1], num_outputs], [])
    program.run(_native.Team([None, None]), len(x), 1, 0)
    return out


def test_targets_are_best_first_and_the_best_is_the_default() -> None:
    assert "scalar" == TARGETS[-1]
    assert TARGETS[0] == _native.Program().target


DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "int8")


@given(st.integers(1, 30), st.integers(1, 300), st.integers(1, 200), st.sampled_from(DTYPES), st.booleans())
@settings(max_examples=40, deadline=None)
def test_linear_agrees_with_numpy_and_its_bits_are_the_same_on_every_target_alone_or_in_a_batch(
    num_rows: int, num_inputs: int, num_outputs: int, dtype: DType, has_bias: bool
) -> None:
    rng = np.random.default_rng(num_rows * 100_000 + num_inputs * 100 + num_outputs)
    x = rng.standard_normal((num_rows, num_inputs), np.float32)
    weight = cast(rng.standard_normal((num_outputs, num_inputs), np.float32), "float32", dtype)
    bias = rng.standard_normal(num_outputs, np.float32) if has_bias else None
    panels = pack_panels(weight)
    multiplied = x if dtype == "float32" else rounded(x, "bfloat16")
    expected = multiplied.astype(np.float64) @ cast(weight, dtype, "float32").astype(np.float64).T
    if bias is not None:
        expected += bias

    best = linear(TARGETS[0], x, panels, dtype, bias, num_outputs)

    np.testing.assert_allclose(best, expected, atol=1e-6 * num_inputs + 1e-6)
    for target in TARGETS:
        assert best.tobytes() == linear(target, x, panels, dtype, bias, num_outputs).tobytes()
        assert best[-1:].tobytes() == linear(target, x[-1:], panels, dtype, bias, num_outputs).tobytes()


@given(st.integers(1, 14), st.integers(1, 40), st.sampled_from(DTYPES[1:]), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_products_have_the_same_bits_on_every_target_where_numbers_are_too_small_to_be_normal(
    num_rows: int, num_inputs: int, dtype: DType, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, small = (rng.standard_normal(shape) for shape in ((num_rows, num_inputs), (40, num_inputs)))
    x = (x * 2.0 ** rng.integers(-149, 0, x.shape)).astype(np.float32)
    weight = (small * 2.0 ** rng.integers(-149, 0, small.shape)).astype(np.float32)
    panels = pack_panels(cast(weight, "float32", dtype))

    wanted = linear("scalar", x, panels, dtype, None, 40).tobytes()

    assert [wanted] * len(TARGETS) == [linear(target, x, panels, dtype, None, 40).tobytes() for target in TARGETS]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_no_number_goes_through_a_product_and_no_further_than_its_row(target: str, dtype: DType) -> None:
    panels = pack_panels(cast(np.ones((33, 65), np.float32), "float32", dtype))
    x = np.ones((14, 65), np.float32)
    x[1, 64], x[2, 0], x[3, 5] = np.nan, np.inf, -np.inf
    x[4, 7:9] = np.inf, -np.inf

    out = linear(target, x, panels, dtype, None, 33)

    assert np.isnan(out[[1, 4]]).all()
    assert [np.inf, -np.inf] == out[2:4, 32].tolist()
    np.testing.assert_allclose(np.delete(out, [1, 2, 3, 4], axis=0), 65.0, rtol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_embedding_from_panels_gives_the_rows_of_the_table(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    table = cast(rng.standard_normal((70, 33), np.float32), "float32", dtype)
    tokens = np.array([0, 69, 31, 32, 17], np.int32)
    out = np.empty((5, 33), np.float32)
    panels = pack_panels(table)  # held here: a program borrows addresses
    program = _native.Program()
    program.add("embed", "tokens", [operand(tokens, "int32"), operand(panels, dtype), operand(out)], [33, 1], [])

    program.run(_native.Team([None]), 5, 1, 0)

    np.testing.assert_array_equal(cast(table, dtype, "float32")[tokens], out)


def test_a_program_runs_its_instructions_in_order_and_adds_their_seconds() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    doubled, row = np.empty_like(x), np.empty((1, 4), np.float32)
    rows = np.array([2], np.int32)
    program = _native.Program()
    program.add("add", "tokens", [operand(x), operand(x), operand(doubled)], [4], [])
    program.add("take_rows", "rows", [operand(doubled), operand(rows, "int32"), operand(row)], [4], [])
    seconds = np.array([100.0, 200.0])

    program.run(_native.Team([None, None]), 3, 1, 1, seconds)

    assert [16.0, 18.0, 20.0, 22.0] == row[0].tolist()
    assert 2 == program.num_instructions
    assert 100.0 < seconds[0] < 101.0
    assert 200.0 < seconds[1] < 201.0


def test_a_step_without_tokens_writes_nothing() -> None:
    out = np.full((1, 4), 7.0, np.float32)
    program = _native.Program()
    program.add("add", "tokens", [operand(out)] * 3, [4], [])

    program.run(_native.Team([None]), 0, 0, 0)

    assert [7.0] * 4 == out[0].tolist()


F32, BF16, I32 = (64, 4, "float32"), (64, 2, "bfloat16"), (64, 4, "int32")


@pytest.mark.parametrize(
    ("kernel", "extent", "operands", "integers", "numbers", "sentence"),
    [
        ("gelu", "tokens", [], [], [], "kernel: 'gelu' is not known; known: embed, rms_norm"),
        ("add", "heads", [F32] * 3, [4], [], "add: extent is 'heads', it takes tokens, rows"),
        ("take_rows", "tokens", [F32, I32, F32], [4], [], "take_rows: extent is 'tokens', it takes rows"),
        ("add", "tokens", [F32], [4], [], r"add: 1 operands given, it takes 3 \(a, b, out\)"),
        ("add", "tokens", [F32] * 3, [], [], r"add: 0 integers given, it takes 1 \(width\)"),
        ("rms_norm", "tokens", [F32] * 3, [1, 4], [], r"rms_norm: 0 numbers given, it takes 1 \(eps\)"),
        ("add", "tokens", [F32, BF16, F32], [4], [], "add: b is bfloat16, it takes float32"),
        ("add", "tokens", [F32, F32, (64, 4, "fp8")], [4], [], "dtype: 'fp8' is not one a kernel takes"),
        ("add", "tokens", [F32, F32, ABSENT], [4], [], "add: out is absent"),
        ("add", "tokens", [F32, F32, (66, 4, "float32")], [4], [], "add: out: address or row stride is not a multiple"),
        ("add", "tokens", [F32] * 3, [0], [], "add: width is 0, it must be positive"),
        ("cast", "tokens", [F32, F32], [4], [], "cast: x and out have the same dtype"),
        ("rope", "tokens", [F32] * 3, [2, 8, 10], [], "rope: rotary 10 is not an even number up to head_dim 8"),
        (
            "kv_store",
            "tokens",
            [F32, F32, BF16, I32, I32, I32],
            [2, 8, 24],
            [],
            "kv_store: slot_tokens 24 is not a multiple of 16",
        ),
        ("kv_store", "tokens", [F32, F32, BF16, I32, I32, I32], [2, 7, 16], [], "kv_store: head_dim 7 is odd"),
        (
            "attention",
            "tokens",
            [F32, BF16, F32, I32, I32, I32],
            [3, 2, 8, 16],
            [1.0],
            "attention: num_heads 3 is not a multiple of num_kv_heads 2",
        ),
    ],
)
def test_a_call_a_kernel_cannot_take_is_refused_with_the_reason(
    kernel: str, extent: str, operands: list[Operand], integers: list[int], numbers: list[float], sentence: str
) -> None:
    program = _native.Program()

    with pytest.raises(ValueError, match=sentence):
        program.add(kernel, extent, operands, integers, numbers)  # type: ignore[arg-type]  # extents are tested too

    assert 0 == program.num_instructions


def test_a_target_that_is_not_supported_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=f"target: 'mmx' .*{', '.join(TARGETS)}"):
        _native.Program("mmx")


def test_a_team_without_threads_or_on_a_cpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="Team: no cpus given"):
        _native.Team([])
    with pytest.raises(ValueError, match="Team: cpu 99999 is not one this process may run on"):
        _native.Team([None, 99999])


def test_negative_counts_and_a_seconds_array_of_another_length_are_refused() -> None:
    program = _native.Program()
    team = _native.Team([None])

    with pytest.raises(ValueError, match="run: num_tokens, num_sequences or num_rows is negative"):
        program.run(team, -1, 1, 0)
    with pytest.raises(ValueError, match="run: seconds has 3 elements, the program 0 instructions"):
        program.run(team, 1, 1, 0, np.zeros(3))


def test_a_gate_counts_pieces_and_keeps_nobody_past_its_deadline() -> None:
    gate, late = _native.Gate(0.0, 3, [7, 8]), _native.Gate(0.0)
    gate.advance()
    gate.advance()

    assert (True, 2, 2, False, 0.0) == (
        gate.wait(2), gate.num_pieces, gate.num_slots, gate.has_failed, gate.stalled_s
    )  # fmt: skip
    assert (False, 0, True, 0) == (late.wait(1), late.num_pieces, late.has_failed, late.num_waiting)


def test_gates_that_a_program_cannot_wait_at_are_refused() -> None:
    x = np.ones((1, 4), np.float32)
    program, team = _native.Program(), _native.Team([None])
    program.add("add", "tokens", [operand(x)] * 3, [4], [])

    with pytest.raises(ValueError, match="add: it waits for no stream, and one is given"):
        program.add("add", "tokens", [operand(x)] * 3, [4], [], 0)
    with pytest.raises(ValueError, match="run: gates are given, and no instruction of the program waits for a stream"):
        program.run(team, 1, 1, 0, gates=[_native.Gate(0.0, 0, [1])])
    with pytest.raises(ValueError, match="run: a gate has no slots that something comes to"):
        program.run(team, 1, 1, 0, gates=[_native.Gate(0.0)])
    with pytest.raises(ValueError, match="run: 65 gates are given, it takes at most 64"):
        program.run(team, 1, 1, 0, gates=[_native.Gate(0.0, 0, [1])] * 65)
    with pytest.raises((ValueError, TypeError)):
        program.run(team, 1, 1, 0, gates=[None])  # type: ignore[list-item]


def test_other_python_threads_run_while_a_program_does() -> None:
    x = np.zeros((64, 2048), np.float32)
    panels = pack_panels(np.zeros((2048, 2048), np.float32))
    out = np.empty((64, 2048), np.float32)
    program = _native.Program()
    for _ in range(20):
        program.add("linear", "tokens", [operand(x), operand(panels), ABSENT, operand(out), ABSENT], [2048, 2048], [])
    thread = threading.Thread(target=program.run, args=(_native.Team([None]), 64, 1, 0))
    turns = 0

    thread.start()
    while thread.is_alive():
        thread.join(0.001)
        turns += 1

    assert 10 < turns


def test_the_machine_limits_are_measured_once_per_repeat() -> None:
    team = _native.Team([None])

    assert 3 == len(_native.read_bandwidth(team, 4 << 20, 3))
    assert 2 == len(_native.multiply_add_peak(team, None, "float32", 2))
    assert 0 < min(_native.read_bandwidth(team, 4 << 20, 2) + _native.multiply_add_peak(team, TARGETS[-1], "int8", 1))
    with pytest.raises(ValueError, match="repeats is 0, it must be positive"):
        _native.read_bandwidth(team, 4 << 20, 0)


def test_the_interpreter_exits_cleanly_with_a_team_alive() -> None:
    code = "from trivet import _native; team = _native.Team([None, None]); _native.Program().run(team, 1, 1, 1)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_weights_in_int8_at_an_odd_address_are_refused_for_their_scales_are_bfloat16() -> None:
    x, out, panels = np.zeros((1, 64), np.float32), np.zeros((1, 32), np.float32), np.zeros((1, 32 * 66), np.uint8)
    address, stride, _ = operand(panels, "int8")
    with pytest.raises(ValueError, match="linear: weight: address is odd, the scales of int8 are bfloat16"):
        operands = [operand(x), (address + 1, stride, "int8"), ABSENT, operand(out), ABSENT]
        _native.Program().add("linear", "rows", operands, [64, 32], [])
