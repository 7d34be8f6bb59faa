"""What is installed is read from files alone: the HDK, every CANN and NNAL, and the interpreter's packages."""

import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivet.driver.facts import HostFacts
from trivet.driver.readers.cann import read_cann, read_nnal
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.environment import read_environment
from trivet.driver.readers.host import read_facts
from trivet.driver.readers.python import read_python
from trivet.driver.readers.stack import read_stack
from trivet.driver.readers.version_files import inner_versions, version_ranges
from trivet.driver.stack_facts import DriverVersion, FirmwareVersion

OUTPUTS = Path(__file__).parents[1] / "fixtures" / "outputs"
TOOLKIT_8 = (OUTPUTS / "087-toolkit-install.info-8.1.RC1-3316.txt").read_text()
TOOLKIT_9 = (OUTPUTS / "082-toolkit-install.info-9.1.0.txt").read_text()


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_driver_and_firmware_are_found_where_the_record_says_without_npu_smi(tmp_path):
    write(tmp_path, {
        "etc/ascend_install.info": "UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Path_Param=/opt/npu\n"
        "Firmware_Install_Path_Param=/opt/npu/\n",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\nHwHiAiUser:x:1000:1001::/home/HwHiAiUser:/bin/false\n",
        "opt/npu/driver/version.info": (OUTPUTS / "081-drv-version.info-25.5.2.txt").read_text(),
        "opt/npu/firmware/version.info": (OUTPUTS / "080-fw-version.info-25.5.2.txt").read_text(),
    })  # fmt: skip

    stack = read_stack(tmp_path, Captured(), None)
    assert ("/opt/npu", "/opt/npu", "HwHiAiUser") == (
        stack.install.driver_path, stack.install.firmware_path, stack.install.user,
    )  # fmt: skip
    assert (
        DriverVersion(
            file="/opt/npu/driver/version.info",
            version="25.5.2",
            package_version="25.5.2",
            inner_version="V100R001C23SPC007B221",
            compatible_versions=("V100R001C19", "V100R001C20", "V100R001C21", "V100R001C22", "V100R001C23"),
            compatible_firmware=("7.0.0", "8.9.9"),
        )
        == stack.driver
    )
    assert (
        FirmwareVersion(
            file="/opt/npu/firmware/version.info",
            version="7.8.0.7.220",
            package_version="25.5.2",
            compatible_drivers=(("23.0.0", "23.0.0."), ("24.0", "24.0."), ("24.1", "24.1."), ("25.0", "25.5.")),
        )
        == stack.firmware
    )
    assert (1000, 1001) == stack.driver_user


def test_a_container_without_the_record_is_looked_at_in_the_usual_place(tmp_path):
    write(tmp_path, {"usr/local/Ascend/driver/version.info": "Version=24.1.rc3\ncompatible_version_fw=[7.0.0\n"})

    stack = read_stack(tmp_path, Captured(), None)
    assert stack.install is None
    assert ("24.1.rc3", None) == (stack.driver.version, stack.driver.compatible_firmware)
    assert (True, False, None) == tuple(stack.present[path] for path in (
        "/usr/local/Ascend/driver/version.info", "/usr/local/dcmi", "/etc/hccn.conf",
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (("V100R001C15", "V100R001C18", "V100R003C11"), "[V100R001C15,V100R001C18],[V100R003C11]"),
        (("V100R001C19",), "[V100R001C19]"),
        (None, "[V100R001C19],[V100"),
        (None, ""),
        (None, None),
    ],
)
def test_a_list_of_versions_is_whole_or_unknown(expected, text):
    assert expected == inner_versions(text)


@pytest.mark.parametrize(
    ("expected", "text"),
    [((("7.0.0", "8.9.9"),), "[7.0.0,8.9.9]"), (None, "[7.0.0,8.9.9"), (None, "[7.0.0]"), (None, "7.0.0,8.9.9")],
)
def test_a_range_of_versions_is_whole_or_unknown(expected, text):
    assert expected == version_ranges(text)


