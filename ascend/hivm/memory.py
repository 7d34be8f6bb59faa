"""Bytes of one memory and typed views of them: a core's own memory, or the global memory behind one operand.

A view knows which bytes it touches; going past the end of its memory is an AssertionError that names the view.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from trivet.base.dtypes import Array, cast

# How an element of MLIR's is stored here. Truth values are bits, eight to a byte.
_STORED: dict[str, Any] = {
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "i8": np.int8,
    "i32": np.int32,
    "i64": np.int64,
}

Bytes = slice | Array  # which bytes of a memory: a range, or the index of each


@dataclass(frozen=True)
class Footprint:
    """Bytes that one operation touches in one memory."""

    memory: str
    at: Bytes
    num_bytes: int


@dataclass(frozen=True)
class View:
    """Elements of a memory. `base` is the byte its pointer stands at, `offset` and `strides` are in elements."""

    memory: str
    data: Array  # the whole memory, uint8
    element: str
    base: int = 0
    offset: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    def moved(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
        return replace(self, offset=offset, shape=shape, strides=strides)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def read(self) -> Array:
        """The elements, as numbers NumPy can compute with: bfloat16 as float32."""
        if self.element == "i1":
            return np.unpackbits(self._packed(), bitorder="little")[self._index()].astype(np.bool_)
        stored = self._stored()
        return cast(stored, "bfloat16", "float32") if self.element == "bf16" else stored

    def write(self, values: Array) -> None:
        """Store `values`, rounded to nearest where the element is narrower."""
        if self.element == "i1":
            bits = np.unpackbits(self._packed(), bitorder="little")
            bits[self._index()] = values != 0
            self._packed()[...] = np.packbits(bits, bitorder="little")
            return
        rounded = cast(values.astype(np.float32), "float32", "bfloat16") if self.element == "bf16" else values
        self._stored()[...] = rounded

    def footprint(self) -> Footprint:
        """Bits touch the whole of their bytes."""
        if self.element == "i1":
            at = np.unique(self._index() // 8) + self.base
            return Footprint(self.memory, at, at.size)
        size = self._item_bytes()
        if self._is_dense():
            return Footprint(self.memory, slice(self._first(), self._first() + self.size * size), self.size * size)
        at = (self._index()[..., None] * size + np.arange(size)).reshape(-1) + self.base
        return Footprint(self.memory, at, at.size)

    def __str__(self) -> str:
        return f"{self.memory}[{self._first()}…] {'×'.join(map(str, self.shape))} {self.element}"

    def _index(self) -> Array:
        """Of each element, how many elements it is past the base."""
        index = np.full((), self.offset, np.int64)
        for length, stride in zip(self.shape, self.strides, strict=True):
            index = index[..., None] + np.arange(length) * stride
        return index

    def _packed(self) -> Array:
        """All the bytes from the base to the last bit."""
        end = self.base + int(self._index().max(initial=-1)) // 8 + 1
        assert 0 <= self.offset and end <= self.data.size, f"{self} is outside its {self.data.size} bytes"
        return self.data[self.base : end]

    def _stored(self) -> Array:
        stored = np.dtype(_STORED[self.element])
        strides = tuple(stride * stored.itemsize for stride in self.strides)
        reach = sum((n - 1) * s for n, s in zip(self.shape, strides, strict=True)) + stored.itemsize
        end = self._first() + reach if self.size else 0
        assert 0 <= self._first() and end <= self.data.size, f"{self} is outside its {self.data.size} bytes"
        return np.ndarray(self.shape, stored, self.data.data, self._first() if end else 0, strides)

    def _first(self) -> int:
        if self.element == "i1":
            return self.base + self.offset // 8
        return self.base + self.offset * self._item_bytes()

    def _item_bytes(self) -> int:
        return int(np.dtype(_STORED[self.element]).itemsize)

    def _is_dense(self) -> bool:
        expected = 1
        for length, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if length != 1 and stride != expected:
                return False
            expected *= length
        return True
