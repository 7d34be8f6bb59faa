"""What changed on a host between two looks at it. What always moves (free memory, temperatures) is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from trivet.base.findings import Finding
from trivet.driver.chips import npus
from trivet.driver.facts import HostFacts

State = dict[str, str]  # what is watched, by its name


def state(facts: HostFacts, findings: Sequence[Finding]) -> State:
    """All that is watched of one look: the outcome of each check, and of each NPU what a fault would change."""
    named = {finding.name: finding.outcome for finding in findings}
    return {name: str(value) for name, value in (*named.items(), *(pair for each in _WATCHED for pair in each(facts)))}


def changes(before: State, after: State) -> tuple[str, ...]:
    """One line for each difference, in the order they are watched; what is new or gone is said to be so."""
    names = dict.fromkeys((*before, *after))
    return tuple(
        f"{name}: {before.get(name, 'not there')} → {after.get(name, 'gone')}"
        for name in names
        if before.get(name) != after.get(name)
    )


_Pairs = Iterable[tuple[str, object]]


def _devices(facts: HostFacts) -> _Pairs:
    for npu in npus(facts) or ():
        yield (
            f"NPU at {npu.address}",
            "present" if npu.link_gts is None else f"{npu.link_gts:g} GT/s × {npu.link_width}",
        )
    for node in facts.device_nodes or ():
        yield node.path, {True: "accessible", False: "not accessible", None: "unknown"}[node.is_accessible]


def _health(facts: HostFacts) -> _Pairs:
    said = facts.npu_smi
    if said is None:
        return
    for command in said.commands[:1]:
        yield command.line, command.outcome
    for chip in said.chips or ():
        yield f"{_name(chip.npu_id, chip.chip_id)} health", chip.health or "unknown"
    for health in said.health or ():
        if health.error_codes is not None:
            yield f"{_name(health.npu_id, health.chip_id)} error codes", " ".join(health.error_codes) or "none"
    for errors in said.errors or ():
        for counter, count in {**(errors.ecc or {}), **(errors.pcie or {})}.items():
            yield f"{_name(errors.npu_id, errors.chip_id)} {counter}", count


def _network(facts: HostFacts) -> _Pairs:
    for port in facts.npu_network.ports if facts.npu_network is not None else ():
        yield f"NPU {port.npu} link", port.link or "unknown"
    for card in facts.network or ():
        yield f"network {card.name}", card.state or "unknown"
    for disk in facts.nvme or ():
        yield disk.name, disk.state or "unknown"


_WATCHED: tuple[Callable[[HostFacts], _Pairs], ...] = (_devices, _health, _network)


def _name(npu_id: int, chip_id: int | None) -> str:
    return f"NPU {npu_id}" if chip_id is None else f"NPU {npu_id} chip {chip_id}"
