"""What is read from each output under tests/fixtures/outputs. `python -m tests.snapshot.outputs` writes it anew."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import msgspec

from trivet.driver.readers.npu_fields import parse_blocks
from trivet.driver.readers.pasted_host import read_pasted_host
from trivet.driver.summary import ranges

OUTPUTS = Path(__file__).parents[1] / "fixtures" / "outputs"


def commands() -> dict[str, str]:
    """What printed each file, by its name without suffix."""
    with (OUTPUTS / "sources.csv").open(encoding="utf-8", newline="") as file:
        return {row["file"]: row["command"].replace("-i N", "-i 0") for row in csv.DictReader(file)}


def read_back(command: str, text: str) -> str:
    """The facts that are known, a line for each element of a list; then the blocks of names and values, if any."""
    if command.startswith("hccn_tool -"):
        text = f"{command}\n{text}"  # or nobody would know of which NPU it speaks
    facts = _known(msgspec.to_builtins(read_pasted_host(text)))
    del facts["filesystems"]  # none was asked for
    blocks = _known(msgspec.to_builtins(parse_blocks(text))) if " : " in text else []
    is_all_told = (
        not blocks or facts.keys() & {"stack", "cpus"} or facts.get("npu_smi", {}).keys() & {"boards", "errors"}
    )
    return _lines(facts | ({} if is_all_told else {"blocks": blocks})) + "\n"


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: kept for name, each in value.items() if (kept := _known(each)) not in (None, {})}
    if isinstance(value, list | tuple) and len(value) > 8 and all(isinstance(each, int) for each in value):
        return ranges(value)
    return [_known(each) for each in value] if isinstance(value, list | tuple) else value


def _lines(value: Any, indent: str = "") -> str:
    deeper = indent + " "
    if isinstance(value, dict) and any(isinstance(each, dict | list) for each in value.values()):
        rows = [f"{deeper}{json.dumps(name)}: {_lines(each, deeper)}" for name, each in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return "[\n" + ",\n".join(f"{deeper}{json.dumps(each, ensure_ascii=False)}" for each in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    for name, command in commands().items():
        path = OUTPUTS / f"{name}.txt"
        (OUTPUTS / f"{name}.json").write_text(read_back(command, path.read_text(encoding="utf-8")), encoding="utf-8")
