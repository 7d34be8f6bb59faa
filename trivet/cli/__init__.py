"""The `trivet` command. Each command lives in a file of its own, imported only when it is asked for."""

from __future__ import annotations

import difflib
import importlib
import os
import sys

import click

from trivet import __version__
from trivet.base.errors import TrivetError

# In the order of a first visit.
COMMANDS: dict[str, str] = {
    "demo": "Fetch a small real model and climb all three legs with it",
    "up": "Check the host, the operators and the model, then serve it",
    "doctor": "Say what this host is, and which leg cannot carry",
    "topology": "Say what is near what on this host, and where to run",
    "plan": "Say whether a model fits a device, and what bounds it there",
    "replay": "Replay a public trace of requests on a simulated device",
    "convert": "Turn a checkpoint into a package that loads fast",
    "load": "Load a model and say where the time went",
    "serve": "Serve a model over the OpenAI API, without the checks of `up`",
    "generate": "Complete a prompt, or chat at the terminal",
    "graph": "Print a model's graph, before and after each pass",
    "operators": "List, verify, explain or profile operators",
    "accuracy": "Say how far a device or a format is from float32",
    "bench": "Measure this machine and a model on it",
    "bench lanes": "Measure whether decodes and prefill should run side by side",
    "bench compare": "Measure this engine and others in turn, on the same weights",
    "bench storage": "Measure how fast the storage below a folder can be read",
    "version": "Print versions",
}


class _Lazy(click.Group):
    """A group that knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return command_named(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if " ".join(args[:2]) in COMMANDS and len(args) > 1:
            args = [" ".join(args[:2]), *args[2:]]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            ctx.fail(f"{args[0]!r} is not a command" + (f"; did you mean {near[0]}?" if near else ""))
        return super().resolve_command(ctx, args)


def command_named(name: str) -> click.Command:
    """The command of one of COMMANDS: the function of its name, in the file of its name."""
    name = name.replace(" ", "_")
    command = getattr(importlib.import_module(f"trivet.cli.{name}"), name)
    assert isinstance(command, click.Command)
    return command


# For who types `trivet` and nothing else; \b keeps the lines.
_START = """\b
New here:           trivet demo
A model of yours:   trivet up MODEL
Something is wrong: trivet doctor
"""
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Lazy, epilog=_START, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="trivet")
def cli() -> None:
    """LLM inference on three legs: the driver, the operators, the framework."""


def main(arguments: list[str] | None = None) -> None:
    """The entry point: an error a person can mend is two lines and exit status 1, never a traceback."""
    if sys.stdin is None:  # it was closed: nothing comes from there, which whoever reads it can tell
        sys.stdin = open(os.devnull)  # noqa: SIM115 -- as long-lived as the process
    try:
        cli(arguments, prog_name="trivet")
    except TrivetError as error:
        click.echo(f"trivet: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # what a file is, or who may use it, is a person's to mend; without one it is our fault
        if error.filename is None:
            raise
        click.echo(f"trivet: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)
