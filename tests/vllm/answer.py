"""vLLM in a process of its own: answer.py [[MODEL, LOAD_FORMAT, OPTIONS], …] says what each loaded and answered."""

import json
import sys
from typing import Any

import torch
import vllm
import xxhash
from vllm.distributed import cleanup_dist_env_and_memory


def digests(model: Any) -> dict[str, str]:
    """Of every parameter and buffer, its dtype, shape and bytes."""
    found = {}
    for name, tensor in model.state_dict().items():
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        found[name] = f"{tensor.dtype} {list(tensor.shape)} {xxhash.xxh3_64_hexdigest(data)}"
    return found


def answer(model: str, load_format: str, options: dict[str, Any]) -> dict[str, Any]:
    llm = vllm.LLM(
        model,
        load_format=load_format,
        model_loader_extra_config=options,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=2,
        seed=0,
    )
    loaded = llm.apply_model(digests)[0]
    params = vllm.SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True, detokenize=False)
    answered = llm.generate([{"prompt_token_ids": list(range(3, 20))}], params, use_tqdm=False)
    return {"loaded": loaded, "tokens": list(answered[0].outputs[0].token_ids)}


if __name__ == "__main__":
    for case in json.loads(sys.argv[1]):
        print("@answer", json.dumps(answer(*case)), flush=True)
        cleanup_dist_env_and_memory()
