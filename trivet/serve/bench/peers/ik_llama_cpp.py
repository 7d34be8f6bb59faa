"""ik_llama.cpp: llama.cpp's programs, where this fork of them is asked, or answers, in other words.

It is timed with its weights repacked as they are loaded (`-rtr`), which is its best setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trivet.base.errors import TrivetError
from trivet.serve.bench.peers.llama_cpp import Done, LlamaCpp


class IkLlamaCpp(LlamaCpp):
    def _switches(self, program: str) -> list[str]:
        return ["-rtr", "1"] if program == "llama-bench" else ["-rtr"]

    def _decode(self, prompt: int, new: int) -> list[str]:
        return ["-p", "0", "-n", "0", "-gp", f"{prompt},{new}"]

    def _seconds(self, done: Done) -> float:
        table = [line for line in done.stderr.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
        if len(cells) != 3 or "T_TG s" not in cells[0]:  # names, dashes, one row
            raise TrivetError(f"llama-batched-bench printed no table with one row, but {table!r}")
        return float(cells[2][cells[0].index("T_TG s")])

    def _greedy(self, prompt: Sequence[int], new: int) -> tuple[str, dict[str, Any]]:
        body = {"prompt": list(prompt), "max_tokens": new, "temperature": 0, "logprobs": 1, "ignore_eos": True}
        return "v1/completions", body

    def _tokens(self, answer: dict[str, Any]) -> list[int]:
        return [int(each["id"]) for each in answer["choices"][0]["logprobs"]["content"]]
