"""Reads HCCL's table of ranks, a file that a job on several NPUs is given, and what is wrong with it by itself.

Source: the documents of hicann/hccl on the table's forms, version 1.0 for A2 and 1.2 for A3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path

from trivet.driver.readers.files import integer, read_text
from trivet.driver.stack_facts import RankTable

_VARIABLES = ("RANK_TABLE_FILE", "RANKTABLEFILE")
_VERSIONS = ("1.0", "1.2")
_MAX_FAULTS = 4


def read_rank_table(
    root: Path, environment: dict[str, str] | None, local_addresses: tuple[str, ...] | None
) -> RankTable | None:
    """None where no variable names a table."""
    file = next((path for name in _VARIABLES if (path := (environment or {}).get(name))), None)
    if file is None:
        return None
    text = read_text(root, file)
    if text is None:
        return RankTable(file, ("it is not there, or may not be read",), {})
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return RankTable(file, ("it is no JSON",), {})
    if not isinstance(table, dict) or table.get("version", "1.0") not in _VERSIONS:
        return RankTable(file, () if isinstance(table, dict) else ("it is no JSON object",), {})
    servers = [each for each in _list(table.get("server_list")) if isinstance(each, dict)]
    faults = tuple(dict.fromkeys(_faults(table, servers)))[:_MAX_FAULTS]
    here = [each for each in servers if {each.get("server_id"), each.get("host_ip")} & set(local_addresses or ())]
    own = servers[0] if len(servers) == 1 else here[0] if len(here) == 1 else {}
    return RankTable(file, faults, _addresses(own))


def _faults(table: dict[str, object], servers: list[dict[str, object]]) -> Iterator[str]:
    if table.get("status", "completed") != "completed":
        yield f"its status is {table['status']}, not completed"
    if not servers:
        yield "it lists no server"
        return
    count = table.get("server_count")
    if count is not None and integer(str(count)) != len(servers):
        yield f"it counts {count} servers and lists {len(servers)}"
    devices = [(server, each) for server in servers for each in _list(server.get("device")) if isinstance(each, dict)]
    ranks = [integer(str(each.get("rank_id"))) for _, each in devices]
    if sorted(rank for rank in ranks if rank is not None) != list(range(len(devices))):
        yield f"its rank ids are not 0 to {len(devices) - 1}, each once"
    addresses = [str(each.get("device_ip", "")) for _, each in devices]
    for address in addresses:
        if address and not _is_address(address):
            yield f"device_ip {address} is no address"
    known = [address for address in addresses if address]
    if len(set(known)) < len(known):
        yield "a device_ip is there twice"


def _addresses(server: dict[str, object]) -> dict[int, str]:
    found = dict[int, str]()
    for each in _list(server.get("device")):
        device = each if isinstance(each, dict) else {}
        number, address = integer(str(device.get("device_id"))), str(device.get("device_ip", ""))
        if number is not None and _is_address(address):
            found[number] = address
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _is_address(text: str) -> bool:
    for kind in (IPv4Address, IPv6Address):
        try:
            kind(text)
        except AddressValueError:
            continue
        return True
    return False
