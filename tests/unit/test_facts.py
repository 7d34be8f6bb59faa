"""What the readers make of a host: this one, captured ones, and ones that nobody should believe."""

import os
import platform
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trivet.driver.checks import examine
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need
from trivet.driver.placement_facts import Container, DeviceNode, Filesystem, HugePages, NumaNode, PciDevice
from trivet.driver.readers.cgroup import read_cgroup
from trivet.driver.readers.container import read_container
from trivet.driver.readers.files import id_list, integer, list_names, read_text
from trivet.driver.readers.host import read_facts
from trivet.driver.readers.mounts import read_mounts
from trivet.driver.readers.placement import read_placement_facts
from trivet.driver.report import report

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
NAMES = ["epyc-vm", "kunpeng-910b", "kunpeng-container", "garbled"]
GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_this_host_is_read_as_the_kernel_tells_it():
    facts = read_facts(paths=("/",))

    assert platform.release() == facts.kernel
    assert platform.machine() == facts.architecture
    assert tuple(sorted(os.sched_getaffinity(0))) == facts.cpus.allowed
    assert os.sysconf("SC_NPROCESSORS_ONLN") == len(facts.cpus.online)


def test_reading_and_judging_this_host_takes_less_than_a_third_of_a_second_of_work():
    took = []
    for _ in range(3):
        start = time.process_time()  # others on this machine do not count
        facts = read_facts(paths=("/",))
        report(facts, examine(facts, Need()))
        took.append(time.process_time() - start)

    assert min(took) < 0.3


@pytest.mark.parametrize("name", NAMES)
def test_facts_survive_json(name):
    facts = read_facts(HOSTS / name, paths=("/data/trivet",))

    assert facts == msgspec.json.decode(msgspec.json.encode(facts), type=HostFacts)


def test_a_kunpeng_host_is_read_whole():
    facts = read_facts(HOSTS / "kunpeng-910b", paths=("/data/trivet", "/root"))

    assert "Kunpeng-920" == facts.cpus.model
    assert ("asimd", "asimdhp", "asimddp") == facts.cpus.features
    assert tuple((cpu,) for cpu in range(96)) == facts.cpus.cores
    assert {f"policy{cpu}": "performance" for cpu in (0, 24, 48, 72)} == facts.cpus.governors
    assert (
        NumaNode(
            id=1,
            cpus=tuple(range(24, 48)),
            memory_total_bytes=193533 << 20,
            memory_free_bytes=175354 << 20,
            distances={0: 12, 1: 10, 2: 22, 3: 24},
            huge_pages=(HugePages(2 << 20, 0, 0),),
        )
        == facts.nodes[1]
    )
    assert (
        PciDevice("0000:01:00.0", 0x120000, 0x19E5, 0xD802, 3, "devdrv_device_driver", 16.0, 16.0, 16, 16)
        == facts.pci[0]
    )
    assert DeviceNode("/dev/davinci0", 0o660, 1000, 1000, True) == facts.device_nodes[0]
    assert 11 == len(facts.device_nodes)
    assert (
        Filesystem("/data/trivet", "/data", "xfs", ("rw", "relatime"), 3298534883328, "/dev/nvme0n1p1", None, False),
        Filesystem("/root", "/", "ext4", ("rw", "relatime"), 201863462912, "/dev/sda3", None, False),
    ) == facts.filesystems


def test_nothing_is_known_of_an_empty_tree(tmp_path):
    facts = read_facts(tmp_path, paths=("/data",))

    leaves = [facts.kernel, facts.architecture, facts.nodes, facts.container, facts.pci, facts.device_nodes]
    assert [None] * len(leaves) == leaves
    for part in (facts.cpus, facts.memory, facts.cgroup, facts.limits):
        assert {None} == set(msgspec.to_builtins(part).values())
    assert (Filesystem("/data", None, None, None, None),) == facts.filesystems


def test_a_link_that_leaves_a_captured_tree_is_not_followed():
    assert (HOSTS / "garbled/proc/sys/kernel/osrelease").read_text()

    assert None is read_facts(HOSTS / "garbled").kernel


