"""Reads /sys/class/net: the host's network interfaces, without their addresses."""

from __future__ import annotations

from pathlib import Path

from trivet.driver.facts import NetworkInterface
from trivet.driver.readers.files import list_names, locate, read_integer, read_text, read_word
from trivet.driver.readers.sysfs_pci import pci_address

_ROOT = "sys/class/net"


def read_network(root: Path) -> tuple[NetworkInterface, ...] | None:
    names = list_names(root, _ROOT, r"[\w.:@-]{1,15}")
    if names is None:
        return None
    routes, addresses = read_text(root, "proc/net/route"), read_text(root, "proc/net/if_inet6")
    routed = None if routes is None else {line.split()[0] for line in routes.splitlines()[1:] if line.strip()}
    # Address, index, length, scope, flags, name: a scope of 20 is the link's.
    rows = None if addresses is None else [line.split() for line in addresses.splitlines()]
    reaching = None if rows is None else {row[5] for row in rows if len(row) == 6 and row[3] != "20"}
    return tuple(
        NetworkInterface(
            name=name,
            state=read_word(root, f"{_ROOT}/{name}/operstate"),
            speed_mbps=read_integer(root, f"{_ROOT}/{name}/speed"),  # -1, or an error, where it is not known
            has_ipv4_route=None if routed is None else name in routed,
            has_ipv6=None if reaching is None else name in reaching,
            address=_pci_address(root, name),
            numa_node=read_integer(root, f"{_ROOT}/{name}/device/numa_node"),
        )
        for name in names
    )


def _pci_address(root: Path, name: str) -> str | None:
    place = locate(root, f"{_ROOT}/{name}")
    try:
        device = (place / "device").readlink().name if place is not None else ""
    except (OSError, ValueError):
        return None
    return pci_address(device)
