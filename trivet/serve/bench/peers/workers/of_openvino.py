"""OpenVINO GenAI: of_openvino FOLDER PRECISION THREADS, the folder as optimum-cli exports it."""

from collections.abc import Callable

import numpy as np
import openvino
import openvino_genai as genai


def start(folder: str, precision: str, threads: str) -> tuple[str, Callable[[list[list[int]], int], list[list[int]]]]:
    cache = genai.SchedulerConfig()
    cache.cache_size = 2  # GiB: 32 sequences, or one of 2048 tokens, fit many times
    cache.max_num_batched_tokens = 4096  # a prompt of the questions in one step
    cache.enable_prefix_caching = False
    pipe = genai.ContinuousBatchingPipeline(
        folder, cache, "CPU", {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": int(threads)}, {}
    )

    def answer(prompts: list[list[int]], new: int) -> list[list[int]]:
        config = genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        inputs = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = pipe.generate(inputs, [config] * len(prompts))
        return [[int(token) for token in each.m_generation_ids[0]] for each in results]

    return f"openvino-genai {genai.__version__}, openvino {openvino.__version__}", answer
