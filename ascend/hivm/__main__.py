"""`python -m ascend.hivm`: run scheduled kernels, look for races, leave synchronisation out, count."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascend.hivm.agree import Ran, run_sample
from ascend.hivm.estimate import work
from ascend.hivm.mutants import Outcome, outcomes
from ascend.hivm.program import HivmError
from ascend.lower.agreement import samples_in
from ascend.lower.cases import DTYPES
from ascend.lower.toolchain import LoweringError, missing_compiler, versions
from trivet.base.dtypes import DType
from trivet.operators.contract import Operator, Sample, operator_named
from trivet.operators.triton.families import KERNELS
from trivet.operators.triton.launch import Kernel

_FEWEST, _MOST = 4, 24  # tokens of a sample whose mutants are tried: buffers come round again, and it stays quick


@dataclass
class Proof:
    """What was shown of one kernel, and what was not."""

    agreements: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    estimate: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def count(self, kind: str | None = None) -> int:
        """Mutants that were caught, by that kind of fault or by any."""
        return sum(bool(outcome.seen) if kind is None else kind in outcome.seen for outcome in self.outcomes)

    def __str__(self) -> str:
        return f"{self.count()} of {len(self.outcomes)} caught, {self.count('race')} of them as races"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 when all agreed and none raced, 1 when something did not, 2 when it could not be tried."""
    parser = argparse.ArgumentParser(prog="python -m ascend.hivm", description=__doc__)
    parser.add_argument("--soc", default="Ascend910B3", help="the chip to schedule for")
    parser.add_argument("--operator", action="append", help="only this one; may repeat")
    parser.add_argument("--out", type=Path, default=Path("build/ascend/hivm.json"), help="where the counts go")
    options = parser.parse_args(arguments)
    missing = missing_compiler()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 2
    kernels = [kernel for kernel in KERNELS if kernel.operator in (options.operator or [kernel.operator])]
    proofs = {kernel.operator: prove(kernel, options.soc) for kernel in kernels}
    failures = [failure for proof in proofs.values() for failure in proof.failures]
    if not proofs:
        failures.append(f"--operator {', '.join(options.operator)} names no kernel")
    for failure in failures:
        print(failure, file=sys.stderr)
    survivors = Counter(
        f"{outcome.mutant.kind}: {outcome.reason}"
        for proof in proofs.values()
        for outcome in proof.outcomes
        if outcome.reason is not None
    )
    fragment: dict[str, Any] = {
        "what": "scheduled kernels (local addresses, pipes, flags in a core and between cores) executed on memories of"
        " bytes, and their synchronisation left out piece by piece",
        "count": {
            "operators": len(proofs),
            "agreements_without_a_race": sum(proof.agreements for proof in proofs.values()),
            "mutants": sum(len(proof.outcomes) for proof in proofs.values()),
            "mutants_caught": sum(proof.count() for proof in proofs.values()),
            "mutants_caught_as_races": sum(proof.count("race") for proof in proofs.values()),
            "failures": len(failures),
        },
        "soc": options.soc,
        "agreements": {operator: proof.agreements for operator, proof in proofs.items()},
        "mutants": {operator: str(proof) for operator, proof in proofs.items()},
        "survivors": dict(survivors),
        "estimate_not_measured": {operator: proof.estimate for operator, proof in proofs.items()},
        "versions": versions(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(fragment, indent=2) + "\n")
    print(json.dumps(fragment["count"]))
    return 1 if failures else 0


def prove(kernel: Kernel, soc: str) -> Proof:
    """Every sample as two programs; of one sample alone the mutants and, in float16, the estimate."""
    operator, proof = operator_named(kernel.operator), Proof()
    for dtype in DTYPES:
        try:
            shared = [run_sample(kernel, sample, soc, 2) for sample in samples_in(operator, dtype)]
            alone = run_sample(kernel, mutated_sample(operator, dtype), soc, 1)
        except (LoweringError, HivmError, AssertionError) as broken:
            proof.failures.append(f"{kernel.operator} {dtype}: {broken}")
            continue
        wrong = [f"{ran.what}: {reason}" for ran in (*shared, alone) for reason in reasons(ran)]
        proof.failures += wrong
        if wrong:
            continue
        proof.agreements += len(shared)
        proof.outcomes += outcomes(alone.traces[0], alone.sizes)
        if dtype == "float16":
            proof.estimate = [alone.what, *(f"{pipe}: {given}" for pipe, given in work(alone.traces[0]).items())]
    return proof


def mutated_sample(operator: Operator, dtype: DType) -> Sample:
    """The last sample whose loop comes round to the same buffers a second time, and is not long."""
    return [sample for sample in samples_in(operator, dtype) if _FEWEST <= sample.sizes["tokens"] <= _MOST][-1]


def reasons(ran: Ran) -> list[str]:
    """Why a run is not accepted: its values, or its races, hangs and flags."""
    return [*([ran.failure] if ran.failure else []), *(fault.sentence for fault in ran.faults)]


if __name__ == "__main__":
    sys.exit(main())