def test_two_canns_are_two_whichever_variable_leads_to_each(tmp_path):
    old, new = "usr/local/Ascend/ascend-toolkit", "usr/local/Ascend/cann-9.1.0"
    write(tmp_path, {
        f"{old}/8.1.RC1/aarch64-linux/ascend_toolkit_install.info": TOOLKIT_8,
        f"{old}/latest/version.cfg": "toolkit_running_version=[7.7.0.1.220:8.1.RC1]\n",
        f"{new}/aarch64-linux/ascend_toolkit_install.info": TOOLKIT_9,
        f"{new}/opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b/x.o": "",
        f"{new}/lib64/libascendcl.so": b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", 183),
        f"{new}/python/site-packages/acl/acl.cpython-311-aarch64-linux-gnu.so": "",
    })  # fmt: skip
    # As CANN 8 lays it out: "latest" is a folder, and only what is in it is linked.
    (tmp_path / old / "latest/aarch64-linux").symlink_to("../8.1.RC1/aarch64-linux")
    environment = {
        "ASCEND_TOOLKIT_HOME": "/usr/local/Ascend/cann-9.1.0",
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64:/usr/local/Ascend/ascend-toolkit/latest/lib64:"
        "/usr/local/Ascend/cann-9.1.0/lib64",
        "PATH": "/usr/local/bin:/home/user/cann/bin",
    }

    first, second = read_cann(tmp_path, Captured(), environment)
    assert ("/usr/local/Ascend/cann-9.1.0", "9.1.0", True) == (first.root, first.version, first.exists)
    assert ("ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH", "/usr/local/Ascend/cann-9.1.0") == first.found_by
    assert (("ascend910b",), "aarch64", ("cpython-311",)) == (
        first.kernels,
        first.library_architecture,
        first.python_tags,
    )
    assert ("/usr/local/Ascend/ascend-toolkit/8.1.RC1", "8.1.RC1") == (second.root, second.version)
    assert {"toolkit": "8.1.RC1"} == second.components
    assert "LD_LIBRARY_PATH" in second.found_by


def test_a_variable_that_leads_to_nothing_is_kept_as_such(tmp_path):
    environment = {"ASCEND_HOME_PATH": "/home/user/cann/Ascend_8.3/ascend-toolkit/latest"}

    (cann,) = read_cann(tmp_path, Captured(), environment)
    assert ("/home/user/cann/Ascend_8.3/ascend-toolkit/latest", False, None) == (cann.root, cann.exists, cann.version)


def test_a_cann_without_kernels_has_none_and_one_without_operators_is_unknown(tmp_path):
    write(tmp_path, {"usr/local/Ascend/cann-9.1.0/aarch64-linux/ascend_toolkit_install.info": TOOLKIT_9})
    assert [None] == [cann.kernels for cann in read_cann(tmp_path, Captured(), {})]

    (tmp_path / "usr/local/Ascend/cann-9.1.0/opp").mkdir()
    assert [()] == [cann.kernels for cann in read_cann(tmp_path, Captured(), {})]


def test_nnal_tells_its_version_and_which_abi_was_chosen(tmp_path):
    base = "usr/local/Ascend/nnal/atb/8.1.RC1"
    write(tmp_path, {
        f"{base}/version.info": "    Ascend-cann-atb : 8.1.RC1\n    Ascend-cann-atb Version : 8.1.RC1.B110\n",
        f"{base}/atb/cxx_abi_0/lib/libatb.so": "",
        f"{base}/atb/cxx_abi_1/lib/libatb.so": "",
    })  # fmt: skip
    (tmp_path / "usr/local/Ascend/nnal/atb/latest").symlink_to("8.1.RC1")

    (nnal,) = read_nnal(tmp_path, {"ATB_HOME_PATH": "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1"})
    assert (f"/{base}", "8.1.RC1", (0, 1), 1) == (nnal.root, nnal.version, nnal.cxx_abis, nnal.chosen_cxx_abi)


