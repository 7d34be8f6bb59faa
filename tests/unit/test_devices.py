"""A device is opened by name, or refused with what was looked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from trivet.base.errors import TrivetError
from trivet.driver.devices.device import Device
from trivet.driver.devices.table import open_device
from trivet.driver.readers.host import read_facts

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
VM = read_facts(HOSTS / "epyc-vm")


def test_the_cpu_is_opened_where_the_topology_puts_it():
    device = Device(
        kind="cpu",
        name="AMD EPYC",
        memory_bytes=24085740 << 10,
        cpus=(0, 1),
        numa_node=0,
        reason="the only node",
    )

    assert device == open_device("cpu", VM)
    assert (0,) == open_device("cpu", VM, num_threads=1).cpus


@pytest.mark.parametrize(
    ("name", "facts", "says"),
    [
        ("tpu", VM, "device tpu: not known\n  → choose one of: cpu"),
        ("npu", VM, "device npu: none here: looked through 4 PCI devices for an Ascend of vendor 19e5"),
        ("npu", replace(VM, pci=None), "device npu: the PCI bus could not be read"),
        ("npu", read_facts(HOSTS / "kunpeng-910b"), "device npu: 8 × Ascend 910B here, and no plan of this version"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_what_was_looked_for(name, facts, says):
    with pytest.raises(TrivetError) as refusal:
        open_device(name, facts)

    assert str(refusal.value).startswith(says)
