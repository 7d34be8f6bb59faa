"""`trivet serve`: a model over the OpenAI API, without the checks of `trivet up`."""

from __future__ import annotations

from typing import Any

import click

from trivet.cli.options import model_options, server_options


@click.command()
@click.argument("model")
@model_options
@server_options
def serve(
    model: str, host: str, port: int, insecure: bool, served_name: str | None, target_itl: float | None,
    target_ttft: float | None, max_waiting: int, **options: Any,
) -> None:  # fmt: skip
    """Serve MODEL, a package, a Hugging Face folder or a GGUF file, over the OpenAI API."""
    from trivet.base.settings import read_settings
    from trivet.cli.options import load_model, targets_of
    from trivet.serve.log import log_to_stderr
    from trivet.serve.server import Server, check_exposure, listen
    from trivet.serve.service import Service, start_loaded

    log_to_stderr()
    settings = read_settings()
    check_exposure(host, settings.api_key is not None, insecure)
    listener = listen(host, port)  # before loading: a port in use shows at once
    name = served_name or model_name(model)
    service = Service(name, api_key=settings.api_key)
    with Server(service, listener) as server:
        loaded = load_model(model, **options)
        service.open(start_loaded(loaded, name, targets_of(target_itl, target_ttft, max_waiting)))
        click.echo(f"serving {name} at {server.url}/v1; stop with Ctrl-C", err=True)
        server.wait_for_signal()


def model_name(model: str) -> str:
    """What clients call the model: the last part of its path, without a suffix."""
    from pathlib import Path

    return Path(model).resolve().name.removesuffix(".gguf")
