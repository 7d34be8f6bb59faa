"""What a step adds to an answer."""

from __future__ import annotations

from dataclasses import dataclass

from trivet.framework.engine.sampler import TokenLogprob
from trivet.framework.engine.sequence import FinishReason


@dataclass(slots=True)  # not frozen: one is made for every token, and a frozen one takes four times as long
class Delta:
    """What one step added to one choice of a request.

    `text` may lag behind `token_ids`: it holds back half characters and what may become a stop string. The token
    that stopped a sequence is in `token_ids` and `logprobs`, its text is not in `text`.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None  # one for each of token_ids; None when not asked for
    finish_reason: FinishReason | None
    stop_reason: int | str | None  # the stop token or stop string that finished it
    num_prompt_tokens: int
    num_generated_tokens: int  # so far, these included
