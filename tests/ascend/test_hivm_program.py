"""Scheduled programs are read as they are written, and what is not known is refused by its name."""

from __future__ import annotations

import numpy as np
import pytest

from ascend.hivm import scalar
from ascend.hivm.execute import execute
from ascend.hivm.memory import View
from ascend.hivm.order import Access
from ascend.hivm.program import HivmError, Memory, memory, parse, split
from trivet.operators.triton.launch import Launch


class _Kernel:
    """Stands for a function under triton.jit: only the names of its parameters are asked for."""

    arg_names = ("x",)


_LAUNCH = Launch(_Kernel, 1, {"x": "x"}, {})
_UB = "#hivm.address_space<ub>"
_MODULE = """
#map = affine_map<()[s0, s1] -> ((s0 - s1) floordiv 2 + 1)>
"builtin.module"() ({{
  "func.func"() <{{sym_name = "k"}}> ({{
  ^bb0(%arg0: i64, %arg1: memref<?xi8, #hivm.address_space<gm>>, %arg2: memref<?xi8, #hivm.address_space<gm>>, \
%arg3: memref<?xf32, #hivm.address_space<gm>>, %arg4: i32, %arg5: i32, %arg6: i32):
    %0 = "arith.constant"() <{{value = 0 : i64}}> : () -> i64
    %1 = "arith.constant"() <{{value = 0 : index}}> : () -> index
    {body}
    "func.return"() : () -> ()
  }}) {{hacc.entry, hivm.func_core_type = #hivm.func_core_type<{core}>}} : () -> ()
}}) : () -> ()
"""


def _run(body: str, x: np.ndarray, core: str = "AIV") -> list[object]:  # x: float32
    return list(execute(parse(_MODULE.format(body=body, core=core), "k"), _LAUNCH, {"x": x}, 0))


def _load(size: int) -> str:
    return f"""
    %2 = "memref.reinterpret_cast"(%arg3) <{{operandSegmentSizes = array<i32: 1, 0, 0, 0>, \
static_offsets = array<i64: 0>, static_sizes = array<i64: {size}>, static_strides = array<i64: 1>}}> : \
(memref<?xf32, #hivm.address_space<gm>>) -> memref<{size}xf32, strided<[1]>, #hivm.address_space<gm>>
    %3 = "hivm.hir.pointer_cast"(%0) <{{operandSegmentSizes = array<i32: 1, 0>}}> : (i64) -> memref<{size}xf32, {_UB}>
    "hivm.hir.load"(%2, %3) <{{operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0>}}> : \
(memref<{size}xf32, strided<[1]>, #hivm.address_space<gm>>, memref<{size}xf32, {_UB}>) -> ()
    """


def test_a_type_says_shape_strides_and_space() -> None:
    assert Memory((3, 32), "bf16", (64, 1), "gm") == memory(
        "memref<3x32xbf16, strided<[64, 1], offset: ?>, #hivm.address_space<gm>>"
    )
    assert Memory((4, 8, 1), "f32", (8, 1, 1), "ub") == memory(f"memref<4x8x1xf32, {_UB}>")
    assert Memory((None,), "i8", (1,), "gm") == memory("memref<?xi8, #hivm.address_space<gm>>")
    assert Memory((2, 4), "f32", (None, 1), "gm") == memory(
        "memref<2x4xf32, strided<[?, 1], offset: ?>, #hivm.address_space<gm>>"
    )


def test_commas_in_brackets_part_nothing() -> None:
    assert ["a<b, c>", "[[0, 1]]", "(x) -> y"] == split("a<b, c>, [[0, 1]], (x) -> y")


def test_a_map_is_its_sum() -> None:
    program = parse(_MODULE.format(body="", core="AIV"), "k")

    assert (-1,) == program.maps["#map"](1, 4)


def test_a_load_is_an_access_of_its_bytes() -> None:
    (access,) = _run(_load(4), np.arange(4, dtype=np.float32))

    assert isinstance(access, Access)
    assert ("PIPE_MTE2", slice(0, 16), 16) == (access.pipe.name, access.reads[0].at, access.writes[0].num_bytes)


