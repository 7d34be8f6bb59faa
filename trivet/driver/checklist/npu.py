"""Checks of the NPU from its bus to its device nodes: PCI, modules, /dev, permissions, what a container is given."""

from __future__ import annotations

from trivet.base.units import GIB, format_bytes
from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, unknown, unread, warning
from trivet.driver.chips import chip_of, npus
from trivet.driver.facts import HostFacts
from trivet.driver.installed import chips
from trivet.driver.need import Need
from trivet.driver.pinning import MEMLOCK, MEMORY, hdk_version, pinning_bounds
from trivet.driver.placement_facts import DeviceNode, PciDevice
from trivet.driver.readers.device_nodes import CONTROL_NODES

_VLLM_ASCEND = "vllm-ascend docs, installation: the nodes a container is given"
_MEMLOCK = "Mooncake and Ascend serving guides: memlock is unlimited"
_HIXL = "HIXL (hicann/hixl): registering host memory"
# Below it a host tier for the KV cache of a large model does not pay.
_ROOM_TO_PIN = 64 * GIB
_UNLOCK = "docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity in the systemd unit, or ulimit -l unlimited as root"
_INSTALL = "sudo ./Ascend-hdk-<chip>-npu-driver_<version>_linux-<arch>.run --full, then reboot"
_GONE_THROUGH = "a tool of the driver lists NPUs, and it goes through their device nodes"
_HAL = "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so"
# CAP_SYS_ADMIN and CAP_SYS_RAWIO in include/uapi/linux/capability.h: only a privileged container has both.
_PRIVILEGED = 1 << 21 | 1 << 17


@check("DRV011", "block", source="the PCI tables of the open Ascend driver; lspci of hosts with 910 and 910B")
def npu_absent(facts: HostFacts, need: Need) -> Judgement:
    found, present = npus(facts), _numbered(facts)
    if found:
        kinds = ", ".join(sorted({chip_of(npu) or "" for npu in found}))
        return passed("{count} × {kinds} on PCI", count=len(found), kinds=kinds)
    if present:
        return passed("{count} NPU device nodes, and none on PCI", count=len(present))
    if found is None and chips(facts):
        return passed("npu-smi lists {count} chips", count=len(chips(facts)))
    if found is None and facts.npu_devices:
        return passed("asys or upgrade-tool speaks of {count} NPUs", count=len(facts.npu_devices))
    if found is None:
        return unknown("the PCI bus could not be read, so an NPU may be there")
    nodes = "no /dev/davinci*" if facts.device_nodes is not None else "whether /dev/davinci* exist is unknown"
    looked = {"count": len(facts.pci or ()), "nodes": nodes}
    if need.device == "npu":
        return failed(
            "no NPU among {count} PCI devices, and {nodes}",
            "lspci -nn -d 19e5:  # empty: power, seating, BIOS, or pass-through in a virtual machine",
            **looked,
        )
    return not_asked("no NPU among {count} PCI devices, and {nodes}; the CPU plan is used", **looked)


@check("DRV012", "warning", source="PCI Express link status, as sysfs shows it", needs=("npu_absent",))
def npu_link_slow(facts: HostFacts, need: Need) -> Judgement:
    found = npus(facts) or ()
    known = [npu for npu in found if _link(npu) is not None]
    slow = [npu for npu in known if (npu.link_gts, npu.link_width) != (npu.max_link_gts, npu.max_link_width)]
    if slow:
        first = slow[0]
        return warning(
            "{count} of {total} NPUs are linked below what they can: {address} at {link}, of {gts} GT/s × {width}",
            "sudo lspci -vv -s {address} | grep LnkSta",
            "reseat the card; look for a slower slot, riser or BIOS setting",
            count=len(slow), total=len(found), address=first.address, link=_link(first),
            gts=first.max_link_gts, width=first.max_link_width,
        )  # fmt: skip
    if not found or len(known) < len(found):
        count = len(found) - len(known)
        return unknown("the PCI link of {count} of {total} NPUs could not be read", count=count, total=len(found))
    return passed("{count} NPUs linked at {link}", count=len(found), link=_link(found[0]))


