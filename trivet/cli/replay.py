"""`trivet replay`: a public trace through the real scheduler, on a device whose clock is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trivet.cli.options import KV_DTYPE, KV_RECLAIM, Size
from trivet.framework.memory.reclaim import DEFAULT_RECLAIM, ReclaimName

if TYPE_CHECKING:  # imported when the command runs, so that `--help` need not
    from trivet.base.formats import KvFormat
    from trivet.framework.engine.replay.compared import Comparison
    from trivet.framework.engine.replay.simulation import Served
    from trivet.framework.engine.replay.trace import Arrival


ENOUGH = 0.9  # of what a tier of any size would find: the rest takes most of the room


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--device", metavar="CHIP", help="An Ascend chip, such as 910B3  [default: this host's processor]")
@click.option("--kv-dtype", type=KV_DTYPE, help="Format of the KV cache  [default: bfloat16]")
@click.option("--kv-memory", type=Size(), help="Size of the KV pool  [default: what the weights leave]")
@click.option("--slot-tokens", type=click.IntRange(1), help="Tokens of a slot  [default: those that fit 2 MiB]")
@click.option("--context", type=click.IntRange(1), help="Positions of a sequence  [default: the model's]")
@click.option("--max-sequences", type=click.IntRange(1), default=64, show_default=True, help="Sequences of one step")
@click.option("--max-step-tokens", type=click.IntRange(1), default=512, show_default=True, help="Tokens of one step")
@click.option("--target-itl", type=click.FloatRange(0, min_open=True), metavar="MS", help="As `trivet serve` takes it")
@click.option("--target-ttft", type=click.FloatRange(0, min_open=True), metavar="MS", help="As `trivet serve` takes it")
@click.option(
    "--max-waiting", type=click.IntRange(1), default=512, show_default=True, help="As `trivet serve` takes it"
)
@click.option(
    "--kv-reclaim", type=KV_RECLAIM, default=DEFAULT_RECLAIM, show_default=True, help="As `trivet serve` takes it"
)
@click.option(
    "--speedup",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Let requests arrive so many times as fast",
)
@click.option("--requests", type=click.IntRange(1), help="Only the first of them")
@click.option(
    "--tier", "tiers", type=Size(), multiple=True,
    help="Also say how much of the prompts a tier of this size would hold; may be repeated",
)  # fmt: skip
@click.option(
    "--real",
    is_flag=True,
    help="Serve it here too, with MODEL itself on this host's processor, and say how far off the replay was",
)
@click.option(
    "--scale",
    type=click.Choice(["1", "2", "4", "8", "16", "32", "64"]),
    default="1",
    show_default=True,
    help="Make prompts and answers so many times shorter",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON")
def replay(
    trace: Path, model: Path, device: str | None, kv_dtype: KvFormat | None, kv_memory: int | None,
    slot_tokens: int | None, context: int | None, max_sequences: int, max_step_tokens: int, target_itl: float | None,
    target_ttft: float | None, max_waiting: int, kv_reclaim: ReclaimName, speedup: float, requests: int | None,
    tiers: tuple[int, ...], real: bool, scale: str, as_json: bool,
) -> None:  # fmt: skip
    """Replay TRACE against the scheduler as it would serve MODEL on a device, and say what its clients would see.

    TRACE is Mooncake's .jsonl, Azure's .csv or ServeGen's folder, as published; MODEL as for `trivet plan`.
    """
    from dataclasses import asdict

    from trivet.base.errors import ResourceError, TrivetError
    from trivet.base.units import format_bytes
    from trivet.cli.options import targets_of
    from trivet.cli.plan import chip_room, host_room, read_config
    from trivet.framework.engine.capacity import capacity
    from trivet.framework.engine.cost_model import CostModel
    from trivet.framework.engine.kv_pool import kv_pool
    from trivet.framework.engine.replay.hit_rates import hit_rates, size_for
    from trivet.framework.engine.replay.simulation import Simulation
    from trivet.framework.engine.replay.trace import read_trace, scaled
    from trivet.framework.graph.cost import step_cost
    from trivet.framework.model.loader import model_graph

    arrivals = scaled(read_trace(trace, requests), int(scale), speedup)
    if real:
        if device or slot_tokens or target_itl or target_ttft or tiers:
            raise TrivetError("--real takes no --device, --slot-tokens, --target-itl, --target-ttft or --tier",
                              "leave them out: it serves on this host, and refuses nobody")  # fmt: skip
        compared = replay_here(
            model, arrivals, kv_reclaim, kv_dtype=kv_dtype, kv_memory=kv_memory, max_context=context,
            max_sequences=max_sequences, max_step_tokens=max_step_tokens,
        )  # fmt: skip
        print_comparison(compared, as_json)
        return
    config = read_config(model)
    graph = model_graph(config, "bfloat16", device="cpu" if device is None else "npu", kv_dtype=kv_dtype)
    room = host_room("bfloat16") if device is None else chip_room(device, "bfloat16")
    if room.rates is None:
        raise ResourceError(f"--device {room.name}: no bandwidth of this chip is published", "--device 910B3")
    positions = context or config.max_context
    found = capacity(graph, room, positions, max_sequences, max_step_tokens)
    tokens = slot_tokens or found.slot_tokens
    num_slots = (kv_memory or found.kv_room_bytes) // (tokens * found.kv_token_bytes)
    if num_slots == 0:
        raise ResourceError(f"memory: no slot of {tokens} tokens fits", "raise --kv-memory, or lower --slot-tokens")
    costs = CostModel(step_cost(graph), room.rates)
    simulation = Simulation(
        kv_pool(num_slots, tokens, costs, kv_reclaim), costs, targets_of(target_itl, target_ttft, max_waiting),
        positions, max_step_tokens, max_sequences,
    )  # fmt: skip
    served = simulation.run(arrivals)
    block_bytes = found.kv_token_bytes * arrivals[0].block_tokens
    rates = hit_rates(arrivals, [*(size // block_bytes for size in tiers), None])
    best_bytes = size_for(arrivals, ENOUGH) * block_bytes
    if as_json:
        import msgspec

        held = [{"bytes": size, "hit_rate": rates[size // block_bytes]} for size in tiers]
        document = {**asdict(served), "tiers": held, "any_tier_hit_rate": rates[None], "best_tier_bytes": best_bytes}
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
        return
    print_served(served, room.name, num_slots, tokens)
    for size in tiers:
        rate = rates[size // block_bytes]
        click.echo(f"tier         {format_bytes(size)} would hold {rate:.1%} of prompts' blocks")
    if rates[None]:
        click.echo(
            f"best tier    {format_bytes(best_bytes)} would hold {ENOUGH:.0%} of the {rates[None]:.1%} that any could"
        )


def replay_here(model: Path, arrivals: list[Arrival], kv_reclaim: ReclaimName, **options: Any) -> Comparison:
    """MODEL on this host's processor, loaded with `options`, with costs that are measured first."""
    from trivet.framework.engine.cost_model import calibrated
    from trivet.framework.engine.replay.compared import compare
    from trivet.framework.model.loader import load

    loaded = load(model, **options)
    return compare(loaded.plan, calibrated(loaded.plan), arrivals, kv_reclaim)


