"""A model's chat template, compiled when it is first asked for: Jinja takes a server's start as long as NumPy does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trivet.framework.model.tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    from trivet.framework.model.jinja_template import JinjaTemplate


class ChatTemplate:
    """Messages to the text that the model was trained to continue. Safe to use from several threads."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._files = replace(files, tokenizer=b"")  # megabytes, of which no template knows

    def compile(self) -> JinjaTemplate:
        """Raises CheckpointError when the template is there and does not compile: a conversion asks beforehand."""
        return self._compiled

    def render(
        self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt. `variables` (tools, enable_thinking, …) are what the template at hand knows.

        Raises RequestError when the model has no template, or its template refuses the messages.
        """
        return self._compiled.render(messages, add_generation_prompt=add_generation_prompt, **variables)

    @cached_property
    def _compiled(self) -> JinjaTemplate:
        from trivet.framework.model.jinja_template import JinjaTemplate  # late: see above

        return JinjaTemplate(self._files)