@check("DRV013", "warning", source="sysfs numa_node is -1 where the firmware does not say", needs=("npu_absent",))
def npu_node_unknown(facts: HostFacts, need: Need) -> Judgement:
    found = npus(facts) or ()
    lost = [npu.address for npu in found if npu.numa_node is None]
    if len(facts.nodes or ()) == 1:
        return passed("there is one NUMA node")
    if not found:
        return unknown("the NPUs are not on PCI here, so which NUMA node they belong to could not be read")
    if not lost:
        return passed("every NPU has its NUMA node: {nodes}", nodes=", ".join(str(npu.numa_node) for npu in found))
    return warning(
        "{count} of {total} NPUs do not say which NUMA node they belong to: {lost}",
        "turn NUMA on in the BIOS, or choose the CPUs by hand (taskset -c, after npu-smi info -t topo)",
        count=len(lost), total=len(found), lost=", ".join(lost),
    )  # fmt: skip


@check("DRV014", "warning", source=f"{_MEMLOCK}; {_HIXL}; capabilities(7)", needs=("npu_absent",))
def locked_memory_low(facts: HostFacts, need: Need) -> Judgement:
    tried, bounds = facts.pinning, pinning_bounds(facts)
    if tried is not None and not tried.is_locked:
        return warning(
            "{asked} could not be locked ({refusal}), and buffers that an NPU copies from are pinned",
            _UNLOCK,
            asked=format_bytes(tried.asked_bytes), refusal=tried.refusal or "no reason given",
        )  # fmt: skip
    if facts.limits.locked_memory_bytes is None:
        return unread("the limit on locked memory in /proc/self/limits")
    values = {"size": format_bytes(bounds[0].num_bytes), "bound": bounds[0].name} if bounds else {}
    if bounds and bounds[0].num_bytes < _ROOM_TO_PIN:
        if bounds[0].name == MEMLOCK:
            return warning(
                "{size} of memory may be locked (the least bound is {bound}), and buffers that an NPU copies from are "
                "pinned",
                _UNLOCK,
                **values,
            )
        return note(
            "{size} of host memory can be pinned (the least bound is {bound}): a KV cache there cannot be larger",
            *(("HDK 25.5 or newer takes 1 TB, as far as there is memory",) if bounds[0].name != MEMORY else ()),
            **values,
        )
    if hdk_version(facts) is None:
        return unknown("how much the driver pins is not known: its version could not be read")
    return passed("{size} of host memory can be pinned (the least bound is {bound})", **values)


@check("DRV015", "block", source=_VLLM_ASCEND, needs=("npu_absent",))
def container_without_devices(facts: HostFacts, need: Need) -> Judgement:
    container = facts.container
    if facts.device_nodes is None and (chips(facts) or facts.npu_devices):
        return passed(_GONE_THROUGH)
    if container is None:
        return unknown("whether this is a container could not be read")
    if container.kind == "none":
        return passed("this is not a container")
    if facts.device_nodes is None:
        return unread("/dev")
    missing = _missing(facts)
    if not missing:
        return passed("the {kind} container has the NPUs' device nodes", kind=container.kind)
    return failed(
        "the {kind} container ({evidence}) lacks {missing}",
        "docker run {options}",
        "or ask the runtime for them: ascend-docker-runtime, or the pod's resource huawei.com/Ascend910",
        kind=container.kind, evidence=container.evidence, missing=", ".join(missing),
        options=" ".join(f"--device {path.replace('davinci*', 'davinci0')}" for path in missing),
    )  # fmt: skip


@check("DRV027", "block", source="obj-m names of the open Ascend driver", needs=("container_without_devices",))
def driver_modules_missing(facts: HostFacts, need: Need) -> Judgement:
    if _in_container(facts):
        return not_asked("the modules are the host's, and this is a container")
    if facts.modules is None:
        return unread("the kernel's modules in /proc/modules")
    live = [module for module in facts.modules if module.state in (None, "Live")]
    if live:
        return passed("{count} modules of the Ascend driver are loaded", count=len(live))
    bound = sorted({npu.kernel_driver for npu in npus(facts) or () if npu.kernel_driver})
    return failed(
        "no module of the Ascend driver is loaded; the NPUs are bound to: {bound}",
        "dmesg | grep -i -e ascend -e drv_  # built for another kernel?",
        _INSTALL,
        bound=", ".join(bound) or "none",
    )


