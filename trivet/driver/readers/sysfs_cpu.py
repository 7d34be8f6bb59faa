"""Reads /sys/devices/system/cpu: which CPUs are online, which share a core, and who sets their frequency."""

from __future__ import annotations

from pathlib import Path

from trivet.driver.readers.files import exists, list_names, read_id_list, read_word

_ROOT = "sys/devices/system/cpu"


def read_online(root: Path) -> tuple[int, ...] | None:
    return read_id_list(root, f"{_ROOT}/online") or None


def read_cores(root: Path, online: tuple[int, ...] | None) -> tuple[tuple[int, ...], ...] | None:
    """Each physical core as the ids of its threads, in order of the first; None unless every online CPU says."""
    if online is None:
        return None
    cores: dict[tuple[int, ...], None] = {}
    seen: set[int] = set()
    for cpu in online:
        if cpu in seen:
            continue
        topology = f"{_ROOT}/cpu{cpu}/topology"
        # Since 5.3 the file is core_cpus_list; thread_siblings_list is its older name. Both say the same.
        threads = read_id_list(root, f"{topology}/core_cpus_list") or read_id_list(
            root, f"{topology}/thread_siblings_list"
        )
        if threads is None or cpu not in threads or not seen.isdisjoint(threads):
            return None
        cores[threads] = None
        seen.update(threads)
    return tuple(cores)


def read_governors(root: Path) -> dict[str, str] | None:
    """Governor by cpufreq policy; empty where the directory of CPUs is there and no policy is."""
    policies = list_names(root, f"{_ROOT}/cpufreq", r"policy\d+")
    if policies is None:
        return {} if list_names(root, _ROOT, r"cpu\d+") and not exists(root, f"{_ROOT}/cpufreq") else None
    governors = {policy: read_word(root, f"{_ROOT}/cpufreq/{policy}/scaling_governor") for policy in policies}
    known = {policy: governor for policy, governor in governors.items() if governor is not None}
    return known if len(known) == len(governors) else None
