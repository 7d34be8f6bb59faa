"""The signature of an operator of torch_npu, read from its text, and what a call of it does wrong."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ascend.schemas.calls import CallSite

# Defaults that are legal, and wrong for us: a call that leaves them out is refused.
MUST_BE_GIVEN: Mapping[str, tuple[str, ...]] = {
    "npu_fused_infer_attention_score": (  # 1.0; BSH; as many as num_heads; no mask; not paged
        "scale", "input_layout", "num_key_value_heads", "sparse_mode", "block_size", "actual_seq_lengths_kv",
    ),
    "npu_scatter_pa_kv_cache": ("cache_mode",),  # PA_NZ
    "npu_rotary_mul": ("rotary_mode",),
    "npu_mrope": ("rotary_mode", "mrope_section", "cache_mode"),
    "npu_rms_norm": ("epsilon",),
    "npu_add_rms_norm": ("epsilon",),
    "npu_moe_gating_top_k": ("norm_type", "k_group", "group_count"),
    "npu_moe_init_routing_v2": (  # none; as many as there are rows; not counted; sums up to each; where each went
        "expert_num", "active_num", "expert_tokens_num_flag", "expert_tokens_num_type", "row_idx_type",
    ),
    "npu_grouped_matmul": ("group_list", "group_list_type", "group_type", "split_item"),
    "npu_moe_token_unpermute": ("probs",),
}  # fmt: skip

_LITERALS: Mapping[type, tuple[str, ...]] = {
    bool: ("bool",),
    int: ("int", "SymInt", "float"),
    float: ("float",),
    str: ("str",),
}


@dataclass(frozen=True)
class Argument:
    name: str
    type: str  # as written: Tensor?, SymInt[]?, str
    default: str | None  # as written; None where the argument is required


@dataclass(frozen=True)
class Signature:
    operator: str
    arguments: tuple[Argument, ...]


def read_signatures(path: Path) -> dict[str, Signature]:
    """The signatures of one version's file, by name and overload."""
    texts: dict[str, str] = json.loads(path.read_text())["operators"]
    return {name: parse(text) for name, text in texts.items()}


def parse(text: str) -> Signature:
    """`name(Type name=default, *, …) -> …`; raises ValueError on anything else."""
    match = re.fullmatch(r"([\w.]+)\((.*)\) -> .+", text)
    if match is None:
        raise ValueError(f"{text!r} is not a signature")
    pieces = (piece.strip() for piece in _split(match[2]))
    return Signature(match[1], tuple(_argument(piece) for piece in pieces if piece not in ("", "*")))


def _split(text: str) -> Iterator[str]:
    """At the commas outside brackets and quotes."""
    start = depth = 0
    quote = ""
    for i, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _argument(text: str) -> Argument:
    declared, equals, default = text.partition("=")
    kind, _, name = declared.rpartition(" ")
    return Argument(name, kind, default if equals else None)


def problems(call: CallSite, signatures: Mapping[str, Signature]) -> list[str]:
    """What is wrong with `call` in this version, in sentences; none where it fits."""
    overloads = [one for name, one in signatures.items() if call.operator in (name, name.split(".")[0])]
    if not overloads:
        return [f"{call.where}: torch_npu has no {call.operator}"]
    # One overload that fits is enough; where none does, the nearest says what is wrong.
    return min((list(_misfits(call, one)) for one in overloads), key=len)


def _misfits(call: CallSite, signature: Signature) -> Iterator[str]:
    place = f"{call.where}: {call.operator}"
    known = {argument.name: argument for argument in signature.arguments}
    if call.has_unnamed:
        yield f"{place}: an argument is not named: its place may move between versions"
    for name in call.given:
        if name not in known:
            yield f"{place}: no argument {name}, it takes {', '.join(known)}"
    for name, argument in known.items():
        if argument.default is None and name not in call.given:
            yield f"{place}: {name} is required"
        if name in call.given and (misfit := _misfit(call.given[name], argument.type)) is not None:
            yield f"{place}: {name} is {misfit}, it takes {argument.type}"
    for name in MUST_BE_GIVEN.get(call.operator.split(".")[0], ()):
        if name not in call.given:
            yield f"{place}: {name} is left to its default {known[name].default if name in known else ''}"


def _misfit(value: ast.expr, kind: str) -> str | None:
    """The literal that does not fit `kind`; None where it fits, or where the value is known only at run time."""
    if isinstance(value, ast.IfExp):
        return _misfit(value.body, kind) or _misfit(value.orelse, kind)
    if isinstance(value, ast.List | ast.Tuple):
        return None if "[" in kind else ast.unparse(value)
    if not isinstance(value, ast.Constant):
        return None
    if value.value is None:
        return None if kind.endswith("?") else "None"
    fits = kind.rstrip("?") in _LITERALS.get(type(value.value), ())
    return None if fits else ast.unparse(value)


def drifting_defaults(operator: str, versions: Mapping[str, Mapping[str, Signature]]) -> dict[str, dict[str, str]]:
    """Arguments of `operator` whose default is not the same in every version: name → version → default."""
    seen: dict[str, dict[str, str]] = {}
    for version, signatures in versions.items():
        for argument in signatures[operator].arguments if operator in signatures else ():
            if argument.default is not None:
                seen.setdefault(argument.name, {})[version] = argument.default
    return {name: defaults for name, defaults in seen.items() if len(set(defaults.values())) > 1}