@check("DRV028", "warning", source="/lib/modules: the kernels it was built for", needs=("npu_absent",))
def driver_of_another_kernel(facts: HostFacts, need: Need) -> Judgement:
    if _in_container(facts):
        return not_asked("the modules are the host's, and this is a container")
    if not facts.driver_releases or facts.kernel is None:
        return unread("the kernels that the driver was built for")
    releases = ", ".join(facts.driver_releases)
    if facts.kernel in facts.driver_releases and facts.has_kernel_headers is False:
        return note(
            "the driver was built for Linux {kernel}, whose headers are not here to build it again",
            "sudo apt install linux-headers-{kernel}, or sudo dnf install kernel-devel-{kernel}  # for DKMS",
            kernel=facts.kernel,
        )
    if facts.kernel in facts.driver_releases:
        return passed("the driver was built for Linux {kernel}", kernel=facts.kernel)
    return warning(
        "the driver was built for Linux {releases}, and {kernel} runs: it was not built again after an update",
        "sudo apt install linux-headers-{kernel}, or sudo dnf install kernel-devel-{kernel}",
        _INSTALL,
        releases=releases, kernel=facts.kernel,
    )  # fmt: skip


@check("DRV016", "block", source=_VLLM_ASCEND, needs=("npu_absent", "container_without_devices"))
def npu_without_driver(facts: HostFacts, need: Need) -> Judgement:
    if facts.device_nodes is None and (chips(facts) or facts.npu_devices):
        return passed(_GONE_THROUGH)
    if facts.device_nodes is None:
        return unread("/dev")
    missing = _missing(facts)
    fake = [node.path for node in facts.device_nodes if node.is_character is False]
    if fake:
        return failed(
            "{paths} are no devices: a mount of something that was not there makes a folder or a file",
            "docker run --device {path}  # instead of -v; on the host, rm it and load the driver again",
            paths=", ".join(fake), path=fake[0],
        )  # fmt: skip
    if not missing:
        count = len(_numbered(facts))
        return passed("{count} NPUs and {control} control nodes in /dev", count=count, control=len(CONTROL_NODES))
    bound = sorted({npu.kernel_driver for npu in npus(facts) or () if npu.kernel_driver})
    return failed(
        "/dev lacks {missing}; kernel drivers bound to the NPUs: {bound}",
        "lsmod | grep drv_  # empty: the driver is not loaded, or was built for another kernel",
        _INSTALL,
        missing=", ".join(missing), bound=", ".join(bound) or "none",
    )  # fmt: skip


@check("DRV017", "block", source="modes 0660 HwHiAiUser on hosts with the driver", needs=("npu_without_driver",))
def device_nodes_unreadable(facts: HostFacts, need: Need) -> Judgement:
    if facts.device_nodes is None:  # npu_without_driver has passed because of npu-smi
        return passed(_GONE_THROUGH)
    nodes = facts.device_nodes
    denied = [node for node in nodes if node.is_accessible is False]
    if not denied:
        unread_nodes = [node.path for node in nodes if node.is_accessible is None]
        if unread_nodes:
            return unknown("whether {nodes} may be opened could not be read", nodes=", ".join(unread_nodes))
        return passed("this process may open all {count} device nodes", count=len(nodes))
    first = denied[0]
    return failed(
        "this process may not open {count} of {total} device nodes: {path} belongs to {owner}",
        "docker run --group-add {gid}"
        if _in_container(facts)
        else "sudo usermod -aG $(stat -c %G {path}) $USER, then log in again",
        count=len(denied), total=len(nodes), path=first.path, owner=_owner(first), gid=first.gid,
    )  # fmt: skip


@check("DRV029", "warning", source="CANN installation guide: HwHiAiUser; runtime FAQ", needs=("npu_without_driver",))
def device_nodes_of_another_user(facts: HostFacts, need: Need) -> Judgement:
    user = facts.stack.driver_user if facts.stack else None
    nodes = [node for node in facts.device_nodes or () if node.gid is not None]
    if not nodes:
        return unread("the owners of the device nodes")
    if user is None:
        return unknown("there is no HwHiAiUser in /etc/passwd here, or it could not be read")
    other = [node for node in nodes if node.gid not in (0, user[1])]
    if not other:
        return passed("the device nodes are root's or those of HwHiAiUser, {uid}:{gid}", uid=user[0], gid=user[1])
    return warning(
        "{path} belongs to {owner}, and HwHiAiUser is {uid}:{gid} here: the driver was installed for another user",
        "sudo groupmod -g {theirs} HwHiAiUser; sudo usermod -u {theirs} HwHiAiUser  # in the image, or rebuild it so",
        path=other[0].path, owner=_owner(other[0]), uid=user[0], gid=user[1], theirs=other[0].gid,
    )  # fmt: skip