def test_a_pipe_in_a_captured_tree_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "meminfo")

    assert None is read_text(tmp_path, "meminfo")


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ((0, 1, 2, 3, 8), "0-3,8\n"),
        ((5,), "5"),
        ((), "\n"),
        (None, "3-1"),
        (None, "0-4294967295"),
        (None, "0-999999"),
        (None, "a-b"),
        (None, "0,,1"),
        (None, "-1"),
        (None, "٣"),
    ],
)
def test_an_id_list_is_read_whole_or_not_at_all(ids, text):
    assert ids == id_list(text)


@pytest.mark.parametrize(
    ("number", "text", "base"),
    [(19, "19", 10), (0x19E5, "0x19e5", 16), (None, "-1", 10), (None, "1_0", 10), (None, "", 10), (None, "9" * 40, 10)],
)
def test_a_number_is_one_the_kernel_would_write(number, text, base):
    assert number == integer(text, base)


def test_names_are_listed_in_numeric_order(tmp_path):
    for cpu in (10, 9, 0):
        (tmp_path / f"cpu{cpu}").mkdir()

    assert ("cpu0", "cpu9", "cpu10") == list_names(tmp_path, "/", r"cpu\d+")


def test_mount_points_are_unescaped(tmp_path):
    write(tmp_path, {"proc/self/mountinfo": r"30 1 8:3 / /my\040disk\134x rw - ext4 /dev/sda3 rw"})

    assert "/my disk\\x" == read_mounts(tmp_path)[0].point


CGROUP2 = "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def test_the_tightest_group_above_the_process_binds(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "proc/self/mountinfo": CGROUP2,
            "sys/fs/cgroup/cgroup.procs": "",
            "sys/fs/cgroup/outer/memory.max": str(4 * GIB),
            "sys/fs/cgroup/outer/memory.current": str(3 * GIB),
            "sys/fs/cgroup/outer/memory.stat": f"anon 1\ninactive_file {GIB}\n",
            "sys/fs/cgroup/outer/cpu.max": "max 100000",
            "sys/fs/cgroup/outer/inner/memory.max": str(8 * GIB),
            "sys/fs/cgroup/outer/inner/memory.current": str(GIB),
            "sys/fs/cgroup/outer/inner/cpu.max": "250000 100000",
        },
    )

    cgroup = read_cgroup(tmp_path)

    assert 4 * GIB == cgroup.memory_limit_bytes
    assert 2 * GIB == cgroup.memory_left_bytes
    assert 2.5 == cgroup.cpu_quota


def test_one_unreadable_group_makes_the_limit_unknown(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer\n",
            "proc/self/mountinfo": CGROUP2,
            "sys/fs/cgroup/cgroup.procs": "",
            "sys/fs/cgroup/outer/memory.max": "soon",
        },
    )

    assert None is read_cgroup(tmp_path).memory_limit_bytes


def test_version_1_groups_seen_from_a_container_start_at_its_mount(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            "proc/self/mountinfo": "30 1 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
            "31 1 0:27 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GIB // 2}\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )

    cgroup = read_cgroup(tmp_path)

    assert (2 * GIB, GIB * 3 // 2, 1.5) == (cgroup.memory_limit_bytes, cgroup.memory_left_bytes, cgroup.cpu_quota)


PLAIN = {"proc/1/cgroup": "0::/init.scope\n", "proc/self/mountinfo": "30 1 8:3 / / rw - ext4 /dev/sda3 rw\n"}


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("none", {}),
        ("docker", {".dockerenv": ""}),
        ("podman", {"run/.containerenv": ""}),
        ("kubernetes", {"var/run/secrets/kubernetes.io/token": "x", ".dockerenv": ""}),
        ("kubernetes", {"proc/1/cgroup": "5:cpu:/kubepods/besteffort/pod1/docker-ab\n"}),
        ("lxc", {"proc/1/cgroup": "5:cpu:/lxc/web\n"}),
        ("other", {"run/systemd/container": "systemd-nspawn\n"}),
        (
            "containerd",
            {"proc/self/mountinfo": "30 1 0:9 / / rw - overlay overlay rw,lowerdir=/var/lib/containerd/1\n"},
        ),
    ],
)
def test_a_container_is_known_by_its_marks(tmp_path, kind, files):
    container = read_container(write(tmp_path, PLAIN | files))

    assert isinstance(container, Container)
    assert kind == container.kind


