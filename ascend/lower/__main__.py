"""`python -m ascend.lower`: compile every kernel for every generation, run what was lowered, write what was shown."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ascend.lower.agreement import samples_in
from ascend.lower.cases import DTYPES, cases
from ascend.lower.offsets import narrow_offsets
from ascend.lower.right import check
from ascend.lower.stages import describe, lower, plan_memory
from ascend.lower.toolchain import LoweringError, missing_host_tools, versions
from trivet.base.errors import ConfigError
from trivet.operators.contract import operator_named
from trivet.operators.triton.families import KERNELS
from trivet.operators.triton.tiles import Soc, soc_named

_BUILD = Path("build/ascend")
_SOCS = ("Ascend910B1", "Ascend910B3", "Ascend910B4", "Ascend910_9391")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 when everything compiled and agreed, 1 when something did not, 2 when it could not be tried."""
    parser = argparse.ArgumentParser(prog="python -m ascend.lower", description=__doc__)
    parser.add_argument("--soc", action="append", help="a chip to compile for; may repeat")
    parser.add_argument("--group", help="only the kernels of this operator, or of router_topk, order, top and so on")
    parser.add_argument("--out", type=Path, default=_BUILD / "triton.json", help="where the counts go")
    options = parser.parse_args(arguments)
    missing = missing_host_tools()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 2
    socs = tuple(options.soc or _SOCS)
    try:
        chips = [soc_named(soc) for soc in socs]
    except ConfigError as unknown:
        print(unknown, file=sys.stderr)
        return 2
    failures: list[str] = []
    compiled, fullest = _compile(chips, options.group, failures)
    agreements, worst = _agree(chips[0], options.group, failures)
    if not compiled and not failures:
        failures.append(f"--group {options.group} names no kernel")
    for failure in failures:
        print(failure, file=sys.stderr)
    fragment = {
        "what": "Triton kernels compiled by bishengir-compile up to memory planning, and their linalg run on this host",
        "count": {
            "socs": len(socs),
            "dtypes": len(DTYPES),
            "kernels": len({kernel for kernel, _ in compiled}),
            "tiles": len(set(compiled)),
            "compilations": compiled.total(),
            "agreements": agreements.total(),
            "failures": len(failures),
        },
        "socs": socs,
        "agreements": dict(agreements),
        "worst_error_of_allowed": worst,
        "fullest_bytes": fullest,
        "versions": versions(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(fragment, indent=2) + "\n")
    print(json.dumps(fragment["count"]))
    return 1 if failures else 0


def _compile(
    socs: Sequence[Soc], group: str | None, failures: list[str]
) -> tuple[Counter[tuple[str, str]], dict[str, dict[str, int]]]:
    """(kernel, tile) → how many SoCs took it, and per kernel the most that any tile uses of each local memory."""
    compiled: Counter[tuple[str, str]] = Counter()
    fullest: dict[str, dict[str, int]] = {}
    for dtype in DTYPES:
        for case in cases(dtype, socs[0]):
            if group is not None and case.group != group:
                continue
            what, name = describe(case.launch, case.dtypes), case.launch.kernel.__name__
            try:
                lowered = lower(case.launch, case.dtypes, socs[0].name)
                failures += [f"{what}: {offset}" for offset in narrow_offsets(lowered.ttir)]
                for soc in socs:
                    planned = plan_memory(lowered, soc.name, what)
                    compiled[name, what] += 1
                    most = fullest.setdefault(name, {})
                    for memory, used in planned.used_bytes.items():
                        most[memory] = max(most.get(memory, 0), used)
            except LoweringError as refused:
                failures.append(str(refused))
    return compiled, fullest


def _agree(soc: Soc, group: str | None, failures: list[str]) -> tuple[Counter[str], dict[str, float]]:
    """Operator → samples that agreed, and the largest error as a share of what is allowed."""
    agreements: Counter[str] = Counter()
    worst: dict[str, float] = {}
    for kernel in KERNELS:
        if group is not None and kernel.operator != group:
            continue
        operator = operator_named(kernel.operator)
        for dtype in DTYPES:
            for sample in samples_in(operator, dtype):
                launch = kernel.launch(sample.call, sample.sizes, soc)
                agreement = check(launch, operator, sample, soc.name, _BUILD / "triton")
                if agreement.failure is not None:
                    failures.append(f"{agreement.what}: {agreement.failure}")
                    continue
                agreements[kernel.operator] += 1
                worst[kernel.operator] = max(worst.get(kernel.operator, 0.0), agreement.worst)
    return agreements, worst


if __name__ == "__main__":
    sys.exit(main())
