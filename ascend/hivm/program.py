"""A scheduled kernel as a tree of operations, read from the compiler's generic MLIR text.

It knows the text's grammar, memory types and integer maps. What an operation does is `execute.py`'s business; text
that does not fit is refused by its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ascend.hivm.cores import Kind
from trivet.base.errors import TrivetError

_OPERATION = re.compile(r'(?:(?P<results>%\w+)(?::(?P<count>\d+))? = )?"(?P<name>[\w.]+)"\((?P<operands>[^)]*)\)')
_TYPES = re.compile(r" : \((?P<operands>.*)\) -> (?P<results>.*)$")
_MEMORY = re.compile(
    r"memref<((?:(?:\d+|\?)x)*)(\w+)(?:, strided<\[([^\]]*)\][^>]*>)?(?:, #hivm\.address_space<(\w+)>)?>"
)
_MAP = re.compile(r"(#\w+) = affine_map<\(([^)]*)\)(?:\[([^\]]*)\])? -> \((.*)\)>")
_SUM = re.compile(r"(?:[ds]\d+|\d+|floordiv|mod|[-+*() ])+")
_CORE = re.compile(r"hivm\.func_core_type<(AIC|AIV)>")
_DYNAMIC = -(2**63)  # how MLIR writes a size or offset that is an operand


class HivmError(TrivetError):
    """A scheduled program holds something that is not known here; the message names it."""


@dataclass(frozen=True)
class Memory:
    """The type of a piece of memory. Strides are in elements; a size or stride of None is known at run time."""

    shape: tuple[int | None, ...]
    element: str
    strides: tuple[int | None, ...]
    space: str


@dataclass
class Operation:
    """One line of the program, and the blocks inside it. `line` is its address in messages and for mutants."""

    line: int
    name: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    properties: dict[str, str]
    operand_types: tuple[str, ...]
    result_types: tuple[str, ...]
    blocks: list[Block] = field(default_factory=list)
    attributes: str = ""  # the text of what is not a property; only of an operation with blocks

    def integers(self, name: str) -> list[int | None]:
        """A property that is a list of integers; None for one that is an operand."""
        listed = self.properties[name].removeprefix("array<").removesuffix(">").partition(":")[2]
        numbers = [int(number) for number in listed.split(",") if number.strip()]
        return [None if number == _DYNAMIC else number for number in numbers]

    def groups(self, name: str) -> list[list[int]]:
        """A property that is lists of integers, such as [[0, 1], [2]]."""
        inner = self.properties[name].removeprefix("[").removesuffix("]")
        return [[int(number) for number in group.strip("[]").split(",")] for group in split(inner)]

    def word(self, name: str) -> str:
        """A property that is one word, such as #hivm.pipe<PIPE_V>."""
        return self.properties[name].rpartition("<")[2].rstrip(">")

    def segments(self) -> list[tuple[str, ...]]:
        """The operands in the groups they were given in: inputs, outputs, temporaries and so on."""
        groups, first = [], 0
        for size in self.integers("operandSegmentSizes"):
            assert size is not None
            groups.append(self.operands[first : first + size])
            first += size
        return groups


@dataclass
class Block:
    """Operations in order, and the names that stand for what the block is given."""

    arguments: tuple[str, ...] = ()
    argument_types: tuple[str, ...] = ()
    operations: list[Operation] = field(default_factory=list)


Sums = Callable[..., tuple[int, ...]]


@dataclass(frozen=True)
class Program:
    """What each kind of core runs of a kernel, and the integer maps that it uses, by name.

    Every program of a launch has `workspace_bytes` of the global memory in which its cores hand things to each other.
    """

    name: str
    bodies: dict[Kind, Block]
    maps: dict[str, Sums]
    workspace_bytes: int = 0


def parse(text: str, name: str) -> Program:
    """The kernel called `name` in a module in generic form. Raises HivmError."""
    maps: dict[str, Sums] = {}
    root = Block()
    open_blocks, owners = [root], list[Operation]()
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("//"):
            continue
        if line.startswith("#"):
            key, sums = _map(line)
            maps[key] = sums
        elif line.startswith("^bb"):
            names, types = _arguments(line)
            open_blocks[-1].arguments, open_blocks[-1].argument_types = names, types
        elif line.startswith("}, {"):
            open_blocks[-1] = Block()
            owners[-1].blocks.append(open_blocks[-1])
        elif line.startswith("})"):
            open_blocks.pop()
            owners[-1].attributes = line.removeprefix("})")
            _add_types(owners.pop(), line)
        else:
            operation = _operation(number, line)
            open_blocks[-1].operations.append(operation)
            if line.endswith("({"):
                owners.append(operation)
                open_blocks.append(Block())
                operation.blocks.append(open_blocks[-1])
    functions = {
        function.properties["sym_name"].strip('"'): function
        for module in root.operations
        for function in module.blocks[0].operations
        if "sym_name" in function.properties
    }
    kernels = [functions[own] for own in (name, f"{name}_mix_aic", f"{name}_mix_aiv") if own in functions]
    bodies: dict[Kind, Block] = {_kind(function): function.blocks[0] for function in kernels}
    if not bodies:
        raise HivmError(f"{name}: the scheduled module has no function of that name")
    sized = functions.get(f"{name}_infer_workspace_shape_function")
    return Program(name, bodies, maps, 0 if sized is None else _constant(sized))


