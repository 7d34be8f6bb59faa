"""Traffic to measure servers with: short chats, among which long prompts arrive, as a Poisson process."""

from __future__ import annotations

import numpy as np

from trivet.base.dtypes import Array
from trivet.framework.engine.replay.trace import Arrival

CHAT_PROMPT, CHAT_ANSWER = (32, 192), (48, 112)  # tokens, from … to
LONG_PROMPT, LONG_ANSWER = (1024, 2048), (16, 32)
LONGEST = LONG_PROMPT[1] + CHAT_ANSWER[1]


def traffic(num_requests: int, per_s: float, long_share: float, seed: int) -> list[Arrival]:
    """So many requests at so many a second on average, a share of them with long prompts; the same for a seed."""
    draws = np.random.default_rng(seed)
    at_s = np.cumsum(draws.exponential(1 / per_s, num_requests))
    arrivals = []
    for each_s, is_long in zip(at_s.tolist(), (draws.random(num_requests) < long_share).tolist(), strict=True):
        prompt, answer = (LONG_PROMPT, LONG_ANSWER) if is_long else (CHAT_PROMPT, CHAT_ANSWER)
        arrivals.append(Arrival(each_s, int(draws.integers(*prompt)), int(draws.integers(*answer))))
    return arrivals


def prompts_of(arrivals: list[Arrival], vocab_size: int, seed: int) -> list[list[int]]:
    """Tokens without sense, of every request others: no server finds a prefix. The first hundred are often special."""
    draws = np.random.default_rng([seed, 1])
    drawn: list[Array] = [draws.integers(100, vocab_size, each.num_prompt) for each in arrivals]
    return [each.tolist() for each in drawn]
