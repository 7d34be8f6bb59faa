"""What is installed above the kernel: HDK, CANN, NNAL, Python packages, environment; a part of `facts.HostFacts`.

All of it comes from files, so it is known without npu-smi, without root and without importing anything. Versions are
the text that the file holds; what fits what is for `checks` to judge.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InstallRecord:
    """/etc/ascend_install.info, which the driver's installer writes; each path as written."""

    driver_path: str | None  # Driver_Install_Path_Param, the directory above "driver"
    firmware_path: str | None
    user: str | None
    group: str | None


@dataclass(frozen=True)
class DriverVersion:
    """The driver's version.info."""

    file: str
    version: str | None  # "25.5.2"
    package_version: str | None
    inner_version: str | None  # "V100R001C23SPC007B221"
    compatible_versions: tuple[str, ...] | None  # of CANN: "V100R001C19"
    compatible_firmware: tuple[str, str] | None  # the least and the greatest, both included


@dataclass(frozen=True)
class FirmwareVersion:
    """The firmware's version.info: of what the installer holds ready, not of what the chip runs."""

    file: str
    version: str | None  # "7.8.0.7.220"
    package_version: str | None
    compatible_drivers: tuple[tuple[str, str], ...] | None  # (first, last) of each range


@dataclass(frozen=True)
class Cann:
    """One installed toolkit (or nnae, nnrt)."""

    root: str  # with links resolved
    exists: bool
    found_by: tuple[str, ...]  # the variables that lead here and the well-known paths, as "LD_LIBRARY_PATH"
    package: str | None  # "Ascend-cann-toolkit"
    version: str | None  # "8.3.RC2"
    inner_version: str | None
    compatible_versions: tuple[str, ...] | None  # of the driver
    architecture: str | None  # "aarch64"
    components: dict[str, str] | None  # version.cfg, what runs: {"runtime": "8.3.RC2"}
    kernels: tuple[str, ...] | None  # the SoCs whose operator kernels are here, "ascend910b"
    library_architecture: str | None  # of libascendcl.so, from its ELF header
    python_tags: tuple[str, ...] | None  # of its compiled Python modules, "cpython-311"
    mode: int | None  # permission bits of the root
    uid: int | None


@dataclass(frozen=True)
class Nnal:
    """One installed NNAL (ATB), the library of transformer operators."""

    root: str
    exists: bool
    found_by: tuple[str, ...]
    version: str | None
    cxx_abis: tuple[int, ...] | None  # which of 0 and 1 are here
    chosen_cxx_abi: int | None  # the one that ATB_HOME_PATH ends in


@dataclass(frozen=True)
class Library:
    """One shared library of the stack, by its ELF file; it was not loaded."""

    path: str
    owner: str  # "cann", "nnal", "driver", or the package it is of
    missing: tuple[str, ...]  # libraries that it needs and that are in no folder the loader would look in
    needs: dict[str, str]  # the newest of each that it asks for: {"GLIBC": "2.34", "GLIBCXX": "3.4.29"}


@dataclass(frozen=True)
class Package:
    name: str  # normalised: "torch-npu"
    version: str
    location: str  # the directory that holds it


@dataclass(frozen=True)
class Python:
    """The interpreter that serves, and of its packages those of the stack. Nothing is imported."""

    executable: str
    version: str | None  # "3.11.9", or "3.11" where only the directory tells
    search_path: tuple[str, ...]  # directories of packages, in order
    packages: tuple[Package, ...] | None  # the same name twice: the first is the one imported
    platform_plugins: tuple[str, ...] | None  # of the group vllm.platform_plugins
    torch_cxx11_abi: bool | None
    vllm_ascend_soc: str | None  # what vllm_ascend was built for
    missing_files: tuple[str, ...] | None = None  # that vllm_ascend's RECORD lists and its folder has not
    unmet: tuple[str, ...] | None = None  # "vllm 0.23.0 asks for transformers>=4.56, and there is 4.51.0"


@dataclass(frozen=True)
class Mindie:
    """MindIE's service, as its own files say."""

    version: str | None
    config_file: str
    config_fault: str | None  # why the file is no configuration; None where it is one, or is not there
    ports: tuple[int, ...]
    models: tuple[str, ...] | None  # the model types that ATB Models has


@dataclass(frozen=True)
class RankTable:
    """HCCL's table of ranks, which RANK_TABLE_FILE or RANKTABLEFILE names."""

    file: str
    faults: tuple[str, ...]  # what is wrong with it by itself
    addresses: dict[int, str]  # of this host's NPUs, by device_id, where one server is described or it names this host


@dataclass(frozen=True)
class Stack:
    install: InstallRecord | None
    driver: DriverVersion | None
    firmware: FirmwareVersion | None
    cann: tuple[Cann, ...]
    nnal: tuple[Nnal, ...]
    python: Python | None
    environment: dict[str, str] | None  # the variables that mean something to this stack, no others
    present: dict[str, bool | None]  # the files of the driver that a container must be given, by path
    driver_user: tuple[int, int] | None  # uid and gid of HwHiAiUser in /etc/passwd
    has_accounts: bool | None = None  # could /etc/passwd be read
    libraries: tuple[Library, ...] | None = None
    libstdcxx: str | None = None  # the newest GLIBCXX that the host's libstdc++ has, "3.4.30"
    preloads: dict[str, bool] | None = None  # of each path in LD_PRELOAD, is it there
    mindie: Mindie | None = None
    rank_table: RankTable | None = None
