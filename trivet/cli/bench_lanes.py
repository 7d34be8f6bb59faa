"""`trivet bench lanes`: whether decode and prefill should run side by side on this host, told from steps of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from trivet.cli.options import model_options

if TYPE_CHECKING:  # imported when the command runs, so that `--help` need not
    from trivet.framework.engine.lane_choice import Choice


@click.command()
@click.argument("model")
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print what was measured as JSON")
def bench_lanes(model: str, as_json: bool, **options: Any) -> None:
    """Time steps of MODEL in two lanes, and in one; say which is better, and why.

    Two lanes are better where they do more prefill in the time that decodes take: `--lanes auto` decides by the same.
    """
    from trivet.cli.options import load_model
    from trivet.framework.engine.lane_choice import measured_choice

    loaded = load_model(model, **options)
    loaded.settle()
    choice = measured_choice(loaded.plan, loaded.device.cpus)
    click.echo(to_json(choice) if as_json else "\n".join(choice.lines))


def to_json(choice: Choice) -> str:
    """The choice and every split that was measured, as one JSON document."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(choice)).decode()
