"""Each family's graph of one layer after every pass. `python -m tests.snapshot.graphs` writes them again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trivet.framework.graph.passes import stages, target_for
from trivet.framework.model.config import parse_config
from trivet.framework.model.families import build_graph

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tiny"
FOLDER = Path(__file__).parent / "graphs"


def texts(family: str) -> Iterator[tuple[str, str]]:
    """(file name, text) of every stage that changed something, numbered in order."""
    config = replace(parse_config(json.loads((FIXTURES / family / "config.json").read_text())), num_layers=1)
    before = ""
    for number, (name, graph) in enumerate(stages(build_graph(config), target_for("cpu", "bfloat16"))):
        text = graph.text()
        if text != before:
            yield f"{family}-{number}-{name}.txt", text
        before = text


if __name__ == "__main__":
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for each in ("llama", "qwen2", "qwen3"):
        for file, text in texts(each):
            (FOLDER / file).write_text(text)
