"""The pickle in a file that torch.save wrote, read without running it: it makes tensors and containers, nothing else.

A pickle is a program; Python's own reader calls whatever it names. This one knows the few instructions and the few
names that a state dict is made of, refuses the rest by name, and never imports. Instructions: the documentation strings
of Python's pickletools. What PyTorch writes: torch/serialization.py and torch/_utils.py of
https://github.com/pytorch/pytorch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# PyTorch's storage classes and dtypes, in the spelling of safetensors
STORAGES = {
    "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "DoubleStorage": "F64",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip
DTYPES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip
UNTYPED = "bytes"  # a storage whose tensors bring their dtype


class UnsafePickle(Exception):
    """The pickle does what a state dict does not; says what."""


@dataclass(frozen=True)
class Name:
    """What the pickle names: never imported, only compared."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Storage:
    """A record of numbers beside the pickle; `dtype` is UNTYPED where its tensors say what they are."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class PickledTensor:
    """A tensor as the pickle has it: a view of a storage, counted in elements. Nothing in it has been checked."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any
    dtype: str


def load_pickle(program: bytes) -> Any:
    """What the pickle makes. Raises UnsafePickle when it names, calls or does anything that a state dict does not."""
    try:
        return _Machine(program).run()
    except (IndexError, KeyError, TypeError, ValueError, struct.error, RecursionError) as error:
        raise UnsafePickle(f"it is damaged ({type(error).__name__}: {error})") from None


def _ordered_dict() -> dict[Any, Any]:
    """Empty: its items follow. Made of a list, a list of a million would be copied by every five bytes that say so."""
    return {}


def _size(numbers: Any) -> Any:
    """As they are, for the same reason: what is no tuple would have to be copied."""
    if not isinstance(numbers, tuple):
        raise ValueError(f"has a shape that is a {type(numbers).__name__}")
    return numbers


def _set(target: dict[Any, Any], key: Any, value: Any) -> None:
    """Keys are texts and numbers: hashing a tuple of tuples of itself, fifty deep, would take for ever."""
    if not isinstance(key, str | int):
        raise ValueError(f"has a key that is a {type(key).__name__}")
    target[key] = value


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> PickledTensor:
    if not isinstance(storage, Storage) or storage.dtype == UNTYPED:
        raise UnsafePickle("a tensor is made of something that is not a storage")
    return PickledTensor(storage, offset, shape, strides, storage.dtype)


def _typed_tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, needs_gradient: Any, hooks: Any, dtype: Any, *rest: Any
) -> PickledTensor:
    if not isinstance(storage, Storage) or not isinstance(dtype, Name) or dtype.name not in DTYPES:
        raise UnsafePickle(f"a tensor's dtype is {_said(dtype)}")
    return PickledTensor(storage, offset, shape, strides, DTYPES[dtype.name])


def _parameter(tensor: Any, *rest: Any) -> Any:
    return tensor


def _said(value: Any) -> str:
    """A name as it is, anything else by its type: containers that hold themselves have no end."""
    return str(value) if isinstance(value, Name) else f"a {type(value).__name__}"


# All that a pickle may call, and all else that it may name.
_CALLS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered_dict,
    "torch.Size": _size,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _parameter,
}
_VALUES = {f"torch.{name}" for name in (*STORAGES, *DTYPES)} | {"torch.storage.UntypedStorage"}

_MAX_ARGUMENTS = 16  # of a call: PyTorch writes up to nine, and each costs time again whenever a tuple is passed again

_MARK = object()


class _Machine:
    """Pickle's stack machine, with as many instructions as torch.save and Python's protocol 2 use for data."""

    def __init__(self, program: bytes) -> None:
        self._program = program
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            code = self.take(1)
            if code == b".":
                return self._stack.pop()
            step = _INSTRUCTIONS.get(code)
            if step is None:
                raise UnsafePickle(f"it has the instruction {code!r} at byte {self._at - 1}, which no state dict needs")
            step(self)

    def take(self, count: int) -> bytes:
        found = self._program[self._at : self._at + count]
        if len(found) != count:
            raise ValueError(f"ends within an instruction at byte {self._at}")
        self._at += count
        return found

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self._program.index(b"\n", self._at)
        return (self.take(end + 1 - self._at)[:-1]).decode()

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("takes a value where there is none")
        return value

    def top(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise ValueError(f"fills a {type(self._stack[-1]).__name__}, not a {kind.__name__}")
        return self._stack[-1]

    def since_mark(self) -> list[Any]:
        """What lies above the last mark, taken off together with it."""
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("has no mark")
        values = self._stack[at + 1 :]
        del self._stack[at:]
        return values

    def text(self, form: str) -> None:
        self.push(self.take(self.number(form)).decode("utf-8", "surrogatepass"))

    def extend(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def memo(self, index: int) -> Any:
        return self._memo[index]

    def put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def tuple_of(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def set_items(self, pairs: list[Any]) -> None:
        target = self.top(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            _set(target, key, value)

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def name(self) -> None:
        name = Name(self.line(), self.line())
        if str(name) not in _CALLS and str(name) not in _VALUES:
            raise UnsafePickle(f"it names {name}, which a state dict does not need")
        self.push(name)

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Name) or not isinstance(arguments, tuple) or str(function) not in _CALLS:
            raise UnsafePickle(f"it calls {_said(function)}, which is no function of a state dict")
        if len(arguments) > _MAX_ARGUMENTS:
            raise UnsafePickle(f"it calls {function} with {len(arguments)} arguments")
        self.push(_CALLS[str(function)](*arguments))

    def build(self) -> None:
        """The attributes of an object: a state dict has `_metadata`, which no tensor needs."""
        self.pop()
        self.top(dict)

    def storage(self) -> None:
        match self.pop():
            case ("storage", Name(module="torch", name=name), str(key), str(), int(count)) if name in STORAGES:
                self.push(Storage(key, STORAGES[name], count))
            case ("storage", Name(module="torch.storage", name="UntypedStorage"), str(key), str(), int(count)):
                self.push(Storage(key, UNTYPED, count))
            case _:
                raise UnsafePickle("it refers to something beside it that is no storage")


_INSTRUCTIONS: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.take(1),  # the protocol
    b"(": lambda m: m.push(_MARK),
    b"0": lambda m: m.pop(),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"\x8a": lambda m: m.push(int.from_bytes(m.take(m.number("B")), "little", signed=True)),
    b"G": lambda m: m.push(m.number(">d")),
    b"X": lambda m: m.text("<I"),
    b"\x8c": lambda m: m.text("B"),
    b")": lambda m: m.push(()),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"]": lambda m: m.push([]),
    b"a": lambda m: m.extend([m.pop()]),
    b"e": lambda m: m.extend(m.since_mark()),
    b"}": lambda m: m.push({}),
    b"s": lambda m: m.set_item(),
    b"u": lambda m: m.set_items(m.since_mark()),
    b"q": lambda m: m.put(m.number("B")),
    b"r": lambda m: m.put(m.number("<I")),
    b"h": lambda m: m.push(m.memo(m.number("B"))),
    b"j": lambda m: m.push(m.memo(m.number("<I"))),
    b"c": lambda m: m.name(),
    b"R": lambda m: m.call(),
    b"b": lambda m: m.build(),
    b"Q": lambda m: m.storage(),
}
