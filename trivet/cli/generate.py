"""`trivet generate`: one prompt completed, or a chat at the terminal, streamed as it comes."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from trivet.cli.options import model_options

if TYPE_CHECKING:  # imported when the command runs, so that `trivet --help` need not
    from trivet.framework.engine.engine import Engine
    from trivet.framework.engine.params import SamplingParams
    from trivet.framework.model.loader import LoadedModel


@click.command()
@click.argument("model")
@click.argument("prompt", required=False)
@model_options
@click.option("--system", help="A system message for the chat")
@click.option("--raw", is_flag=True, help="Complete PROMPT as it is, without the model's chat template")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens to generate  [default: to the end of the context]")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 takes the likeliest token")
@click.option("--top-p", type=float, default=1.0, show_default=True,
              help="Choose among the likeliest tokens, which make up this share together")  # fmt: skip
@click.option("--seed", type=int, help="The same seed gives the same answer")
def generate(
    model: str, prompt: str | None, system: str | None, raw: bool, max_tokens: int | None, temperature: float,
    top_p: float, seed: int | None, **options: Any,
) -> None:  # fmt: skip
    """Answer PROMPT with MODEL; without a PROMPT, read it from a pipe or chat at the terminal."""
    from trivet.cli.options import load_model
    from trivet.framework.engine.engine import Engine
    from trivet.framework.engine.params import SamplingParams

    if raw and system is not None:
        raise click.UsageError("--system is a message of a chat, and --raw is without one; name one of them")
    prompt = _prompt(prompt, is_wanted=raw)
    params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_tokens)
    loaded = load_model(model, **options)
    with contextlib.closing(Engine(loaded.plan, loaded.tokenizer, tiers=loaded.tiers)) as engine:
        _talk(engine, loaded, prompt, system, raw, params)


def _prompt(given: str | None, *, is_wanted: bool) -> str | None:
    """The text of the argument or of a pipe; None where neither is there, and none is wanted.

    Raises RequestError where it has nothing in it, or is no text.
    """
    from trivet.base.errors import RequestError

    try:
        text = sys.stdin.read() if given is None and not sys.stdin.isatty() else given
        words = (text or "").encode().split()  # bytes that are no UTF-8 come from the shell as half characters
    except UnicodeError as error:
        raise RequestError(f"PROMPT is no text in UTF-8: {error}", "give a text in UTF-8") from None
    if not words and (text is not None or is_wanted):
        raise RequestError("PROMPT is empty", "give some text, as an argument or through a pipe")
    return text


def _talk(
    engine: Engine, loaded: LoadedModel, prompt: str | None, system: str | None, raw: bool, params: SamplingParams
) -> None:
    if raw and prompt is not None:
        _answer(engine, loaded.tokenizer.encode(prompt, add_special=True), params)
        return
    messages = [{"role": "system", "content": system}] if system else []
    if prompt is not None:
        _say(engine, loaded, [*messages, {"role": "user", "content": prompt}], params)
        return
    click.echo("chat; an empty line or Ctrl-D ends it", err=True)
    while text := _read_line():
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": _say(engine, loaded, messages, params)})


def _read_line() -> str:
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""


def _say(engine: Engine, loaded: LoadedModel, messages: list[dict[str, str]], params: SamplingParams) -> str:
    rendered = loaded.chat_template.render(messages)
    return _answer(engine, loaded.tokenizer.encode(rendered, add_special=False), params)


def _answer(engine: Engine, prompt: list[int], params: SamplingParams) -> str:
    """Stream the answer to stdout and give it back; Ctrl-C stops it where it is. TrivetError when a step fails."""
    from trivet.base.errors import TrivetError
    from trivet.framework.engine.sequence import new_request

    engine.add(new_request("answer", prompt, params))
    parts = []
    try:
        while engine.has_work:
            for delta in engine.step():
                parts.append(delta.text)
                click.echo(delta.text, nl=False)
                if delta.finish_reason == "error":
                    raise TrivetError("the answer could not be computed to its end", "what is above says why")
    except KeyboardInterrupt:
        engine.abort_all()
    click.echo()
    return "".join(parts)
