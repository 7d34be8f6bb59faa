"""Reads a host out of a text that somebody pasted: the outputs of npu-smi, hccn_tool, asys, upgrade-tool, lscpu,
numactl and lspci, version files, and the report of vllm-ascend's collect_env.py, alone or one after the other.

Each is known by its own words, wherever it stands. What the text does not hold is unknown, as everywhere.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trivet.driver.facts import HostFacts
from trivet.driver.npu_facts import NpuErrors, NpuNetwork, NpuSmi
from trivet.driver.placement_facts import Cgroup, Cpus, Memory, NumaNode, ProcessLimits
from trivet.driver.readers.cann import cann_of, components_of
from trivet.driver.readers.commands import answer
from trivet.driver.readers.device_tools import parse_devices
from trivet.driver.readers.environment import is_known
from trivet.driver.readers.files import id_list
from trivet.driver.readers.hccn import parse_port
from trivet.driver.readers.lspci import parse_lspci
from trivet.driver.readers.npu_fields import board_of, counts_of, health_of, parse_blocks
from trivet.driver.readers.npu_matrix import parse_links, parse_map
from trivet.driver.readers.npu_table import parse_table
from trivet.driver.readers.procfs import features_of
from trivet.driver.readers.python import package_of
from trivet.driver.readers.version_files import driver_version, firmware_version, properties
from trivet.driver.stack_facts import Cann, DriverVersion, FirmwareVersion, Python, Stack

_MAX_CHARACTERS = 4 << 20
_PLATFORM = re.compile(r"^Python platform:\s*Linux-(\S+?)-(x86_64|aarch64)-with", re.MULTILINE)
_HCCN = re.compile(r"hccn_tool (?:-i (\d{1,3}) -(\w+) -g|-g -(\w+) -i (\d{1,3}))[^\n]*\n")
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)")


def read_pasted_host(text: str) -> HostFacts:
    """What the text says of a host. Never raises."""
    text = text[:_MAX_CHARACTERS].replace("\r\n", "\n")
    cpu, platform = _cpu(text), _PLATFORM.search(text)
    return HostFacts(
        kernel=platform[1] if platform else None,
        architecture=cpu.get("Architecture") or (platform[2] if platform else None),
        cpus=Cpus(
            model=_named(cpu, "Model name") or _named(cpu, "BIOS Model name"),
            features=features_of(flags if re.fullmatch(r"[\w ]+", flags := cpu.get("Flags", "")) else None),
            online=id_list(cpu["On-line CPU(s) list"]) if "On-line CPU(s) list" in cpu else None,
            allowed=None,
            cores=None,
            governors=None,
        ),
        nodes=_nodes(text, cpu),
        numa_balancing=None,
        memory=Memory(None, None, None),
        cgroup=Cgroup(None, None, None),
        limits=ProcessLimits(None, None, None, None),
        container=None,
        pci=parse_lspci(text),
        device_nodes=None,
        filesystems=(),
        distribution=_match(r"^OS: (.+?)(?: \((?:x86_64|aarch64)\))*$", text),
        libc=(_match(r"^Libc version: (\S+)$", text) or "").replace("-", " ") or None,
        npu_smi=_npu_smi(text),
        npu_network=_npu_network(text),
        npu_devices=parse_devices(text),
        stack=_stack(text),
    )


def _match(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None


def _cpu(text: str) -> dict[str, str]:
    """The lines of lscpu, which begin with the architecture and end with the first that is none."""
    lines = text[text.find("Architecture:") :].splitlines() if "Architecture:" in text else []
    rows: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not re.fullmatch(r"[A-Z][\w ()/-]{1,40}", name.strip()):
            break
        rows.setdefault(name.strip(), value.strip())
    return rows


def _named(cpu: dict[str, str], name: str) -> str | None:
    value = cpu.get(name, "-")
    return None if value in ("-", "") else value


def _nodes(text: str, cpu: dict[str, str]) -> tuple[NumaNode, ...] | None:
    """Of `numactl -H`, which says most, else of lscpu."""
    rows = re.findall(r"^node (\d{1,5}) cpus:([\d ]*)$", text, re.MULTILINE | re.ASCII)
    if rows:
        return tuple(_numactl_node(text, int(node), cpus.split()) for node, cpus in rows)
    listed = {
        int(match[1]): value
        for name, value in cpu.items()
        if (match := re.fullmatch(r"NUMA node(\d{1,5}) CPU\(s\)", name))
    }
    nodes = tuple(NumaNode(node, id_list(value), None, None, None, None) for node, value in sorted(listed.items()))
    return nodes if str(len(nodes)) == cpu.get("NUMA node(s)") and nodes else None


def _numactl_node(text: str, node: int, cpus: list[str]) -> NumaNode:
    total, free = (_match(rf"^node {node} {kind}: (\d+) MB$", text) for kind in ("size", "free"))
    ids, distances = _match(r"^node +((?:\d+ +)*\d+) *$", text), _match(rf"^ *{node}: +((?:\d+ +)*\d+) *$", text)
    pairs = list(zip((ids or "").split(), (distances or "").split(), strict=False))
    is_whole = bool(pairs) and len(pairs) == len((ids or "").split()) == len((distances or "").split())
    return NumaNode(
        id=node,
        cpus=id_list(",".join(cpus)),
        memory_total_bytes=None if total is None else int(total) << 20,
        memory_free_bytes=None if free is None else int(free) << 20,
        distances={int(other): int(distance) for other, distance in pairs} if is_whole else None,
        huge_pages=None,
    )


def _npu_smi(text: str) -> NpuSmi | None:
    table, output = parse_table(text), answer("npu-smi info", text, None, None)
    blocks = parse_blocks(text)
    counts = [(block, counts_of(block)) for block in blocks if block.npu_id is not None]
    found = NpuSmi(
        commands=(output.command,) if table.chips is not None or output.command.dcmi_code is not None else (),
        is_partial=table.is_partial,
        tool_version=table.tool_version,
        driver_version=table.driver_version,
        chips=table.chips,
        processes=table.processes,
        mappings=parse_map(text),
        boards=tuple(board for block in blocks if (board := board_of(block)) is not None) or None,
        health=tuple(health for block in blocks if (health := health_of(block)) is not None) or None,
        errors=tuple(
            NpuErrors(block.npu_id, block.chip_id, *((None, each) if "TX Error Count" in each else (each, None)))
            for block, each in counts
            if each is not None and block.npu_id is not None
        )
        or None,
        links=parse_links(text),
    )
    nothing = NpuSmi((), is_partial=False, tool_version=None, driver_version=None, chips=None, processes=None,
                     mappings=None, boards=None, health=None, errors=None, links=None)  # fmt: skip
    return None if found == nothing else found


def _npu_network(text: str) -> NpuNetwork | None:
    """What stands below a command line of hccn_tool, since of itself it seldom says which NPU it speaks of."""
    texts: dict[int, dict[str, str]] = {}
    for match in _HCCN.finditer(text):
        own = re.split(r"^.*hccn_tool ", text[match.end() :], maxsplit=1, flags=re.MULTILINE)[0]
        texts.setdefault(int(match[1] or match[4]), {}).setdefault(match[2] or match[3], own)
    ports = tuple(parse_port(npu, kinds, None) for npu, kinds in sorted(texts.items()))
    return NpuNetwork((), ports) if ports else None


def _stack(text: str) -> Stack | None:
    stack = Stack(
        install=None,
        driver=_driver(text),
        firmware=_firmware(text),
        cann=_cann(text),
        nnal=(),
        python=_python(text),
        environment=_environment(text),
        present={},
        driver_user=None,
    )
    return None if stack == Stack(None, None, None, (), (), None, None, {}, None) else stack


def _driver(text: str) -> DriverVersion | None:
    return driver_version(properties(text), "pasted") if re.search(r"^compatible_version_fw=", text, re.M) else None


def _firmware(text: str) -> FirmwareVersion | None:
    return firmware_version(properties(text), "pasted") if re.search(r"^compatible_version_drv=", text, re.M) else None


def _cann(text: str) -> tuple[Cann, ...]:
    """Of each record of an installer, and of a version.cfg without one."""
    records = re.findall(r"^package_name=Ascend-cann-[\w-]+\n(?:\w+=.*(?:\n|\Z))+", text, re.MULTILINE)
    found = tuple(cann_of(properties(record) or {}) for record in records)
    components = components_of(text)
    if components is None:
        return found
    return (replace(found[0] if found else cann_of({}), components=components), *found[1:])


def _python(text: str) -> Python | None:
    version = _match(r"^Python version: (3\.\d{1,2}\.\d{1,2})", text)
    rows = re.findall(r"^\[pip3?\] ([\w.-]+)==(\S+)$", text, re.MULTILINE)
    # Its commit follows in brackets, or on the same word for a development build.
    rows += [(name, found) for name, label in (("vllm", "vLLM"), ("vllm-ascend", "vLLM Ascend"))
             if (found := _match(rf"^{label} Version: (\S+)", text)) is not None]  # fmt: skip
    packages = tuple(package for name, found in rows if (package := package_of(name, found, "pasted")) is not None)
    return Python("", version, (), packages, None, None, None) if version or packages else None


def _environment(text: str) -> dict[str, str] | None:
    """Of the report's own section. A value that a terminal broke goes on where the line is as long as the longest."""
    section = re.search(r"^ENV Variables:\n(.*?)(?:\n\s*\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        return None
    lines = section[1].splitlines()
    width = max((len(line) for line in lines), default=0)
    joined: list[str] = []
    is_open = False
    for line in lines:
        if is_open and not _ASSIGNMENT.fullmatch(line):
            joined[-1] += line
        else:
            joined.append(line)
        is_open = len(line) == width
    matches = [_ASSIGNMENT.fullmatch(line) for line in joined]
    return {match[1]: match[2] for match in matches if match is not None and is_known(match[1])}
