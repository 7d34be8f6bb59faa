"""The other hosts of a job, as their reports tell of them, and what has to be the same on all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trivet.base.errors import ConfigError
from trivet.driver.facts import HostFacts
from trivet.driver.installed import cann, package
from trivet.driver.pinning import hdk_version

_PACKAGES = ("torch", "torch-npu", "vllm", "vllm-ascend", "mindspore", "triton-ascend")
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class PeerHost:
    name: str  # the file that tells of it
    versions: dict[str, str]  # of what is there: {"driver": "25.5.2", "cann": "9.1.0"}
    is_tls_on: bool | None  # on its NPUs' ports; None where it differs among them, or is not known


def read_peer(path: Path) -> PeerHost:
    """From what `trivet doctor --json` printed on that host. Raises ConfigError where the file is something else."""
    import msgspec

    try:
        with path.open("rb") as file:
            report = msgspec.json.decode(file.read(_MAX_BYTES), type=_Report)
    except OSError as error:
        raise ConfigError(f"--peer {path}: cannot be read: {error.strerror}", "name a file") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--peer {path}: is no report of a host: {error}", "on that host: trivet doctor --json > host.json"
        ) from error
    return PeerHost(path.name, versions_of(report.facts), tls_of(report.facts))


def versions_of(facts: HostFacts) -> dict[str, str]:
    own = cann(facts)
    found = {"driver": hdk_version(facts), "cann": own.version if own else None}
    found |= {name: package(facts, name) for name in _PACKAGES}
    return {name: version for name, version in found.items() if version is not None}


def tls_of(facts: HostFacts) -> bool | None:
    states = {port.is_tls_on for port in (facts.npu_network.ports if facts.npu_network else ())}
    return states.pop() if len(states) == 1 else None


@dataclass(frozen=True)
class _Report:
    facts: HostFacts
