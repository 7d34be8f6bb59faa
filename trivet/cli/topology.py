"""`trivet topology`: how a host is laid out, and where that says to run. It judges nothing, which is the doctor's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trivet.cli.options import LANG, ROOT, SOURCE

if TYPE_CHECKING:
    from trivet.base.settings import Language


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the layout and the placement as JSON")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw it into this file")
@click.option("--apply", "as_commands", is_flag=True, help="Print the commands that put things there, and run none")
@ROOT
@SOURCE
@LANG
def topology(
    as_json: bool,
    svg: Path | None,
    as_commands: bool,
    root: Path,
    source: Path | None,
    lang: Language | None,
) -> None:
    """Say which NPUs, disks and network cards are near which CPUs and memory, and where processes should run."""
    import msgspec

    from trivet.base.errors import ResourceError
    from trivet.base.settings import read_settings
    from trivet.cli.host import host
    from trivet.driver.layout.commands import commands
    from trivet.driver.layout.picture import picture
    from trivet.driver.layout.placement import placements
    from trivet.driver.layout.text import text
    from trivet.driver.layout.tree import paths, tree
    from trivet.driver.readers.host import read_facts

    if as_json and as_commands:
        raise click.UsageError("--json and --apply are two outputs: leave out one")
    with host(root, source, None, None) as examined:
        facts = read_facts(examined.root)
    language = lang or read_settings().language
    if svg is not None:
        try:
            svg.write_text(picture(facts, language), encoding="utf-8")
        except OSError as error:
            raise ResourceError(
                f"{svg}: cannot be written: {error.strerror}", "name a file in another folder"
            ) from error
    if as_json:
        body = {
            "nodes": tree(facts),
            "paths": paths(facts),
            "placements": [{**msgspec.to_builtins(each), "reason": str(each.reason)} for each in placements(facts)],
        }
        click.echo(msgspec.json.format(msgspec.json.encode(body)))
    else:
        click.echo(commands(facts, language) if as_commands else text(facts, language))
