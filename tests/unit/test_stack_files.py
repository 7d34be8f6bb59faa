"""What is read of libraries, packages, folders, clusters and jobs, from a tree that has just that."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.driver.npu_facts import NpuProcess
from trivet.driver.placement_facts import Container
from trivet.driver.readers.captured import Captured
from trivet.driver.readers.clock import read_clock
from trivet.driver.readers.cluster import read_cluster
from trivet.driver.readers.elf import Elf, newest, read_elf
from trivet.driver.readers.folders import read_plog
from trivet.driver.readers.libraries import find_libraries
from trivet.driver.readers.mindie import read_mindie
from trivet.driver.readers.process import gone, read_local_addresses, read_programs
from trivet.driver.readers.rank_table import read_rank_table
from trivet.driver.readers.requirements import allows, read_missing_files, read_unmet
from trivet.driver.stack_facts import Package, Python

LIBC = next(path for folder in ("x86_64", "aarch64")
            for path in Path(f"/usr/lib/{folder}-linux-gnu").glob("libstdc++.so.6"))  # fmt: skip
BARE = Container("none", "no mark")


def put(root: Path, files: dict[str, str]) -> Path:
    for path, content in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return root


# Libraries.


def test_a_library_of_this_system_says_what_it_needs_and_offers():
    elf = read_elf(LIBC)

    assert elf is not None
    assert {"libc.so.6", "libm.so.6"} <= set(elf.needed)
    assert any(version.startswith("GLIBC_2.") for version in elf.asks)
    assert (newest(elf.offers, "GLIBCXX") or "").startswith("3.4.")


def test_the_newest_version_is_by_numbers_and_private_ones_do_not_count():
    assert "2.34" == newest(frozenset(("GLIBC_2.4", "GLIBC_2.34", "GLIBC_PRIVATE", "GLIBCXX_3.4.30")), "GLIBC")


@given(st.integers(0, 4095), st.binary(min_size=1, max_size=8))
def test_a_library_that_was_written_over_is_read_or_refused_and_never_raises(tmp_path_factory, place, piece):
    content = bytearray(LIBC.read_bytes())
    content[place : place + len(piece)] = piece
    file = tmp_path_factory.mktemp("elf") / "x.so"
    file.write_bytes(content)

    assert isinstance(read_elf(file), Elf | None)


@pytest.mark.parametrize("length", [0, 4, 63, 64, 1000, 100_000])
def test_a_library_that_is_cut_is_none(tmp_path, length):
    file = tmp_path / "x.so"
    file.write_bytes(LIBC.read_bytes()[:length])

    assert read_elf(file) is None


def test_what_a_package_needs_and_no_folder_has_is_named(tmp_path):
    site = tmp_path / "usr/lib/python3/site-packages"
    (site / "torch_npu/lib").mkdir(parents=True)
    shutil.copy(LIBC, site / "torch_npu/lib/libtorch_npu.so")
    (tmp_path / "opt/cann").mkdir(parents=True)
    (tmp_path / "opt/cann/libc.so.6").write_bytes(b"")
    python = Python("/usr/bin/python3", "3.11", ("/usr/lib/python3/site-packages",), (
        Package("torch-npu", "2.9.0", "/usr/lib/python3/site-packages"),), None, None, None)  # fmt: skip
    libraries, _ = find_libraries(tmp_path, {"LD_LIBRARY_PATH": "/opt/cann"}, (), (), python)

    assert libraries is not None
    assert ["torch-npu"] == [library.owner for library in libraries]
    assert "libm.so.6" in libraries[0].missing
    assert "libc.so.6" not in libraries[0].missing
    assert "GLIBC" in libraries[0].needs


def test_without_an_environment_nobody_knows_where_the_loader_looks(tmp_path):
    assert (None, None) == find_libraries(tmp_path, None, (), (), None)


# Packages.


def test_files_of_a_record_that_are_not_there_are_named(tmp_path):
    record = 'vllm_ascend/a.py,sha256=x,1\n"vllm_ascend/b,c.py",,\nvllm_ascend/__pycache__/a.pyc,,\n../../bin/x,,\n'
    put(tmp_path, {"site/vllm_ascend-0.23.0.dist-info/RECORD": record, "site/vllm_ascend/a.py": ""})

    assert ("vllm_ascend/b,c.py",) == read_missing_files(tmp_path, Package("vllm-ascend", "0.23.0", "/site"))


def test_without_a_record_nothing_is_known_to_be_missing(tmp_path):
    assert None is read_missing_files(tmp_path, Package("vllm-ascend", "0.23.0", "/site"))


def test_requirements_without_conditions_are_held_against_what_is_there(tmp_path):
    metadata = (
        "Requires-Dist: torch==2.9.0\nRequires-Dist: numpy (<2.0,>=1.26)\nRequires-Dist: Py_YAML>=9; extra == 'x'\n"
        "Requires-Dist: absent>=1\n\nRequires-Dist: torch==1.0 stands in the description\n"
    )
    put(tmp_path, {"site/vllm-0.23.0.dist-info/METADATA": metadata})
    packages = (Package("vllm", "0.23.0", "/site"), Package("torch", "2.10.0+cpu", "/site"),
                Package("numpy", "1.26.4", "/site"), Package("py-yaml", "6.0", "/site"))  # fmt: skip

    assert ("vllm 0.23.0 asks for torch==2.9.0, and there is 2.10.0+cpu",) == read_unmet(tmp_path, packages)


@pytest.mark.parametrize(
    ("bounds", "version", "is_allowed"),
    [
        (">=4.55,!=4.57.*,<5", "4.56.1", True),
        (">=4.55,!=4.57.*,<5", "4.57.1", False),
        (">=4.55,<5", "5.0.0", False),
        ("==2.9.0", "2.9.0+cpu", True),
        ("~=1.4.2", "1.4.9", True),
        ("~=1.4.2", "1.5.0", False),
        ("==3.*", "3.20.1", True),
        (">2", "2", False),
        ("<=2", "2.0", True),
    ],
)
def test_versions_are_within_bounds_as_pip_reads_them(bounds, version, is_allowed):
    assert is_allowed == allows(bounds, version)


def test_mindie_says_its_version_its_ports_and_its_models(tmp_path):
    config = {"ServerConfig": {"port": 1025, "managementPort": 1026, "ipAddress": "127.0.0.1"}}
    put(tmp_path, {
        "usr/local/Ascend/mindie/latest/version.info": "Ascend-mindie : MindIE 2.1.RC1\n",
        "usr/local/Ascend/mindie/latest/mindie-service/conf/config.json": json.dumps(config),
        "usr/local/Ascend/atb-models/atb_llm/models/qwen2/x.py": "",
    })  # fmt: skip
    mindie = read_mindie(tmp_path, {})

    assert mindie is not None
    assert ("2.1.RC1", (1025, 1026), ("qwen2",), None) == (
        mindie.version, mindie.ports, mindie.models, mindie.config_fault)  # fmt: skip


@pytest.mark.parametrize(("text", "fault"), [("{", "no JSON"), ("[]", "no ServerConfig"), ("[" * 100_000, "no JSON")])
def test_a_configuration_that_is_none_is_said_to_be_none(tmp_path, text, fault):
    put(tmp_path, {"usr/local/Ascend/mindie/latest/mindie-service/conf/config.json": text})

    assert fault in read_mindie(tmp_path, {}).config_fault


# Logs.


def test_the_first_error_of_each_of_the_last_processes_is_kept(tmp_path):
    folder = "root/ascend/log/debug/plog"
    line = "[ERROR] DRV({}): failed {}\n"
    put(tmp_path, {
        f"{folder}/plog-{pid}_2026112910000{pid}000.log": f"[INFO] x\n{line.format(pid, 1)}{line.format(pid, 2)}"
        for pid in range(1, 6)
    })  # fmt: skip
    put(tmp_path, {f"{folder}/plog-9_20261129100009000.log": "[INFO] nothing wrong\n"})
    plog = read_plog(tmp_path, {"HOME": "/root"})

    assert [f"[ERROR] DRV({pid}): failed 1" for pid in (4, 5)] == list(plog.lines)


def test_a_folder_of_logs_that_a_captured_tree_does_not_have_is_unknown(tmp_path):
    assert None is read_plog(tmp_path, {"HOME": "/root"})


# What stands around a container.


def test_kubelet_docker_the_plugin_and_ray_are_read_from_files(tmp_path):
    registered = {"huawei.com/Ascend910": ["Ascend910-0", "Ascend910-1"], "nvidia.com/gpu": []}
    put(tmp_path, {
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint":
            json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": registered}, "Checksum": 1}),
        "etc/docker/daemon.json": json.dumps({"runtimes": {"ascend": {"path": "x"}}, "auths": {"x": "secret"}}),
        "etc/containerd/config.toml": '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n',
        "var/log/mindx-dl/devicePlugin/devicePlugin.log": "[INFO] fine\n[ERROR] lib path is invalid\n",
        "proc/7/comm": "raylet\n",
        "proc/7/cmdline": "raylet\0--static_resource_list=node:192.0.2.1,1.0,CPU,192,NPU,8\0--x",
    })  # fmt: skip
    cluster = read_cluster(tmp_path, read_programs(tmp_path))

    assert {"huawei.com/Ascend910": 2, "nvidia.com/gpu": 0} == cluster.kubelet_devices
    assert {"ascend", "runc"} == set(cluster.runtimes)
    assert ("[ERROR] lib path is invalid",) == cluster.plugin_log.lines
    assert {"node:192.0.2.1": 1.0, "CPU": 192.0, "NPU": 8.0} == cluster.ray_resources


@given(st.text(max_size=200))
def test_files_of_a_cluster_that_hold_anything_are_read_or_unknown(tmp_path_factory, text):
    names = ("var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", "etc/docker/daemon.json",
             "etc/containerd/config.toml", "var/log/mindx-dl/devicePlugin/devicePlugin.log")  # fmt: skip
    root = tmp_path_factory.mktemp("cluster")
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")

    assert None is read_cluster(root, {}).ray_resources


def test_a_process_that_npu_smi_lists_and_proc_has_not_is_gone(tmp_path):
    put(tmp_path, {"proc/1/comm": "systemd\n", "proc/40/comm": "python\n"})
    listed = tuple(NpuProcess(0, 0, pid, "python", None, None) for pid in (40, 41))

    assert (41,) == gone(listed, read_programs(tmp_path), BARE)
    assert None is gone(listed, read_programs(tmp_path), Container("docker", "/.dockerenv"))


def test_addresses_of_this_host_are_those_that_the_kernel_calls_local(tmp_path):
    text = "  +-- 0.0.0.0/0 3 0 5\n  |-- 192.0.2.1\n    /32 host LOCAL\n  |-- 192.0.2.0\n    /24 link UNICAST\n"
    put(tmp_path, {"proc/net/fib_trie": text})

    assert ("192.0.2.1",) == read_local_addresses(tmp_path)


def test_the_kernel_says_whether_its_clock_is_kept():
    clock = read_clock(Path("/"), Captured())

    assert clock is None or clock.max_error_s >= 0


# Jobs.


def table(**changes: object) -> dict[str, object]:
    devices = [{"device_id": str(n), "device_ip": f"192.0.2.{n + 1}", "rank_id": str(n)} for n in range(2)]
    return {"version": "1.0", "server_count": "1", "status": "completed",
            "server_list": [{"server_id": "198.51.100.1", "device": devices}]} | changes  # fmt: skip


def ranks(tmp_path: Path, content: object) -> tuple[str, ...]:
    put(tmp_path, {"job/hccl.json": content if isinstance(content, str) else json.dumps(content)})
    return read_rank_table(tmp_path, {"RANK_TABLE_FILE": "/job/hccl.json"}, ()).faults


def test_a_table_of_ranks_that_is_right_has_no_fault_and_gives_addresses(tmp_path):
    assert () == ranks(tmp_path, table())
    found = read_rank_table(tmp_path, {"RANKTABLEFILE": "/job/hccl.json"}, ())
    assert {0: "192.0.2.1", 1: "192.0.2.2"} == found.addresses


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        (table(status="initializing"), "not completed"),
        (table(server_count="2"), "counts 2 servers and lists 1"),
        (table(server_list=[]), "lists no server"),
        (table(server_list=[{"device": [{"device_id": "0", "device_ip": "-.-.-.-", "rank_id": "0"}]}]), "no address"),
        (table(server_list=[{"device": [{"device_id": "0", "rank_id": "1"}]}]), "rank ids are not 0 to 0"),
        (table(server_list=[{"device": [{"device_id": str(n), "device_ip": "192.0.2.1", "rank_id": str(n)}
                                        for n in range(2)]}]), "twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table_of_ranks_is_said(tmp_path, content, fault):
    assert any(fault in each for each in ranks(tmp_path, content))


def test_a_table_that_is_not_there_is_a_fault_and_without_a_variable_there_is_none(tmp_path):
    assert read_rank_table(tmp_path, {"RANK_TABLE_FILE": "/job/none.json"}, ()).faults
    assert None is read_rank_table(tmp_path, {}, ())
