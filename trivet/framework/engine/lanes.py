"""What a step computes: decodes in one lane, prefills in the other. Two lanes may run side by side, or in one step."""

from __future__ import annotations

from typing import Literal, NamedTuple

from trivet.framework.engine.chunk import Chunk
from trivet.framework.engine.sequence import Sequence

LaneName = Literal["both", "decode", "prefill"]  # which lanes one run of a plan computes


class Lanes(NamedTuple):
    """A step: a token of each of `decodes`, and `prefills` beside them."""

    decodes: list[Sequence]
    prefills: list[Chunk]

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.num_tokens for chunk in self.prefills)
