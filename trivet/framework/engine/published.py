"""What a model's published implementation computes: transformers in float32, on the checkpoint as it was published.

A reference for `accuracy`, not a way to run a model: it is an extra, and slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from trivet.base.dtypes import Array
from trivet.base.errors import CheckpointError, ResourceError
from trivet.framework.model.manifest import is_package


def open_published(model: str) -> Callable[[Sequence[int]], tuple[Array, list[Array]]]:
    """Tokens → logits [tokens, vocab] and the input of each layer [tokens, hidden].

    Raises ResourceError when transformers or PyTorch is missing; CheckpointError when `model` is no folder with a
    published configuration, or transformers cannot read it.
    """
    for library in ("torch", "transformers"):
        if find_spec(library) is None:
            raise ResourceError(f"--against hf: {library} is not installed", "pip install 'trivet[hf]'")
    if is_package(Path(model)) or not (Path(model) / "config.json").is_file():
        raise CheckpointError(
            f"{model} is a package or has no config.json; transformers reads checkpoints as they were published",
            "give the checkpoint that the package or file was made from",
        )
    import torch  # an extra, and slow to import: only for who asked for it
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{model}: transformers cannot load it: {first}") from None
    loaded.eval()

    def compute(tokens: Sequence[int]) -> tuple[Array, list[Array]]:
        with torch.inference_mode():
            made = loaded(input_ids=torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False)
        *inputs, _ = made.hidden_states  # the last is the output of the last layer
        return _plain(made.logits), [_plain(each) for each in inputs]

    return compute


def _plain(tensor: Any) -> Array:
    array: Array = tensor[0].float().numpy()
    return np.ascontiguousarray(array)
