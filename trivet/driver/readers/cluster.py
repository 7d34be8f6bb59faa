"""Reads what a host itself knows of Kubernetes, of its container runtime and of Ray: files and command lines.

Nobody is asked, so no credentials are needed. What else these files hold is left alone.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trivet.driver.facts import Cluster, LogErrors
from trivet.driver.readers.files import read_text

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
DOCKER, CONTAINERD = "/etc/docker/daemon.json", "/etc/containerd/config.toml"
PLUGIN_LOG = "/var/log/mindx-dl/devicePlugin/devicePlugin.log"
_RESOURCES = "--static_resource_list="
# Said by MindCluster's device plugin where it finds no driver or no card. Source: knowledge base of ascend-faultdiag.
_PLUGIN_ERRORS = re.compile(r"lib path is invalid|cannot found valid driver lib|init failed|\b-8\d{3}\b", re.ASCII)
_MAX_LINES, _MAX_LINE = 20, 400


def read_cluster(root: Path, programs: Mapping[int, str]) -> Cluster:
    return Cluster(
        kubelet_devices=_kubelet_devices(read_text(root, CHECKPOINT)),
        plugin_log=_plugin_log(root),
        runtimes=_runtimes(root),
        ray_resources=_ray_resources(root, programs),
    )


def plugin_errors(text: str) -> list[str]:
    return [line[:_MAX_LINE] for line in text.splitlines() if _PLUGIN_ERRORS.search(line)][-_MAX_LINES:]


def _kubelet_devices(text: str | None) -> dict[str, int] | None:
    """By resource, as kubelet writes them down: names of devices, since 1.20 by NUMA node."""
    registered = _at(_decoded(text), "Data", "RegisteredDevices")
    if not isinstance(registered, dict):
        return None
    return {str(name): len(devices) for name, devices in registered.items() if isinstance(devices, list)}


def _plugin_log(root: Path) -> LogErrors | None:
    text = read_text(root, PLUGIN_LOG)
    return None if text is None else LogErrors(PLUGIN_LOG, tuple(plugin_errors(text)))


def _runtimes(root: Path) -> tuple[str, ...] | None:
    """Names of the runtimes that may be asked for; None where neither docker nor containerd has a file."""
    texts = (read_text(root, DOCKER), read_text(root, CONTAINERD))
    if texts == (None, None):
        return None
    docker, containerd = _decoded(texts[0]), _toml(texts[1])
    found = dict.fromkeys((*_keys(_at(docker, "runtimes")), *_of_containerd(containerd)))
    # Its installer also puts itself in the place of runc, under no name of its own.
    replaced = any("ascend-docker-runtime" in (text or "") for text in texts)
    return tuple(dict.fromkeys((*found, *(("ascend",) if replaced else ()))))


def _of_containerd(config: object) -> Iterator[str]:
    plugins = _at(config, "plugins")
    for plugin in plugins.values() if isinstance(plugins, dict) else ():
        yield from _keys(_at(plugin, "containerd", "runtimes"))


def _ray_resources(root: Path, programs: Mapping[int, str]) -> dict[str, float] | None:
    """As the raylet was started: `--static_resource_list=CPU,192,NPU,8`, a name and a number in turn."""
    for number in (number for number, name in programs.items() if name == "raylet"):
        words = (read_text(root, f"proc/{number}/cmdline") or "").split("\0")
        listed = next((word.removeprefix(_RESOURCES) for word in words if word.startswith(_RESOURCES)), None)
        if listed is not None:
            parts = listed.split(",")
            pairs = zip(parts[::2], parts[1::2], strict=False)
            return {name: float(count) for name, count in pairs if re.fullmatch(r"\d{1,18}(?:\.\d{1,9})?", count)}
    return None


def _decoded(text: str | None) -> object:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _toml(text: str | None) -> object:
    try:
        return tomllib.loads(text or "")
    except (ValueError, RecursionError):
        return None


def _at(value: object, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _keys(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, dict) else ()
