"""Checks of what lies around the stack (libraries, folders, cluster, job, model) find what they are named for."""

from dataclasses import replace
from typing import Any

import pytest

from tests.hosts import facts_of
from tests.unit.test_checks import DOCKER, NEED, named
from trivet.driver.checks import CHECKS, examine
from trivet.driver.facts import Clock, Cluster, HostFacts, LogErrors
from trivet.driver.model_shape import ModelShape
from trivet.driver.need import Need
from trivet.driver.npu_facts import NpuProcess
from trivet.driver.peers import PeerHost
from trivet.driver.probe_facts import MasterProbe, StackProbe, Trial
from trivet.driver.stack_facts import Mindie, RankTable

A2, A3, DUO = facts_of("a2"), facts_of("a3"), facts_of("310p")
NO_CLUSTER = Cluster(None, None, None, None)
SERVICE = Mindie("2.1.RC1", "/usr/local/Ascend/mindie/latest/mindie-service/conf/config.json", None, (1025,), ("qwen",))


def with_stack(**changes: Any) -> HostFacts:
    return replace(A2, stack=replace(A2.stack, **changes))


def with_variables(**changes: str) -> HostFacts:
    return with_stack(environment=A2.stack.environment | changes)


def with_python(**changes: Any) -> HostFacts:
    return with_stack(python=replace(A2.stack.python, **changes))


def with_library(owner: str, **changes: Any) -> HostFacts:
    changed = [replace(each, **changes) if each.owner == owner else each for each in A2.stack.libraries]
    return with_stack(libraries=tuple(changed))


def with_folder(**changes: Any) -> HostFacts:
    first, *others = A2.folders
    return replace(A2, folders=(replace(first, **changes), *others))


def around(**changes: Any) -> HostFacts:
    return replace(A2, cluster=replace(NO_CLUSTER, **changes))


def tried(*trials: Trial) -> HostFacts:
    return replace(A2, running=StackProbe("/usr/bin/python3", trials))


def done(step: str, said: str, seconds: float = 0.1) -> Trial:
    return Trial(step, "done", said, seconds)


def shaped(**changes: Any) -> Need:
    return replace(NEED, memory_bytes=16 << 30, shape=ModelShape(**changes))


ACL = (done("acl", ""), done("device count", "8"), done("device", "1 2", 3.0), done("soc name", "Ascend910B2"))
TORCH = (done("torch", "2.10.0"), done("torch_npu", "2.10.0.post4"), done("torch devices", "2"))
BUSY = replace(A2, npu_smi=replace(A2.npu_smi, processes=(NpuProcess(3, 0, 4711, "python", 1 << 30, None),)))
OTHER_POD = replace(A3, npu_smi=replace(A3.npu_smi, super_pods=(
    replace(A3.npu_smi.super_pods[0], super_pod_id=9), *A3.npu_smi.super_pods[1:])))  # fmt: skip
PEER = PeerHost("host2.json", {"driver": "25.5.2", "cann": "9.1.0"}, is_tls_on=False)

