"""`trivet replay`: a public trace through the real scheduler, on a device whose clock is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trivet.cli.options import KV_DTYPE, KV_RECLAIM, POSITIVE, Bandwidth, Size
from trivet.framework.memory.reclaim import DEFAULT_RECLAIM, ReclaimName

if TYPE_CHECKING:  # imported when the command runs, so that `--help` need not
    from trivet.base.formats import KvFormat
    from trivet.driver.devices.device import DeviceName
    from trivet.framework.engine.replay.compared import Comparison
    from trivet.framework.engine.replay.simulation import Served
    from trivet.framework.engine.replay.timed_stores import Behind
    from trivet.framework.engine.replay.trace import Arrival


ENOUGH = 0.9  # of what a tier of any size would find: the rest takes most of the room


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--device", metavar="CHIP", help="An Ascend chip, such as 910B3  [default: this host's processor]")
@click.option("--kv-dtype", type=KV_DTYPE, help="Format of the KV cache  [default: bfloat16]")
@click.option("--kv-memory", type=Size(), help="Size of the KV pool  [default: what the weights leave]")
@click.option("--slot-tokens", type=click.IntRange(1), help="Tokens of a slot  [default: as a server's]")
@click.option("--context", type=click.IntRange(1), help="Positions of a sequence  [default: the model's]")
@click.option("--max-sequences", type=click.IntRange(1), default=64, show_default=True, help="Sequences of one step")
@click.option("--max-step-tokens", type=click.IntRange(1), default=512, show_default=True, help="Tokens of one step")
@click.option("--target-itl", type=POSITIVE, metavar="MS", help="As `trivet serve` takes it")
@click.option("--target-ttft", type=POSITIVE, metavar="MS", help="As `trivet serve` takes it")
@click.option(
    "--max-waiting", type=click.IntRange(1), default=512, show_default=True, help="As `trivet serve` takes it"
)
@click.option(
    "--kv-reclaim", type=KV_RECLAIM, default=DEFAULT_RECLAIM, show_default=True, help="As `trivet serve` takes it"
)
@click.option(
    "--speedup",
    type=POSITIVE,
    default=1.0,
    show_default=True,
    help="Let requests arrive so many times as fast",
)
@click.option("--requests", type=click.IntRange(1), help="Only the first of them")
@click.option("--kv-host-bytes", type=Size(), help="Serve it again with so much host memory behind the KV pool")
@click.option("--kv-dir-bytes", type=Size(), help="Serve it again with files of so many bytes behind that")
@click.option(
    "--kv-host-bandwidth", type=Bandwidth(),
    help="Of copying a slot to host memory or back  [default: 25GB/s; here, half of the memory's]",
)  # fmt: skip
@click.option(
    "--kv-dir-bandwidth", type=Bandwidth(), default="3GB/s", show_default=True,
    help="Of reading the files, and of writing them",
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
    kv_host_bytes: int | None, kv_dir_bytes: int | None, kv_host_bandwidth: int | None, kv_dir_bandwidth: int,
    real: bool, scale: str, as_json: bool,
) -> None:  # fmt: skip
    """Replay TRACE against the scheduler as it would serve MODEL on a device, and say what its clients would see.

    TRACE is Mooncake's .jsonl, Azure's .csv or ServeGen's folder, as published; MODEL as for `trivet plan`. With tiers
    behind the KV pool it is served twice: without them, and with them.
    """
    from trivet.base.errors import ResourceError, TrivetError
    from trivet.cli.options import targets_of
    from trivet.cli.plan import chip_room, host_room, read_config
    from trivet.framework.engine.capacity import HOST_LINK_BYTES_PER_S, capacity
    from trivet.framework.engine.cost_model import CostModel
    from trivet.framework.engine.kv_pool import kv_pool
    from trivet.framework.engine.replay.simulation import Simulation
    from trivet.framework.engine.replay.timed_stores import Behind
    from trivet.framework.engine.replay.trace import read_trace, scaled
    from trivet.framework.graph.binding import BINDINGS
    from trivet.framework.graph.cost import step_cost
    from trivet.framework.model.kv_tiers import DEFAULT_HOST_BYTES
    from trivet.framework.model.loader import model_graph

    arrivals = scaled(read_trace(trace, requests), int(scale), speedup)
    if real:
        if device or slot_tokens or target_itl or target_ttft or kv_host_bytes or kv_dir_bytes:
            raise TrivetError(
                "--real takes no --device, --slot-tokens, --target-itl, --target-ttft, --kv-host-bytes or "
                "--kv-dir-bytes",
                "leave them out: it serves on this host, and refuses nobody",
            )
        compared = replay_here(
            model, arrivals, kv_reclaim, kv_dtype=kv_dtype, kv_memory=kv_memory, max_context=context,
            max_sequences=max_sequences, max_step_tokens=max_step_tokens,
        )  # fmt: skip
        print_comparison(compared, as_json)
        return
    config = read_config(model)
    binding: DeviceName = "cpu" if device is None else "npu"
    graph = model_graph(config, "bfloat16", device=binding, kv_dtype=kv_dtype)
    room = host_room("bfloat16") if device is None else chip_room(device, "bfloat16")
    if room.rates is None or room.bytes_per_s is None:
        raise ResourceError(f"--device {room.name}: no bandwidth of this chip is published", "--device 910B3")
    positions = context or config.max_context
    found = capacity(graph, room, positions, max_sequences, max_step_tokens)
    tokens = slot_tokens or found.slot_tokens
    num_slots = (kv_memory or found.kv_room_bytes) // (tokens * found.kv_token_bytes)
    if num_slots == 0:
        raise ResourceError(f"memory: no slot of {tokens} tokens fits", "raise --kv-memory, or lower --slot-tokens")
    behind = None
    if kv_host_bytes or kv_dir_bytes:
        behind = Behind(
            slot_bytes=tokens * found.kv_token_bytes,
            host_bytes=kv_host_bytes or DEFAULT_HOST_BYTES,
            host_bytes_per_s=kv_host_bandwidth or (room.bytes_per_s / 2 if device is None else HOST_LINK_BYTES_PER_S),
            folder_bytes=kv_dir_bytes,
            folder_bytes_per_s=kv_dir_bandwidth,
            num_pieces=len(graph.streams) if kv_dir_bytes and BINDINGS[binding].awaits_streams else 1,
        )
    costs = CostModel(step_cost(graph), room.rates)
    served = [
        Simulation(
            kv_pool(num_slots, tokens, costs, kv_reclaim), costs, targets_of(target_itl, target_ttft, max_waiting),
            positions, max_step_tokens, max_sequences, tiers,
        ).run(arrivals)
        for tiers in ([None] if behind is None else [None, behind])
    ]  # fmt: skip
    if as_json:
        print_json(served, *best_tier(arrivals, found.kv_token_bytes))
        return
    click.echo(f"device       {room.name}, simulated: {num_slots} slots of {tokens} tokens")
    print_served(served[0])
    if behind is not None:
        print_behind(behind)
        print_served(served[1])
        print_reading(served[1])
    print_best_tier(*best_tier(arrivals, found.kv_token_bytes))


def best_tier(arrivals: list[Arrival], token_bytes: int) -> tuple[int, float]:
    """The bytes of a tier that would hold most of what any could, and the share of prompts' blocks that any could."""
    from trivet.framework.engine.replay.hit_rates import hit_rates, size_for

    return size_for(arrivals, ENOUGH) * token_bytes * arrivals[0].block_tokens, hit_rates(arrivals, [None])[None]


