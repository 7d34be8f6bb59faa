"""Asks hccn_tool of the NPUs' own network ports, and reads /etc/hccn.conf, which says what each should be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, get_args

from trivet.driver.npu_facts import NpuNetwork, NpuPort
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.commands import ask
from trivet.driver.readers.files import read_text
from trivet.driver.readers.npu_fields import known, number, parse_values, whole_lines

_KINDS = ("ip", "link", "net_health", "speed", "fec", "tls", "optical", "link_stat", "stat")
_KINDS_UB = ("ub_connect",)  # of a 950, whose ports are of another bus and whose tool has another order of words
_CHANGE = re.compile(r"\[devid (\d{1,3})\]\s+(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\s+LINK (?:UP|DOWN))\s*")
_LINK = Literal["UP", "DOWN", "PARTIAL LINK"]


def read_npu_network(
    root: Path, captured: Captured, npus: Sequence[int], has_ub: bool, deadline: float
) -> NpuNetwork | None:
    """The ports of the NPUs with these device numbers, on a 950 those of its UB; None where nothing is known of any."""
    configured = parse_hccn_conf(read_text(root, "/etc/hccn.conf") or "")
    asked = [(npu, kind) for npu in npus for kind in (_KINDS_UB if has_ub else _KINDS)]
    answers = ask(root, captured, tuple(_words(npu, kind) for npu, kind in asked), deadline)
    commands = tuple(output.command for output in answers if output is not None)
    if any(command.outcome == "absent" for command in commands):
        commands = commands[:1]
    texts = {each: output.text for each, output in zip(asked, answers, strict=True) if output is not None}
    ports = tuple(
        parse_port(npu, {kind: text for (whose, kind), text in texts.items() if whose == npu}, configured.get(npu))
        for npu in sorted({*npus, *configured})
        if npu in configured or any(text for (whose, _), text in texts.items() if whose == npu)
    )
    return NpuNetwork(commands, ports) if commands or ports else None


def parse_hccn_conf(text: str) -> dict[int, str]:
    """The address of each NPU, from `address_0=192.0.2.10`."""
    rows = re.findall(r"^address_(\d{1,3})[ \t]*=[ \t]*(\S+)[ \t]*$", text, re.MULTILINE | re.ASCII)
    return {int(npu): address for npu, text in rows if (address := _address(text)) is not None}


def parse_port(npu: int, texts: dict[str, str], configured: str | None) -> NpuPort:
    """What hccn_tool printed of one NPU, by the kind it was asked for; an empty text is none."""
    lines = {kind: whole_lines(texts.get(kind, "")) for kind in (*_KINDS, *_KINDS_UB)}
    values = {kind: parse_values(each) for kind, each in lines.items()}
    link = known(values["link"] | values["ub_connect"], "link status")
    errors = {name: number(value) for name, value in values["stat"].items() if "err" in name}
    present = known(values["optical"], "present")
    return NpuPort(
        npu=npu,
        address=_address(known(values["ip"], "ipaddr")),
        netmask=_address(known(values["ip"], "netmask")),
        configured_address=configured,
        link=next((state for state in get_args(_LINK) if state == link), None),
        net_health=known(values["net_health"], "net health status"),
        speed_mbps=_measure(known(values["speed"], "Speed"), "Mb/s"),
        fec=known(values["fec"], "fec mode"),
        is_tls_on=_tls(lines["tls"], npu),
        has_optical={"present": True, "not present": False}.get(present or ""),
        optical_c=_measure(known(values["optical"], "temperature"), "C"),
        link_changes=_changes(lines["link_stat"], npu),
        error_packets={name: count for name, count in errors.items() if count is not None} or None,
    )


def _words(npu: int, kind: str) -> tuple[str, ...]:
    if kind in _KINDS_UB:
        return ("hccn_tool", "-g", f"-{kind}", "-i", str(npu))
    return ("hccn_tool", "-i", str(npu), f"-{kind}", "-g")


def _address(text: str | None) -> str | None:
    """A netmask is one too. An NPU without an address says "-.-.-.-"."""
    try:
        return str(ip_address(text)) if text is not None else None
    except ValueError:
        return None


def _measure(text: str | None, unit: str) -> int | None:
    match = re.fullmatch(rf"(\d{{1,9}}) {unit}", text or "", re.ASCII)
    return number(match[1]) if match else None


def _tls(lines: list[str], npu: int) -> bool | None:
    matches = [re.match(rf"dev_id:{npu}, tls switch\[([01])\]", line) for line in lines]
    switches = {match[1] == "1" for match in matches if match is not None}
    return switches.pop() if len(switches) == 1 else None


def _changes(lines: list[str], npu: int) -> tuple[str, ...] | None:
    if not any(line.startswith(f"[devid {npu}]link change records") for line in lines):
        return None
    matches = [_CHANGE.fullmatch(line) for line in lines]
    return tuple(" ".join(match[2].split()) for match in matches if match is not None and int(match[1]) == npu)
