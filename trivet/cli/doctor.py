"""`trivet doctor`: whether the driver leg of this host, or of a captured one, carries. Exits 2 when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:  # the command imports them when it runs, so that `trivet --help` need not
    from trivet.driver.check import Need

_EXIT_DRIVER = 2
_WEIGHTS = (".safetensors", ".gguf")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="/",
    help="Examine the captured host whose /proc and /sys lie under this directory.",
)
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    help="Hold memory and disk against this model: its folder, or its file.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "npu"]),
    help="What has to work. By default an NPU if there is one, and the CPU otherwise.",
)
def doctor(as_json: bool, root: Path, model: Path | None, device: Literal["cpu", "npu"] | None) -> None:
    """Say whether this host can carry a model, what is wrong with it, and which command mends that."""
    import msgspec

    from trivet.base.findings import verdict
    from trivet.base.settings import read_settings
    from trivet.driver.checks import CHECKS, examine
    from trivet.driver.readers.host import read_facts
    from trivet.driver.report import report

    need = _need(model, device, read_settings().cache_dir.absolute())
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


command = doctor


def _need(model: Path | None, device: Literal["cpu", "npu"] | None, cache_dir: Path) -> Need:
    """What the model takes at the very least: its weights once in memory and, unless it is a package, once in the cache."""
    from trivet.base.errors import CheckpointError
    from trivet.driver.check import Need

    if model is None:
        return Need(device=device, disk_path=str(cache_dir))
    files = [model] if model.is_file() else sorted(model.iterdir())
    weights = [file.stat().st_size for file in files if file.suffix in _WEIGHTS and file.is_file()]
    if not weights:
        raise CheckpointError(
            f"{model}: holds no weights, which are {' or '.join(_WEIGHTS)} files", "name a model's folder or file"
        )
    is_package = (model / "trivet.json").is_file()
    return Need(device, sum(weights), str(cache_dir), None if is_package else sum(weights))