@check("DRV057", "warning", source="CANN installation guide: HwHiAiUser comes before the driver", needs=("npu_absent",))
def driver_user_missing(facts: HostFacts, need: Need) -> Judgement:
    stack = facts.stack
    if _in_container(facts):
        return not_asked("the driver is installed on the host, and this is a container")
    if stack is None or not stack.has_accounts:
        return unread("/etc/passwd")
    user = (stack.install.user if stack.install else None) or "HwHiAiUser"
    if stack.driver_user is not None or user != "HwHiAiUser":
        return passed("the driver's user {user} is there, or another was chosen", user=user)
    return warning(
        "there is no user HwHiAiUser, and the driver's installer asks for one",
        "sudo groupadd HwHiAiUser; sudo useradd -g HwHiAiUser -d /home/HwHiAiUser -m HwHiAiUser -s /bin/bash",
    )


@check(
    "DRV030", "block", source="vllm-ascend and runtime FAQ: libascend_hal.so not found", needs=("npu_without_driver",)
)
def driver_libraries_missing(facts: HostFacts, need: Need) -> Judgement:
    present = facts.stack.present.get(_HAL) if facts.stack else None
    if present is None:
        return unread("the driver's libraries in /usr/local/Ascend/driver/lib64")
    if present:
        return passed("the driver's libraries are there")
    return failed(
        "{path} is not there, and every call to an NPU goes through it",
        "docker run -v /usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64"
        if _in_container(facts)
        else _INSTALL,
        path=_HAL,
    )


@check("DRV031", "error", source="vllm-ascend docs, installation: -v options", needs=("container_without_devices",))
def container_without_driver_files(facts: HostFacts, need: Need) -> Judgement:
    if not _in_container(facts):
        return passed("this is not a container")
    present = facts.stack.present if facts.stack else {}
    wanted = [path for path in present if path not in (_HAL, "/etc/hccn.conf") and not path.endswith("hccn_tool")]
    missing = [path for path in wanted if present[path] is False]
    if missing:
        return failed(
            "the container lacks the host's {missing}",
            "docker run {options}",
            missing=", ".join(missing), options=" ".join(f"-v {path}:{path}" for path in missing),
        )  # fmt: skip
    if not wanted or any(present[path] is None for path in wanted):
        return unknown("whether the driver's files were mounted could not be read")
    return passed("the container has the driver's files")


@check("DRV032", "note", source="vllm-ascend issues on cards of other containers", needs=("container_without_devices",))
def container_privileged(facts: HostFacts, need: Need) -> Judgement:
    if not _in_container(facts):
        return passed("this is not a container")
    capabilities = facts.process.capabilities if facts.process else None
    if capabilities is None:
        return unread("the capabilities in /proc/self/status")
    if capabilities & _PRIVILEGED != _PRIVILEGED:
        return passed("the container is not privileged")
    return note(
        "a privileged container sees all {count} NPUs of the host, those in use elsewhere too",
        "export ASCEND_RT_VISIBLE_DEVICES=0  # or --device for each card, without --privileged",
        count=len(_numbered(facts)),
    )


def _in_container(facts: HostFacts) -> bool:
    return facts.container is not None and facts.container.kind != "none"


def _owner(node: DeviceNode) -> str:
    mode = f", mode {node.mode:04o}" if node.mode is not None else ""
    return f"{node.uid}:{node.gid}{mode}"


def _numbered(facts: HostFacts) -> tuple[str, ...]:
    return tuple(node.path for node in facts.device_nodes or () if node.path not in CONTROL_NODES)


def _missing(facts: HostFacts) -> tuple[str, ...]:
    present = {node.path for node in facts.device_nodes or ()}
    numbered = () if _numbered(facts) else ("/dev/davinci*",)
    return (*numbered, *(path for path in CONTROL_NODES if path not in present))


def _link(npu: PciDevice) -> str | None:
    """The link as it is, if it and its best are all known."""
    if None in (npu.link_gts, npu.link_width, npu.max_link_gts, npu.max_link_width):
        return None
    return f"{npu.link_gts} GT/s × {npu.link_width}"
