"""What changed on a host between two looks at it. What always moves (free memory, temperatures) is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from trivet.base.findings import Finding
from trivet.base.settings import Language
from trivet.driver.chips import npus
from trivet.driver.facts import HostFacts
from trivet.driver.phrases import say

State = dict[str, str]  # what is watched, by its name, both in the reader's language
Say = Callable[..., str]
_Pairs = Iterable[tuple[str, object]]


def state(facts: HostFacts, findings: Sequence[Finding], language: Language = "en") -> State:
    """All that is watched of one look: the outcome of each check, and of each NPU what a fault would change."""
    speak = partial(say, language)
    named = [(finding.name, speak(finding.outcome)) for finding in findings]
    return {name: str(value) for name, value in (*named, *(pair for each in _WATCHED for pair in each(facts, speak)))}


def changes(before: State, after: State, language: Language = "en") -> tuple[str, ...]:
    """One line for each difference, in the order they are watched; what is new or gone is said to be so."""
    absent, gone = say(language, "not there"), say(language, "gone")
    return tuple(
        f"{name}: {before.get(name, absent)} → {after.get(name, gone)}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    )


def _devices(facts: HostFacts, speak: Say) -> _Pairs:
    for npu in npus(facts) or ():
        link = speak("present") if npu.link_gts is None else f"{npu.link_gts:g} GT/s × {npu.link_width}"
        yield speak("NPU at {address}", {"address": npu.address}), link
    for node in facts.device_nodes or ():
        words = {True: speak("accessible"), False: speak("not accessible"), None: speak("unknown")}
        yield node.path, words[node.is_accessible]


def _health(facts: HostFacts, speak: Say) -> _Pairs:
    said = facts.npu_smi
    if said is None:
        return
    for command in said.commands[:1]:
        yield command.line, speak(command.outcome)
    for chip in said.chips or ():
        name = _name(chip.npu_id, chip.chip_id, speak)
        yield speak("{name} health", {"name": name}), chip.health or speak("unknown")
    for health in said.health or ():
        if health.error_codes is not None:
            name = _name(health.npu_id, health.chip_id, speak)
            codes = " ".join(health.error_codes) or speak("none")
            yield speak("{name} error codes", {"name": name}), codes
    for errors in said.errors or ():
        for counter, count in {**(errors.ecc or {}), **(errors.pcie or {})}.items():
            yield f"{_name(errors.npu_id, errors.chip_id, speak)} {counter}", count


def _network(facts: HostFacts, speak: Say) -> _Pairs:
    for port in facts.npu_network.ports if facts.npu_network is not None else ():
        yield speak("NPU {npu} link", {"npu": port.npu}), port.link or speak("unknown")
    for card in facts.network or ():
        yield speak("network {name}", {"name": card.name}), card.state or speak("unknown")
    for disk in facts.nvme or ():
        yield disk.name, disk.state or speak("unknown")


_WATCHED: tuple[Callable[[HostFacts, Say], _Pairs], ...] = (_devices, _health, _network)


def _name(npu_id: int, chip_id: int | None, speak: Say) -> str:
    return f"NPU {npu_id}" if chip_id is None else speak("NPU {npu} chip {chip}", {"npu": npu_id, "chip": chip_id})
