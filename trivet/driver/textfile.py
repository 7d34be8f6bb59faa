"""The doctor's findings as a file for the textfile collector of Prometheus' node_exporter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from trivet.base.errors import ResourceError
from trivet.base.findings import Finding, verdict
from trivet.driver.chips import npus
from trivet.driver.facts import HostFacts


def write_textfile(path: Path, facts: HostFacts, findings: Sequence[Finding]) -> None:
    """Whole or not at all: the collector may read at any time. Raises ResourceError if `path` cannot be written.

    What is unknown has no sample, so that an absent number is never taken for 0.
    """
    if path.suffix != ".prom":
        raise ResourceError(
            f"{path}: node_exporter reads files that end in .prom", f"name it {path.with_suffix('.prom')}"
        )
    registry = CollectorRegistry()
    # By outcome, and only the one that holds: `trivet_doctor_check{outcome="failed"}` is the alert.
    check = Gauge(
        "trivet_doctor_check", "1 for the outcome of a check of the host", ["check", "outcome"], registry=registry
    )
    for finding in findings:
        check.labels(finding.name, finding.outcome).set(1)
    whole = Gauge("trivet_doctor_verdict", "1 for the verdict on the host", ["outcome"], registry=registry)
    whole.labels(verdict(tuple(findings))).set(1)
    found = npus(facts)
    if found is not None:
        Gauge("trivet_doctor_npus", "NPUs on PCI", registry=registry).set(len(found))
    chips = facts.npu_smi.chips if facts.npu_smi is not None else None
    health = Gauge("trivet_doctor_npu_healthy", "1 where npu-smi says OK", ["npu", "chip"], registry=registry)
    for chip in chips or ():
        if chip.health is not None:
            health.labels(chip.npu_id, "" if chip.chip_id is None else chip.chip_id).set(chip.health == "OK")
    # An alert on its age tells that nobody looks any more.
    Gauge("trivet_doctor_run_timestamp_seconds", "When the host was looked at", registry=registry).set_to_current_time()
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ResourceError(
            f"{path}: cannot be written: {error.strerror}", "name a file in a folder that is there"
        ) from error
