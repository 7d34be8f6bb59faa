"""`python -m ascend.schemas`: checks every call of torch_npu, and writes what was checked to build/ascend."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from ascend.schemas.calls import calls_under
from ascend.schemas.dump import FOLDER
from ascend.schemas.fake import Case, made, sample_cases, takes, wanted
from ascend.schemas.models import CONFIGS, model_cases
from ascend.schemas.signature import problems, read_signatures
from trivet.framework.graph.passes import MAX_LEVEL
from trivet.operators.contract import IMPLEMENTATIONS, Implementation, choose

EVIDENCE = Path("build/ascend/signatures.json")


def check() -> list[str]:
    """Checks everything, writes the evidence; returns what is wrong, in sentences."""
    versions = {path.stem: read_signatures(path) for path in sorted(FOLDER.glob("*.json"))}
    calls = calls_under(Path("trivet"))
    wrong = [problem for known in versions.values() for call in calls for problem in problems(call, known)]
    samples = [
        (one, case)
        for case in sample_cases()
        for one in IMPLEMENTATIONS[case.call.operator, "npu"]
        if one.variant != "torch" and takes(one, case)
    ]
    nodes = [_chosen(case) for name in CONFIGS for case in model_cases(name, MAX_LEVEL)]
    wrong += [
        f"{one.operator} by {one.variant}: made {made(one, case)}, the contract says {wanted(case)}"
        for one, case in (*samples, *nodes)
        if made(one, case) != wanted(case)
    ]
    evidence = {
        "what": "calls of torch_npu in Trivet, each against the signatures in every version's wheel",
        "count": len(calls) * len(versions),
        "calls": len(calls),
        "operators": sorted({call.operator for call in calls}),
        "signatures_read": {name: len(known) for name, known in versions.items()},
        "samples_with_the_contracts_shapes": len(samples),
        "nodes_of_models_with_the_contracts_shapes": len(nodes),
        "models": list(CONFIGS),
        "problems": len(wrong),
        "versions": {"torch_npu": list(versions), "shapes": {name: version(name) for name in ("torch", "torch_npu")}},
        "not_proved": "that CANN accepts a call (aclnn's own checks), what it computes, and how fast",
    }
    EVIDENCE.parent.mkdir(parents=True, exist_ok=True)
    EVIDENCE.write_text(json.dumps(evidence, indent=2, ensure_ascii=False) + "\n")
    return wrong


def _chosen(case: Case) -> tuple[Implementation, Case]:
    chosen = choose(case.call, "npu")
    assert isinstance(chosen, Implementation), f"{case.call.operator} is refused: {chosen}"
    return chosen, case


if __name__ == "__main__":
    found = check()
    print(EVIDENCE.read_text() if not found else "\n".join(found))
    raise SystemExit(1 if found else 0)
