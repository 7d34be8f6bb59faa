"""`trivet serve`: a model over the OpenAI API, without the checks of `trivet up`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from trivet.cli.options import model_options, server_options

if TYPE_CHECKING:  # imported when the command runs, so that `trivet --help` need not
    from pathlib import Path
    from socket import socket

    from trivet.framework.engine.lane_choice import AskedLanes
    from trivet.framework.memory.reclaim import ReclaimName
    from trivet.serve.server import Server
    from trivet.serve.service import Service


@click.command()
@click.argument("model")
@model_options
@server_options
def serve(
    model: str, host: str, port: int, insecure: bool, served_name: str | None, lanes: AskedLanes,
    target_itl: float | None, target_ttft: float | None, max_waiting: int, kv_reclaim: ReclaimName,
    pin_prompt: tuple[Path, ...], **options: Any,
) -> None:  # fmt: skip
    """Serve MODEL, a package, a Hugging Face folder or a GGUF file, over the OpenAI API."""
    import gc
    from contextlib import ExitStack

    with ExitStack() as stack:
        # Until the model is open nearly all that is made stays: to look for what does not made a start a tenth longer.
        gc.disable()
        stack.callback(gc.enable)
        import_numpy()
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path

        from trivet._native import trim_heap
        from trivet.base.settings import read_settings
        from trivet.cli.options import load_options, read_prompts, targets_of
        from trivet.framework.model.checkpoints.digest import model_name
        from trivet.framework.model.loader import load
        from trivet.serve.listening import check_exposure, listen
        from trivet.serve.log import log_to_stderr

        log_to_stderr()
        settings = read_settings()
        check_exposure(host, settings.api_key is not None, insecure)
        pinned = read_prompts(pin_prompt)
        listener = listen(host, port)  # before loading: a port in use shows at once
        name = served_name or model_name(Path(model))
        # What answers is imported while the weights are read, which needs no GIL. The main thread is the one that
        # reads: it hears of an interrupt.
        with ThreadPoolExecutor(1) as beside:
            answering = beside.submit(_answering, listener, name, settings.api_key)
            try:
                loaded = load(model, **load_options(**options))
            finally:
                service, server = answering.result()
                stack.callback(server.stop)
        from trivet.serve.service import start_loaded

        targets = targets_of(target_itl, target_ttft, max_waiting)
        service.open(start_loaded(loaded, name, targets, lanes, kv_reclaim, pinned))
        gc.enable()
        click.echo(f"serving {name} at {server.url}/v1; stop with Ctrl-C", err=True)
        # What only loading needed, the tokenizer's text and the package's manifest, is megabytes: back to the host.
        del loaded
        trim_heap()
        server.wait_for_signal()


def import_numpy() -> None:
    """Import NumPy without threads for its BLAS, which nothing that is served calls.

    There would be one for each core, and each spins for 50 ms when it has begun: as long as NumPy is imported, and on
    the cores that the weights are read by.
    """
    import os

    name = "OPENBLAS_NUM_THREADS"  # read when the library is loaded
    before = os.environ.get(name)
    os.environ[name] = "1"
    import numpy  # noqa: F401

    del os.environ[name]
    if before is not None:  # PyTorch may have an OpenBLAS of its own, and does use it
        os.environ[name] = before


def _answering(listener: socket, name: str, api_key: str | None) -> tuple[Service, Server]:
    """A server that says of `name` that it is still loading."""
    from trivet.serve.server import Server
    from trivet.serve.service import Service

    service = Service(name, api_key=api_key)
    server = Server(service, listener)
    server.start()
    return service, server