def test_a_tree_without_the_marks_files_is_not_said_to_be_no_container(tmp_path):
    write(tmp_path, {"proc/1/cgroup": "0::/\n"})

    assert None is read_container(tmp_path)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """Two hosts that may be spoiled, as long as they are put back."""
    root = tmp_path_factory.mktemp("hosts")
    for name in ("epyc-vm", "kunpeng-container"):
        shutil.copytree(HOSTS / name, root / name, symlinks=True)
    return root


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


ODD = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(lambda text: text.encode()),
    st.sampled_from(
        [b"", b"-1", b"0", b"9" * 5000, b"0-" * 50, b"max", b"[" * 99999, b"a:b:c\n::\n" * 9, b"\x00" * 99]
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_no_content_of_any_file_raises(scratch, draw):
    root = draw.draw(st.sampled_from(["epyc-vm", "kunpeng-container"]).map(lambda name: scratch / name))
    spoiled = draw.draw(st.lists(st.sampled_from(files_of(root)), min_size=1, max_size=6, unique=True))
    kept = {path: path.read_bytes() for path in spoiled}
    try:
        for path, good in kept.items():
            cut = draw.draw(st.integers(0, len(good)))
            path.write_bytes(good[:cut] + draw.draw(ODD))
        facts = read_facts(root, paths=("/data/trivet",))
    finally:
        for path, good in kept.items():
            path.write_bytes(good)

    findings = examine(facts, Need(memory_bytes=GIB, disk_path="/data/trivet", disk_bytes=GIB))

    assert report(facts, findings)
    assert facts == msgspec.json.decode(msgspec.json.encode(facts), type=HostFacts)


def test_a_file_that_is_gone_never_turns_a_fault_into_a_pass(scratch):
    root = scratch / "kunpeng-container"
    need = Need(memory_bytes=64 * GIB, disk_path="/data/trivet", disk_bytes=64 * GIB)
    before = examine(read_facts(root, paths=("/data/trivet",)), need)
    # Version 2 leaves these out where nothing binds, so their absence is itself an answer.
    absent_is_an_answer = {"memory.max", "cpu.max"}
    healed = []
    for path in files_of(root):
        if path.name in absent_is_an_answer:
            continue
        good = path.read_bytes()
        path.unlink()
        after = examine(read_facts(root, paths=("/data/trivet",)), need)
        path.write_bytes(good)
        pairs = zip(before, after, strict=True)
        healed += [(path, a.name) for a, b in pairs if a.outcome in ("warning", "failed") and b.outcome == "passed"]

    assert 8 <= sum(finding.outcome in ("warning", "failed") for finding in before)
    assert [] == healed


def test_where_threads_and_memory_go_is_read_alone_and_without_a_tool(monkeypatch):
    monkeypatch.setattr("trivet.driver.readers.host.read_npu_smi", None)

    placement = read_placement_facts()

    assert not isinstance(placement, HostFacts)
    assert placement.cpus.online == tuple(sorted(placement.cpus.online))


def test_a_host_has_the_same_placement_read_alone_or_whole():
    whole, alone = read_facts(HOSTS / "kunpeng-910b"), read_placement_facts(HOSTS / "kunpeng-910b")

    parts = (
        "kernel",
        "architecture",
        "cpus",
        "nodes",
        "memory",
        "cgroup",
        "limits",
        "container",
        "pci",
        "device_nodes",
    )
    assert [getattr(alone, part) for part in parts] == [getattr(whole, part) for part in parts]


def test_probes_are_made_only_on_request_and_only_of_the_live_host(tmp_path):
    (tmp_path / "model").write_bytes(bytes(1 << 20))

    for facts in (read_facts(), read_facts(HOSTS / "kunpeng-910b", probe=True)):
        assert (None, None) == (facts.reading, facts.pinning)
    assert 1 << 20 == read_facts(paths=(str(tmp_path),), probe=True).reading[0].num_bytes