CASES: list[tuple[str, str, HostFacts, Need]] = [
    ("npu_processes_gone", "warning", replace(A2, gone_processes=(4711,)), NEED),
    ("npu_processes_gone", "unknown", replace(A2, gone_processes=None), NEED),
    ("npus_in_use", "note", BUSY, NEED),
    ("driver_user_missing", "warning", with_stack(driver_user=None), NEED),
    ("driver_user_missing", "unknown", with_stack(driver_user=None, has_accounts=None), NEED),
    ("driver_user_missing", "skipped", replace(A2, container=DOCKER), NEED),
    ("kubelet_has_no_npus", "failed", around(kubelet_devices={"nvidia.com/gpu": 8, "huawei.com/Ascend910": 0}), NEED),
    ("kubelet_has_no_npus", "passed", around(kubelet_devices={"huawei.com/Ascend910": 8}), NEED),
    ("device_plugin_fails", "warning", around(plugin_log=LogErrors("x.log", ("lib path is invalid",))), NEED),
    ("device_plugin_fails", "passed", around(plugin_log=LogErrors("x.log", ())), NEED),
    ("container_runtime_missing", "note", around(runtimes=("runc",)), NEED),
    ("container_runtime_missing", "passed", around(runtimes=("runc", "ascend")), NEED),
    ("ray_without_npus", "failed", around(ray_resources={"CPU": 192.0, "GPU": 8.0}), NEED),
    ("ray_without_npus", "passed", around(ray_resources={"CPU": 192.0, "NPU": 8.0}), NEED),
    ("ports_in_use", "warning", replace(A2, listening_ports=(8000,)), NEED),
    ("ports_in_use", "warning", replace(with_variables(HCCL_IF_BASE_PORT="50000"), listening_ports=(50015,)), NEED),
    ("ports_in_use", "warning", replace(with_variables(MASTER_PORT="29500"), listening_ports=(29500,)), NEED),
    ("ports_in_use", "warning", replace(with_stack(mindie=SERVICE), listening_ports=(1025,)), NEED),
    ("ports_in_use", "passed", replace(with_variables(HCCL_IF_BASE_PORT="50000"), listening_ports=(60000,)), NEED),
    ("ports_in_use", "unknown", replace(A2, listening_ports=None), NEED),
    ("preloads_missing", "warning", with_stack(preloads={"/usr/lib/libjemalloc.so.2": False}), NEED),
    ("preloads_missing", "unknown", with_stack(preloads=None), NEED),
    ("clock_not_kept", "note", replace(A2, clock=Clock(is_synchronised=False, max_error_s=16.0)), NEED),
    ("clock_not_kept", "unknown", replace(A2, clock=None), NEED),
    ("libraries_missing", "failed", with_library("cann", missing=("libc_sec.so",)), NEED),
    ("libraries_missing", "unknown", with_stack(libraries=None), NEED),
    ("libc_too_old", "failed", with_library("cann", needs={"GLIBC": "2.38"}), NEED),
    ("libc_too_old", "failed", with_library("nnal", needs={"GLIBCXX": "3.4.32"}), NEED),
    ("libc_too_old", "passed", with_library("cann", needs={"GLIBC": "2.4"}), NEED),
    ("libc_too_old", "unknown", replace(with_stack(libstdcxx=None), libc="musl"), NEED),
    ("package_libraries_missing", "failed", with_library("torch-npu", missing=("libatb.so",)), NEED),
    ("package_libraries_missing", "skipped", with_stack(libraries=A2.stack.libraries[:3]), NEED),
    ("folders_not_writable", "failed", with_folder(is_writable=False), NEED),
    ("folders_not_writable", "warning", with_folder(free_bytes=1 << 20), NEED),
    ("folders_not_writable", "unknown", replace(A2, folders=None), NEED),
    ("plog_has_errors", "note", replace(A2, plog=LogErrors("/root/ascend/log/debug/plog", ("[ERROR] DRV",))), NEED),
    ("plog_has_errors", "unknown", replace(A2, plog=None), NEED),
    ("device_refused", "failed", tried(*ACL[:2], Trial("device", "failed", "set_device(0): 507033", 1.0)), NEED),
    ("device_refused", "failed", tried(Trial("acl", "died", "Segmentation fault", None)), NEED),
    ("device_refused", "failed", tried(*ACL[:2], Trial("device", "timed_out", None, 90.0)), NEED),
    ("device_refused", "unknown", tried(Trial("acl", "absent", "No module named 'acl'", 0.1)), NEED),
    ("device_refused", "skipped", A2, NEED),
    ("device_refused", "passed", tried(*ACL), NEED),
    ("first_call_slow", "note", tried(*ACL[:2], done("device", "1 2", 40.0)), NEED),
    ("first_call_slow", "passed", tried(*ACL), NEED),
    ("soc_name_differs", "warning", tried(*ACL[:3], done("soc name", "Ascend310P3")), NEED),
    ("soc_name_differs", "passed", tried(*ACL), NEED),
    ("soc_name_differs", "unknown", tried(*ACL[:3]), NEED),
    ("torch_npu_import_fails", "failed", tried(*TORCH[:1], Trial("torch_npu", "failed", "libatb.so", 1.0)), NEED),
    ("torch_npu_import_fails", "unknown", tried(*TORCH[:1]), NEED),
    ("torch_npu_import_fails", "skipped", tried(*ACL), NEED),
    ("npus_invisible_to_torch", "failed", tried(*TORCH[:2], Trial("torch devices", "failed", "False", 1.0)), NEED),
    ("npus_invisible_to_torch", "failed", tried(*TORCH[:2], done("torch devices", "1")), NEED),
    ("npus_invisible_to_torch", "passed", tried(*TORCH), NEED),
    ("npu_computes_wrong", "failed", tried(*TORCH, Trial("arithmetic", "failed", "device 1 adds wrongly", 1.0)), NEED),
    ("npu_computes_wrong", "unknown", tried(*TORCH), NEED),
    ("npu_computes_wrong", "passed", tried(*TORCH, done("arithmetic", "2")), NEED),
    ("mindspore_check_fails", "failed", tried(Trial("mindspore", "failed", "[ERROR] KERNEL", 2.0)), NEED),
    ("mindspore_check_fails", "passed", tried(done("mindspore", "2.6.0")), NEED),
    ("vllm_ascend_incomplete", "failed", with_python(missing_files=("vllm_ascend/ops/__init__.py",)), NEED),
    ("vllm_ascend_incomplete", "unknown", with_python(missing_files=None), NEED),
    ("requirements_unmet", "note", with_python(unmet=("vllm asks for torch==2.9.0, and there is 2.10.0",)), NEED),
    ("requirements_unmet", "unknown", with_python(unmet=None), NEED),
    ("mindie_config_unreadable", "warning", with_stack(mindie=replace(SERVICE, config_fault="it is no JSON")), NEED),
    ("mindie_config_unreadable", "passed", with_stack(mindie=SERVICE), NEED),
    ("mindie_without_model", "failed", with_stack(mindie=SERVICE), shaped(model_type="qwen3_moe")),
    ("mindie_without_model", "passed", with_stack(mindie=SERVICE), shaped(model_type="qwen")),
    ("mindie_without_model", "unknown", with_stack(mindie=replace(SERVICE, models=None)), shaped(model_type="qwen")),
    ("transformers_older_than_model", "warning", A2, shaped(transformers="6.0.1")),
    ("transformers_older_than_model", "passed", A2, shaped(transformers="5.14.9")),
    ("shards_cut", "failed", A2, shaped(cut_shards=("model-00001-of-00002.safetensors",))),
    ("dtype_not_supported", "failed", DUO, shaped(dtype="bfloat16")),
    ("dtype_not_supported", "passed", A2, shaped(dtype="bfloat16")),
    ("heads_indivisible", "failed", A2, replace(shaped(num_heads=28), tensor_parallel=8)),
    ("heads_indivisible", "warning", A2, replace(shaped(num_heads=128, is_latent=True), tensor_parallel=8)),
    ("heads_indivisible", "passed", A2, replace(shaped(num_heads=128, is_latent=True), tensor_parallel=4)),
    ("quantisation_by_option", "note", A2, shaped(quantisation="ascend")),
    ("quantisation_not_supported", "warning", A2, shaped(quantisation="fp8")),
    ("quantisation_not_supported", "note", A2, shaped(quantisation="awq")),
    ("experts_not_supported", "warning", DUO, shaped(num_experts=128)),
    ("experts_not_supported", "passed", A2, shaped(num_experts=128)),
    ("graph_streams_few", "note", DUO, shaped(num_layers=36)),
    ("graph_streams_few", "passed", A2, shaped(num_layers=36)),
    ("hccl_address_not_here", "warning", replace(with_variables(HCCL_IF_IP="192.0.2.7"), local_addresses=()), NEED),
    ("hccl_address_not_here", "unknown", with_variables(HCCL_IF_IP="192.0.2.7"), NEED),
    ("rank_table_wrong", "failed", with_stack(rank_table=RankTable("/job/hccl.json", ("it is no JSON",), {})), NEED),
    ("rank_table_wrong", "failed", with_stack(rank_table=RankTable("/job/hccl.json", (), {0: "192.0.2.99"})), NEED),
    ("rank_table_wrong", "passed", with_stack(rank_table=RankTable("/job/hccl.json", (), {0: "192.0.2.10"})), NEED),
    ("master_unreachable", "warning", replace(A2, master=MasterProbe("192.0.2.7:29500", "Connection refused")), NEED),
    ("master_unreachable", "passed", replace(A2, master=MasterProbe("192.0.2.7:29500", None)), NEED),
    ("super_pods_differ", "failed", OTHER_POD, NEED),
    ("super_pods_differ", "passed", A3, NEED),
    ("super_pods_differ", "unknown", replace(A3, npu_smi=replace(A3.npu_smi, super_pods=None)), NEED),
    ("hosts_differ", "failed", A2, replace(NEED, peers=(replace(PEER, versions={"cann": "9.0.0"}),))),
    ("hosts_differ", "failed", A2, replace(NEED, peers=(replace(PEER, is_tls_on=True),))),
    ("hosts_differ", "passed", A2, replace(NEED, peers=(PEER,))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "outcome", "facts", "need"), CASES)
def test_a_check_finds_what_it_is_named_for_and_says_what_mends_it(name, outcome, facts, need):
    finding = named(examine(facts, need), name)
    severity = next(each.severity for each in CHECKS if each.name == name)

    assert outcome == finding.outcome
    assert bool(finding.remedy) == (outcome in ("failed", "warning", "note")) or name == "first_call_slow"
    assert outcome != "failed" or severity in ("block", "error")
    assert outcome != "warning" or severity != "note"


def test_the_lowest_layer_comes_first():
    """The exit status is that of the first failure. The host's own settings are beside the layers."""
    layers = [each.layer for each in CHECKS if each.layer != "user-config"]

    assert sorted(layers, key=["driver", "operator", "framework", "model", "network"].index) == layers


def test_a_code_is_given_once():
    assert len(CHECKS) == len({each.code for each in CHECKS})
