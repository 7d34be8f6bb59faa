"""Checks of how a model is read from where it lies. They judge what `--probe` tried, and are made only after it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from trivet.base.units import MIB
from trivet.driver.check import Judgement, check, not_asked, note, passed, unknown, warning
from trivet.driver.facts import BlockDevice, HostFacts
from trivet.driver.need import Need
from trivet.driver.probe_facts import ReadingProbe

_here = partial(check, layer="user-config")
# The probe reads 1 MiB at a time. The kernel splits a read into commands as large as the disk takes, 128 KiB at the
# least among NVMe disks of servers, and each command that is not polled for interrupts once.
_MAX_INTERRUPTS_PER_MIB = 8
_READ_MIB = 1


@_here("DRV052", "warning", source="open(2): O_DIRECT")
def direct_reading_refused(facts: HostFacts, need: Need) -> Judgement:
    if facts.reading is None:
        return not_asked("reading was not tried: trivet doctor --probe does")
    probe = _probe(facts, need)
    if probe is None or probe.file is None:
        return unknown("there is no file to read where models lie")
    if probe.direct_refusal is not None:
        return warning(
            "{file} cannot be read with O_DIRECT ({refusal}): every byte goes through the page cache",
            "TRIVET_CACHE=DIR  # on a local disk: ext4 and xfs take O_DIRECT",
            file=probe.file, refusal=probe.direct_refusal,
        )  # fmt: skip
    if probe.num_bytes is None:
        return unknown("{file} could not be read, or not in time", file=probe.file)
    return passed("{file} is read with O_DIRECT", file=probe.file)


@_here("DRV053", "warning", source="io_uring_setup(2): EPERM, ENOSYS; sysctl kernel.io_uring_disabled")
def io_uring_refused(facts: HostFacts, need: Need) -> Judgement:
    if facts.reading is None:
        return not_asked("reading was not tried: trivet doctor --probe does")
    probe = _probe(facts, need)
    if probe is None:
        return unknown("there is no file to read where models lie")
    if probe.ring_refusal is None:
        return passed("this process gets an io_uring")
    return warning(
        "this process gets no io_uring ({refusal}): a model is read by threads that wait",
        "sysctl kernel.io_uring_disabled  # 0 allows it",
        "docker run --security-opt seccomp=PROFILE  # one that allows io_uring_setup, _enter and _register",
        refusal=probe.ring_refusal,
    )


@_here("DRV054", "note", source="Linux: nvme.poll_queues, queue/io_poll", needs=("direct_reading_refused",))
def polled_queues_off(facts: HostFacts, need: Need) -> Judgement:
    probe = _probe(facts, need)
    disks = [disk for disk in _disks(facts, probe) if disk.controllers]
    if not disks:
        return not_asked("what the model lies on is not known to be NVMe, and nothing else can be polled")
    names = ", ".join(disk.name for disk in disks)
    if any(disk.is_polled is None for disk in disks):
        return unknown("whether {disks} can be polled could not be read", disks=names)
    if all(disk.is_polled for disk in disks):
        return passed("reads of {disks} can be polled for", disks=names)
    return note(
        "reads of {disks} cannot be polled for: each ends with an interrupt",
        "echo options nvme poll_queues=4 | sudo tee /etc/modprobe.d/nvme.conf  # then reboot",
        disks=names,
    )


@_here("DRV055", "note", source="/proc/interrupts before and after", needs=("direct_reading_refused",))
def interrupts_many(facts: HostFacts, need: Need) -> Judgement:
    probe = _probe(facts, need)
    assert probe is not None, "direct_reading_refused holds only where a file was read"
    if probe.interrupts is None or not probe.num_bytes:
        return unknown("the interrupts of the disks while reading could not be read")
    num_reads, total = -(-probe.num_bytes // (_READ_MIB * MIB)), sum(probe.interrupts.values())
    values = {"total": total, "reads": num_reads, "rate": total / num_reads}
    if total <= _MAX_INTERRUPTS_PER_MIB * num_reads:
        return passed("{total} interrupts of disks for {reads} reads of 1 MiB, {rate:.1f} each", **values)
    return note(
        "{total} interrupts of disks for {reads} reads of 1 MiB, {rate:.1f} each: something else reads too, or "
        "the disk takes small commands",
        "grep . /sys/block/*/queue/max_sectors_kb  # how much one command may read",
        **values,
    )


def _probe(facts: HostFacts, need: Need) -> ReadingProbe | None:
    """Of where the model lies; without one, of where it would be cached."""
    path = need.model_path or need.disk_path
    return next((each for each in facts.reading or () if each.path == path), None)


def _disks(facts: HostFacts, probe: ReadingProbe | None) -> Iterator[BlockDevice]:
    """Those that hold the path, below every volume and RAID."""
    by_name = {disk.name: disk for disk in facts.disks or ()}
    path = probe.path if probe is not None else None
    names = [each.disk for each in facts.filesystems if each.path == path and each.disk is not None]
    seen = set[str]()
    while names:
        name = names.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        names += by_name[name].below
        if not by_name[name].below:
            yield by_name[name]
