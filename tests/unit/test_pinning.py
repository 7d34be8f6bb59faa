"""What binds the memory that can be pinned, and which of it first."""

from dataclasses import replace
from pathlib import Path

import pytest

from trivet.base.units import GIB, MIB
from trivet.driver.facts import HostFacts, Process
from trivet.driver.pinning import Bound, pinning_bounds
from trivet.driver.placement_facts import ProcessLimit
from trivet.driver.readers.host import read_facts
from trivet.driver.readers.version_files import driver_version

HOST = read_facts(Path(__file__).parents[1] / "fixtures" / "hosts" / "kunpeng-910b")


def with_driver(version: str) -> HostFacts:
    assert HOST.stack is not None
    return replace(HOST, stack=replace(HOST.stack, driver=driver_version({"version": version}, "version.info")))


@pytest.mark.parametrize(
    ("num_bytes", "version"),
    [(20 * 10**9, "24.1.rc3"), (20 * 10**9, "25.2.2"), (1024 * GIB, "25.5.1"), (1024 * GIB, "26.0.rc3")],
)
def test_the_driver_binds_to_20_gb_until_25_5(num_bytes, version):
    assert Bound(f"HDK {version}", num_bytes) in pinning_bounds(with_driver(version))


def test_a_driver_that_is_not_known_binds_to_nothing_known():
    assert ["memory"] == [bound.name for bound in pinning_bounds(HOST)]


@pytest.mark.parametrize(
    ("expected", "capabilities"), [("ulimit -l", 0), ("ulimit -l", None), ("HDK 24.1.rc3", 1 << 14)]
)
def test_the_limit_binds_who_lacks_the_capability(expected, capabilities):
    limits = replace(HOST.limits, locked_memory_bytes=ProcessLimit(8 * MIB, 8 * MIB))
    process = Process(uid=1000, gids=(1000,), capabilities=capabilities, seccomp=0)

    assert expected == pinning_bounds(replace(with_driver("24.1.rc3"), limits=limits, process=process))[0].name
