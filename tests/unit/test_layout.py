"""What is near what, and where that says to run, on hosts of every shape."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.errors import ResourceError
from trivet.cli.topology import topology
from trivet.driver.bundle import write_bundle
from trivet.driver.facts import HostFacts, Interrupt, NetworkInterface, NvmeController
from trivet.driver.layout.commands import commands
from trivet.driver.layout.picture import picture
from trivet.driver.layout.placement import placements
from trivet.driver.layout.text import text
from trivet.driver.layout.tree import Device, devices, path_between, paths, tree
from trivet.driver.need import Need
from trivet.driver.npu_facts import NpuChip, NpuMapping, NpuSmi
from trivet.driver.placement_facts import PciDevice
from trivet.driver.readers.host import read_facts
from trivet.driver.topology import usable_cpus

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
KUNPENG = read_facts(HOSTS / "kunpeng-910b")
NPU, NVME, NIC = (0x120000, 0x19E5, 0xD802), (0x010802, 0x144D, 0xA80A), (0x020000, 0x15B3, 0x1017)


def pci(address: str, ids: tuple[int, int, int], node: int | None, *bridges: str) -> PciDevice:
    return PciDevice(
        address, *ids, node, None, 16.0, 16.0, 16, 16, near_cpus=None, bridges=bridges, interrupts=None
    )  # fmt: skip


# Two NPUs and a disk below one switch, a network card below the same root port, and an NPU on another node.
SWITCHED = replace(
    KUNPENG,
    pci=(
        pci("0000:03:00.0", NPU, 0, "0000:00:01.0", "0000:01:00.0", "0000:02:00.0"),
        pci("0000:04:00.0", NPU, 0, "0000:00:01.0", "0000:01:00.0", "0000:02:01.0"),
        pci("0000:05:00.0", NVME, 0, "0000:00:01.0", "0000:01:00.0", "0000:02:02.0"),
        pci("0000:08:00.0", NIC, 0, "0000:00:01.0", "0000:06:00.0", "0000:07:00.0"),
        pci("0000:83:00.0", NPU, 2, "0000:80:01.0"),
    ),
    nvme=(NvmeController("nvme0", "pcie", "live", "SAMSUNG <MZ>", "0000:05:00.0", 0, 65),),
    network=(NetworkInterface("eth0", "up", 25000, True, None, "0000:08:00.0", 0),),
    interrupts=(
        Interrupt(301, "sq_send_trigger_irq", "0000:03:00.0", 5, (0,), None, None),
        Interrupt(302, "cq_update_irq", "0000:03:00.0", 5, (0,), None, None),
        Interrupt(303, "sdma_irq", "0000:03:00.0", 5, (0,), None, None),
    ),
    has_irqbalance=False,
)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(topology, [str(each) for each in arguments])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("topology", ()),
        ("apply", ("--apply",)),
        ("topology.zh", ("--lang", "zh")),
        ("apply.zh", ("--apply", "--lang", "zh")),
    ],
)
def test_a_host_gives_its_layout_and_its_commands(name, options):
    assert (HOSTS / f"kunpeng-910b.{name}.txt").read_text() == invoke("--root", HOSTS / "kunpeng-910b", *options).output


def test_devices_below_one_switch_are_nearer_than_those_of_their_node_and_those_than_other_nodes():
    assert {"0000:05:00.0": "PIX", "0000:08:00.0": "PXB"} == paths(SWITCHED)["0000:03:00.0"]
    assert {"0000:05:00.0": "SYS", "0000:08:00.0": "SYS"} == paths(SWITCHED)["0000:83:00.0"]


def test_without_bridges_the_node_tells_and_without_the_node_nobody_does():
    a = Device("a", "npu", "a", "", 0, None, None)

    assert "PHB" == path_between(a, replace(a, node=0))
    assert "SYS" == path_between(a, replace(a, node=1))
    assert None is path_between(a, replace(a, node=None))


PLACES = st.builds(
    Device, st.just("x"), st.just("npu"), st.just("x"), st.just(""), st.sampled_from([None, 0, 1]),
    st.one_of(st.none(), st.lists(st.sampled_from("abc"), max_size=4).map(tuple)), st.none(),
)  # fmt: skip


@given(PLACES, PLACES)
def test_a_path_is_as_long_back_as_there(a, b):
    assert path_between(a, b) == path_between(b, a)


def test_the_tree_shows_bridges_that_have_something_to_share():
    branch = tree(SWITCHED)[0]

    assert ["0000:00:01.0"] == [thing.address for thing in branch.below]
    assert ["0000:01:00.0", "0000:08:00.0"] == [thing.address for thing in branch.below[0].below]
    assert "nvme0, SAMSUNG <MZ>, 16 GT/s × 16" in text(SWITCHED)
    assert "PIX nvme0; PXB eth0" in text(SWITCHED)


def test_devices_whose_node_is_not_known_are_shown_apart():
    facts = replace(KUNPENG, pci=(pci("0000:03:00.0", NPU, None),))

    assert "  node not known\n    0000:03:00.0  Ascend 910B, 16 GT/s × 16\n" in text(facts)
    assert None is placements(facts)[0].node
    assert "any CPU" in str(placements(facts)[0].reason)


def test_a_node_that_may_not_be_used_gives_its_npus_to_the_nearest():
    facts = replace(KUNPENG, cpus=replace(KUNPENG.cpus, allowed=tuple(range(24, 72))))
    place = next(each for each in placements(facts) if each.address == "0000:41:00.0")

    assert 1 == place.node
    assert str(place.reason).startswith("the nearest usable node to its own, 0")


def test_npus_are_numbered_as_cann_counts_them_where_npu_smi_says():
    chip = NpuChip(4, 0, 4, "910B2", "OK", "0000:01:00.0", *[None] * 9)
    said = NpuSmi(
        commands=(), is_partial=False, tool_version=None, driver_version=None, chips=(chip,), processes=None,
        mappings=(NpuMapping(4, 0, 7, 4, None),), boards=None, health=None, errors=None, links=None,
    )  # fmt: skip
    place = next(each for each in placements(replace(KUNPENG, npu_smi=said)) if each.address == "0000:01:00.0")

    assert (7, True) == (place.number, place.is_number_known)


@given(
    st.lists(st.sampled_from([None, 0, 1, 2, 3, 9]), max_size=12),
    st.one_of(st.none(), st.lists(st.integers(0, 99), unique=True).map(lambda cpus: tuple(sorted(cpus)))),
    st.booleans(),
)
def test_every_npu_gets_usable_cpus_that_no_other_npu_has_where_there_are_enough(nodes, allowed, has_cores):
    cpus = replace(KUNPENG.cpus, allowed=allowed, cores=KUNPENG.cpus.cores if has_cores else None)
    facts = replace(KUNPENG, cpus=cpus, pci=tuple(pci(f"0000:{i:02x}:00.0", NPU, node) for i, node in enumerate(nodes)))
    usable, placed = set(usable_cpus(facts) or ()), placements(facts)

    assert len(nodes) == len(placed)
    for each in placed:
        assert set(each.cpus) | set(each.interrupt_cpus) <= usable
        assert bool(usable) == bool(each.cpus) == bool(each.interrupt_cpus)
        same = [other for other in placed if other.address != each.address and other.reason == each.reason]
        if len({*each.cpus, *each.interrupt_cpus}) >= max(5, len(same) + 1):  # else NPUs outnumber cores
            assert set(each.cpus).isdisjoint(each.interrupt_cpus)
            assert all(set(each.cpus).isdisjoint((*other.cpus, *other.interrupt_cpus)) for other in same)


def test_the_commands_steer_the_two_interrupts_that_matter_and_no_other():
    lines = commands(SWITCHED).splitlines()

    assert [
        "echo 0 > /proc/irq/301/smp_affinity_list  # sq_send_trigger_irq, as root",
        "echo 1 > /proc/irq/302/smp_affinity_list  # cq_update_irq, as root",
    ] == [line for line in lines if line.startswith("echo")]
    assert "ASCEND_RT_VISIBLE_DEVICES=0 numactl --physcpubind=2-11 --preferred=0 COMMAND" in lines
    assert not any("irqbalance" in line for line in lines)


def test_cpus_in_pieces_are_left_to_numactl():
    cores = tuple((cpu, cpu + 48) for cpu in range(48))
    nodes = tuple(replace(node, cpus=tuple(range(24 * i, 24 * i + 24)) + tuple(range(24 * i + 48, 24 * i + 72)))
                  for i, node in enumerate((KUNPENG.nodes or ())[:2]))  # fmt: skip
    facts = replace(SWITCHED, nodes=nodes, cpus=replace(KUNPENG.cpus, cores=cores))

    assert "# CPU_AFFINITY_CONF takes one range" in commands(facts)
    assert "--physcpubind=2-11,50-59" in commands(facts)


def test_without_an_npu_the_commands_are_those_for_any_program():
    facts = replace(KUNPENG, pci=())

    assert "numactl --physcpubind=" in commands(facts)
    assert "no NPU, disk or network card among 0 PCI devices" in text(facts)


def test_what_is_not_known_is_said():
    facts = replace(KUNPENG, pci=None, nodes=None, cpus=replace(KUNPENG.cpus, online=None, allowed=None))

    assert "the NUMA nodes are unknown" in text(facts)
    assert "the PCI bus could not be read" in text(facts)
    assert "no CPU is known to be usable" in text(facts)
    with pytest.raises(ResourceError):
        commands(facts)


@pytest.mark.parametrize("facts", [SWITCHED, KUNPENG, replace(KUNPENG, pci=None, nodes=None)])
def test_the_picture_is_well_formed_and_shows_every_device(facts: HostFacts):
    words = " ".join(ElementTree.fromstring(picture(facts)).itertext())

    assert [] == [each.address for each in devices(facts) if each.address not in words]


def test_the_live_host_has_a_layout_a_placement_and_commands(tmp_path):
    assert invoke("--svg", tmp_path / "host.svg").output.startswith("Layout\n  node 0")
    assert {"nodes", "paths", "placements"} == json.loads(invoke("--json").output).keys()
    assert "taskset -acp " in invoke("--apply").output
    assert (tmp_path / "host.svg").read_text().startswith("<svg")


def test_a_picture_that_cannot_be_written_is_refused(tmp_path):
    assert isinstance(invoke("--svg", tmp_path / "absent" / "host.svg").exception, ResourceError)


def test_the_layout_of_a_bundle_is_that_of_its_host(tmp_path):
    write_bundle(tmp_path / "out.tar.zst", HOSTS / "kunpeng-910b", Need())

    assert (HOSTS / "kunpeng-910b.topology.txt").read_text() == invoke("--from", tmp_path / "out.tar.zst").output
