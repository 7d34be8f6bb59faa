"""Every check finds what it is named for, on a host that is in order but for that; and only then."""

from dataclasses import replace

import pytest

from tests.hosts import facts_of
from trivet.base.findings import Finding
from trivet.driver.check import LAYERS, check, failed, passed, run, unknown
from trivet.driver.checks import CHECKS, examine
from trivet.driver.chips import chip_of
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need
from trivet.driver.placement_facts import Container, Filesystem, PciDevice, ProcessLimit
from trivet.driver.probe_facts import PinningProbe
from trivet.driver.readers.device_nodes import CONTROL_NODES

GIB = 1 << 30
HEALTHY = facts_of("a2")
NEED = Need(memory_bytes=16 * GIB, disk_path="/data/trivet", disk_bytes=16 * GIB)
DOCKER = Container("docker", "/.dockerenv")


def with_cpus(**changes: object) -> HostFacts:
    return replace(HEALTHY, cpus=replace(HEALTHY.cpus, **changes))


def with_npus(**changes: object) -> HostFacts:
    return replace(HEALTHY, pci=tuple(replace(each, **changes) if chip_of(each) else each for each in HEALTHY.pci))


def with_disk(free_bytes: int | None, *options: str) -> HostFacts:
    return replace(HEALTHY, filesystems=(Filesystem("/data/trivet", "/data", "xfs", options, free_bytes),))


def with_limits(**changes: object) -> HostFacts:
    return replace(HEALTHY, limits=replace(HEALTHY.limits, **changes))


LOW = with_limits(locked_memory_bytes=ProcessLimit(65536, 65536))
WITHOUT_CONTROL = tuple(node for node in HEALTHY.device_nodes if node.path not in CONTROL_NODES)
DENIED = tuple(replace(node, is_accessible=False) for node in HEALTHY.device_nodes)
UNTOLD = tuple(replace(node, is_accessible=None) for node in HEALTHY.device_nodes)

