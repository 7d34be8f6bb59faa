"""Checks of the host's settings where there are NPUs: variables, CPUs, shared memory. They block no layer."""

from __future__ import annotations

import re
from functools import partial

from trivet.base.units import format_bytes
from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, unknown, unread, warning
from trivet.driver.chips import npus
from trivet.driver.facts import HostFacts
from trivet.driver.installed import chips, environment
from trivet.driver.need import Need
from trivet.driver.readers.device_nodes import CONTROL_NODES

_RUNTIME = "CANN runtime docs: environment variables"
# The least that the vllm-ascend tutorials give a container: workers pass tensors through it.
_MIN_SHARED_MEMORY = 1 << 30
# What HCCL listens on at the host, one for each NPU; where vLLM serves. Source: HCCL docs; vLLM docs.
_HCCL_PORT, _NUM_HCCL_PORTS, _API_PORT = 60000, 16, 8000
_MIN_CPUS = 4  # for each NPU's worker: vllm-ascend's CPU binding gives up below it
_here = partial(check, layer="user-config", needs=("npu_absent",))


@_here("USR001", "error", source=f"{_RUNTIME}: ASCEND_RT_VISIBLE_DEVICES")
def visible_devices_cut(facts: HostFacts, need: Need) -> Judgement:
    variables = environment(facts)
    if variables is None:
        return unread("the environment")
    text = variables.get("ASCEND_RT_VISIBLE_DEVICES")
    if text is None:
        return not_asked("ASCEND_RT_VISIBLE_DEVICES is not set: all NPUs are visible")
    count = len(chips(facts)) or sum(node.path not in CONTROL_NODES for node in facts.device_nodes or ())
    words = text.split(",")
    good = [word for word in words if re.fullmatch(r"\d+", word, re.ASCII)]
    ids = [int(word) for word in good]
    if len(good) == len(words) and (not count or max(ids) < count) and ids == sorted(set(ids)):
        return passed("ASCEND_RT_VISIBLE_DEVICES={text} names {count} NPUs", text=text, count=len(ids))
    return failed(
        "ASCEND_RT_VISIBLE_DEVICES={text} does not name NPUs of {count} in ascending order; the rest is not seen",
        "export ASCEND_RT_VISIBLE_DEVICES=0,1  # numbers below {count}, ascending, commas, no blanks",
        text=repr(text), count=count,
    )  # fmt: skip


@_here("USR002", "warning", source="ascend-docker-runtime: ASCEND_VISIBLE_DEVICES; vllm-ascend issues")
def variable_of_the_container_runtime(facts: HostFacts, need: Need) -> Judgement:
    variables = environment(facts)
    if variables is None:
        return unread("the environment")
    if "ASCEND_VISIBLE_DEVICES" not in variables or variables.get("ASCEND_DOCKER_RUNTIME") == "True":
        return passed("ASCEND_VISIBLE_DEVICES is not set, or ascend-docker-runtime set it")
    return warning(
        "ASCEND_VISIBLE_DEVICES is set, which only ascend-docker-runtime reads, and it does not run here",
        "unset ASCEND_VISIBLE_DEVICES; export ASCEND_RT_VISIBLE_DEVICES={text}",
        text=variables["ASCEND_VISIBLE_DEVICES"],
    )


@_here("DRV021", "error", source="vllm-ascend docs, installation and tutorials: --shm-size of 1g and more")
def shared_memory_small(facts: HostFacts, need: Need) -> Judgement:
    size = facts.shared_memory.total_bytes if facts.shared_memory else None
    if size is None:
        return unread("the size of /dev/shm")
    if size >= _MIN_SHARED_MEMORY:
        return passed("/dev/shm holds {size}", size=format_bytes(size))
    fault = warning if need.device == "cpu" else failed
    return fault(
        "/dev/shm holds {size}, and workers of one host pass tensors through it; {least} are wanted",
        "docker run --shm-size=16g, or an emptyDir of medium Memory at /dev/shm",
        size=format_bytes(size), least=format_bytes(_MIN_SHARED_MEMORY),
    )  # fmt: skip


