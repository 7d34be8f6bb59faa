"""Writes docs/reference/ascend-evidence.md from what the proofs counted: `python -m ascend.evidence`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FRAGMENTS = ROOT / "build" / "ascend"
PAGE = ROOT / "docs" / "reference" / "ascend-evidence.md"

# In the order of the page: a fragment's file, and its heading.
PROOFS = {
    "signatures": "Calls of torch_npu",
    "fakecann": "Execution over a fake CANN",
    "triton": "Triton kernels",
    "hivm": "Scheduled kernels",
}

HEAD = """# What is proved of the Ascend code without an Ascend

Written by `make test-ascend`; do not edit.

None of this needs an NPU, and none of it replaces one. Not proved here: the last compiler step (hivmc), numerics and
timing of the real device, the argument checks of its own operator library (aclnn), and communication (HCCL).
"""


def page(fragments: dict[str, dict[str, Any]]) -> str:
    """The page as text, one section for each proof that was run."""
    sections = [_section(heading, fragments[name]) for name, heading in PROOFS.items() if name in fragments]
    return "\n".join([HEAD, *sections])


def _section(heading: str, fragment: dict[str, Any]) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in _rows(fragment) if name != "what")
    what = fragment["what"]
    return f"## {heading}\n\n{what[0].upper()}{what[1:]}.\n\n| counted | |\n|---|---|\n{rows}\n"


def _rows(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of the fragment by their path in words; lists as one line."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _rows(inner, f"{name}, {key}".removeprefix(", ").removeprefix("count, ").replace("_", " "))
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value))
    else:
        yield name, f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    found = {path.stem: json.loads(path.read_text()) for path in FRAGMENTS.glob("*.json")}
    missing = [name for name in PROOFS if name not in found]
    if missing:
        raise SystemExit(f"no counts of {', '.join(missing)} in {FRAGMENTS}: run make test-ascend")
    PAGE.write_text(page(found))
