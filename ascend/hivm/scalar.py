"""The integers and floats of the scalar pipe: arithmetic in the width of their type, wrapping as registers do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Number = int | float

_WIDTHS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64}
_COMPARISONS: tuple[Callable[[Number, Number], bool], ...] = (  # arith.cmpi's predicates, the signed ones
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
)


NUM_PREDICATES = len(_COMPARISONS)


def _quotient(a: int, b: int) -> int:
    """Toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _float32(operation: Callable[[np.float32, np.float32], np.float32]) -> Callable[[float, float], float]:
    def apply(a: float, b: float) -> float:
        with np.errstate(all="ignore"):
            return float(operation(np.float32(a), np.float32(b)))

    return apply


INTEGER: dict[str, Callable[..., int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.divsi": _quotient,
    "arith.remsi": lambda a, b: a - b * _quotient(a, b),
    "arith.xori": lambda a, b: a ^ b,
    "arith.index_cast": lambda a: a,
    "arith.extsi": lambda a: a,
    "arith.extui": lambda a: a,  # of a single bit, which is never negative
    "arith.trunci": lambda a: a,
}
FLOAT: dict[str, Callable[..., float]] = {
    "arith.addf": _float32(lambda a, b: a + b),
    "arith.subf": _float32(lambda a, b: a - b),
    "arith.mulf": _float32(lambda a, b: a * b),
    "arith.divf": _float32(lambda a, b: a / b),
    "math.sqrt": lambda a: float(np.sqrt(np.float32(a))),
}


def wrap(value: int, kind: str) -> int:
    """`value` in the bits of `kind`; a single bit is 0 or 1, wider ones are signed."""
    width = _WIDTHS[kind]
    low = value & ((1 << width) - 1)
    return low - (1 << width) if width > 1 and low >> (width - 1) else low


def compare(predicate: int, a: Number, b: Number) -> int:
    return int(_COMPARISONS[predicate](a, b))


def constant(text: str) -> Number:
    """`true`, `7 : i32`, `1.0e+00 : f32`, or a float by its bits, `0xFF800000 : f32`."""
    value, _, kind = text.partition(" : ")
    if value in ("true", "false"):
        return int(value == "true")
    if value.startswith("0x") and kind in ("f32", "f16", "bf16"):
        bits = int(value, 16)
        if kind == "f16":
            return float(np.uint16(bits).view(np.float16))
        return float(np.uint32(bits << 16 if kind == "bf16" else bits).view(np.float32))
    return float(value) if kind.startswith(("f", "bf")) else int(value, 0)