# Check, outcome, the host and the need that must give it.
CASES: list[tuple[str, str, HostFacts, Need]] = [
    ("cpu_features_missing", "warning", with_cpus(features=("sve",)), NEED),
    ("cpu_features_missing", "warning", with_cpus(features=("avx2",)), NEED),
    ("cpu_features_missing", "unknown", with_cpus(features=None), NEED),
    ("numa_topology_unknown", "unknown", replace(HEALTHY, nodes=None), NEED),
    ("numa_topology_unknown", "unknown", with_cpus(cores=None), NEED),
    ("cpu_quota_tight", "warning", replace(HEALTHY, cgroup=replace(HEALTHY.cgroup, cpu_quota=1.5)), NEED),
    ("cpu_quota_tight", "passed", replace(HEALTHY, cgroup=replace(HEALTHY.cgroup, cpu_quota=24.0)), NEED),
    ("cpu_quota_tight", "unknown", replace(HEALTHY, cgroup=replace(HEALTHY.cgroup, cpu_quota=None)), NEED),
    ("numa_balancing_on", "warning", replace(HEALTHY, numa_balancing=True), NEED),
    ("numa_balancing_on", "unknown", replace(HEALTHY, numa_balancing=None), NEED),
    ("numa_balancing_on", "passed", replace(HEALTHY, numa_balancing=True, nodes=HEALTHY.nodes[3:]), NEED),
    ("cpu_governor_saves_power", "warning", with_cpus(governors={"policy0": "powersave"}), NEED),
    ("cpu_governor_saves_power", "passed", with_cpus(governors={}), NEED),
    ("cpu_governor_saves_power", "unknown", with_cpus(governors=None), NEED),
    (
        "huge_pages_off",
        "warning",
        replace(HEALTHY, memory=replace(HEALTHY.memory, transparent_huge_pages="never")),
        NEED,
    ),
    ("huge_pages_off", "unknown", replace(HEALTHY, memory=replace(HEALTHY.memory, transparent_huge_pages=None)), NEED),
    ("memory_short", "failed", HEALTHY, replace(NEED, memory_bytes=1 << 50)),
    ("memory_short", "failed", replace(HEALTHY, cgroup=replace(HEALTHY.cgroup, memory_left_bytes=GIB)), NEED),
    ("memory_short", "unknown", replace(HEALTHY, cgroup=replace(HEALTHY.cgroup, memory_left_bytes=None)), NEED),
    ("memory_short", "unknown", replace(HEALTHY, memory=replace(HEALTHY.memory, available_bytes=None)), NEED),
    ("memory_short", "skipped", HEALTHY, Need()),
    ("node_memory_short", "warning", HEALTHY, replace(NEED, memory_bytes=200 * GIB)),
    ("node_memory_short", "passed", HEALTHY, replace(NEED, memory_bytes=HEALTHY.nodes[3].memory_free_bytes)),
    ("node_memory_short", "unknown", replace(HEALTHY, nodes=None), NEED),
    ("disk_short", "failed", with_disk(GIB, "rw"), NEED),
    ("disk_short", "failed", with_disk(99 * GIB, "ro"), NEED),
    ("disk_short", "unknown", with_disk(None, "rw"), NEED),
    ("disk_short", "unknown", replace(HEALTHY, filesystems=()), NEED),
    ("disk_short", "skipped", HEALTHY, Need(disk_path="/data/trivet")),
    ("open_files_low", "warning", with_limits(open_files=ProcessLimit(1024, "unlimited")), NEED),
    ("open_files_low", "unknown", with_limits(open_files=None), NEED),
    ("kernel_old", "warning", replace(HEALTHY, kernel="3.10.0-1160.el7"), NEED),
    ("kernel_old", "note", replace(HEALTHY, kernel="4.19.90"), NEED),
    ("kernel_old", "unknown", replace(HEALTHY, kernel=None), NEED),
    ("swap_in_use", "note", replace(HEALTHY, memory=replace(HEALTHY.memory, swap_total_bytes=GIB)), NEED),
    ("swap_in_use", "unknown", replace(HEALTHY, memory=replace(HEALTHY.memory, swap_free_bytes=None)), NEED),
    (
        "locale_not_utf8",
        "note",
        replace(HEALTHY, stack=replace(HEALTHY.stack, environment={"LANG": "zh_CN.GBK"})),
        NEED,
    ),
    ("locale_not_utf8", "unknown", replace(HEALTHY, stack=None), NEED),
    ("processes_few", "warning", replace(HEALTHY, cgroup=replace(HEALTHY.cgroup, max_processes=512)), NEED),
    ("host_is_virtual", "note", replace(HEALTHY, is_virtual=True), NEED),
    ("host_is_virtual", "unknown", replace(HEALTHY, is_virtual=None), NEED),
    (
        "model_on_network_filesystem",
        "note",
        replace(HEALTHY, filesystems=(replace(HEALTHY.filesystems[0], is_network=True, type="nfs4"),)),
        NEED,
    ),
    ("npu_absent", "skipped", replace(HEALTHY, pci=(), device_nodes=()), NEED),
    ("npu_absent", "failed", replace(HEALTHY, pci=(), device_nodes=()), replace(NEED, device="npu")),
    ("npu_absent", "unknown", replace(HEALTHY, pci=None, device_nodes=None, npu_smi=None), NEED),
    ("npu_absent", "passed", replace(HEALTHY, pci=None), NEED),
    ("npu_link_slow", "warning", with_npus(link_width=8), NEED),
    ("npu_link_slow", "warning", with_npus(link_gts=8.0), NEED),
    ("npu_link_slow", "unknown", with_npus(link_gts=None), NEED),
    ("npu_node_unknown", "warning", with_npus(numa_node=None), NEED),
    ("npu_node_unknown", "unknown", replace(HEALTHY, pci=None), NEED),
    ("locked_memory_low", "warning", replace(LOW, process=replace(HEALTHY.process, capabilities=0)), NEED),
    ("locked_memory_low", "passed", LOW, NEED),  # its process has CAP_IPC_LOCK
    ("locked_memory_low", "warning", replace(HEALTHY, pinning=PinningProbe(1 << 26, False, "not allowed")), NEED),
    ("locked_memory_low", "passed", replace(HEALTHY, pinning=PinningProbe(1 << 26, True, None)), NEED),
    ("locked_memory_low", "unknown", with_limits(locked_memory_bytes=None), NEED),
    ("container_without_devices", "failed", replace(HEALTHY, container=DOCKER, device_nodes=()), NEED),
    ("container_without_devices", "failed", replace(HEALTHY, container=DOCKER, device_nodes=WITHOUT_CONTROL), NEED),
    (
        "container_without_devices",
        "warning",
        replace(HEALTHY, container=DOCKER, device_nodes=()),
        replace(NEED, device="cpu"),
    ),
    ("container_without_devices", "passed", replace(HEALTHY, container=DOCKER), NEED),
    ("container_without_devices", "unknown", replace(HEALTHY, container=None), NEED),
    ("npu_without_driver", "failed", replace(HEALTHY, device_nodes=()), NEED),
    ("npu_without_driver", "failed", replace(HEALTHY, device_nodes=WITHOUT_CONTROL), NEED),
    ("npu_without_driver", "warning", replace(HEALTHY, device_nodes=()), replace(NEED, device="cpu")),
    ("npu_without_driver", "unknown", replace(HEALTHY, device_nodes=None, npu_smi=None), NEED),
    ("device_nodes_unreadable", "failed", replace(HEALTHY, device_nodes=DENIED), NEED),
    ("device_nodes_unreadable", "unknown", replace(HEALTHY, device_nodes=UNTOLD), NEED),
]


