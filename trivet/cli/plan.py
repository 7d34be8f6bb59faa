"""`trivet plan`: whether a model fits a device, and what bounds it there, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trivet.cli.options import DTYPE, KV_DTYPE

if TYPE_CHECKING:  # imported when the command runs, so that `--help` need not
    from trivet.base.dtypes import DType
    from trivet.base.formats import KvFormat
    from trivet.framework.engine.capacity import Capacity, Room
    from trivet.framework.model.config import ModelConfig


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--device", metavar="CHIP", help="An Ascend chip, such as 910B3  [default: this host's processor]")
@click.option("--dtype", type=DTYPE, default="bfloat16", show_default=True, help="Format of weights and KV cache")
@click.option("--kv-dtype", type=KV_DTYPE, help="Format of the KV cache  [default: as --dtype]")
@click.option("--context", type=click.IntRange(1), help="Positions of each sequence  [default: the model's]")
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Sequences at once")
@click.option("--max-step-tokens", type=click.IntRange(1), default=512, show_default=True, help="Tokens of one step")
@click.option(
    "--lanes",
    type=click.Choice(["1", "2"]),
    default="1",
    show_default=True,
    help="Two for `trivet up --lanes 2`: one has activations of its own",
)
@click.option("--json", "as_json", is_flag=True, help="Print the budget as JSON")
def plan(
    model: Path, device: str | None, dtype: DType, kv_dtype: KvFormat | None, context: int | None, concurrency: int,
    max_step_tokens: int, lanes: str, as_json: bool,
) -> None:  # fmt: skip
    """Print the budget of MODEL on a device: weights, KV cache, activations, and what bounds its speed.

    MODEL is what `trivet up` takes, or a config.json alone. Exits 1 when it does not fit, with the option to change.
    """
    from trivet.base.errors import ResourceError
    from trivet.framework.engine.capacity import capacity
    from trivet.framework.model.loader import model_graph

    config = read_config(model)
    graph = model_graph(config, dtype, device="cpu" if device is None else "npu", kv_dtype=kv_dtype)
    if lanes == "2" and device is not None:
        raise ResourceError("--lanes 2: only a CPU's cores are shared out between lanes", "--lanes 1")
    room = host_room(dtype) if device is None else chip_room(device, dtype)
    positions = context or config.max_context
    if positions > config.max_context:
        raise ResourceError(
            f"--context is {positions}, the model was made for {config.max_context} positions",
            f"ask for at most {config.max_context}",
        )
    found = capacity(graph, room, positions, concurrency, max_step_tokens, int(lanes))
    if as_json:
        print_json(room, found)
    else:
        cache = f", KV cache in {kv_dtype}" if kv_dtype else ""
        click.echo(f"model        {config.architecture}, {config.num_layers} layers, {dtype}{cache}")
        print_budget(room, found, positions, concurrency)
    found.check(room, positions, concurrency)
    if not as_json:
        name = "MODEL" if model.suffix == ".json" else model  # a configuration alone cannot be started
        how = {
            "--device": None if device is None else "npu",
            "--dtype": None if dtype == "bfloat16" else dtype,
            "--kv-dtype": kv_dtype,
            "--max-context": positions,
            "--max-sequences": concurrency,
            "--max-step-tokens": None if max_step_tokens == 512 else max_step_tokens,
            "--kv-memory": f"{-(-found.kv_bytes // 2**20)}MiB",
            "--lanes": None if lanes == "1" else lanes,
        }
        options = " ".join(f"{option} {value}" for option, value in how.items() if value is not None)
        click.echo(f"start        trivet up {name} {options}")


def read_config(model: Path) -> ModelConfig:
    """The configuration of a model, or of a config.json without one."""
    from trivet.framework.model.config import parse_config
    from trivet.framework.model.json_file import read_json
    from trivet.framework.model.loader import model_config

    return parse_config(read_json(model)) if model.suffix == ".json" else model_config(model)


def chip_room(device: str, dtype: DType) -> Room:
    """The memory and speed of an Ascend chip, from what is published of it."""
    from trivet.base.errors import ResourceError
    from trivet.driver.devices.soc import soc_named
    from trivet.framework.engine.capacity import room_of
    from trivet.framework.graph.binding import BINDINGS

    soc = soc_named(device)
    if dtype == "bfloat16" and not soc.has_bfloat16:
        raise ResourceError(f"--device {soc.name} ({soc.family}) has no bfloat16", "--dtype float32")
    return room_of(soc, BINDINGS["npu"].slot_tokens)


def host_room(dtype: DType) -> Room:
    """This host's processor: the memory that is available now, and its speed with weights in `dtype`, measured in about
    a second."""
    from trivet._native import Team, multiply_add_peak
    from trivet.base.errors import ResourceError
    from trivet.driver.devices.table import open_device
    from trivet.driver.readers.host import read_facts
    from trivet.framework.engine.capacity import COMPUTE_SHARE, Room
    from trivet.serve.bench.limits import memory_speeds

    device = open_device("cpu", read_facts(), None)
    if device.memory_bytes is None:
        raise ResourceError("memory: how much is available is unknown here", "name a chip with --device")
    bytes_per_s = max(memory_speeds(device.cpus, 3))
    flops_per_s = max(multiply_add_peak(Team(list(device.cpus)), None, dtype, 3))
    return Room(device.name, device.memory_bytes, bytes_per_s, flops_per_s * COMPUTE_SHARE)


def print_budget(room: Room, found: Capacity, context: int, concurrency: int) -> None:
    from trivet.base.units import format_bytes, format_seconds

    rows = [
        ("device", f"{room.name}: {format_bytes(room.memory_bytes)} for the three pools"),
        ("weights", format_bytes(found.weight_bytes)),
        ("activations", format_bytes(found.activation_bytes)),
        ("KV cache", f"{format_bytes(found.kv_bytes)} of {format_bytes(found.kv_room_bytes)} left: {concurrency} x "
         f"{context} positions, {format_bytes(found.kv_token_bytes)} each, in slots of {found.slot_tokens}"),
        ("fits", f"{found.max_concurrency} sequences of {context} positions"),
    ]  # fmt: skip
    if (speed := found.speed) is None:
        rows.append(("speed", "unknown: no bandwidth of this chip is published"))
    else:
        rows.append(("decode", f"{format_seconds(speed.decode_s)} a step, {speed.decode_tokens_per_s:.0f} tokens/s in "
                     f"all; bound by {speed.decode_bound}"))  # fmt: skip
        rows.append(("prefill", f"first token after {format_seconds(speed.ttft_s)} for {context} tokens; bound by "
                     f"{speed.prefill_bound}"))  # fmt: skip
    for name, text in rows:
        click.echo(f"{name:<12} {text}")


def print_json(room: Room, found: Capacity) -> None:
    import msgspec

    document = {"device": room, "budget": found}
    click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
