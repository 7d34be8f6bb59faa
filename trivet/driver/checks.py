"""All checks of the doctor in the order they are made: the host, then the NPU from its bus up to what runs on it."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from trivet.base.findings import Finding
from trivet.base.settings import Language
from trivet.driver.check import Check, run
from trivet.driver.checklist import (
    cann,
    cluster,
    device,
    framework,
    hdk,
    health,
    host,
    job,
    libraries,
    model,
    network,
    npu,
    packages,
    reading,
    running,
    settings,
    working,
)
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need


def _of(modules: Iterable[ModuleType]) -> tuple[Check, ...]:
    """In the order in which they stand in their files."""
    return tuple(each for module in modules for each in vars(module).values() if isinstance(each, Check))


CHECKS = _of((
    *(host, reading, npu, health, hdk, cluster, settings),
    *(cann, libraries, working, device, framework, packages, running, model, network, job),
))  # fmt: skip
# What Trivet itself stands on: without vLLM and without a network.
OWN_CHECKS = tuple(each for each in CHECKS if each.layer in ("user-config", "driver", "operator"))


def examine(facts: HostFacts, need: Need, language: Language = "en") -> tuple[Finding, ...]:
    """What every check finds, in order. The host carries unless one has failed."""
    return run(CHECKS, facts, need, language)


def examine_driver_leg(facts: HostFacts, need: Need) -> tuple[Finding, ...]:
    """What `trivet up` must know before it asks a device anything."""
    return run(OWN_CHECKS, facts, need)
