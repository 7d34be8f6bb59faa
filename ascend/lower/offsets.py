"""Looks for addresses computed in 32 bits: an element offset past 2³¹ wraps there and the kernel reads elsewhere.

Every i32 product that flows into a pointer is bounded from what its factors can be; sums are taken to fit, because
their terms are indices. Arguments, loads and program numbers may be anything an i32 holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

LARGEST = 2**31 - 1

_VALUE = r"%[\w#]+"
_IS_NARROW = re.compile(r": (?:i32|tensor<[\dx]+xi32>)$")
_OPERATION = re.compile(
    rf"^\s*(?:(?P<results>{_VALUE}(?::\d+)?(?:, {_VALUE})*) = )?\"?(?P<name>[a-z_]+\.[\w.]+)\"?(?P<rest>.*)$"
)
_FOR = re.compile(
    rf"(?P<iv>{_VALUE}) = (?P<low>{_VALUE}) to (?P<high>{_VALUE}) step {_VALUE}(?: iter_args\((?P<carried>[^)]*)\))?"
)


@dataclass(frozen=True)
class Operation:
    name: str
    operands: tuple[str, ...]
    text: str


@dataclass
class Definitions:
    """Where every value of a function comes from. A value that a loop carries comes from several."""

    operations: dict[str, Operation] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)  # carried or yielded value → what it may be
    limits: dict[str, str] = field(default_factory=dict)  # induction variable → the value it stays below
    addresses: list[Operation] = field(default_factory=list)


def narrow_offsets(ttir: str) -> list[str]:
    """A sentence per product in 32 bits that an address is made of and that may pass 2³¹ − 1; none is the good case."""
    known = _definitions(ttir)
    found: dict[str, str] = {}
    for address in known.addresses:
        for product in _products(known, address.operands[1]):
            bound = _bound(known, product.operands[0]) * _bound(known, product.operands[1])
            if bound > LARGEST:
                found[product.text] = f"{product.text} is up to {bound} in 32 bits and becomes an address"
    return list(found.values())


def _definitions(ttir: str) -> Definitions:
    known = Definitions()
    open_regions: list[tuple[list[str], list[str]]] = []  # (results, carried arguments) of the regions we are inside
    for line in ttir.splitlines():
        stripped = re.sub(r"\s*loc\([^)]*\)+", "", line).strip()
        match = _OPERATION.match(stripped)
        if match is None:
            if stripped.startswith("}") and not stripped.startswith("} else") and open_regions:
                open_regions.pop()
            continue
        name, results = match["name"], _results(match["results"] or "")
        operation = Operation(name, tuple(re.findall(_VALUE, match["rest"].split(" : ")[0])), stripped)
        for result in results:
            known.operations[result] = operation
        if name == "tt.addptr":
            known.addresses.append(operation)
        carried = []
        loop = _FOR.search(match["rest"]) if name == "scf.for" else None
        if loop is not None:
            known.limits[loop["iv"]] = loop["high"]
            for inner, outer in re.findall(rf"({_VALUE}) = ({_VALUE})", loop["carried"] or ""):
                carried.append(inner)
                known.sources[inner] = [outer]
        if name in ("scf.yield", "tt.reduce.return") and open_regions:
            targets, arguments = open_regions[-1]
            for i, value in enumerate(operation.operands):
                for target in (*targets[i : i + 1], *arguments[i : i + 1]):
                    known.sources.setdefault(target, []).append(value)
        if stripped.endswith("{"):
            open_regions.append((results, carried))
    return known


def _results(text: str) -> list[str]:
    several = re.fullmatch(r"(%\w+):(\d+)", text)
    if several is not None:
        return [f"{several[1]}#{i}" for i in range(int(several[2]))]
    return re.findall(_VALUE, text)


def _products(known: Definitions, value: str) -> Iterator[Operation]:
    """The i32 products that `value` is computed from. What was loaded is not computed here."""
    waiting, seen = [value], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += known.sources.get(name, [])
        operation = known.operations.get(name)
        if operation is None or operation.name in ("tt.load", "tt.addptr"):
            continue
        if operation.name == "arith.muli" and _IS_NARROW.search(operation.text):
            yield operation
        waiting += operation.operands


def _bound(known: Definitions, value: str, depth: int = 0) -> int:
    """The largest magnitude `value` can have, as far as its definition says."""
    if value in known.limits:
        return _bound(known, known.limits[value], depth + 1)
    operation = known.operations.get(value)
    if operation is None or depth > 64 or value in known.sources:
        return LARGEST
    inputs = [_bound(known, operand, depth + 1) for operand in operation.operands]
    match operation.name:
        case "arith.constant":
            constant = re.search(r"constant (?:dense<)?(-?\d+)", operation.text)
            return abs(int(constant[1])) if constant else LARGEST
        case "tt.make_range":
            end = re.search(r"end = (\d+)", operation.text)
            return int(end[1]) if end else LARGEST
        case "arith.addi" | "arith.subi":
            return min(LARGEST, sum(inputs))
        case "arith.muli":
            return inputs[0] * inputs[1]
        case "arith.divsi":
            return inputs[0]
        case "arith.remsi" | "arith.minsi":
            return min(inputs)
        case "arith.maxsi" | "arith.select":
            return max(inputs[-2:])
        case "tt.splat" | "tt.broadcast" | "tt.expand_dims" | "tt.reshape" | "tt.trans" | "arith.extsi":
            return inputs[0]
    return LARGEST
