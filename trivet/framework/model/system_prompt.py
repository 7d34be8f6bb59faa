"""The tokens that every chat with the same system prompt begins with."""

from __future__ import annotations

from itertools import takewhile

from trivet.framework.model.chat_template import ChatTemplate
from trivet.framework.model.tokenizer import Tokenizer

_OPENINGS = ("a", "1")  # two messages with no token in common


def system_prompt_tokens(text: str, tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    """Of a chat that `text` is the system prompt of: all tokens up to the first that a user's message decides.

    Raises RequestError when the model has no chat template, or its template takes no system prompt.
    """
    chats = [[{"role": "system", "content": text}, {"role": "user", "content": opening}] for opening in _OPENINGS]
    one, other = (tokenizer.encode(template.render(chat), add_special=False) for chat in chats)
    return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
