"""What `--probe` tried is judged, and shown; where nothing was tried, nothing is held against the host."""

from dataclasses import replace

import pytest

from tests.hosts import facts_of
from trivet.base.findings import Finding
from trivet.driver.checks import examine
from trivet.driver.facts import BlockDevice, HostFacts
from trivet.driver.need import Need
from trivet.driver.probe_facts import PinningProbe, ReadingProbe
from trivet.driver.report import report

MIB = 1 << 20
NEED = Need(disk_path="/data/trivet")
A2 = facts_of("a2")
READ = ReadingProbe("/data/trivet", "/data/trivet/m", None, None, 16 * MIB, 0.01, {"nvme0q1": 16})
RAID = BlockDevice("md0", None, None, None, None, None, None, None, None, (), ("nvme0n1", "nvme1n1"))
NVME = replace(RAID, name="nvme0n1", is_polled=True, controllers=("nvme0",), below=())


def tried(**changes: object) -> HostFacts:
    filesystem = replace(A2.filesystems[0], disk="md0")
    return replace(
        A2, reading=(replace(READ, **changes),), filesystems=(filesystem,),
        disks=(RAID, NVME, replace(NVME, name="nvme1n1")),
    )  # fmt: skip


def pinned(refusal: str | None) -> HostFacts:
    return replace(A2, pinning=PinningProbe(64 * MIB, refusal is None, refusal))


def found(name: str, facts: HostFacts) -> Finding:
    return next(each for each in examine(facts, NEED) if each.name == name)


NAMES = ("direct_reading_refused", "io_uring_refused", "polled_queues_off", "interrupts_many")
TRIED = tried()
UNPOLLED = replace(TRIED, disks=(RAID, NVME, replace(NVME, name="nvme1n1", is_polled=False)))
# Check, outcome, the host that must give it.
CASES: list[tuple[str, str, HostFacts]] = [
    ("direct_reading_refused", "warning", tried(direct_refusal="Invalid argument")),
    ("direct_reading_refused", "unknown", tried(file=None)),
    ("direct_reading_refused", "unknown", tried(num_bytes=None, seconds=None)),
    ("direct_reading_refused", "unknown", tried(path="/elsewhere")),
    ("io_uring_refused", "warning", tried(ring_refusal="Operation not permitted")),
    ("polled_queues_off", "note", UNPOLLED),
    ("polled_queues_off", "unknown", replace(TRIED, disks=(RAID, replace(NVME, is_polled=None)))),
    ("polled_queues_off", "skipped", replace(TRIED, disks=(replace(RAID, below=("md0",)),))),
    ("polled_queues_off", "skipped", tried(direct_refusal="Invalid argument")),
    ("interrupts_many", "passed", tried(interrupts={"nvme0q1": 100, "nvme1q1": 28})),
    ("interrupts_many", "note", tried(interrupts={"nvme0q1": 100, "nvme1q1": 29})),
    ("interrupts_many", "unknown", tried(interrupts=None)),
    ("interrupts_many", "passed", tried(num_bytes=4096, interrupts={"nvme0q1": 8})),
]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_judged_that_was_not_tried(name):
    assert "skipped" == found(name, replace(TRIED, reading=None)).outcome


@pytest.mark.parametrize("name", NAMES)
def test_a_place_that_is_read_as_it_should_be_passes(name):
    assert "passed" == found(name, TRIED).outcome


@pytest.mark.parametrize(("name", "outcome", "facts"), CASES)
def test_what_reading_showed_is_judged(name, outcome, facts):
    finding = found(name, facts)

    assert outcome == finding.outcome
    assert bool(finding.remedy) == (outcome in ("warning", "note"))


@pytest.mark.parametrize(
    ("expected", "facts"),
    [
        ("  probe    16.0 MiB of /data/trivet/m past the page cache at 1600 MiB/s, 16 interrupts of disks; io_uring",
         TRIED),
        ("through the page cache at 1600 MiB/s, ? interrupts of disks; no io_uring",
         tried(direct_refusal="no", ring_refusal="no", interrupts=None)),
        ("probe    no file to read at /data/trivet; io_uring", tried(file=None)),
        ("probe    /data/trivet/m could not be read, or not in time", tried(num_bytes=None)),
        ("probe    64.0 MiB locked", pinned(None)),
        ("probe    64.0 MiB not locked: no", pinned("no")),
    ],
)  # fmt: skip
def test_what_was_tried_is_shown(expected, facts):
    assert expected in report(facts, examine(facts, NEED))
