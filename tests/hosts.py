"""Whole hosts, composed: the recorded Kunpeng host under `fixtures/hosts` with an HDK, CANN and a serving Python on it.

What each part is taken from is in `fixtures/hosts/README.md`. `python -m tests.hosts` writes the reports again;
`python -m tests.hosts NAME DIR` writes the tree of one host, for `trivet doctor --root DIR`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from tests.host_outputs import Files, board, each_card, fields, network, npu_smi, of_chip, table
from trivet.driver.facts import HostFacts
from trivet.driver.readers.host import read_facts

FOLDER = Path(__file__).parent / "fixtures" / "hosts"
RECORDED = ("epyc-vm", "kunpeng-910b", "kunpeng-container", "garbled")
_BASE = FOLDER / "kunpeng-910b"
_GIB = 1 << 30
_PYTHON = "/usr/local/python3.11/bin/python3.11"
_SITE = "usr/local/python3.11/lib/python3.11/site-packages"
_CANN = "/usr/local/Ascend/cann-9.1.0"
_CANN_OF_310P = "/usr/local/Ascend/ascend-toolkit/8.0.RC3"

_LIBRARIES = {
    "driver": "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so", "cann": f"{_CANN}/lib64/libascendcl.so",
    "nnal": "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1/lib/libatb.so",
    "torch-npu": f"/{_SITE}/torch_npu/lib/libtorch_npu.so",
}  # fmt: skip


def _files() -> dict[str, Callable[[], Files]]:
    return {
        "a2": _a2,
        "a3": _a3,
        "310p": _310p,
        "wrong-firmware": lambda: _a2() | _wrong_firmware(),
        "cann-too-new": lambda: _a2() | _older_driver(),
        "not-sourced": lambda: _a2() | _environment({"PATH": "/usr/local/bin:/usr/bin", "LANG": "C.UTF-8"}),
        "two-canns": lambda: _a2() | _second_cann(),
        "container-without-mounts": lambda: _a2() | _container_without_mounts(),
        "owner-mismatch": lambda: _a2() | _owner_mismatch(),
        "hot-device": lambda: _a2() | _hot_device(),
    }  # fmt: skip


def names() -> tuple[str, ...]:
    return tuple(_files())


def plant(name: str, root: Path) -> Path:
    """Writes the tree of a host under `root`, which must not exist yet."""
    shutil.copytree(_BASE, root, symlinks=True)
    for path, text in _files()[name]().items():
        file = root / path.lstrip("/")
        if text is None:
            shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return root


@cache
def facts_of(name: str) -> HostFacts:
    """What the readers find in the tree of a host, with /data/trivet asked for."""
    with tempfile.TemporaryDirectory() as folder:
        return read_facts(plant(name, Path(folder) / name), paths=("/data/trivet",))


# --- healthy hosts -----------------------------------------------------------------------------------------------


def _a2() -> Files:
    """Eight 910B2 with HDK 25.5.2, CANN 9.1.0 and what vllm-ascend 0.23.0 was released with."""
    files = _host() | _driver("25.5.2", "V100R001C23SPC007B221", "C19 C20 C21 C22 C23", "7.0.0,8.9.9")
    files |= _firmware("7.8.0.7.220", "25.5.2") | table("25.5.2") | each_card("7.8.0.7.220", "25.5.2", "OK")
    files |= _cann_910("ascend910b") | _nnal("9.1.0") | _sourced(_CANN) | _serving("ascend910b1") | _captured()
    return files | network(8)


def _a3() -> Files:
    """Eight cards of two chips, otherwise as the A2."""
    files = _a2() | _cann_910("ascend910_93") | _serving("ascend910_9391") | network(16)
    files[f"{_CANN}/opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b/.keep"] = None
    addresses = sorted(path.name for path in (_BASE / "sys/bus/pci/devices").iterdir() if _is_npu(path))
    files |= {f"sys/bus/pci/devices/{address}/device": "0xd803\n" for address in addresses}
    rows = []
    for card in range(8):
        address = addresses[card].upper()
        rows += [(f"{card}     Ascend910", f"0     {2 * card}", "OK", "170.7", 43 + card % 3, address, 3120)]
        rows += [(f"{card}     Ascend910", f"1     {2 * card + 1}", "OK", "-", 44, address[:-1] + "1", 2876)]
    files["captured/npu-smi-info.txt"] = npu_smi("25.5.2", rows, "Chip  Phy-ID")
    files["captured/npu-smi-info-m.txt"] = None
    for card in range(8):
        for chip in (0, 1):
            files |= of_chip(card, chip)
            files[f"captured/npu-smi-info-t-board-i-{card}-c-{chip}.txt"] = fields(
                {"NPU ID": card, "NPU Name": "9392", "Chip ID": chip, "Chip Name": "Ascend910"}
            )
            files[f"captured/npu-smi-info-t-spod-info-i-{card}-c-{chip}.txt"] = fields(
                {"NPU ID": card, "Chip ID": chip, "SDID": (card << 18) + (chip << 16) + 2 * card + chip,
                 "Super Pod ID": 3}
            )  # fmt: skip
    return files | _captured(num_npus=16)


def _310p() -> Files:
    """One Atlas 300I Duo, two chips on one card, with HDK 24.1.rc3, CANN 8.0.RC3 and torch_npu alone."""
    files = _host() | _driver("24.1.rc3", "V100R001C19SPC001B124", "C13 C15 C17 C18 C19", "7.0.0,7.5.99")
    files |= _firmware("7.5.0.3.220", "24.1.rc3")
    keep = "0000:82:00.0"
    for path in (_BASE / "sys/bus/pci/devices").iterdir():
        if _is_npu(path):
            files |= {f"sys/bus/pci/devices/{path.name}": None} if path.name != keep else {}
    files[f"sys/bus/pci/devices/{keep}/device"] = "0xd500\n"
    rows = [("6     310P3", f"{chip}     {chip}", "OK", "NA", 55 - chip, keep, 0) for chip in (0, 1)]
    files["captured/npu-smi-info.txt"] = npu_smi("24.1.rc3", rows, "Chip  Device", memory=("1175 / 44280", ""))
    files |= of_chip(6, 0) | of_chip(6, 1)
    files["captured/npu-smi-info-t-board-i-6.txt"] = board(6, "24.1.rc3", "7.5.0.3.220", "OK")
    root = _CANN_OF_310P
    files |= _cann_record(
        root, "8.0.RC3", "V100R001C19SPC001B155", "[V100R001C13,V100R001C19],[V100R001C30]", "ascend310p"
    )
    files |= _sourced(root) | _packages({"torch": "2.4.0", "torch_npu": "2.4.0", "numpy": "1.26.4"} | _NEEDED)
    return files | _captured(num_npus=2)


# --- what can be wrong ---------------------------------------------------------------------------------------------


def _wrong_firmware() -> Files:
    """The driver was upgraded, the firmware was not."""
    return _firmware("6.4.12.1.241", "23.0.6") | each_card("6.4.12.1.241", "25.5.2", "NOK")


def _older_driver() -> Files:
    """An image with CANN 9.1.0 on a host whose HDK nobody upgraded."""
    files = _driver("24.1.rc3", "V100R001C19SPC001B124", "C13 C15 C17 C18 C19", "7.0.0,7.5.99") | table("24.1.rc3")
    return files | _firmware("7.5.0.3.220", "24.1.rc3") | each_card("7.5.0.3.220", "24.1.rc3", "OK")


def _second_cann() -> Files:
    """An image with CANN 9.1.0, and a profile that sources the host's 8.2.RC1 before it."""
    old = "/usr/local/Ascend/ascend-toolkit/8.2.RC1"
    takes = "[V100R001C15],[V100R001C18],[V100R001C19],[V100R001C20],[V100R001C21],[V100R001C23]"
    variables = _variables(_CANN)
    variables["LD_LIBRARY_PATH"] = f"{old}/lib64:{variables['LD_LIBRARY_PATH']}"
    return _cann_record(old, "8.2.RC1", "V100R001C22SPC001B231", takes, "ascend910b") | _environment(variables)


