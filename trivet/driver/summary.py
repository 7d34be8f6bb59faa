"""What was read of a host, in a few lines: enough to see at once whether it is the host that was meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

from trivet.base.errors import ResourceError
from trivet.base.settings import Language
from trivet.base.units import MIB, format_bytes
from trivet.driver.chips import chip_of, npus, nvmes
from trivet.driver.facts import HostFacts
from trivet.driver.installed import canns, chips
from trivet.driver.phrases import say
from trivet.driver.placement_facts import PciDevice
from trivet.driver.probe_facts import ReadingProbe
from trivet.driver.topology import available_memory, cpus_for

Say = Callable[..., str]
_PACKAGES = ("torch", "torch-npu", "triton-ascend", "vllm", "vllm-ascend", "mindspore", "numpy")


def summary(facts: HostFacts, language: Language = "en") -> list[tuple[str, str]]:
    """Rows of a name and a text. What no tool and no file told is left out where it is a row of its own."""
    speak = partial(say, language)
    return [
        ("host", _host(facts, speak)),
        ("cpu", _cpu(facts, speak)),
        *_nodes(facts, speak),
        ("memory", _memory(facts, speak)),
        *(("disk", _disk(facts, index, speak)) for index in range(len(facts.filesystems))),
        ("npu", _npu(facts, speak)),
        *_tools(facts, speak),
        *_devices_of_asys(facts, speak),
        *_stack(facts, speak),
        ("nvme", _devices(nvmes(facts), "NVMe controller", speak)),
        ("threads", _threads(facts, speak)),
        *(("probe", _reading(each, speak)) for each in facts.reading or ()),
        *_pinning(facts, speak),
    ]


def _host(facts: HostFacts, speak: Say) -> str:
    container = facts.container
    where = speak("container or not: unknown")
    if container is not None:
        where = speak("not in a container") if container.kind == "none" else speak(
            "{kind} container ({evidence})", {"kind": container.kind, "evidence": container.evidence}
        )  # fmt: skip
    return ", ".join((f"Linux {facts.kernel or '?'}", facts.architecture or "?", where))


def _cpu(facts: HostFacts, speak: Say) -> str:
    cpus = facts.cpus
    values = {
        "model": cpus.model or "?",
        "online": "?" if cpus.online is None else len(cpus.online),
        "cores": "?" if cpus.cores is None else len(cpus.cores),
        "allowed": ranges(cpus.allowed),
        "features": " ".join(cpus.features or ()) or "?",
    }
    if cpus.allowed in (None, cpus.online):
        return speak("{model}, {online} online, {cores} cores; {features}", values)
    return speak("{model}, {online} online, {cores} cores, this process may use {allowed}; {features}", values)


def _nodes(facts: HostFacts, speak: Say) -> list[tuple[str, str]]:
    if facts.nodes is None:
        return [("numa", speak("unknown"))]
    rows = []
    for node in facts.nodes:
        reserved = sum(pages.page_bytes * pages.total for pages in node.huge_pages or ())
        far = max((node.distances or {}).values(), default=10)
        values = {
            "cpus": (ranges(node.cpus) or "–") if node.cpus is not None else "?", "far": far / 10,
            "free": _bytes(node.memory_free_bytes), "total": _bytes(node.memory_total_bytes),
            "reserved": format_bytes(reserved),
        }  # fmt: skip
        text = speak("cpus {cpus}, {free} of {total} free", values)
        text += speak(", {reserved} in reserved huge pages", values) if reserved else ""
        text += speak(", farthest node {far:.1f}×", values) if far > 10 else ""
        rows.append((f"node {node.id}", text))
    return rows


def _memory(facts: HostFacts, speak: Say) -> str:
    limit = facts.cgroup.memory_limit_bytes
    bound = speak("the cgroup's limit is unknown" if limit is None else "no cgroup limit")
    if isinstance(limit, int):
        bound = speak("the cgroup allows {limit}", {"limit": format_bytes(limit)})
    values = {
        "free": _bytes(available_memory(facts)), "total": _bytes(facts.memory.total_bytes),
        "bound": bound, "pages": facts.memory.transparent_huge_pages or "?",
    }  # fmt: skip
    return speak("{free} available of {total}, {bound}; transparent huge pages: {pages}", values)


def _disk(facts: HostFacts, index: int, speak: Say) -> str:
    disk = facts.filesystems[index]
    values = {
        "path": disk.path, "free": _bytes(disk.free_bytes), "type": disk.type or "?", "mount": disk.mount_point or "?"
    }  # fmt: skip
    return speak("{path}: {free} free, {type} at {mount}", values)


def _npu(facts: HostFacts, speak: Say) -> str:
    found = npus(facts)
    text = _devices(found, "NPU", speak, named=True)
    if facts.device_nodes is None:
        return text + speak("; device nodes: unknown")
    if not found and not facts.device_nodes:
        return text
    return text + speak("; device nodes: {count}", {"count": len(facts.device_nodes)})


def _tools(facts: HostFacts, speak: Say) -> Iterable[tuple[str, str]]:
    """What npu-smi shows, and the driver with its firmware."""
    driver, firmware = (facts.stack.driver, facts.stack.firmware) if facts.stack else (None, None)
    if driver is not None:
        text = f"{driver.version or '?'} ({driver.file})"
        yield "driver", text + (speak(", firmware {version}", {"version": firmware.version}) if firmware else "")
    shown = chips(facts)
    if shown:
        kinds = Counter(chip.name or "?" for chip in shown)
        health = Counter(chip.health or "?" for chip in shown)
        hottest = max((chip.temperature_c for chip in shown if chip.temperature_c is not None), default=None)
        used = sum(chip.hbm_used_bytes or chip.memory_used_bytes or 0 for chip in shown)
        values = {
            "kinds": ", ".join(f"{count} × {name}" for name, count in kinds.items()),
            "health": ", ".join(f"{name} {count}" for name, count in health.items()),
            "celsius": "?" if hottest is None else hottest, "used": format_bytes(used),
        }  # fmt: skip
        yield "npu-smi", speak("{kinds}; {health}; at most {celsius} °C; {used} in use", values)


def _devices_of_asys(facts: HostFacts, speak: Say) -> Iterable[tuple[str, str]]:
    if facts.npu_devices:
        health = Counter(each.health or "?" for each in facts.npu_devices)
        told = ", ".join(f"{name} {count}" for name, count in health.items())
        yield "asys", speak("devices: {count}; {health}", {"count": len(facts.npu_devices), "health": told})


def _stack(facts: HostFacts, speak: Say) -> Iterable[tuple[str, str]]:
    for cann in canns(facts):
        values = {"version": cann.version or "?", "root": cann.root, "kernels": ", ".join(cann.kernels or ()) or "?"}
        yield "cann", speak("{version} at {root}, kernels: {kernels}", values)
    python = facts.stack.python if facts.stack else None
    if python is not None and npus(facts):
        named = {each.name: each.version for each in reversed(python.packages or ())}
        found = ", ".join(f"{name} {named[name]}" for name in _PACKAGES if name in named)
        yield "python", f"{python.version or '?'} ({python.executable}): {found or '–'}"


def _devices(devices: tuple[PciDevice, ...] | None, noun: str, speak: Say, named: bool = False) -> str:
    """How many of which chip on which node, as `8 × Ascend 910B (nodes 0 0 1 1)`."""
    if devices is None:
        return speak("unknown")
    if not devices:
        return speak("none")
    kinds = Counter(chip_of(device) or noun if named else noun for device in devices)
    nodes = " ".join("?" if device.numa_node is None else str(device.numa_node) for device in devices)
    text = ", ".join(f"{count} × {speak(kind)}" for kind, count in kinds.items())
    return text + speak(" (nodes {nodes})", {"nodes": nodes})


def _threads(facts: HostFacts, speak: Say) -> str:
    try:
        placement = cpus_for(facts)
    except ResourceError as error:
        return error.message.removeprefix("threads: ")
    values = {
        "count": len(placement.cpus), "cpus": ranges(placement.cpus), "reason": placement.reason,
        "node": "?" if placement.node is None else placement.node,
    }  # fmt: skip
    return speak("{count} on cpus {cpus}, node {node}: {reason}", values)


def _reading(probe: ReadingProbe, speak: Say) -> str:
    """What `--probe` read; the kernel's words where it refused are in the checks."""
    ring = speak("no io_uring" if probe.ring_refusal else "io_uring")
    values: dict[str, object] = {"file": probe.file, "path": probe.path, "ring": ring}
    if probe.file is None:
        return speak("no file to read at {path}; {ring}", values)
    if probe.num_bytes is None or not probe.seconds:
        return speak("{file} could not be read, or not in time; {ring}", values)
    values |= {
        "size": format_bytes(probe.num_bytes), "rate": probe.num_bytes / MIB / probe.seconds,
        "way": speak("through the page cache" if probe.direct_refusal else "past the page cache"),
        "interrupts": "?" if probe.interrupts is None else sum(probe.interrupts.values()),
    }  # fmt: skip
    return speak("{size} of {file} {way} at {rate:.0f} MiB/s, {interrupts} interrupts of disks; {ring}", values)


def _pinning(facts: HostFacts, speak: Say) -> Iterable[tuple[str, str]]:
    tried = facts.pinning
    if tried is not None:
        values = {"asked": format_bytes(tried.asked_bytes), "refusal": tried.refusal or "?"}
        yield "probe", speak("{asked} locked" if tried.is_locked else "{asked} not locked: {refusal}", values)


def ranges(ids: Iterable[int] | None) -> str:
    """`0-3,8` for 0, 1, 2, 3 and 8."""
    ordered = sorted(ids or ())
    starts = ordered[:1] + [b for a, b in pairwise(ordered) if b != a + 1]
    ends = [a for a, b in pairwise(ordered) if b != a + 1] + ordered[-1:]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _bytes(count: int | None) -> str:
    return "?" if count is None else format_bytes(count)
