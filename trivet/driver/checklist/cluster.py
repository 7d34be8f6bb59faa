"""Checks of what stands around a container: kubelet, the device plugin, the container runtime, Ray. By files alone."""

from __future__ import annotations

from functools import partial

from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, warning
from trivet.driver.facts import HostFacts
from trivet.driver.need import Need
from trivet.driver.readers.device_nodes import CONTROL_NODES

_here = partial(check, needs=("npu_absent",))
_PREFIXES = ("huawei.com/Ascend", "huawei.com/npu")  # of MindCluster's plugin and of HAMi's


@_here("DRV059", "error", source="kubelet: device-plugins/kubelet_internal_checkpoint; MindCluster's device plugin")
def kubelet_has_no_npus(facts: HostFacts, need: Need) -> Judgement:
    devices = facts.cluster.kubelet_devices if facts.cluster else None
    if devices is None:
        return not_asked("no kubelet runs here, or its files may not be read (they need root)")
    own = {name: count for name, count in devices.items() if name.startswith(_PREFIXES)}
    if any(own.values()):
        listed = ", ".join(f"{name} {count}" for name, count in own.items())
        return passed("kubelet gives pods {listed}", listed=listed)
    return failed(
        "no NPU is registered with kubelet, so no pod gets one; registered: {names}",
        "kubectl get pods -A -o wide | grep -i device-plugin  # does it run on this node?",
        "tail -50 /var/log/mindx-dl/devicePlugin/devicePlugin.log | trivet doctor --explain -",
        names=", ".join(devices) or "nothing",
    )


@_here("DRV060", "warning", source="knowledge base of ascend-faultdiag (MindCluster): device plugin, NPU exporter")
def device_plugin_fails(facts: HostFacts, need: Need) -> Judgement:
    log = facts.cluster.plugin_log if facts.cluster else None
    if log is None:
        return not_asked("no device plugin logs here")
    if not log.lines:
        return passed("{file} speaks of no failure", file=log.source)
    return warning(
        "{file} speaks of failures; the last: {line}",
        "mount /usr/local/Ascend/driver into the plugin's pod, owned by root and not writable by others",
        "tail -50 {file} | trivet doctor --explain -",
        file=log.source, line=log.lines[-1],
    )  # fmt: skip


@_here("DRV061", "note", source="MindCluster: ascend-docker-runtime in daemon.json and config.toml")
def container_runtime_missing(facts: HostFacts, need: Need) -> Judgement:
    runtimes = facts.cluster.runtimes if facts.cluster else None
    if runtimes is None:
        return not_asked("neither docker nor containerd has settings here")
    if "ascend" in runtimes:
        return passed("containers can be started with the runtime ascend")
    return note(
        "docker and containerd know no runtime ascend, so ASCEND_VISIBLE_DEVICES does nothing; there are: {names}",
        "docker run --device /dev/davinci0 …  # each node and mount by hand, or install ascend-docker-runtime",
        names=", ".join(runtimes) or "none",
    )


@_here("USR008", "error", layer="user-config", source="Ray: raylet --static_resource_list; vllm-ascend issues with Ray")
def ray_without_npus(facts: HostFacts, need: Need) -> Judgement:
    resources = facts.cluster.ray_resources if facts.cluster else None
    if resources is None:
        return not_asked("no raylet runs here")
    if resources.get("NPU", 0) > 0:
        return passed("Ray has {count:g} NPUs on this host", count=resources["NPU"])
    shown = ", ".join(f"{name} {resources[name]:g}" for name in ("CPU", "GPU") if name in resources)
    return failed(
        "Ray has no NPU on this host, only {shown}",
        "ray stop  # then, in a shell where CANN is sourced:",
        "ray start --resources '{{\"NPU\": {count}}}'  # with --head or --address as before, without --num-gpus",
        shown=shown or "nothing", count=sum(node.path not in CONTROL_NODES for node in facts.device_nodes or ()) or 8,
    )  # fmt: skip