def replay_here(model: Path, arrivals: list[Arrival], kv_reclaim: ReclaimName, **options: Any) -> Comparison:
    """MODEL on this host's processor, loaded with `options`, with costs that are measured first."""
    from trivet.framework.engine.cost_model import calibrated
    from trivet.framework.engine.replay.compared import compare
    from trivet.framework.model.loader import load

    loaded = load(model, **options)
    loaded.settle()
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


def print_json(served: list[Served], best_bytes: int, any_rate: float) -> None:
    from dataclasses import asdict

    import msgspec

    without, *behind = map(asdict, served)
    document = {**without, **({"with_tiers": behind[0]} if behind else {}),
                "any_tier_hit_rate": any_rate, "best_tier_bytes": best_bytes}  # fmt: skip
    click.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def print_served(served: Served) -> None:
    from trivet.base.units import format_seconds

    def times(seconds: dict[str, float]) -> str:
        return ", ".join(f"{name} {format_seconds(value)}" for name, value in seconds.items())

    rows = [
        ("requests", f"{served.num_finished} of {served.num_requests} answered in {format_seconds(served.duration_s)}; "
         f"{served.num_refused} refused, {served.num_too_long} too long"),
        ("first token", times(served.ttft_s)),
        ("gap", times(served.itl_s)),
        ("goodput", f"{served.goodput:.2f} requests/s within the targets, {served.tokens_per_s:.0f} tokens/s"),
        ("slots", f"{served.allocation_success:.1%} of requests had theirs at once, {served.num_preemptions} "
         f"preemptions; {served.usage:.0%} held, {served.internal_fragmentation:.1%} of that empty"),
        ("prefixes", f"{served.hit_rate:.1%} of prompts' tokens were in the pool already{_beyond(served)}; "
         f"{served.saved:.1%} of the time that computing them takes was spared"),
    ]  # fmt: skip
    for name, text in rows:
        click.echo(f"{name:<12} {text}")


def _beyond(served: Served) -> str:
    shares = ((served.host_hit_rate, "in host memory"), (served.files_hit_rate, "in files"))
    return "".join(f", {share:.1%} {where}" for share, where in shares if share)


def print_behind(behind: Behind) -> None:
    """What the second run has that the first had not."""
    from trivet.base.units import GIB, format_bytes

    def tier(num_bytes: int, bytes_per_s: float) -> str:
        return f"{format_bytes(num_bytes)} at {bytes_per_s / GIB:.1f} GiB/s"

    files = f", {tier(behind.folder_bytes, behind.folder_bytes_per_s)} of files" if behind.folder_bytes else ""
    click.echo(f"\nwith tiers   {tier(behind.host_bytes, behind.host_bytes_per_s)} of host memory{files}")


def print_reading(served: Served) -> None:
    from trivet.base.units import format_seconds

    if served.read_s:
        click.echo(f"reading      {format_seconds(served.read_s)} of files; whoever was next waited "
                   f"{format_seconds(served.stalled_s)} for it")  # fmt: skip


def print_best_tier(best_bytes: int, any_rate: float) -> None:
    from trivet.base.units import format_bytes

    if any_rate:
        click.echo(f"best tier    {format_bytes(best_bytes)} would hold {ENOUGH:.0%} of the {any_rate:.1%} of prompts' "
                   "blocks that any could")  # fmt: skip