def test_reading_past_an_operand_is_found() -> None:
    with pytest.raises(AssertionError, match=r"x\[0…\] 5 f32 is outside its 16 bytes"):
        _run(_load(5), np.arange(4, dtype=np.float32))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('"hivm.hir.vgather"(%3, %3) : (memref<4xf32, #hivm.address_space<ub>>) -> ()', "hivm.hir.vgather"),
        ('%9 = "arith.shli"(%0, %0) : (i64, i64) -> i64', "arith.shli"),
        (
            '"hivm.hir.store"(%3, %2) <{atomic_kind = #hivm.atomic_kind<add>}> : '
            f"(memref<4xf32, {_UB}>, memref<4xf32, strided<[1]>, #hivm.address_space<gm>>) -> ()",
            "store with atomic_kind #hivm.atomic_kind<add>",
        ),
        (
            '"hivm.hir.vexp"(%3, %3) <{operandSegmentSizes = array<i32: 1, 1, 0>, high_precision = true}> : '
            f"(memref<4xf32, {_UB}>, memref<4xf32, {_UB}>) -> ()",
            "vexp with high_precision true",
        ),
        (
            f'%9 = "hivm.hir.pointer_cast"(%0, %0) : (i64, i64) -> memref<4xf32, {_UB}>',
            "pointer_cast to memref.* at 2 addresses",
        ),
        ('%9 = "memref.alloc"() : () -> memref<4xf32, #hivm.address_space<ub>>', "memref.alloc"),
        ('"hivm.hir.pipe_barrier"() <{pipe = #hivm.pipe<PIPE_M>}> : () -> ()', "PIPE_M"),
        (
            '"hivm.hir.vcast"(%3, %3) <{operandSegmentSizes = array<i32: 1, 1, 0>, '
            "round_mode = #hivm.round_mode<ceil>}> : "
            f"(memref<4xf32, {_UB}>, memref<4xf32, {_UB}>) -> ()",
            "round_mode #hivm.round_mode<ceil>",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(line: str, name: str) -> None:
    with pytest.raises(HivmError, match=name):
        _run(_load(4) + line, np.arange(4, dtype=np.float32))


def test_a_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(HivmError, match=r"tensor<4xf32>: not a memory type"):
        memory("tensor<4xf32>")


def test_a_map_that_could_be_anything_else_is_refused() -> None:
    with pytest.raises(HivmError, match="not a map"):
        parse("#map = affine_map<()[s0] -> (__import__('os'))>", "k")


def test_integers_wrap_and_divide_toward_zero() -> None:
    assert -(2**31) == scalar.wrap(2**31, "i32")
    assert 1 == scalar.wrap(3, "i1")
    assert -3 == scalar.INTEGER["arith.divsi"](-7, 2)
    assert -1 == scalar.INTEGER["arith.remsi"](-7, 2)
    assert float("-inf") == scalar.constant("0xFF800000 : f32")


@pytest.mark.parametrize("element", ["f16", "bf16", "f32", "i1"])
def test_what_is_written_is_read_back_and_nothing_beside_it(element: str) -> None:
    data = np.zeros(64, np.uint8)
    view = View("UB", data, element, 8, 0, (8,), (1,))
    values = np.array([1, 0, 1, 1, 0, 1, 0, 0], np.float32)

    view.write(values)

    np.testing.assert_array_equal(values, view.read())
    touched = view.footprint()
    data[touched.at] = 0
    assert not data.any()


def test_rows_of_bits_touch_the_bytes_of_their_bits() -> None:
    data = np.zeros(128, np.uint8)
    view = View("UB", data, "i1", 32, 0, (2, 9), (256, 1))
    values = np.arange(18).reshape(2, 9) % 3 == 0

    view.write(values)

    np.testing.assert_array_equal(values, view.read())
    assert [32, 33, 64, 65] == np.asarray(view.footprint().at).tolist()


def test_rows_apart_touch_their_own_bytes_only() -> None:
    view = View("UB", np.zeros(64, np.uint8), "f16", 0, 1, (2, 2), (8, 1))

    assert [2, 3, 4, 5, 18, 19, 20, 21] == np.asarray(view.footprint().at).tolist()
