"""A server's life in a process of its own, and what it leaves behind: python -m tests.properties.soaked FOLDER ROUNDS
SECONDS SEED.

In every round, with one lane or two, requests arrive whenever, some leave before their end, some run out of time, while
the disk of the KV tier fills up, loses files and changes bytes; then the engine is closed and another takes its folder
over. Every answer is compared with the one it has alone. It goes on for so many rounds, and for so many seconds, and
prints of each round the descriptors and the resident memory at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import random
import resource
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from tests.properties.test_kv_tiers import tiers_of
from tests.properties.test_same_answer import plan
from trivet.base.errors import OverloadedError
from trivet.framework.engine.cost_model import CostModel, Rates
from trivet.framework.engine.delta import Delta
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.metrics import EngineMetrics
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.targets import Targets
from trivet.framework.engine.terms import Terms
from trivet.framework.engine.worker import AsyncEngine
from trivet.framework.graph.cost import step_cost
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.side_by_side import side_by_side

Outcome = tuple[tuple[int, ...], tuple[float, ...], str | None]

_SLOTS, _HOST_BLOCKS, _FILE_BLOCKS = 16, 3, 12  # few: slots run out, and blocks are evicted from every tier
_CLIENTS, _REQUESTS = 12, 12  # at once; of each client in a round
_PROMPTS = 6


def main(folder: Path, num_rounds: int, seconds: float, seed: int) -> None:
    draws = random.Random(seed)
    served = plan("llama", "bfloat16", 1, _SLOTS)
    asked = [_request(draws) for _ in range(_PROMPTS)]
    wanted = [asyncio.run(_alone(served, prompt, params)) for prompt, params in asked]
    end, rounds = time.monotonic() + seconds, 0
    while rounds < num_rounds or time.monotonic() < end:
        rounds += 1
        told = asyncio.run(_round(served, folder, asked, wanted, draws))
        left = {"descriptors": len(list(Path("/proc/self/fd").iterdir())), "resident_bytes": _resident_bytes()}
        print(json.dumps({"round": rounds, **told, **left}), flush=True)


def _request(draws: random.Random) -> tuple[list[int], SamplingParams]:
    """Prompts begin alike, as far as a few blocks."""
    prompt = [3 + i for i in range(draws.choice([0, 20, 40]))] + draws.choices(range(3, 511), k=draws.randint(1, 12))
    params = SamplingParams(
        temperature=draws.choice([0, 0.9]), seed=draws.randint(0, 9), max_tokens=draws.randint(1, 25), logprobs=0,
        repetition_penalty=draws.choice([1.0, 1.2]), ignore_eos=True,
    )  # fmt: skip
    return prompt, params


async def _alone(served: CpuPlan, prompt: list[int], params: SamplingParams) -> Outcome:
    worker = AsyncEngine(Engine(served, None))
    worker.start()
    outcome = _outcome([delta async for delta in worker.generate(prompt, params, "alone")])
    worker.close()
    return outcome


async def _round(
    served: CpuPlan, folder: Path, asked: list[tuple[list[int], SamplingParams]], wanted: list[Outcome],
    draws: random.Random,
) -> dict[str, int]:  # fmt: skip
    costs = CostModel(step_cost(served.graph), Rates())
    tiers = tiers_of(served, _HOST_BLOCKS, folder, _FILE_BLOCKS)  # type: ignore[arg-type]  # a plan's slots in all
    bound = side_by_side(served, [None, None], 1) if draws.random() < 0.5 else None
    observer, targets = EngineMetrics("soaked"), Targets(max_waiting=8)
    engine = Engine(served, None, lanes=bound, tiers=tiers, costs=costs, targets=targets, observer=observer)
    worker = AsyncEngine(engine)
    worker.start()
    ends = {"whole": 0, "left": 0, "late": 0, "refused": 0}

    async def client(number: int) -> None:
        for i in range(_REQUESTS):
            which = draws.randrange(len(asked))
            prompt, params = asked[which]
            salt, timeout_s = draws.choice(["", "", "a"]), draws.choice([None, None, None, 0.02])
            terms = Terms(tenant=draws.choice("xy"), timeout_s=timeout_s)
            deltas = worker.generate(prompt, params, f"{number}-{i}", cache_salt=salt, terms=terms)
            most = draws.choice([None, None, draws.randint(0, 5)])
            try:
                heard = await _hear(deltas, most)
            except OverloadedError:
                ends["refused"] += 1
                await asyncio.sleep(0.01)
                continue
            tokens, logprobs, reason = _outcome(heard)
            assert (tokens, logprobs) == (wanted[which][0][: len(tokens)], wanted[which][1][: len(tokens)]), (
                "another answer"
            )
            assert reason in ("length", "timeout", None), f"it ended with {reason}"
            assert reason != "length" or len(tokens) == params.max_tokens, "an answer is cut short"
            ends["whole" if reason == "length" else "late" if reason == "timeout" else "left"] += 1

    trouble = asyncio.create_task(_trouble(folder, draws))
    await asyncio.gather(*map(client, range(_CLIENTS)))
    trouble.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await trouble
    assert await worker.drain(60), "it does not come to rest"
    engine.check()
    failures = engine.kv_counts().files.failures
    worker.close()
    if bound is not None:
        bound.close()
    return {**ends, "failures": failures}


async def _hear(deltas: AsyncGenerator[Delta, None], most: int | None) -> list[Delta]:
    """All of them, or so many, and then the client goes away."""
    heard: list[Delta] = []
    async with contextlib.aclosing(deltas):
        async for delta in deltas:
            heard.append(delta)
            if most is not None and len(heard) >= most:
                break
    return heard


async def _trouble(folder: Path, draws: random.Random) -> None:
    """What befalls a disk, until cancelled: it is full, a file goes, a byte changes."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        while True:
            await asyncio.sleep(draws.random() * 0.02)
            full = draws.choice([most, most, 2000])  # bytes that a file may have: in the middle of a block it ends
            resource.setrlimit(resource.RLIMIT_FSIZE, (full, most))
            stored = sorted(folder.glob("blocks/*"))
            if not stored:
                continue
            path = draws.choice(stored)
            with contextlib.suppress(OSError):  # evicted meanwhile, or the disk is full
                if draws.random() < 0.3:
                    path.unlink()
                else:
                    with path.open("r+b") as file:
                        file.seek(draws.randrange(path.stat().st_size))
                        file.write(b"\x2a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _outcome(deltas: list[Delta]) -> Outcome:
    tokens = tuple(token for delta in deltas for token in delta.token_ids)
    logprobs = tuple(each.logprob for delta in deltas for each in delta.logprobs or ())
    return tokens, logprobs, deltas[-1].finish_reason if deltas else None


def _resident_bytes() -> int:
    """What is left once the C library's allocator has given back what it only keeps (malloc_trim is glibc's)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
