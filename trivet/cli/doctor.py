"""`trivet doctor`: whether the driver leg of this host, or of a captured one, carries. Exits 2 when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

_EXIT_DRIVER = 2


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    help="Examine the captured host whose /proc and /sys lie under this directory",
)
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    help="Hold memory and disk against this model: its folder, or its file",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "npu"]),
    help="What has to work. By default an NPU if there is one, and the CPU otherwise",
)
def doctor(as_json: bool, root: Path, model: Path | None, device: Literal["cpu", "npu"] | None) -> None:
    """Say whether this host can carry a model, what is wrong with it, and which command mends that"""
    import msgspec

    from trivet.base.findings import verdict
    from trivet.base.settings import read_settings
    from trivet.driver.checks import CHECKS, examine
    from trivet.driver.need import need_of
    from trivet.driver.readers.host import read_facts
    from trivet.driver.report import report

    need = need_of(model, device, read_settings().cache_dir.absolute())
    facts = read_facts(root.resolve(), paths=(need.disk_path,) if need.disk_path else ())
    findings = examine(facts, need)
    result = verdict(findings)
    if as_json:
        rows = [
            {"code": check.code, **msgspec.to_builtins(finding), "source": check.source}
            for check, finding in zip(CHECKS, findings, strict=True)
        ]
        body = {"verdict": result, "findings": rows, "facts": facts}
        click.echo(msgspec.json.format(msgspec.json.encode(body)))
    else:
        click.echo(report(facts, findings))
    if result == "failed":
        raise click.exceptions.Exit(_EXIT_DRIVER)