def _container_without_mounts() -> Files:
    """Started with --device and without -v: the nodes are there, nothing of the driver is."""
    gone = ("etc/ascend_install.info", "usr/local/Ascend/driver", "usr/local/Ascend/firmware", "usr/local/dcmi")
    tools = dict.fromkeys(_tools())
    answers: Files = {"captured": None, "usr/local/bin/npu-smi": None, "etc/hccn.conf": None, "proc/modules": None}
    kept: Files = {"usr/local/Ascend/.keep": "", "usr/local/bin/.keep": "", ".dockerenv": ""}
    status = "Cpus_allowed_list:\t0-95\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t0\nCapEff:\t00000000a80425fb\n"
    kept["proc/self/status"] = status
    return tools | dict.fromkeys(gone) | answers | kept | _captured(commands={"npu-smi info": "absent"})


def _owner_mismatch() -> Files:
    """The nodes belong to 1001 of the host; in the image HwHiAiUser is 1000, and the server runs as it."""
    status = "Cpus_allowed_list:\t0-95\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t1000\n"
    status += "CapEff:\t0000000000000000\n"
    return {"proc/self/status": status, ".dockerenv": ""} | _captured(owner=1001, is_accessible=False)


def _hot_device() -> Files:
    """npu-smi was stopped after 20 s; the kernel's log says what the driver saw."""
    files: Files = dict.fromkeys(_tools())
    log = "[81234.100000] ascend [drv_devmng] device 3 over temperature, chip 105 degree, frequency reduced\n"
    log += "[81240.500000] ascend [drv_devmng] device 3 heart beat lost\n"
    return files | {"captured/dmesg.txt": log, "var/log/dmesg": log} | _captured(commands={"npu-smi info": "timed_out"})


