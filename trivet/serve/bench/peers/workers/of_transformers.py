"""transformers on PyTorch: of_transformers.py FOLDER DTYPE THREADS."""

import json
import sys
import time
from typing import Any

import torch
import transformers


def main(folder: str, dtype: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    say({"ready": True, "version": f"transformers {transformers.__version__}, torch {torch.__version__}"})
    with torch.inference_mode():
        for line in sys.stdin:
            question = json.loads(line)
            say(greedy(model, question) if question["kind"] == "greedy" else timed(model, question))


def timed(model: Any, question: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    out = prefill(model, question["prompts"])
    if question["kind"] == "decode":
        start = time.perf_counter()
        for _ in range(question["new"]):
            out = model(out.logits[:, -1].argmax(-1, keepdim=True), past_key_values=out.past_key_values, use_cache=True)
    return {"seconds": time.perf_counter() - start}


def greedy(model: Any, question: dict[str, Any]) -> dict[str, Any]:
    out = prefill(model, question["prompts"])
    tokens = []
    for _ in range(question["new"]):
        tokens.append(int(out.logits[0, -1].argmax()))
        out = model(torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)
    return {"tokens": tokens}


def prefill(model: Any, prompts: list[list[int]]) -> Any:
    return model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)


def say(answer: dict[str, Any]) -> None:
    print("@answer", json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
