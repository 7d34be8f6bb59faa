"""`trivet up`: climb the three legs, then serve."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trivet.cli.options import model_options, server_options

if TYPE_CHECKING:  # imported when the command runs, so that `trivet --help` need not
    from trivet.framework.engine.lane_choice import AskedLanes
    from trivet.framework.graph.profile import OperatorProfile
    from trivet.framework.memory.reclaim import ReclaimName
    from trivet.serve.legs import Climb, LegReport


# What people are told of a leg, and in which order.
_COUNTED = {"passed": "passed", "failed": "failed", "warning": "to look at", "note": "to know", "unknown": "unknown",
            "skipped": "do not apply"}  # fmt: skip


@click.command()
@click.argument("model")
@model_options
@server_options
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    help="Climb the driver leg of the captured host under this directory, where the device is an emulated one",
)
@click.option("--check-only", is_flag=True, help="Climb and report, do not serve")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON (to stdout, before serving)")
def up(
    model: str, host: str, port: int, insecure: bool, served_name: str | None, lanes: AskedLanes,
    target_itl: float | None, target_ttft: float | None, max_waiting: int, kv_reclaim: ReclaimName,
    pin_prompt: tuple[Path, ...], root: Path, check_only: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Check this host, the operators and MODEL, each leg before the next; then serve it over the OpenAI API.

    Exits 2, 3 or 4 when the driver, the operators or the framework cannot carry.
    """
    from trivet.base.settings import read_settings
    from trivet.cli.options import load_options, read_prompts, targets_of
    from trivet.framework.model.checkpoints.digest import model_name
    from trivet.serve.legs import EXIT_STATUS, climb
    from trivet.serve.listening import check_exposure, listen
    from trivet.serve.log import log_to_stderr
    from trivet.serve.server import Server
    from trivet.serve.service import Service, start_loaded

    log_to_stderr()
    settings = read_settings()
    pinned = read_prompts(pin_prompt)
    listener = None
    if not check_only:
        check_exposure(host, settings.api_key is not None, insecure)
        listener = listen(host, port)  # before the climb: a port in use shows at once
    on_leg = (lambda report: None) if as_json else print_leg
    climbed = climb(model, settings, on_leg, root=root, **load_options(**options))
    if as_json:
        click.echo(to_json(climbed))
    elif climbed.decode_profile:
        print_profile(climbed.decode_profile)
    if climbed.model is None:
        raise click.exceptions.Exit(EXIT_STATUS[climbed.failed_leg or "framework"])
    if listener is None:
        return
    name = served_name or model_name(Path(model))
    service = Service(name, api_key=settings.api_key)
    targets = targets_of(target_itl, target_ttft, max_waiting)
    service.open(start_loaded(climbed.model, name, targets, lanes, kv_reclaim, pinned))
    with Server(service, listener) as server:
        click.echo(f"serving {name} at {server.url}/v1; stop with Ctrl-C", err=True)
        server.wait_for_signal()


def print_leg(report: LegReport) -> None:
    """One leg: its verdict, what did not simply pass, and for the framework everything."""
    from trivet.base.units import format_seconds

    carries = "does not carry" if report.outcome == "failed" else "carries"
    counts = Counter[str](finding.outcome for finding in report.findings)
    said = [f"{counts[outcome]} {words}" for outcome, words in _COUNTED.items() if counts[outcome]]
    click.echo(f"{report.leg:<10} {carries}: {', '.join(said)} ({format_seconds(report.seconds)})")
    for finding in report.findings:
        if finding.outcome not in ("passed", "skipped") or report.leg == "framework":
            click.echo(f"  {finding.line()}")
            for command in finding.remedy:
                click.echo(f"    → {command}")


def print_profile(profile: list[OperatorProfile]) -> None:
    """Where a decode step's time goes, the operators that take the most first."""
    total = sum(row.seconds for row in profile)
    click.echo("decode     where the time of a step goes, and how fast its bytes move")
    for row in profile[:4]:
        bar = "█" * round(30 * row.seconds / total)
        click.echo(f"  {row.operator:<14} {row.seconds / total:4.0%} {bar:<30} "
                   f"{row.fewest_bytes / max(row.seconds, 1e-9) / 1e9:5.1f} GB/s")  # fmt: skip


def to_json(climbed: Climb) -> str:
    """The report of the climb as one JSON document."""
    import msgspec

    document = {"failed_leg": climbed.failed_leg, "legs": climbed.legs, "decode_profile": climbed.decode_profile}
    return msgspec.json.format(msgspec.json.encode(document)).decode()
