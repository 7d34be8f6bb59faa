"""A model's chat template in Jinja: messages to the text it was trained to continue.

Templates come with a model and run in Jinja's sandbox; one is never taken from a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trivet.base.errors import CheckpointError, RequestError
from trivet.framework.model.tokenizer_files import TokenizerFiles

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class JinjaTemplate:
    """Renders as published implementations do: blocks trimmed, `raise_exception`, `strftime_now`, plain `tojson`."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Raises CheckpointError when the template is there and does not compile."""
        self._special_tokens = {name: files.special_token(name) or "" for name in _SPECIAL_TOKENS}
        self._template = None
        if files.chat_template is None:
            return
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(files.chat_template)
        except TemplateError as error:
            raise CheckpointError(f"the model's chat template does not compile: {error}") from None

    def render(self, messages: Sequence[Mapping[str, Any]], /, *, add_generation_prompt: bool, **variables: Any) -> str:
        """As `ChatTemplate.render`."""
        if self._template is None:
            raise RequestError(
                "the model has no chat template", "use /v1/completions with a prompt of your own", "messages"
            )
        scope = {
            **self._special_tokens,
            **variables,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(scope)
        except (
            TemplateError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            RecursionError,  # of what a request nests within its variables
        ) as error:
            raise RequestError(f"the model's chat template refuses the messages: {error}", None, "messages") from None


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant wrote, for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