def named(findings: tuple[Finding, ...], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


@pytest.mark.parametrize("name", ["a2", "a3", "310p"])
def test_a_host_in_order_has_nothing_to_do(name):
    assert {"passed", "note", "unknown", "skipped"} >= {finding.outcome for finding in examine(facts_of(name), NEED)}


@pytest.mark.parametrize(("name", "outcome", "facts", "need"), CASES)
def test_a_check_finds_what_it_is_named_for(name, outcome, facts, need):
    assert outcome == named(examine(facts, need), name).outcome


@pytest.mark.parametrize(("name", "outcome", "facts", "need"), CASES)
def test_a_fault_comes_with_a_remedy(name, outcome, facts, need):
    finding = named(examine(facts, need), name)

    assert bool(finding.remedy) == (outcome in ("failed", "warning")) or "note" == outcome


def test_codes_are_unique():
    assert len(CHECKS) == len({each.code for each in CHECKS})


def test_layers_come_in_their_order_but_for_the_hosts_own_settings():
    layers = [LAYERS.index(each.layer) for each in CHECKS if each.layer != "user-config"]

    assert sorted(layers) == layers


def test_what_blocks_a_layer_is_the_cause_of_all_above_it_and_of_nothing_beside_it():
    facts = replace(HEALTHY, container=DOCKER, device_nodes=())
    findings = examine(facts, NEED)
    above = [each for each in findings if each.layer in ("operator", "framework", "network")]

    assert {"container_without_devices"} == {each.because for each in above}
    assert "passed" == named(findings, "shared_memory_small").outcome


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_check_is_not_made_when_what_it_needs_has_not_held_and_names_the_first_cause(device):
    facts = replace(HEALTHY, container=DOCKER, device_nodes=())
    finding = named(examine(facts, replace(NEED, device=device)), "device_nodes_unreadable")

    assert "skipped" == finding.outcome
    assert "not checked, because of container_without_devices" == finding.detail


def test_unknown_is_not_passed():
    @check("T1", "block", source="")
    def dark(facts: HostFacts, need: Need):
        return unknown("dark")

    @check("T2", "block", source="", needs=("dark",))
    def behind(facts: HostFacts, need: Need):
        return passed("must not be reached")

    assert ["unknown", "skipped"] == [finding.outcome for finding in run((dark, behind), HEALTHY, NEED)]


def test_a_check_may_not_need_one_that_comes_later():
    @check("T1", "block", source="", needs=("later",))
    def earlier(facts: HostFacts, need: Need):
        return failed("never made")

    with pytest.raises(AssertionError, match="earlier needs checks that come after it"):
        run((earlier,), HEALTHY, NEED)


@pytest.mark.parametrize(
    ("chip", "vendor", "device", "class_code"),
    [
        ("Ascend 910B", 0x19E5, 0xD802, 0x120000),
        ("Ascend 310P", 0x20C6, 0xD500, 0x120000),
        ("unlisted Ascend d8ff", 0x19E5, 0xD8FF, 0x120000),
        (None, 0x19E5, 0xA222, 0x020000),  # the network card of a Kunpeng board
        (None, 0x19E5, 0x1711, 0x030000),  # its management controller's display
        (None, 0x10DE, 0xD802, 0x120000),
        (None, 0x20C6, 0x1234, 0x120000),
    ],
)
def test_an_npu_is_told_from_what_else_its_vendor_makes(chip, vendor, device, class_code):
    assert chip == chip_of(PciDevice("0000:c1:00.0", class_code, vendor, device, *[None] * 6))
