"""`trivet doctor`: whether the driver leg of this host, or of a captured one, carries. Exits 2 when it does not.

With `--explain`, what a pasted log tells instead; nothing of this host is read then.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

_EXIT_DRIVER = 2


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON")
@click.option("--probe", is_flag=True, help="Also read a file where the model lies, and lock some memory")
@click.option("--python", metavar="PATH", help="The interpreter that serves, if it is not this one")
@click.option(
    "--pasted",
    metavar="TEXT|FILE|-",
    help="Examine the host that a text tells of: npu-smi, hccn_tool, lscpu, version files, or collect_env.py's report",
)
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
@click.option(
    "--explain",
    metavar="TEXT|FILE|-",
    help="Name the first error of a log, a traceback or an output of npu-smi, its layer, and its cause where one is "
    "known. Reads nothing of this host",
)
@click.option("--lang", type=click.Choice(["en", "zh"]), help="Language of --explain  [default: the locale's]")
def doctor(
    as_json: bool,
    probe: bool,
    python: str | None,
    pasted: str | None,
    root: Path,
    model: Path | None,
    device: Literal["cpu", "npu"] | None,
    explain: str | None,
    lang: Literal["en", "zh"] | None,
) -> None:
    """Say whether this host can carry a model, what is wrong with it, and which command mends that"""
    if explain is not None:
        asked = {"--root": root != Path("/"), "--model": model is not None, "--device": device is not None}
        asked |= {"--probe": probe, "--python": python is not None, "--pasted": pasted is not None}
        of_a_host = [name for name, is_asked in asked.items() if is_asked]
        if of_a_host:
            raise click.UsageError(f"--explain reads a text and no host: leave out {', '.join(of_a_host)}")
        _explain(explain, as_json, lang)
        return
    if pasted is not None and (root != Path("/") or probe or python is not None):
        raise click.UsageError("--pasted examines a text: leave out --root, --probe and --python, which ask a host")
    if lang is not None:
        raise click.UsageError("--lang is the language of --explain, and there is nothing to explain")

    import msgspec

    from trivet.base.findings import verdict
    from trivet.base.settings import read_settings
    from trivet.driver.checks import CHECKS, examine
    from trivet.driver.explain.pasted import read_pasted
    from trivet.driver.need import need_of
    from trivet.driver.readers.host import read_facts
    from trivet.driver.readers.pasted_host import read_pasted_host
    from trivet.driver.report import report

    need = need_of(model, device, read_settings().cache_dir.absolute())
    if pasted is not None:
        facts = read_pasted_host(read_pasted(pasted, sys.stdin.buffer, "pasted")[0])
    else:
        paths = [str(path) for path in (need.disk_path, model and model.absolute()) if path]
        facts = read_facts(root.resolve(), paths, python=python, probe=probe)
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


def _explain(source: str, as_json: bool, lang: Literal["en", "zh"] | None) -> None:
    import msgspec

    from trivet.base.settings import read_settings
    from trivet.driver.explain.pasted import read_pasted
    from trivet.driver.explain.verdict import explain
    from trivet.driver.explain.wording import as_data, as_text

    text, cut = read_pasted(source, sys.stdin.buffer)
    if cut is not None:
        click.echo(f"explain: {cut}", err=True)
    language = lang or read_settings().language
    verdict = explain(text)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(as_data(verdict, language))))
    else:
        click.echo(as_text(verdict, language))
