"""An engine's child: worker.py ENGINE WORD …, ENGINE being one of the scripts beside this one.

Every engine is asked for whole answers, and timed alike: prefill is an answer of one token, decoding an answer less
that of its first token.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

Answer = Callable[[list[list[int]], int], list[list[int]]]  # prompts, new tokens → those of each


def main(engine: str, *words: str) -> None:
    version, answer = importlib.import_module(engine).start(*words)
    say({"ready": True, "version": version})
    for line in sys.stdin:
        say(reply(answer, json.loads(line)))


def reply(answer: Answer, question: dict[str, Any]) -> dict[str, Any]:
    prompts = question["prompts"]
    if question["kind"] == "greedy":
        return {"tokens": answer(prompts, question["new"])[0]}
    first_s = seconds(answer, prompts, 1)
    if question["kind"] == "prefill":
        return {"seconds": first_s}
    return {"seconds": seconds(answer, prompts, question["new"] + 1) - first_s}


def seconds(answer: Answer, prompts: list[list[int]], new: int) -> float:
    start = time.perf_counter()
    answer(prompts, new)
    return time.perf_counter() - start


def say(message: dict[str, Any]) -> None:
    print("@answer", json.dumps(message), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
