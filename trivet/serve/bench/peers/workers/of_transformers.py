"""transformers on PyTorch: of_transformers FOLDER DTYPE THREADS."""

from collections.abc import Callable

import torch
import transformers


def start(folder: str, dtype: str, threads: str) -> tuple[str, Callable[[list[list[int]], int], list[list[int]]]]:
    torch.set_num_threads(int(threads))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def answer(prompts: list[list[int]], new: int) -> list[list[int]]:
        inputs, past = torch.tensor(prompts), None
        chosen = []
        with torch.inference_mode():
            for _ in range(new):
                out = model(inputs, past_key_values=past, use_cache=True, logits_to_keep=1)
                inputs, past = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
                chosen.append(inputs)
        tokens: list[list[int]] = torch.cat(chosen, 1).tolist()
        return tokens

    return f"transformers {transformers.__version__}, torch {torch.__version__}", answer
