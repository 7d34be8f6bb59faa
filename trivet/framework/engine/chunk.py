"""What one sequence computes in one step."""

from __future__ import annotations

from typing import NamedTuple

from trivet.framework.engine.sequence import Sequence


class Chunk(NamedTuple):
    """The next `num_tokens` uncomputed tokens of a sequence, to run in one step."""

    sequence: Sequence
    num_tokens: int
