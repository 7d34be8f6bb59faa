"""Reads what MindIE's files say of its service: which version, whether its configuration is one, which models it has.

Where they lie is what its set_env.sh says in variables; without those, where its installer puts them.
"""

from __future__ import annotations

import json
from pathlib import Path

from trivet.driver.readers.files import exists, list_names, read_text
from trivet.driver.readers.version_files import DEFAULT_PATH, version
from trivet.driver.stack_facts import Mindie

_CONFIG = "conf/config.json"
PORTS = ("port", "managementPort", "metricsPort")


def read_mindie(root: Path, environment: dict[str, str] | None) -> Mindie | None:
    """None where it is not installed."""
    known = environment or {}
    base = f"{DEFAULT_PATH}/mindie/latest"
    service = known.get("MIES_INSTALL_PATH") or f"{base}/mindie-service"
    models = known.get("ATB_SPEED_HOME_PATH") or f"{DEFAULT_PATH}/atb-models"
    if not any(exists(root, path) for path in (base, service, models)):
        return None
    file = f"{service}/{_CONFIG}"
    text = read_text(root, file)
    ports, fault = _ports(text) if text is not None else ((), None)
    return Mindie(
        version=_version(read_text(root, f"{base}/version.info")),
        config_file=file,
        config_fault=fault,
        ports=ports,
        models=list_names(root, f"{models}/atb_llm/models", r"[a-z]\w*"),
    )


def _version(text: str | None) -> str | None:
    """`Ascend-mindie : MindIE 2.1.RC1`."""
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Ascend-mindie":
            return version(value.split()[-1] if value.split() else None)
    return None


def _ports(text: str) -> tuple[tuple[int, ...], str | None]:
    """The ports it will listen on, or why it is no configuration."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return (), "it is no JSON"
    server = config.get("ServerConfig") if isinstance(config, dict) else None
    if not isinstance(server, dict):
        return (), "it has no ServerConfig"
    found = (server.get(name) for name in PORTS)
    return tuple(port for port in found if isinstance(port, int) and 0 < port < 1 << 16), None