# --- parts ---------------------------------------------------------------------------------------------------------


def _host() -> Files:
    lines = "proc /proc proc rw 0 0"
    mounts = (_BASE / "proc/self/mountinfo").read_text() + "99 30 0:24 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n"
    status = "Cpus_allowed_list:\t0-95\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t0\nCapEff:\t000001ffffffffff\n"
    kernel = (_BASE / "proc/sys/kernel/osrelease").read_text().strip()
    memory = (_BASE / "proc/meminfo").read_text() + "SwapTotal:             0 kB\nSwapFree:              0 kB\n"
    return {
        "proc/mounts": lines + "\n",
        "proc/self/mountinfo": mounts,
        "proc/self/status": status,
        "proc/meminfo": memory,
        "proc/modules": "drv_devmm 1 2 - Live 0x0\ndrv_davinci_intf 1 3 - Live 0x0\ndrv_pcie_host 1 4 - Live 0x0\n",
        f"lib/modules/{kernel}/updates/drv_devmm.ko": "",
        f"lib/modules/{kernel}/build/.keep": "",
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nHwHiAiUser:x:1000:1000::/home/HwHiAiUser:/bin/bash\n",
        "proc/2/comm": "kthreadd\n",
        "proc/net/tcp": "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
        "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000   0   0 41 1 0 100 0 0 10\n",
        "root/ascend/log/debug/plog/.keep": "",
        "etc/ascend_install.info": "Driver_Install_Path_Param=/usr/local/Ascend\nUserName=HwHiAiUser\n"
        "UserGroup=HwHiAiUser\nFirmware_Install_Path_Param=/usr/local/Ascend\n",
        "usr/local/dcmi/libdcmi.so": "",
        "usr/local/bin/npu-smi": "",
        "usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "",
        "usr/local/Ascend/driver/tools/hccn_tool": "",
    }


