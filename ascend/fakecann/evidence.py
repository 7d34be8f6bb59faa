"""What a run of the tests has shown, as data: build/ascend/fakecann.json, written anew with every operator compared."""

from __future__ import annotations

import json
from importlib.metadata import version

from ascend.fakecann.build import BUILD, ENTRY_POINTS

EVIDENCE = BUILD.parent / "fakecann.json"

_compared = set[str]()


def compared(operator: str) -> None:
    """Say that `operator`, called through torch_npu, has agreed with plain torch in this run."""
    _compared.add(operator)
    evidence = {
        "what": "aclnn operators of the fake CANN that agreed with plain torch through the unmodified torch_npu wheel",
        "count": len(_compared),
        **json.loads(ENTRY_POINTS.read_text()),
        "versions": {name: version(name) for name in ("torch", "torch_npu")},
    }
    EVIDENCE.write_text(json.dumps(evidence, indent=2) + "\n")