def test_the_packages_of_an_interpreter_are_those_of_its_folders_without_importing_it(tmp_path):
    site = "usr/local/python3.11/lib/python3.11/site-packages"
    write(tmp_path, {
        "usr/local/python3.11/bin/python3.11": "",
        f"{site}/torch-2.8.0+cpu.dist-info/METADATA": "",
        f"{site}/torch_npu-2.8.0.post2.dist-info/METADATA": "",
        f"{site}/triton-3.4.0.dist-info/METADATA": "",
        f"{site}/triton_ascend-3.2.0.dist-info/METADATA": "",
        f"{site}/nvidia_cublas_cu12-12.4.dist-info/METADATA": "",
        f"{site}/secret_project-1.0.dist-info/METADATA": "",
        f"{site}/vllm_ascend-0.13.0rc1.dist-info/entry_points.txt": "[console_scripts]\nx = y\n\n"
        "[vllm.platform_plugins]\nascend = vllm_ascend:register\n",
        f"{site}/vllm_ascend/_build_info.py": "# made\n__device_type__ = 'A2'\n",
        f"{site}/torch/share/cmake/Torch/TorchConfig.cmake": 'set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")\n',
    })  # fmt: skip

    python = read_python(tmp_path, Captured(python="/usr/local/python3.11/bin/python3.11"), {}, None)
    assert python is not None
    assert {
        "nvidia-cublas-cu12": "12.4", "torch": "2.8.0+cpu", "torch-npu": "2.8.0.post2", "triton": "3.4.0",
        "triton-ascend": "3.2.0", "vllm-ascend": "0.13.0rc1",
    } == {package.name: package.version for package in python.packages}  # fmt: skip
    assert ("3.11", ("ascend",), True, "A2") == (
        python.version, python.platform_plugins, python.torch_cxx11_abi, python.vllm_ascend_soc,
    )  # fmt: skip


def test_a_virtual_environment_sees_the_system_only_if_it_says_so(tmp_path):
    write(tmp_path, {
        "venv/bin/python": "",
        "venv/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.7\n",
        "venv/lib/python3.11/site-packages/numpy-1.26.4.dist-info/METADATA": "",
        "usr/lib/python3.11/site-packages/torch-2.8.0.dist-info/METADATA": "",
    })  # fmt: skip
    alone = read_python(tmp_path, Captured(), {}, "/venv/bin/python")
    settings = (tmp_path / "venv/pyvenv.cfg").read_text()
    (tmp_path / "venv/pyvenv.cfg").write_text(settings.replace("false", "true"))
    shared = read_python(tmp_path, Captured(), {"PYTHONPATH": "/nowhere"}, "/venv/bin/python")

    assert ("3.11.7", ["numpy"]) == (alone.version, [package.name for package in alone.packages])
    assert ["numpy", "torch"] == [package.name for package in shared.packages]


def test_the_interpreter_of_this_test_has_the_numpy_of_this_test():
    import numpy

    python = read_python(Path("/"), Captured(), {}, None)
    assert python is not None
    assert [numpy.__version__] == [package.version for package in python.packages if package.name == "numpy"]


def test_variables_of_others_and_secrets_are_not_read(tmp_path):
    write(tmp_path, {
        "proc/self/environ": "HCCL_BUFFSIZE=200\0VLLM_API_KEY=hunter2\0AWS_SECRET_ACCESS_KEY=x\0MY_APP=1\0"
        "ASCEND_RT_VISIBLE_DEVICES=0,1\0HF_TOKEN=y\0",
    })  # fmt: skip

    assert {"ASCEND_RT_VISIBLE_DEVICES": "0,1", "HCCL_BUFFSIZE": "200"} == read_environment(tmp_path)
    assert read_environment(tmp_path / "nowhere") is None


