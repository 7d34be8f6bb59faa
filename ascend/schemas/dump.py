"""Reads the signatures of torch_npu's operators out of its wheel, unimported: they are strings in its library.

    pip download --no-deps torch_npu==2.13.0
    python ascend/schemas/dump.py torch_npu-2.13.0-*.whl

writes `2.13.0.json` beside this file. No wheel needs the torch it was built for, nor CANN; that what is read is what is
registered is tested where torch_npu can be imported (tests/ascend/test_npu_schemas.py).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from zipfile import ZipFile

FOLDER = Path(__file__).parent

# What inference calls, and its near relatives: the rest of some 450 operators is training and vision.
_FAMILIES = (
    "attention", "cache", "dynamic_quant", "format_cast", "grouped_matmul", "mla_prolog", "moe_", "mrope", "prefetch",
    "quant_matmul", "rms_norm", "rope", "rotary", "scatter_", "swiglu", "top_k_top_p",
)  # fmt: skip

_PRINTABLE = re.compile(rb"[\x20-\x7e]{10,}")
_SIGNATURE = re.compile(r"(?:npu::)?([a-z_]\w*(?:\.\w+)?)(\(.*\) -> .+)")
_EXPOSED = re.compile(r"^torch_npu\.(\w+) = torch\.ops\.npu\.(\w+)$", re.MULTILINE)


def signatures(wheel: Path) -> dict[str, str]:
    """`name.overload` → `name.overload(arguments) -> results`, of everything in the wheel that reads like one."""
    found: dict[str, str] = {}
    with ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.startswith("torch_npu/") and name.endswith(".so")]
        for name in libraries:
            for run in _PRINTABLE.finditer(archive.read(name)):
                match = _SIGNATURE.fullmatch(run[0].decode())
                if match is not None:
                    found[match[1]] = match[1] + match[2]
    return found


def exposed(wheel: Path) -> set[str]:
    """Names that are attributes of the package `torch_npu` and not only of `torch.ops.npu`."""
    with ZipFile(wheel) as archive:
        text = archive.read("torch_npu/utils/custom_ops.py").decode()
    return {name for name, operator in _EXPOSED.findall(text) if name == operator}


def dump(wheel: Path) -> Path:
    """Write the wheel's file of signatures; returns its path."""
    version = wheel.name.split("-")[1]
    with ZipFile(wheel) as archive:
        built = max(entry.date_time for entry in archive.infolist() if entry.filename.endswith(".so"))
    public = exposed(wheel)
    chosen = {
        name: text
        for name, text in sorted(signatures(wheel).items())
        if any(family in name for family in _FAMILIES) and name.split(".")[0] in public and "backward" not in name
    }
    record = {
        "package": "torch_npu",
        "version": version,
        "wheel": wheel.name,
        "built": "{:04}-{:02}-{:02}".format(*built[:3]),
        "operators": chosen,
    }
    path = FOLDER / f"{version}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        written = dump(Path(argument))
        print(f"{written.name}: {len(json.loads(written.read_text())['operators'])} operators")