def _driver(version: str, inner: str, takes: str, firmware: str) -> Files:
    branches = ",".join(f"[V100R001{branch}]" for branch in takes.split())
    return {
        "usr/local/Ascend/driver/version.info": f"Version={version}\nascendhal_version=7.35.23\nInnerversion={inner}\n"
        f"compatible_version={branches}\ncompatible_version_fw=[{firmware}]\npackage_version={version}\n"
    }


def _firmware(version: str, package: str) -> Files:
    takes = "[23.0.0,23.0.0.],[24.0,24.0.],[24.1,24.1.],[25.0,25.5.]" if version >= "7" else "[23.0.0,23.0.7.]"
    return {
        "usr/local/Ascend/firmware/version.info": f"Version={version}\nfirmware_version=1.0\n"
        f"package_version={package}\ncompatible_version_drv={takes}\n"
    }


def _tools() -> list[str]:
    return [path for path in _a2() if path.startswith("captured/")]


def _cann_record(root: str, version: str, inner: str, takes: str, kernels: str) -> Files:
    record = f"package_name=Ascend-cann-toolkit\nversion={version}\ninnerversion={inner}\ncompatible_version={takes}\n"
    return {
        f"{root}/aarch64-linux/ascend_toolkit_install.info": record + f"arch=aarch64\nos=linux\npath={root}\n",
        f"{root}/set_env.sh": "",
        f"{root}/opp/built-in/op_impl/ai_core/tbe/kernel/{kernels}/.keep": "",
        f"{root}/python/site-packages/hccl/hccl.cpython-311-aarch64-linux-gnu.so": "",
        f"{root}/lib64/.keep": "",
    }


def _cann_910(kernels: str) -> Files:
    takes = "[V100R001C15],[V100R001C21],[V100R001C23],[V100R001C10]"
    return _cann_record(_CANN, "9.1.0", "V100R001C11SPC001B218", takes, kernels)


def _nnal(version: str) -> Files:
    root = "usr/local/Ascend/nnal/atb/latest"
    return {f"{root}/version.info": f"    Ascend-cann-atb : {version}\n", f"{root}/atb/cxx_abi_1/lib/libatb.so": "",
            f"{root}/atb/cxx_abi_0/lib/libatb.so": ""}  # fmt: skip


def _variables(cann: str) -> dict[str, str]:
    nnal = "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1"
    driver = "/usr/local/Ascend/driver/lib64/driver:/usr/local/Ascend/driver/lib64/common"
    return {
        "PATH": f"{cann}/bin:/usr/local/bin:/usr/bin", "LANG": "C.UTF-8", "HOME": "/root",
        "ASCEND_TOOLKIT_HOME": cann, "ASCEND_HOME_PATH": cann, "ASCEND_OPP_PATH": f"{cann}/opp",
        "LD_LIBRARY_PATH": f"{nnal}/lib:{cann}/lib64:{driver}",
        "PYTHONPATH": f"{cann}/python/site-packages", "ATB_HOME_PATH": nnal, "TASK_QUEUE_ENABLE": "1",
        "OMP_PROC_BIND": "false", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "ASCEND_RT_VISIBLE_DEVICES": "0,1", "HCCL_BUFFSIZE": "200", "HCCL_CONNECT_TIMEOUT": "600",
    }  # fmt: skip


def _sourced(cann: str) -> Files:
    variables = _variables(cann)
    if cann != _CANN:
        variables.pop("ATB_HOME_PATH")
    return _environment(variables)


def _environment(variables: dict[str, str]) -> Files:
    return {"proc/self/environ": "\0".join(f"{name}={value}" for name, value in variables.items())}


_NEEDED = {
    "attrs": "25.3.0", "cffi": "1.17.1", "decorator": "5.2.1", "protobuf": "3.20.0", "psutil": "7.0.0",
    "pyyaml": "6.0.2", "scipy": "1.13.1", "sympy": "1.14.0",
}  # fmt: skip


