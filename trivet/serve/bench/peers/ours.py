"""This engine's own child: python -m trivet.serve.bench.peers.ours MODEL THREADS [LOAD-OPTION=VALUE …].

It answers as the workers of the peers do, and also tells the limits of the machine as they are at that moment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from trivet.base.dtypes import Array
from trivet.base.settings import read_settings
from trivet.framework.graph.plan import Batch, BoundPlan
from trivet.framework.model.loader import LoadedModel, load
from trivet.serve.bench.limits import memory_speeds
from trivet.serve.bench.steps import decode_steps, needs_per_token, own_slots, prefill_steps, seconds_of

_STEP_TOKENS = 512  # what the server takes by default
_MAX_CONTEXT = 2304


def main(model: str, threads: str, *options: str) -> None:
    loaded = load(model, threads=int(threads), max_context=_MAX_CONTEXT, max_sequences=32, max_step_tokens=_STEP_TOKENS,
                  settings=read_settings(), **dict(option.split("=", 1) for option in options))  # type: ignore[arg-type]  # fmt: skip
    loaded.settle()
    plan = loaded.plan
    say({"ready": True, "version": plan.target})
    for line in sys.stdin:
        question = json.loads(line)
        match question["kind"]:
            case "limits":
                say({"read_bytes_per_s": max(memory_speeds(loaded.device.cpus, 3))})
            case "greedy":
                say(_greedy(loaded, question["prompts"][0], question["new"]))
            case "prefill":
                steps = prefill_steps(plan, len(question["prompts"][0]), _STEP_TOKENS, own_slots(plan, 1, _MAX_CONTEXT))
                say({"seconds": seconds_of(plan, steps), **_needs(plan, steps)})
            case "decode":
                say(_decode(plan, question["prompts"], question["new"]))


def _decode(plan: BoundPlan, prompts: Sequence[Sequence[int]], new: int) -> dict[str, Any]:
    longest = len(prompts[0])
    slots = own_slots(plan, len(prompts), longest + new)
    for own in slots:
        seconds_of(plan, prefill_steps(plan, longest, _STEP_TOKENS, own[None]))
    steps = decode_steps(plan, [longest] * len(prompts), new, slots)
    return {"seconds": seconds_of(plan, steps), **_needs(plan, steps)}


def _needs(plan: BoundPlan, steps: Sequence[Batch]) -> dict[str, float]:
    needs = needs_per_token(plan, steps)
    return {
        "bytes_per_token": needs["memory"],
        "flops_per_token": needs["multiply-add"] + needs["bfloat16 multiply-add"],
    }


def _greedy(loaded: LoadedModel, prompt: Sequence[int], new: int) -> dict[str, Any]:
    """The tokens, how clear each was (log probability of the best over the next), and if each is whole characters."""
    plan = loaded.plan
    slots = own_slots(plan, 1, len(prompt) + new)
    step = Batch(np.array(prompt, np.int32), np.arange(len(prompt), dtype=np.int32), _pair(len(prompt)), slots,
                 np.array([len(prompt) - 1], np.int32))  # fmt: skip
    tokens: list[int] = []
    margins: list[float] = []
    for i in range(new):
        logits = np.asarray(plan.run(step)[0], np.float64)
        second, best = np.argsort(logits)[-2:]
        tokens.append(int(best))
        margins.append(float(logits[best] - logits[second]))
        step = Batch(np.array([best], np.int32), np.array([len(prompt) + i], np.int32), _pair(1), slots,
                     np.array([0], np.int32))  # fmt: skip
    is_text = all(loaded.tokenizer.whole_text(token) is not None for token in tokens)
    return {"tokens": tokens, "margins": margins, "is_text": is_text}


def _pair(count: int) -> Array:
    return np.array([0, count], np.int32)


def say(answer: dict[str, Any]) -> None:
    print("@answer", json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
