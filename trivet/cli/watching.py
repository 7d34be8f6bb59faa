"""`trivet doctor --watch`: looks at the host again and again, and prints what changed, one line for each change."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import click

from trivet.base.settings import Language
from trivet.cli.host import Examined
from trivet.driver.checks import examine
from trivet.driver.readers.host import read_facts
from trivet.driver.textfile import write_textfile
from trivet.driver.watch import State, changes, state


def watch(
    examined: Examined, python: str | None, before: State, seconds: float, textfile: Path | None, language: Language
) -> None:
    """Until it is interrupted; `before` is what was seen last. A look that takes long delays the next."""
    try:
        while True:
            time.sleep(seconds)
            facts = read_facts(examined.root, examined.paths, python=python)
            findings = examine(facts, examined.need)
            after = state(facts, findings, language)
            for line in changes(before, after, language):
                click.echo(f"{datetime.now().isoformat(timespec='seconds')} {line}")
            if textfile is not None:
                write_textfile(textfile, facts, findings)
            before = after
    except KeyboardInterrupt:
        return
