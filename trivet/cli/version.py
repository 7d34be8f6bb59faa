"""`trivet version`: what is installed, for a bug report."""

from __future__ import annotations

import click


@click.command()
def version() -> None:
    """Print the versions of Trivet, Python and what the answers depend on."""
    import platform
    from importlib.metadata import version as installed

    from trivet import __version__
    from trivet._native import targets

    click.echo(f"trivet      {__version__}")
    click.echo(f"python      {platform.python_version()} on {platform.system()} {platform.machine()}")
    click.echo(f"cpu targets {', '.join(targets())} (the first is used)")
    for package in ("numpy", "tokenizers", "gguf", "starlette", "uvicorn"):
        click.echo(f"{package:<11} {installed(package)}")
