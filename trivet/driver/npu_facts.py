"""What the tools of the NPU driver print of the NPUs and their network, as values; a part of `facts.HostFacts`.

Every number that a tool did not print beyond doubt is None: a cell that is cut off, joined with its neighbour or out of
place says nothing. Sizes are bytes, although npu-smi counts in MB; PCI addresses are written as `PciDevice.address`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Health = Literal["OK", "Warning", "Alarm", "Critical", "UNKNOWN"]
# How a path between two NPUs is named in the legend of `npu-smi info -t topo`.
NpuPath = Literal["X", "SYS", "PHB", "PIX", "PXB", "HCCS", "HCCS_SW", "SIO", "UB", "NA"]
CommandOutcome = Literal["answered", "failed", "timed_out", "absent"]


@dataclass(frozen=True)
class Command:
    """One run of a tool, and what became of it."""

    line: str  # "npu-smi info -t board -i 0"
    outcome: CommandOutcome  # "failed": it ended with a status other than 0, or said that it failed
    exit_code: int | None
    seconds: float | None
    complaint: str | None  # the first line in which the tool says what is wrong, without its own noise
    dcmi_code: int | None  # the code in that line, as -8005


@dataclass(frozen=True)
class NpuChip:
    """One chip of `npu-smi info`. An A3 card has two; a 950 has no chip number."""

    npu_id: int  # the card's number: neither an index nor in order
    chip_id: int | None
    device_id: int | None  # the column Device or Phy-ID: N of /dev/davinciN
    name: str | None  # "910B4-1", "Ascend910", "310P3"
    health: Health | None
    address: str | None  # "0000:0e:00.0"
    power_w: float | None
    temperature_c: int | None
    busy_percent: int | None  # AICore(%); on a 950 NPU Util(%)
    memory_used_bytes: int | None  # DDR: on a 310P all its memory
    memory_total_bytes: int | None
    hbm_used_bytes: int | None
    hbm_total_bytes: int | None
    huge_pages_used: int | None
    huge_pages_total: int | None


@dataclass(frozen=True)
class NpuProcess:
    npu_id: int
    chip_id: int | None
    pid: int
    name: str | None
    memory_bytes: int | None
    container_pid: int | None  # its number inside its container, from 26.0 on


@dataclass(frozen=True)
class NpuMapping:
    """One row of `npu-smi info -m`. A management controller has no logic id."""

    npu_id: int
    chip_id: int
    logic_id: int | None  # the number that CANN and ASCEND_RT_VISIBLE_DEVICES count in
    device_id: int | None  # Chip Phy-ID
    name: str | None


@dataclass(frozen=True)
class NpuBoard:
    """`npu-smi info -t board`, of a card or (with a chip id) of one chip. Serial numbers are left out."""

    npu_id: int
    chip_id: int | None
    product: str | None
    model: str | None
    manufacturer: str | None
    chip_type: str | None  # "Ascend"
    chip_name: str | None  # "910B4"; on A3 "Ascend910"
    npu_name: str | None  # A3: "9392"
    driver_version: str | None  # Software Version
    firmware_version: str | None
    compatibility: str | None  # "OK", "NOK", "UNKNOWN", "NOT SUPPORT"
    address: str | None
    pci_vendor: int | None
    pci_device: int | None
    num_chips: int | None


@dataclass(frozen=True)
class NpuHealth:
    npu_id: int
    chip_id: int | None
    health: Health | None
    error_codes: tuple[str, ...] | None  # as printed, "80E18005"; empty where the tool says there is none
    faults: tuple[str, ...]  # the sentences that go with them


@dataclass(frozen=True)
class NpuDevice:
    """What asys (CANN) and upgrade-tool (driver) say of one device, read where their output was pasted."""

    device_id: int  # N of /dev/davinciN
    health: str | None  # asys' own word: "Healthy", "Warning"
    error_codes: tuple[str, ...] | None  # as printed, "0xa419321c"
    faults: tuple[str, ...]
    firmware_version: str | None  # that runs; None also where its components differ


@dataclass(frozen=True)
class NpuErrors:
    """Counters that only grow: `-t ecc` and `-t pcie-err`."""

    npu_id: int
    chip_id: int | None
    ecc: dict[str, int] | None  # by the tool's own name, "HBM Double Bit Error Count"
    pcie: dict[str, int] | None  # "RX Error Count"


@dataclass(frozen=True)
class NpuSuperPod:
    """`-t spod-info` of a chip of an A3."""

    npu_id: int
    chip_id: int | None
    sdid: int | None  # one for each chip of the whole pod
    super_pod_id: int | None


@dataclass(frozen=True)
class NpuLinks:
    """A row of `npu-smi info -t topo`: how one NPU reaches each other one, and which CPUs are near it."""

    npu: int  # the N of its heading "NPUN"
    paths: dict[int, NpuPath | None]
    near_cpus: tuple[int, ...] | None


@dataclass(frozen=True)
class NpuSmi:
    """All that npu-smi said. A part is None where it was not asked, did not answer or answered something else."""

    commands: tuple[Command, ...]  # those that were run; `npu-smi info` first
    is_partial: bool  # the table of `npu-smi info` breaks off or holds rows that could not be understood
    tool_version: str | None
    driver_version: str | None
    chips: tuple[NpuChip, ...] | None
    processes: tuple[NpuProcess, ...] | None  # None also where the table of processes is missing
    mappings: tuple[NpuMapping, ...] | None
    boards: tuple[NpuBoard, ...] | None
    health: tuple[NpuHealth, ...] | None
    errors: tuple[NpuErrors, ...] | None
    links: tuple[NpuLinks, ...] | None
    super_pods: tuple[NpuSuperPod, ...] | None = None


@dataclass(frozen=True)
class NpuPort:
    """An NPU's own network port, as hccn_tool and /etc/hccn.conf tell it."""

    npu: int  # hccn_tool's -i
    address: str | None  # IPv4 or IPv6, of the device
    netmask: str | None
    configured_address: str | None  # in /etc/hccn.conf
    link: Literal["UP", "DOWN", "PARTIAL LINK"] | None
    net_health: str | None  # "Success", "Socket failed", …
    speed_mbps: int | None
    fec: str | None
    is_tls_on: bool | None
    has_optical: bool | None
    optical_c: int | None
    link_changes: tuple[str, ...] | None  # newest first, as printed
    error_packets: dict[str, int] | None  # roce_rx_err_pkt_num and the like


@dataclass(frozen=True)
class NpuNetwork:
    commands: tuple[Command, ...]
    ports: tuple[NpuPort, ...]
