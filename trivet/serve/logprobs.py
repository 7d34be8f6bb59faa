"""Log-probabilities of tokens in the two shapes OpenAI gives them: one for chat, an older one for completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trivet.framework.engine.sampler import TokenLogprob
from trivet.framework.model.tokenizer import Tokenizer

LEAST = -9999.0  # OpenAI's word for "as good as impossible"; JSON has no minus infinity


def chat_logprobs(tokens: Iterable[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """`{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}`."""
    content = [
        _chat_token(entry.token_id, entry.logprob, tokenizer)
        | {"top_logprobs": [_chat_token(token_id, logprob, tokenizer) for token_id, logprob in entry.top]}
        for entry in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`; `offset`: characters of the choice before these tokens."""
    texts = [tokenizer.token_text(entry.token_id) for entry in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(entry.logprob, LEAST) for entry in tokens],
        "top_logprobs": [_top(entry, tokenizer) for entry in tokens],
        "text_offset": offsets,
    }


def _chat_token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": max(logprob, LEAST),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _top(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    """The likeliest tokens, and the chosen one with them where it is not among them."""
    pairs = (*entry.top, (entry.token_id, entry.logprob))
    return {tokenizer.token_text(token_id): max(logprob, LEAST) for token_id, logprob in pairs}
