"""Interrupts, disks, networks, modules, the process and the kernel's log, as the kernel writes them."""

import os
import socket
from pathlib import Path

import pytest

from trivet.driver.facts import (
    BlockDevice,
    Interrupt,
    KernelModule,
    NetworkInterface,
    NvmeController,
    NvmeSettings,
    Process,
)
from trivet.driver.placement_facts import Container, PciDevice
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.filesystem import read_filesystem
from trivet.driver.readers.interrupts import read_interrupts
from trivet.driver.readers.kernel_log import read_kernel_log
from trivet.driver.readers.lspci import parse_lspci
from trivet.driver.readers.machine import (
    read_distribution,
    read_driver_releases,
    read_has_kernel_headers,
    read_is_virtual,
    read_kernel_parameters,
    read_modules,
)
from trivet.driver.readers.probes import probe_pinning, probe_reading
from trivet.driver.readers.process import has_irqbalance, read_listening_ports, read_process, read_programs
from trivet.driver.readers.sysfs_block import read_disks, read_nvme, read_nvme_settings
from trivet.driver.readers.sysfs_net import read_network
from trivet.driver.readers.sysfs_pci import read_iommu_groups, read_pci

LIVE = Path("/")


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def link(root: Path, path: str, target: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(target)


NPU = "sys/devices/pci0000:c0/0000:c0:00.0/0000:c1:00.0"


@pytest.fixture
def bus(tmp_path):
    """An NPU below one bridge, as sysfs shows it: the bus has a link into the tree of devices."""
    write(tmp_path, {
        f"{NPU}/class": "0x120000", f"{NPU}/vendor": "0x19e5", f"{NPU}/device": "0xd802", f"{NPU}/numa_node": "6",
        f"{NPU}/local_cpulist": "144-167\n", f"{NPU}/msi_irqs/2753": "msix", f"{NPU}/msi_irqs/2754": "msix",
        f"{NPU}/msi_irqs/2755": "msix", "sys/kernel/iommu_groups/7/type": "DMA-FQ\n",
    })  # fmt: skip
    link(tmp_path, f"{NPU}/iommu_group", "../../../../kernel/iommu_groups/7")
    link(tmp_path, "sys/bus/pci/devices/0000:c1:00.0", f"../../../../{NPU}")
    return tmp_path


def test_a_pci_device_tells_its_bridges_cpus_interrupts_and_iommu(bus):
    (npu,) = read_pci(bus)

    assert ("0000:c0:00.0",) == npu.bridges
    assert tuple(range(144, 168)) == npu.near_cpus
    assert ((2753, 2754, 2755), 7, "DMA-FQ") == (npu.interrupts, npu.iommu_group, npu.iommu_mode)
    assert 1 == read_iommu_groups(bus)


def test_the_interrupts_of_an_npu_say_who_serves_them(bus):
    write(bus, {
        "proc/interrupts": "            CPU0       CPU1       CPU144\n"
        "  24:          9          9          9   IO-APIC   4-edge      ttyS0\n"
        "2753:          0          5         70   ITS-MSI  1 Edge      sq_send_trigger_irq\n"
        "2754:          0          0          0   ITS-MSI  2 Edge      cq_update_irq\n"
        "2755:          0          0          0   ITS-MSI  3 Edge      other\n"
        " NMI:          1          1          1   Non-maskable interrupts\n",
        "proc/irq/2753/smp_affinity_list": "144\n", "proc/irq/2753/effective_affinity_list": "144\n",
    })  # fmt: skip

    assert (
        Interrupt(2753, "sq_send_trigger_irq", "0000:c1:00.0", 75, (144, 1), (144,), (144,)),
        Interrupt(2754, "cq_update_irq", "0000:c1:00.0", 0, (), None, None),
    ) == read_interrupts(bus, read_pci(bus))


def test_a_line_of_interrupts_that_is_cut_says_nothing(bus):
    write(bus, {"proc/interrupts": "      CPU0   CPU1\n2753:    5\n2754:  1  2\n"})

    assert () == read_interrupts(bus, read_pci(bus))


def test_nvme_is_told_from_nvme_over_a_fabric(tmp_path):
    write(tmp_path, {
        "sys/class/nvme/nvme0/transport": "pcie\n", "sys/class/nvme/nvme0/state": "live\n",
        "sys/class/nvme/nvme0/model": "ES3000 V6   \n", "sys/class/nvme/nvme0/address": "0000:C3:00.0\n",
        "sys/class/nvme/nvme0/numa_node": "2\n", "sys/class/nvme/nvme0/queue_count": "33\n",
        "sys/class/nvme/nvme0/nvme0n1/x": "",
        "sys/class/nvme/nvme1/transport": "rdma\n", "sys/class/nvme/nvme1/state": "connecting\n",
        "sys/class/nvme/nvme1/address": "traddr=192.0.2.1,trsvcid=4420\n", "sys/class/nvme/nvme1/numa_node": "-1\n",
        "sys/class/nvme/nvme1/nvme0c1n1/x": "",
        "sys/module/nvme/parameters/poll_queues": "8\n", "sys/module/nvme/parameters/write_queues": "0\n",
        "sys/block/nvme0n1/size": "2048\n", "sys/block/nvme0n1/queue/scheduler": "[none] mq-deadline\n",
        "sys/block/nvme0n1/queue/io_poll": "1\n", "sys/block/nvme0n1/queue/nr_requests": "1023\n",
        "sys/block/nvme0n1/queue/read_ahead_kb": "128\n", "sys/block/nvme0n1/queue/logical_block_size": "4096\n",
        "sys/block/nvme0n1/queue/rotational": "0\n", "sys/block/nvme0n1/device/numa_node": "2\n",
        "sys/block/dm-0/size": "2048\n", "sys/block/dm-0/slaves/nvme0n1/x": "",
        "sys/block/dm-0/queue/scheduler": "none\n",
        "sys/block/loop0/size": "8\n", "sys/block/sdb/size": "0\n",
    })  # fmt: skip

    assert (
        NvmeController("nvme0", "pcie", "live", "ES3000 V6", "0000:c3:00.0", 2, 33),
        NvmeController("nvme1", "rdma", "connecting", None, None, None, None),
    ) == read_nvme(tmp_path)
    assert NvmeSettings(8, 0) == read_nvme_settings(tmp_path)
    assert (
        BlockDevice("dm-0", 1 << 20, "none", None, None, None, None, None, None, (), ("nvme0n1",)),
        BlockDevice("nvme0n1", 1 << 20, "none", True, 1023, 128 << 10, 4096, False, 2, ("nvme0", "nvme1"), ()),
    ) == read_disks(tmp_path)


def test_a_filesystem_is_followed_to_its_disk_and_a_network_is_none(tmp_path):
    write(tmp_path, {
        "proc/self/mountinfo": "30 1 8:3 / / rw - ext4 /dev/sda3 rw\n95 30 259:1 / /data rw - xfs /dev/nvme0n1p1 rw\n"
        "96 30 0:50 / /nfs rw - nfs4 server:/export rw\n97 30 0:51 / /box rw - fuse.new thing rw\n",
        "sys/block/nvme0n1/dev": "259:0\n", "sys/block/nvme0n1/nvme0n1p1/dev": "259:1\n", "sys/block/sda/dev": "8:0\n",
    })  # fmt: skip
    found = {
        path: read_filesystem(tmp_path, path, Captured()) for path in ("/data/model", "/nfs/model", "/box", "/etc")
    }

    assert ("nvme0n1", False) == (found["/data/model"].disk, found["/data/model"].is_network)
    assert ("server:/export", None, True) == tuple(
        getattr(found["/nfs/model"], name) for name in ("source", "disk", "is_network")
    )
    assert [None, False] == [found["/box"].is_network, found["/etc"].is_network]


def test_network_interfaces_are_read_without_their_addresses(tmp_path):
    write(tmp_path, {
        "sys/class/net/enp1s0/operstate": "up\n", "sys/class/net/enp1s0/speed": "25000\n",
        "sys/class/net/bond0/operstate": "down\n", "sys/class/net/bond0/speed": "-1\n",
        "proc/net/route": "Iface\tDestination\nenp1s0\t00000000\n",
        "proc/net/if_inet6": "fe800000000000000000000000000001 02 40 20 80 enp1s0\n",
    })  # fmt: skip
    link(tmp_path, "sys/class/net/enp1s0/device", "../../../0000:7D:00.0")

    assert (
        NetworkInterface("bond0", "down", None, False, False, None, None),
        NetworkInterface("enp1s0", "up", 25000, True, False, "0000:7d:00.0", None),
    ) == read_network(tmp_path)


def test_a_port_that_is_listened_on_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in read_listening_ports(LIVE)


def test_this_process_is_read_as_the_system_calls_tell_it():
    process = read_process(LIVE)

    assert (os.geteuid(), {os.getegid(), *os.getgroups()}) == (process.uid, set(process.gids))


def test_the_process_of_a_tree_is_that_of_its_files(tmp_path):
    write(tmp_path, {
        "proc/self/status": "Uid:\t1000\t1001\t1000\t1000\nGid:\t5\t6\t5\t5\nGroups:\t6 7 \n"
        "CapEff:\t00000000a80425fb\nSeccomp:\t2\n",
    })  # fmt: skip

    assert Process(1001, (6, 7), 0xA80425FB, 2) == read_process(tmp_path)


def test_irqbalance_is_missed_only_where_all_processes_are_seen(tmp_path):
    write(tmp_path, {"proc/1/comm": "systemd\n", "proc/20/comm": "sshd\n"})
    host, container = Container("none", ""), Container("docker", "/.dockerenv")
    assert [False, None, None] == [has_irqbalance(read_programs(tmp_path), each) for each in (host, container, None)]

    write(tmp_path, {"proc/30/comm": "irqbalance\n"})
    assert [True, True] == [has_irqbalance(read_programs(tmp_path), each) for each in (host, container)]


def test_the_machine_tells_its_system_modules_and_kernels(tmp_path):
    write(tmp_path, {
        "etc/os-release": 'NAME="openEuler"\nPRETTY_NAME="openEuler 22.03 (LTS-SP4)"\n',
        "proc/modules": "drv_davinci_intf_host 40960 2 drv_devmm_host, Live 0x0 (OE)\nnvme 57344 3 - Live 0x0\n",
        "sys/module/drv_davinci_intf_host/version": "1.0\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=12-34 iommu.passthrough=1 quiet isolcpus=1-3\n",
        "lib/modules/5.10.0-216/updates/drv_davinci_intf_host.ko": "", "lib/modules/5.10.0-250/kernel/fs.ko": "",
        "proc/cpuinfo": "processor : 0\nflags : fpu avx2 hypervisor\n",
    })  # fmt: skip

    assert "openEuler 22.03 (LTS-SP4)" == read_distribution(tmp_path)
    assert (KernelModule("drv_davinci_intf_host", "Live", "1.0"),) == read_modules(tmp_path)
    assert ("iommu.passthrough=1", "isolcpus=1-3") == read_kernel_parameters(tmp_path)
    assert ("5.10.0-216",) == read_driver_releases(tmp_path)
    assert [False, None] == [read_has_kernel_headers(tmp_path, kernel) for kernel in ("5.10.0-250", "6.6")]
    assert True is read_is_virtual(tmp_path, None)
    assert [True, None] == [read_is_virtual(tmp_path / "nowhere", name) for name in ("QEMU KVM", "TaiShan 200")]


def test_of_the_kernels_log_only_what_concerns_us_is_kept(tmp_path):
    write(tmp_path, {
        "captured/dmesg.txt": "[1.0] usb 1-1: new device\n[2.0] pcieport 0000:c0:00.0: AER: Corrected error\n"
        "[3.0] [ascend] [drv_soft_fault] device 0\n[4.0] Out of memory: Killed process 7 (python)\n",
    })  # fmt: skip

    assert ["[2.0]", "[3.0]", "[4.0]"] == [line.split()[0] for line in read_kernel_log(tmp_path).lines]
    assert read_kernel_log(tmp_path / "nowhere") is None


def test_lspci_with_numbers_tells_every_device_and_without_them_the_accelerators():
    numbered = (
        "0000:c1:00.0 Processing accelerators [1200]: Huawei Technologies Co., Ltd. Device [19e5:d802] (rev 20)\n"
    )
    plain = "00:1f.0 ISA bridge: Intel Corporation Device 7a04\n3d:00.0 Processing accelerators: " \
        "Huawei Technologies Co., Ltd. Device d801 (rev 20)\n"  # fmt: skip

    assert ("0000:c1:00.0", 0x120000, 0x19E5, 0xD802) == identity(parse_lspci(numbered))
    assert ("0000:3d:00.0", 0x120000, 0x19E5, 0xD801) == identity(parse_lspci(plain))
    assert parse_lspci("nothing") is None


def identity(devices: tuple[PciDevice, ...] | None) -> tuple[str, int, int, int]:
    assert devices is not None
    (device,) = devices
    return device.address, device.class_code, device.vendor, device.device


def test_a_file_is_read_past_the_cache_or_the_refusal_is_kept(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "model.safetensors").write_bytes(bytes(5 << 20))

    probe = probe_reading(str(tmp_path), ())
    assert (str(tmp_path / "model.safetensors"), 5 << 20) == (probe.file, probe.num_bytes)
    assert probe.seconds > 0
    assert {} == probe.interrupts


def test_where_there_is_no_file_nothing_was_read(tmp_path):
    probe = probe_reading(str(tmp_path), None)

    assert (None, None, None) == (probe.file, probe.num_bytes, probe.interrupts)


def test_memory_is_locked_or_the_refusal_is_kept():
    probe = probe_pinning()

    assert probe.is_locked == (probe.refusal is None)
    assert 64 << 20 == probe.asked_bytes
