"""Traces of requests as they are published: when each came, how long it was, and what of it others had in common.

Mooncake's lines of JSON (github.com/kvcache-ai/Mooncake, FAST25-release/traces), Azure's CSV
(github.com/Azure/AzurePublicDataset, 2023), and ServeGen's folder of clients (github.com/alibaba/ServeGen), which is a
distribution to draw from. None has text: lengths and times only.
"""

from __future__ import annotations

import csv
import json
import math
from ast import literal_eval
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trivet.base.errors import TrivetError

PREFIX_TOKENS = 512  # of a block in Mooncake's traces
_SERVEGEN_RATE_S, _SERVEGEN_LENGTHS_S = 600, 21600  # of a client's rates, and of its distributions of lengths
_GIVE = "give the trace as published"
_NOT_OF_THE_FORMAT = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, SyntaxError)
_SEED = 7  # a trace that is drawn is the same trace each time


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float  # since the first
    num_prompt: int
    num_answer: int
    blocks: tuple[int, ...] = ()  # of the prompt; equal numbers mean equal text up to there
    block_tokens: int = PREFIX_TOKENS


def read_trace(path: Path, most: int | None = None) -> list[Arrival]:
    """The first `most` arrivals of a trace, in order; those without a prompt or an answer are left out.

    Raises TrivetError when there is none at `path`, or a line is none of a known format.
    """
    if not path.exists():
        raise TrivetError(f"{path} does not exist", "give a trace of Mooncake, Azure or ServeGen")
    read = next((read for claims, read in _READERS if claims(path)), None)
    if read is None:
        raise TrivetError(f"{path} is no trace that is known", "Mooncake's .jsonl, Azure's .csv, or ServeGen's folder")
    try:
        drawn = list(islice((each for each in read(path) if each.num_prompt > 0 and each.num_answer > 0), most))
    except _NOT_OF_THE_FORMAT as error:
        raise _refusal(path, error) from None
    if not drawn:
        raise TrivetError(f"{path} has no requests", _GIVE)
    first = min(arrival.at_s for arrival in drawn)
    return sorted(
        (replace(each, at_s=each.at_s - first) for each in drawn),
        key=lambda each: each.at_s,
    )


def scaled(arrivals: Iterable[Arrival], scale: int, speedup: float) -> list[Arrival]:
    """The same for a device so much smaller: prompts, answers and blocks a `scale`th as long, at least a token each,
    arriving `speedup` times as fast."""
    assert PREFIX_TOKENS % scale == 0, "a block has a whole number of tokens"
    return [
        Arrival(each.at_s / speedup, -(-each.num_prompt // scale), -(-each.num_answer // scale), each.blocks,
                each.block_tokens // scale)
        for each in arrivals
    ]  # fmt: skip


def _mooncake(path: Path) -> Iterator[Arrival]:
    with path.open(encoding="utf-8") as opened:
        yield from _lines(path, opened, 1, _mooncake_line)


def _mooncake_line(line: str) -> Arrival:
    row = json.loads(line)
    blocks = tuple(map(int, row["hash_ids"]))
    return Arrival(row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"]), blocks)


def _azure(path: Path) -> Iterator[Arrival]:
    with path.open(encoding="utf-8", newline="") as opened:
        yield from _lines(path, csv.DictReader(opened), 2, _azure_line)


def _azure_line(row: Mapping[str, str]) -> Arrival:
    at = datetime.fromisoformat(row["TIMESTAMP"][:26])  # seven digits of a second, Python takes six
    return Arrival(at.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _lines(path: Path, lines: Iterable[Any], first: int, parse: Callable[[Any], Arrival]) -> Iterator[Arrival]:
    """What each line says, the `first` of the file's lines on. Raises TrivetError that names the line."""
    for number, line in enumerate(lines, first):
        try:
            arrival = parse(line)
            if not math.isfinite(arrival.at_s):
                raise ValueError(f"its time is {arrival.at_s}")
        except _NOT_OF_THE_FORMAT as error:
            raise _refusal(f"{path}, line {number}", error) from None
        yield arrival


def _refusal(where: Path | str, error: Exception) -> TrivetError:
    why = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
    return TrivetError(f"{where} is not of the format: {why}", _GIVE)


def _servegen(path: Path) -> Iterator[Arrival]:
    """Drawn: gaps between arrivals of each client's mean and variation, lengths of its distributions."""
    draws = np.random.default_rng(_SEED)
    windows: dict[float, list[tuple[float, float, _Lengths]]] = defaultdict(list)
    for rates in sorted(path.glob("chunk-*-trace.csv")):
        lengths = _Lengths(rates.with_name(rates.name.replace("-trace.csv", "-dataset.json")))
        with rates.open(encoding="utf-8", newline="") as opened:
            for start, rate, variation, *_ in csv.reader(opened):
                if float(rate) > 0:
                    windows[float(start)].append((float(rate), float(variation), lengths))
    for start_s, clients in sorted(windows.items(), key=lambda window: window[0]):
        drawn = [arrival for client in clients for arrival in _client(start_s, *client, draws)]
        yield from sorted(drawn, key=lambda each: each.at_s)


class _Lengths:
    """A client's distributions of lengths, for each six hours; one is parsed when it is first drawn from."""

    def __init__(self, path: Path) -> None:
        self._windows = json.loads(path.read_text(encoding="utf-8"))
        self._parsed: dict[str, dict[str, dict[int, float]]] = {}

    def at(self, start_s: float) -> dict[str, dict[int, float]]:
        key = str(int(start_s // _SERVEGEN_LENGTHS_S * _SERVEGEN_LENGTHS_S))
        if key not in self._parsed:
            texts = self._windows.get(key, {})
            self._parsed[key] = {
                name: literal_eval(texts.get(name, "{}")) for name in ("input_tokens", "output_tokens")
            }
        return self._parsed[key]


def _client(
    start_s: float, rate: float, variation: float, lengths: _Lengths, draws: np.random.Generator
) -> list[Arrival]:
    """The arrivals of one client in the ten minutes from `start_s` on."""
    spread = lengths.at(start_s)
    if not all(spread.values()):
        return []
    shape = 1 / max(variation, 1e-3) ** 2
    times = np.cumsum(draws.gamma(shape, 1 / (rate * shape), int(_SERVEGEN_RATE_S * rate * 3) + 1))
    times = times[times < _SERVEGEN_RATE_S]
    prompts, answers = (_drawn(spread[name], len(times), draws) for name in ("input_tokens", "output_tokens"))
    return [
        Arrival(start_s + float(at), int(prompt), int(answer))
        for at, prompt, answer in zip(times, prompts, answers, strict=True)
    ]


def _drawn(spread: dict[int, float], count: int, draws: np.random.Generator) -> np.ndarray:
    shares = np.array(list(spread.values()), float)
    return draws.choice(np.array(list(spread), int), count, p=shares / shares.sum())


_READERS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Iterator[Arrival]]], ...] = (
    (lambda path: path.suffix == ".jsonl", _mooncake),
    (lambda path: path.suffix == ".csv", _azure),
    (lambda path: path.is_dir() and any(path.glob("chunk-*-trace.csv")), _servegen),
)
