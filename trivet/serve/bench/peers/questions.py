"""What is asked of every engine: the same steps, told in tokens. An engine answers in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["decode", "prefill"]


@dataclass(frozen=True)
class Question:
    """Decode: `new` tokens of each of `batch` sequences after prompts of `prompt` tokens, which are not in the time.

    Prefill: one prompt of `prompt` tokens, until the logits of its last one.
    """

    kind: Kind
    prompt: int
    batch: int = 1
    new: int = 0

    @property
    def name(self) -> str:
        return f"decode, batch {self.batch}" if self.kind == "decode" else f"prefill, {self.prompt} tokens"

    @property
    def num_tokens(self) -> int:
        """Those that the answer's seconds were spent on."""
        return self.batch * self.new if self.kind == "decode" else self.prompt


QUESTIONS: tuple[Question, ...] = (
    Question("decode", prompt=128, new=48),
    Question("decode", prompt=128, batch=8, new=32),
    Question("decode", prompt=128, batch=32, new=16),
    Question("prefill", prompt=512),
    Question("prefill", prompt=2048),
)

CHECK_TOKENS = 24  # greedy tokens that the engines are held to
CLEAR_MARGIN = 0.3  # of log probability between the best two: less, and another order of sums may choose the other
