"""`trivet doctor`: whether this host, or a captured one, carries. The exit status names the layer that does not.

With `--bundle` it also writes what it read, redacted, and reports on that: what is sent is what was seen. With
`--explain` it says what a pasted log tells instead; nothing of this host is read then.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from trivet.cli.options import LANG, ROOT, SOURCE, Finite

if TYPE_CHECKING:  # imported when the command runs
    from trivet.base.settings import Language
    from trivet.driver.facts import HostFacts

_OF_A_HOST = ("--probe", "--python", "--root", "--from", "--bundle", "--watch")
_OF_A_REPORT = ("--pasted", "--textfile", "--model", "--tensor-parallel", "--peer", "--device", "--want",
                "--format")  # fmt: skip
# Options that exclude others: which, why, and whom.
_APART = (
    ("--explain", "reads a text and no host", (*_OF_A_HOST, *_OF_A_REPORT)),
    ("--pasted", "examines a text", _OF_A_HOST),
    ("--from", "examines a host that was captured", ("--probe", "--root", "--bundle", "--watch")),
    ("--bundle", "reports on what it took of a host", ("--probe", "--watch")),
    ("--watch", "prints lines", ("--json", "--format", "--want")),
    ("--json", "and --format are two formats", ("--format",)),
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON")
@click.option(
    "--probe",
    is_flag=True,
    help="Also read a file where the model lies, lock some memory, and with an NPU have the serving interpreter import "
    "torch_npu and compute a little on each, in processes of their own",
)
@click.option("--python", metavar="PATH", help="The interpreter that serves, if it is not this one")
@click.option(
    "--pasted",
    metavar="TEXT|FILE|-",
    help="Examine the host that a text tells of: npu-smi, hccn_tool, lscpu, version files, or collect_env.py's report",
)
@ROOT
@SOURCE
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="Write what is read, redacted, to this file (.tar.zst) for somebody else's --from, and report on that",
)
@click.option(
    "--watch",
    "seconds",
    type=Finite(min=1),
    is_flag=False,
    flag_value=10.0,
    metavar="[SECONDS]",
    help="After the report look again and again, every 10 seconds unless said, and print what changed",
)
@click.option(
    "--textfile",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the outcomes to this file (.prom) for the textfile collector of Prometheus' node_exporter",
)
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    help="Hold memory and disk against this model: its folder, or its file",
)
@click.option(
    "--tensor-parallel",
    "ways",
    type=click.IntRange(min=1),
    help="Over how many NPUs each layer of the model is to be split",
)
@click.option(
    "--peer",
    "peers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Compare with another host of the same job: what --json printed there; may be given several times",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "npu"]),
    help="What has to work. By default an NPU if there is one, and the CPU otherwise",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "junit", "markdown"]),
    default="text",
    show_default=True,
    help="A report to read, a file for a pipeline, or a text for an issue",
)
@click.option(
    "--want",
    metavar="NAME==VERSION",
    help="Say what would have to change here for this release of vllm-ascend, torch-npu, cann or mindspore",
)
@click.option(
    "--explain",
    metavar="TEXT|FILE|-",
    help="Name the first error of a log, a traceback or an output of npu-smi, its layer, and its cause where one is "
    "known. Reads nothing of this host",
)
@LANG
def doctor(
    as_json: bool,
    probe: bool,
    python: str | None,
    pasted: str | None,
    root: Path,
    source: Path | None,
    bundle: Path | None,
    seconds: float | None,
    textfile: Path | None,
    model: Path | None,
    ways: int | None,
    peers: tuple[Path, ...],
    device: Literal["cpu", "npu"] | None,
    form: Literal["text", "junit", "markdown"],
    want: str | None,
    explain: str | None,
    lang: Language | None,
) -> None:
    """Say whether this host can carry a model, what is wrong with it, and which command mends that.

    Exits 2 where the driver's layer does not carry, 3 for CANN's, 4 for the frameworks', 5 for the model, 6 for the
    host's settings and 7 for the network: the lowest that fails.
    """
    asked = {
        "--json": as_json,
        "--format": form != "text",
        "--want": want is not None,
        "--probe": probe,
        "--python": python is not None,
        "--pasted": pasted is not None,
        "--root": root != Path("/"),
        "--from": source is not None,
        "--bundle": bundle is not None,
        "--watch": seconds is not None,
        "--textfile": textfile is not None,
        "--model": model is not None,
        "--tensor-parallel": ways is not None,
        "--peer": bool(peers),
        "--device": device is not None,
        "--explain": explain is not None,
    }
    for option, why, others in _APART:
        too_many = [name for name in others if asked[name]]
        if asked[option] and too_many:
            raise click.UsageError(f"{option} {why}: leave out {', '.join(too_many)}")
    if explain is not None:
        _explain(explain, as_json, lang)
        return

    import msgspec

    from trivet.base.errors import TrivetError
    from trivet.base.findings import EXIT_STATUS, failed_layer, verdict
    from trivet.base.settings import read_settings
    from trivet.cli.host import Job, bundled, host, with_job
    from trivet.cli.watching import watch
    from trivet.driver.checks import CHECKS, examine
    from trivet.driver.explain.pasted import read_pasted
    from trivet.driver.formats import junit, markdown
    from trivet.driver.need import need_of
    from trivet.driver.readers.host import read_facts
    from trivet.driver.readers.pasted_host import read_pasted_host
    from trivet.driver.report import report
    from trivet.driver.textfile import write_textfile
    from trivet.driver.watch import state

    settings = read_settings()
    language = lang or settings.language
    job = Job(ways, peers)
    if python is not None and root == Path("/") and source is None:
        python = _interpreter(python)
    if bundle is not None:
        source = bundled(bundle, root, model, device, python, job, language)
        root = Path("/")
    if pasted is not None:
        need = with_job(need_of(model, device, settings.cache_dir.absolute()), job)
        facts = read_pasted_host(read_pasted(pasted, sys.stdin.buffer, "pasted")[0])
        if facts == read_pasted_host(""):
            raise TrivetError(
                "--pasted: nothing in the text tells of a host",
                "paste what npu-smi, lscpu, numactl or lspci print, hccn_tool below its command line, a version file, "
                "or collect_env.py's report; an error or a log is for --explain",
            )
    else:
        with host(root, source, model, device, job) as examined:
            facts, need = read_facts(examined.root, examined.paths, python=python, probe=probe), examined.need
    if want is not None:
        _want(want, facts, as_json, language)
        return
    findings = examine(facts, need, language)
    if textfile is not None:
        write_textfile(textfile, facts, findings)
    layer = failed_layer(findings)
    if as_json:
        rows = [
            {"code": check.code, "severity": check.severity, **msgspec.to_builtins(finding), "source": check.source}
            for check, finding in zip(CHECKS, findings, strict=True)
        ]
        body = {"verdict": verdict(findings), "layer": layer, "findings": rows, "facts": facts}
        click.echo(msgspec.json.format(msgspec.json.encode(body)))
    elif form == "junit":
        click.echo(junit(CHECKS, findings))
    elif form == "markdown":
        click.echo(markdown(facts, findings, language))
    else:
        click.echo(report(facts, findings, language))
    if seconds is not None:
        watch(examined, python, state(facts, findings, language), seconds, textfile, language)
        return
    if layer is not None:
        raise click.exceptions.Exit(EXIT_STATUS[layer])


def _interpreter(given: str) -> str:
    """The absolute path of an interpreter of this host, links as they are: that of an environment is one."""
    from trivet.base.errors import TrivetError

    path = Path(given).absolute()
    if not path.is_file():
        raise TrivetError(f"--python {given}: no such file", "name the interpreter that serves: /opt/serve/bin/python")
    return str(path)


def _want(text: str, facts: HostFacts, as_json: bool, language: Language) -> None:
    import msgspec

    from trivet.base.findings import EXIT_STATUS
    from trivet.driver.want import changes, parse_want, want_report

    name, version = parse_want(text)
    parts = changes(facts, name, version)
    if as_json:
        body = {"component": name, "version": version, "parts": parts}
        click.echo(msgspec.json.format(msgspec.json.encode(body)))
    else:
        click.echo(want_report(parts, name, version, language))
    first = next((part for part in parts if not part.fits), None)
    if first is not None:
        raise click.exceptions.Exit(EXIT_STATUS[first.layer])


def _explain(source: str, as_json: bool, lang: Language | None) -> None:
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
