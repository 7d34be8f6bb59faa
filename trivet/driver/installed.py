"""What is installed, as questions that several checks ask of the facts: which CANN, which package, which chip."""

from __future__ import annotations

from trivet.driver.chips import chip_of, npus
from trivet.driver.facts import HostFacts
from trivet.driver.npu_facts import NpuChip
from trivet.driver.stack_facts import Cann

_SOURCED_BY = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH")
# Chips by the beginning of their names, the longest first. Source: names in outputs of npu-smi and SoC lists of CANN.
_FAMILIES = (
    ("310P", "310p"), ("310B", "310b"), ("310", "310"), ("910_9", "a3"), ("910B1", "a2"), ("910B2", "a2"),
    ("910B3", "a2"), ("910B4", "a2"), ("950", "a5"), ("910A", "910a"), ("910Pro", "910a"),
)  # fmt: skip
_BY_PCI = {
    "Ascend 910B": "a2", "Ascend 910_93 (A3)": "a3", "Ascend 310P": "310p", "Ascend 310B": "310b", "Ascend 310": "310",
    "Ascend 950": "a5", "Ascend 910": "910a",
}  # fmt: skip
# The folders of CANN's kernels. Source: opp/built-in/op_impl/ai_core/tbe/kernel of CANN 8.0 to 9.1.
KERNELS = {"a2": "ascend910b", "a3": "ascend910_93", "310p": "ascend310p", "310b": "ascend310b", "910a": "ascend910"}


def chips(facts: HostFacts) -> tuple[NpuChip, ...]:
    return (facts.npu_smi.chips if facts.npu_smi else None) or ()


def environment(facts: HostFacts) -> dict[str, str] | None:
    return facts.stack.environment if facts.stack else None


def cann(facts: HostFacts) -> Cann | None:
    """The one in use: sourced, or else the only one there is."""
    there = canns(facts)
    sourced = [each for each in there if is_sourced(each)]
    return sourced[0] if sourced else there[0] if len(there) == 1 else None


def canns(facts: HostFacts) -> tuple[Cann, ...]:
    return tuple(each for each in (facts.stack.cann if facts.stack else ()) if each.exists)


def is_sourced(cann: Cann) -> bool:
    return any(variable in cann.found_by for variable in _SOURCED_BY)


def package(facts: HostFacts, name: str) -> str | None:
    """The version of a package of the serving interpreter that an import would get."""
    python = facts.stack.python if facts.stack else None
    return next((each.version for each in (python.packages if python else None) or () if each.name == name), None)


def packages_are_known(facts: HostFacts) -> bool:
    """Is what is not among them absent? A text that somebody posted lists a few and says nothing of the rest."""
    python = facts.stack.python if facts.stack else None
    return python is not None and python.packages is not None and bool(python.search_path)


def family(facts: HostFacts) -> str | None:
    """Which NPUs: "a2", "a3", "310p" and so on; None where there are none, several kinds or unknown ones."""
    boards = (facts.npu_smi.boards if facts.npu_smi else None) or ()
    named = [f"910_{board.npu_name}" for board in boards if board.npu_name and board.npu_name.startswith("9")]
    named += [chip.name.removeprefix("Ascend") for chip in chips(facts) if chip.name]
    found = {known for name in named if (known := _family(name)) is not None}
    if not found:
        found = {known for npu in npus(facts) or () if (known := _BY_PCI.get(chip_of(npu) or "")) is not None}
    return found.pop() if len(found) == 1 else None


def _family(name: str) -> str | None:
    if name == "910":  # npu-smi calls an A3 "Ascend910", and the first 910 "910A", "910B" or "910ProB"
        return "a3"
    return next((known for start, known in _FAMILIES if name.startswith(start)), None)