def print_comparison(found: Comparison, as_json: bool) -> None:
    from dataclasses import asdict

    from trivet.base.units import format_seconds

    if as_json:
        import msgspec

        document = {**asdict(found), "errors": found.errors()}
        click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())
        return
    predicted, measured, errors = found.predicted, found.measured, found.errors()
    click.echo(f"requests     {measured.num_answered} answered in {format_seconds(measured.duration_s)}, predicted "
               f"{predicted.num_answered} in {format_seconds(predicted.duration_s)}")  # fmt: skip
    for name, key in (("first token", "ttft_s"), ("gap", "itl_s")):
        for figure, seconds in getattr(measured, key).items():
            error = f"{errors[f'{key}_{figure}']:+.0%}" if f"{key}_{figure}" in errors else "nothing to compare"
            said = format_seconds(getattr(predicted, key)[figure])
            click.echo(f"{name:<12} {figure:<4} {format_seconds(seconds)}, predicted {said} ({error})")


def print_served(served: Served, device: str, num_slots: int, slot_tokens: int) -> None:
    from trivet.base.units import format_seconds

    def times(seconds: dict[str, float]) -> str:
        return ", ".join(f"{name} {format_seconds(value)}" for name, value in seconds.items())

    rows = [
        ("device", f"{device}, simulated: {num_slots} slots of {slot_tokens} tokens"),
        ("requests", f"{served.num_finished} of {served.num_requests} answered in {format_seconds(served.duration_s)}; "
         f"{served.num_refused} refused, {served.num_too_long} too long"),
        ("first token", times(served.ttft_s)),
        ("gap", times(served.itl_s)),
        ("goodput", f"{served.goodput:.2f} requests/s within the targets, {served.tokens_per_s:.0f} tokens/s"),
        ("slots", f"{served.allocation_success:.1%} of requests had theirs at once, {served.num_preemptions} "
         f"preemptions; {served.usage:.0%} held, {served.internal_fragmentation:.1%} of that empty"),
        ("prefixes", f"{served.hit_rate:.1%} of prompts' tokens were in the pool already, {served.saved:.1%} of the "
         "time that computing them takes"),
    ]  # fmt: skip
    for name, text in rows:
        click.echo(f"{name:<12} {text}")