def _serving(chip: str) -> Files:
    files = _packages(
        {
            "torch": "2.10.0+cpu", "torch_npu": "2.10.0.post4", "triton_ascend": "3.2.2", "vllm": "0.23.0+empty",
            "vllm_ascend": "0.23.0", "transformers": "5.14.1", "numpy": "1.26.4",
        } | _NEEDED
    )  # fmt: skip
    entry = "[vllm.platform_plugins]\nascend = vllm_ascend:register\n"
    files[f"{_SITE}/vllm_ascend-0.23.0.dist-info/entry_points.txt"] = entry
    files[f"{_SITE}/vllm_ascend-0.23.0.dist-info/RECORD"] = "vllm_ascend/_build_info.py,sha256=,\n"
    files[f"{_SITE}/vllm_ascend/_build_info.py"] = f"__soc_version__ = '{chip}'\n"
    files[f"{_SITE}/torch/share/cmake/Torch/TorchConfig.cmake"] = 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")\n'
    return files


def _packages(versions: dict[str, str]) -> Files:
    files: Files = {f"{_SITE}/{name}-{version}.dist-info/METADATA": "" for name, version in versions.items()}
    return files | {_PYTHON.lstrip("/"): ""}


def _captured(
    num_npus: int = 8, owner: int = 1000, is_accessible: bool = True, commands: Mapping[str, str] | None = None
) -> Files:
    paths = [f"/dev/davinci{npu}" for npu in range(num_npus)]
    paths += ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    runs = {line: {"outcome": outcome, "exit_code": None, "seconds": 20.0 if outcome == "timed_out" else None}
            for line, outcome in (commands or {}).items()}  # fmt: skip
    body = {
        "architecture": "aarch64", "libc": "glibc 2.35", "python": _PYTHON, "commands": runs,
        "device_nodes": [
            {"path": path, "mode": 0o660, "uid": owner, "gid": owner, "is_accessible": is_accessible}
            for path in paths
        ],
        "free_bytes": {"/": 188 * _GIB, "/data": 3072 * _GIB, "/dev/shm": 384 * _GIB},
        "total_bytes": {"/": 447 * _GIB, "/data": 3576 * _GIB, "/dev/shm": 384 * _GIB},
        "libraries": [
            {"path": path, "owner": owner, "missing": [], "needs": {"GLIBC": "2.34", "GLIBCXX": "3.4.29"}}
            for owner, path in _LIBRARIES.items()
        ],
        "libstdcxx": "3.4.30", "clock": {"is_synchronised": True, "max_error_s": 0.02},
        "folders": [
            {"purpose": "logs", "path": "/root/ascend/log", "is_writable": True, "free_bytes": 188 * _GIB},
            {"purpose": "caches", "path": "/root/atc_data", "is_writable": True, "free_bytes": 188 * _GIB},
            {"purpose": "temporary files", "path": "/tmp", "is_writable": True, "free_bytes": 188 * _GIB},
        ],
        "modes": {root: {"mode": 0o755, "uid": 0} for root in (_CANN, _CANN_OF_310P)},
    }  # fmt: skip
    return {"captured.json": json.dumps(body)}


def _is_npu(path: Path) -> bool:
    return (path / "device").read_text().strip() == "0xd802"


def main() -> None:
    if len(sys.argv) == 3:
        plant(sys.argv[1], Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in names():
            for language in ("en", "zh"):
                root = plant(name, Path(folder) / f"{name}.{language}")
                _write_report(f"{name}.zh" if language == "zh" else name, root, language)
    for name in RECORDED:
        _write_report(name, FOLDER / name, "en")


def _write_report(name: str, root: Path, language: str) -> None:
    from click.testing import CliRunner

    from trivet.cli.doctor import doctor

    arguments = ["--root", str(root), "--lang", language]
    result = CliRunner().invoke(doctor, arguments, env={"TRIVET_CACHE": "/data/trivet"})
    (FOLDER / f"{name}.txt").write_text(result.output)


if __name__ == "__main__":
    main()