SITE = "opt/python/lib/python3.11/site-packages"
WHOLE = {
    "captured.json": '{"python": "/opt/python/bin/python3.11", '
    '"commands": {"npu-smi info -m": {"outcome": "timed_out"}}}',
    "captured/npu-smi-info.txt": (OUTPUTS / "033-A3-Ascend910-25.5.1.txt").read_text(),
    "captured/npu-smi-info-t-topo.txt": (OUTPUTS / "026-910B3-topo-HCCS.txt").read_text(),
    "captured/npu-smi-info-t-board-i-4-c-0.txt": (OUTPUTS / "056-A3-9392-board-chip.txt").read_text(),
    "captured/npu-smi-info-t-ecc-i-4-c-0.txt": (OUTPUTS / "068-950-ecc.txt").read_text(),
    "captured/hccn_tool-i-0-tls-g.txt": (OUTPUTS / "053-hccn-tls.txt").read_text(),
    "captured/lspci-Dnn.txt": (OUTPUTS / "045-910A-lspci.txt").read_text(),
    "captured/dmesg.txt": "[1.0] nvme nvme0: I/O error\n",
    "etc/ascend_install.info": "Driver_Install_Path_Param=/usr/local/Ascend\n",
    "etc/hccn.conf": "address_0=10.0.200.10\n",
    "etc/passwd": "HwHiAiUser:x:1000:1000::/:/bin/false\n",
    "proc/self/environ": "ASCEND_HOME_PATH=/usr/local/Ascend/cann-9.1.0\0PYTHONPATH=/opt/more\0",
    "proc/self/status": "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t0\nCapEff:\t0\n",
    "proc/interrupts": "  CPU0\n 1: 5 PCI-MSI nvme0q1\n",
    "proc/net/tcp": "  0: 0100007F:1F90 00000000:0000 0A 0\n",
    "proc/net/route": "Iface\nlo\n",
    "proc/net/if_inet6": "00000000000000000000000000000001 01 80 10 80 lo\n",
    "proc/modules": "drv_davinci 1 0 - Live 0x0\n",
    "sys/class/net/lo/operstate": "unknown\n",
    "sys/class/nvme/nvme0/transport": "pcie\n",
    "sys/block/nvme0n1/size": "2048\n",
    "usr/local/Ascend/driver/version.info": (OUTPUTS / "081-drv-version.info-25.5.2.txt").read_text(),
    "usr/local/Ascend/cann-9.1.0/aarch64-linux/ascend_toolkit_install.info": TOOLKIT_9,
    "usr/local/Ascend/cann-9.1.0/version.cfg": (OUTPUTS / "097-version.cfg-8.0.RC3.txt").read_text(),
    "usr/local/Ascend/cann-9.1.0/lib64/libascendcl.so": "\x7fELF",
    "usr/local/Ascend/nnal/atb/latest/version.info": "Ascend-cann-atb : 8.1.RC1\n",
    "opt/python/bin/python3.11": "",
    f"{SITE}/vllm_ascend-1.0.dist-info/entry_points.txt": "[vllm.platform_plugins]\na=b\n",
    f"{SITE}/vllm_ascend/_build_info.py": "__soc_version__ = 'x'\n",
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spoiled=st.lists(st.sampled_from(sorted(WHOLE)), min_size=1, max_size=5, unique=True),
    cut=st.floats(0, 1),
    more=st.binary(max_size=60)
    | st.sampled_from([b"-1", b"9" * 5000, b"[" * 9999, b"|" * 999, b": : :\n" * 99, b"\0" * 99]),
)
def test_no_content_of_what_is_installed_or_was_printed_raises(tmp_path, spoiled, cut, more):
    write(tmp_path, WHOLE)
    for path in spoiled:
        good = (tmp_path / path).read_bytes()
        (tmp_path / path).write_bytes(good[: int(cut * len(good))] + more)

    facts = read_facts(tmp_path, paths=("/data",))
    assert facts == msgspec.json.decode(msgspec.json.encode(facts), type=HostFacts)


def test_a_whole_tree_is_read_without_a_tool(tmp_path):
    facts = read_facts(write(tmp_path, WHOLE))

    assert ("25.5.2", "9.1.0", "8.1.RC1") == (
        facts.stack.driver.version, facts.stack.cann[0].version, facts.stack.nnal[0].version,
    )  # fmt: skip
    assert [8, 9] == [chip.device_id for chip in facts.npu_smi.chips]
    assert {"npu-smi info -m": "timed_out"} == {
        command.line: command.outcome for command in facts.npu_smi.commands if command.outcome != "answered"
    }
    assert [0xD801] * 8 == [device.device for device in facts.pci]
    assert (8080,) == facts.listening_ports
