"""The driver leg's report as text: the verdict, what was read, what to do. It must make sense without colour."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from trivet.base.errors import ResourceError
from trivet.base.findings import Finding, verdict
from trivet.base.units import format_bytes
from trivet.driver.check import not_checked_because
from trivet.driver.chips import chip_of, npus, nvmes
from trivet.driver.facts import HostFacts, PciDevice
from trivet.driver.topology import available_memory, cpus_for

_WIDTH = 110


def report(facts: HostFacts, findings: Sequence[Finding]) -> str:
    """The whole report, each section headed by one line, without a trailing newline."""
    sections = [headline(findings), _read(facts), _to_do(findings), _open(findings), _ruled_out(findings)]
    return "\n\n".join(section for section in sections if section)


def headline(findings: Sequence[Finding]) -> str:
    """The verdict in one line: whether the leg carries, and what it must be read with."""
    names = {outcome: [each.name for each in findings if each.outcome == outcome] for outcome in ("failed", "warning")}
    num_unknown = sum(finding.outcome == "unknown" for finding in findings)
    unread = f"; {_count(num_unknown, 'check')} could not tell" if num_unknown else ""
    match verdict(tuple(findings)):
        case "failed":
            return f"The driver leg does not carry: {', '.join(names['failed'])}{unread}"
        case "warning":
            return f"The driver leg carries, with {_count(len(names['warning']), 'warning')}{unread}"
        case _:
            return f"The driver leg carries{', as far as could be read' if num_unknown else ''}{unread}"


def _read(facts: HostFacts) -> str:
    rows = [
        ("host", _host(facts)),
        ("cpu", _cpu(facts)),
        *_nodes(facts),
        ("memory", _memory(facts)),
        *(("disk", _disk(facts, index)) for index in range(len(facts.filesystems))),
        ("npu", _npu(facts)),
        ("nvme", _devices(nvmes(facts), "NVMe controller")),
        ("threads", _threads(facts)),
    ]
    return "\n".join(["Read", *(f"  {name:<8} {text}" for name, text in rows)])


def _host(facts: HostFacts) -> str:
    container = facts.container
    where = "container or not: unknown"
    if container is not None:
        where = (
            "not in a container" if container.kind == "none" else f"{container.kind} container ({container.evidence})"
        )
    return f"Linux {facts.kernel or 'of unknown release'}, {facts.architecture or 'architecture unknown'}, {where}"


def _cpu(facts: HostFacts) -> str:
    cpus = facts.cpus
    online = f"{len(cpus.online)} online" if cpus.online is not None else "online: unknown"
    cores = f"{len(cpus.cores)} cores" if cpus.cores is not None else "cores: unknown"
    allowed = f", this process may use {ranges(cpus.allowed)}" if cpus.allowed not in (None, cpus.online) else ""
    features = " ".join(cpus.features) if cpus.features else "instruction sets: unknown"
    return f"{cpus.model or 'model unknown'}, {online}, {cores}{allowed}; {features}"


def _nodes(facts: HostFacts) -> list[tuple[str, str]]:
    if facts.nodes is None:
        return [("numa", "unknown")]
    rows = []
    for node in facts.nodes:
        cpus = ranges(node.cpus) if node.cpus is not None else "unknown"
        far = max((node.distances or {}).values(), default=10)
        distance = f", farthest node {far / 10:.1f}×" if far > 10 else ""
        free, total = _bytes(node.memory_free_bytes), _bytes(node.memory_total_bytes)
        reserved = sum(pages.page_bytes * pages.total for pages in node.huge_pages or ())
        huge = f", {format_bytes(reserved)} in reserved huge pages" if reserved else ""
        rows.append((f"node {node.id}", f"cpus {cpus or 'none'}, {free} of {total} free{huge}{distance}"))
    return rows


def _memory(facts: HostFacts) -> str:
    limit = facts.cgroup.memory_limit_bytes
    bound = "the cgroup's limit is unknown" if limit is None else "no cgroup limit"
    if isinstance(limit, int):
        bound = f"the cgroup allows {format_bytes(limit)}"
    pages = facts.memory.transparent_huge_pages or "unknown"
    total = _bytes(facts.memory.total_bytes)
    return f"{_bytes(available_memory(facts))} available of {total}, {bound}; transparent huge pages: {pages}"


def _disk(facts: HostFacts, index: int) -> str:
    filesystem = facts.filesystems[index]
    where = f"{filesystem.type or 'type unknown'} at {filesystem.mount_point or 'an unknown mount'}"
    return f"{filesystem.path}: {_bytes(filesystem.free_bytes)} free, {where}"


def _npu(facts: HostFacts) -> str:
    found = npus(facts)
    text = _devices(found, "NPU", named=True)
    if facts.device_nodes is None:
        return f"{text}; device nodes: unknown"
    if not found and not facts.device_nodes:
        return text
    return f"{text}; {_count(len(facts.device_nodes), 'device node')}"


def _devices(devices: tuple[PciDevice, ...] | None, noun: str, named: bool = False) -> str:
    """How many of which chip on which node, as `8 × Ascend 910B (nodes 0 0 1 1)`."""
    if devices is None:
        return "unknown"
    kinds = Counter(chip_of(device) or noun if named else noun for device in devices)
    nodes = " ".join("?" if device.numa_node is None else str(device.numa_node) for device in devices)
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items()) + f" (nodes {nodes})" if kinds else "none"


def _threads(facts: HostFacts) -> str:
    try:
        placement = cpus_for(facts)
    except ResourceError as error:
        return error.message.removeprefix("threads: ")
    node = f"node {placement.node}" if placement.node is not None else "no node chosen"
    return f"{len(placement.cpus)} on cpus {ranges(placement.cpus)}, {node}: {placement.reason}"


def _to_do(findings: Sequence[Finding]) -> str:
    wrong = [each for outcome in ("failed", "warning") for each in findings if each.outcome == outcome]
    lines = [line for finding in wrong for line in (finding.line(), *(f"    → {step}" for step in finding.remedy))]
    return "\n".join(["To do", *(f"  {line}" for line in lines)]) if wrong else ""


def _open(findings: Sequence[Finding]) -> str:
    """What is neither good nor bad: could not be told, or was not made, with its cause."""
    lines, blocked = [], dict[str, list[str]]()
    for finding in findings:
        cause = not_checked_because(finding)
        if cause is not None:
            blocked.setdefault(cause, []).append(finding.name)
        elif finding.outcome in ("unknown", "skipped"):
            lines.append(f"  {finding.line()}")
    for cause, names in blocked.items():
        text = f"- not checked, because of {cause}: {', '.join(names)}"
        lines.append(textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(["Left open", *lines]) if lines else ""


def _ruled_out(findings: Sequence[Finding]) -> str:
    names = [finding.name for finding in findings if finding.outcome == "passed"]
    wrapped = textwrap.fill(", ".join(names), _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return f"Ruled out\n{wrapped}" if names else ""


def ranges(ids: Iterable[int] | None) -> str:
    """`0-3,8` for 0, 1, 2, 3 and 8."""
    ordered = sorted(ids or ())
    starts = ordered[:1] + [b for a, b in pairwise(ordered) if b != a + 1]
    ends = [a for a, b in pairwise(ordered) if b != a + 1] + ordered[-1:]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
