"""OpenVINO GenAI: of_openvino.py FOLDER PRECISION THREADS, the folder as optimum-cli exports it.

Time of decoding is that of an answer less that of its first token.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai


def main(folder: str, precision: str, threads: str) -> None:
    cache = genai.SchedulerConfig()
    cache.cache_size = 2  # GiB: 32 sequences, or one of 2048 tokens, fit many times
    cache.max_num_batched_tokens = 4096  # a prompt of the questions in one step
    cache.enable_prefix_caching = False
    pipe = genai.ContinuousBatchingPipeline(
        folder, cache, "CPU", {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": int(threads)}, {}
    )
    say({"ready": True, "version": f"openvino-genai {genai.__version__}, openvino {openvino.__version__}"})
    for line in sys.stdin:
        question = json.loads(line)
        if question["kind"] == "greedy":
            _, tokens = answer(pipe, question["prompts"], question["new"])
            say({"tokens": tokens[0]})
        elif question["kind"] == "prefill":
            say({"seconds": answer(pipe, question["prompts"], 1)[0]})
        else:
            first_s, _ = answer(pipe, question["prompts"], 1)
            say({"seconds": answer(pipe, question["prompts"], question["new"] + 1)[0] - first_s})


def answer(pipe: genai.ContinuousBatchingPipeline, prompts: list[list[int]], new: int) -> tuple[float, list[list[int]]]:
    config = genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
    inputs = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
    start = time.perf_counter()
    results = pipe.generate(inputs, [config] * len(prompts))
    return time.perf_counter() - start, [[int(token) for token in each.m_generation_ids[0]] for each in results]


def say(message: dict[str, Any]) -> None:
    print("@answer", json.dumps(message), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