def memory(text: str) -> Memory:
    """A memref type. Without strides rows are dense."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise HivmError(f"{text}: not a memory type that is known here")
    sizes, element, strides, space = match.groups()
    shape = tuple(None if size == "?" else int(size) for size in sizes.split("x")[:-1])
    if strides is not None:
        apart = tuple(None if stride.strip() == "?" else int(stride) for stride in strides.split(","))
        return Memory(shape, element, apart, space)
    dense = list[int | None]()
    stride: int | None = 1
    for size in reversed(shape):
        dense.append(stride)
        stride = None if stride is None or size is None else stride * size
    return Memory(shape, element, tuple(reversed(dense)), space)


def split(text: str) -> list[str]:
    """The parts between commas that are in no bracket."""
    parts, depth, first = [], 0, 0
    for i, letter in enumerate(text):
        if letter in "<([{":
            depth += 1
        elif letter in ")]}" or (letter == ">" and text[i - 1] != "-"):
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[first:i].strip())
            first = i + 1
    return [part for part in (*parts, text[first:].strip()) if part]


def _kind(function: Operation) -> Kind:
    """The kind of core that a function is for."""
    match = _CORE.search(function.attributes)
    if match is None:
        raise HivmError(f"line {function.line}: a function for no kind of core that is known here")
    return "AIC" if match[1] == "AIC" else "AIV"


def _constant(function: Operation) -> int:
    """What a function returns that does nothing else."""
    constants = [each for each in function.blocks[0].operations if each.name == "arith.constant"]
    if len(constants) != 1:
        raise HivmError(f"line {function.line}: a workspace whose size depends on anything is not known here")
    return int(constants[0].properties["value"].partition(" : ")[0])


def _operation(number: int, line: str) -> Operation:
    match = _OPERATION.match(line)
    if match is None:
        raise HivmError(f"line {number}: not an operation in generic form: {line[:120]}")
    base, count = match["results"], match["count"]
    results = () if base is None else (base,) if count is None else tuple(f"{base}#{i}" for i in range(int(count)))
    properties = dict[str, str]()
    rest = line[match.end() :]
    if rest.startswith(" <{"):
        inner, _, rest = rest[3:].partition("}>")
        for pair in split(inner):
            key, _, value = pair.partition(" = ")
            properties[key] = value
    operands = tuple(operand.strip() for operand in match["operands"].split(",") if operand.strip())
    operation = Operation(number, match["name"], operands, results, properties, (), ())
    if not rest.endswith("({"):
        _add_types(operation, rest)
    return operation


def _add_types(operation: Operation, line: str) -> None:
    match = _TYPES.search(line)
    if match is None:
        raise HivmError(f"line {operation.line}: {operation.name} has no types: {line[-120:]}")
    operation.operand_types = tuple(split(match["operands"]))
    results = match["results"]
    operation.result_types = tuple(split(results[1:-1] if results.startswith("(") else results))


def _arguments(line: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    inner = line[line.index("(") + 1 : line.rindex(")")]
    pairs = [argument.split(": ", 1) for argument in split(inner)]
    return tuple(name for name, _ in pairs), tuple(kind for _, kind in pairs)


def _map(line: str) -> tuple[str, Sums]:
    """An affine map as a function of its dimensions and symbols: sums, products, floor quotients and remainders."""
    match = _MAP.fullmatch(line)
    if match is None or not all(_SUM.fullmatch(part) for part in split(match[4])):
        raise HivmError(f"{line}: not a map that is known here")
    source = match[4].replace("floordiv", "//").replace("mod", "%")
    names = ", ".join(filter(None, (match[2], match[3])))
    compiled = eval(f"lambda {names}: ({source},)", {"__builtins__": {}})  # the letters were checked above
    return match[1], compiled