@_here("USR003", "warning", source="vllm-ascend docs, CPU binding; Linux cpusets")
def cpus_far_from_npus(facts: HostFacts, need: Need) -> Judgement:
    allowed = set(facts.cpus.allowed or ())
    found = [npu for npu in npus(facts) or () if npu.numa_node is not None]
    nodes = {node.id: set(node.cpus) for node in facts.nodes or () if node.cpus is not None}
    if not allowed or not found or not nodes:
        return unknown("which CPUs are near the NPUs, or allowed, could not be read")
    shares = {npu.address: len(nodes.get(npu.numa_node or 0, set()) & allowed) for npu in found}
    far = [address for address, count in shares.items() if count < _MIN_CPUS]
    if not far:
        return passed("this process may run near each of {count} NPUs", count=len(found))
    return warning(
        "{count} of {total} NPUs have fewer than {least} CPUs of their own NUMA node that this process may use: {far}",
        "docker run --cpuset-cpus with CPUs of nodes {nodes}, or taskset -c",
        count=len(far), total=len(found), least=_MIN_CPUS, far=", ".join(far),
        nodes=", ".join(sorted({str(npu.numa_node) for npu in found if npu.address in far})),
    )  # fmt: skip


@_here("USR004", "note", source="msprechecker presets; vllm-ascend FAQ")
def speed_settings_unset(facts: HostFacts, need: Need) -> Judgement:
    variables = environment(facts)
    if variables is None:
        return unread("the environment")
    wanted = {"TASK_QUEUE_ENABLE": "1", "OMP_PROC_BIND": "false", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
    unset = [f"{name}={value}" for name, value in wanted.items() if name not in variables]
    if not unset:
        return passed("the variables that serving guides set are set")
    return note(
        "serving guides for torch_npu also set {unset}",
        "export {unset}",
        unset=" ".join(unset),
    )


@check("USR005", "warning", layer="user-config", source="proc(5): /proc/net/tcp; HCCL docs: HCCL_IF_BASE_PORT, 60000",
       needs=("npu_absent",))  # fmt: skip
def ports_in_use(facts: HostFacts, need: Need) -> Judgement:
    variables, used = environment(facts), facts.listening_ports
    if used is None or variables is None:
        return unread("the ports that are listened on")
    base = variables.get("HCCL_IF_BASE_PORT", "")
    start = int(base) if base.isdecimal() and int(base) < 1 << 16 else _HCCL_PORT
    wanted = dict.fromkeys(range(start, start + _NUM_HCCL_PORTS), "HCCL")
    master = variables.get("MASTER_PORT", "")
    wanted |= {int(master): "MASTER_PORT"} if master.isdecimal() else {}
    mindie = facts.stack.mindie if facts.stack else None
    wanted |= dict.fromkeys(mindie.ports if mindie else (), "MindIE") | {_API_PORT: "vLLM"}
    taken = [f"{port} ({wanted[port]})" for port in used if port in wanted]
    if not taken:
        return passed("no port that vLLM, HCCL or MindIE takes by itself is listened on")
    return warning(
        "ports are listened on that a start would take: {ports}",
        "ss -ltnp  # who listens: a server that runs already, or what is left of one",
        "vllm serve --port N; export HCCL_IF_BASE_PORT=N; export MASTER_PORT=N  # if it is to stay",
        ports=", ".join(taken),
    )


@check("USR006", "warning", layer="user-config", source="ld.so(8): LD_PRELOAD")
def preloads_missing(facts: HostFacts, need: Need) -> Judgement:
    preloads = facts.stack.preloads if facts.stack else None
    if preloads is None:
        return unread("LD_PRELOAD")
    lost = [path for path, is_there in preloads.items() if not is_there]
    if not lost:
        return passed("{count} files of LD_PRELOAD are there", count=len(preloads))
    return warning(
        "LD_PRELOAD names what is not there: {lost}",
        "unset LD_PRELOAD  # or name the file where it is: ldconfig -p | grep jemalloc",
        lost=", ".join(lost),
    )


@check("USR007", "note", layer="user-config", source="adjtimex(2): STA_UNSYNC", needs=("npu_absent",))
def clock_not_kept(facts: HostFacts, need: Need) -> Judgement:
    if facts.clock is None:
        return unread("whether the clock is kept right")
    if facts.clock.is_synchronised:
        return passed("the clock is kept right")
    return note(
        "nobody keeps the clock right: logs of several hosts cannot be put in order, and certificates may not hold",
        "timedatectl set-ntp true  # or chronyd, on the host",
    )
