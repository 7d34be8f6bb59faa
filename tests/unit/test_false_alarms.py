"""What people posted of their hosts: the doctor finds what is wrong there, and of the others nothing."""

from pathlib import Path

import pytest

from trivet.driver.checks import examine
from trivet.driver.need import Need
from trivet.driver.readers.pasted_host import read_pasted_host

OUTPUTS = Path(__file__).parents[1] / "fixtures" / "outputs"
RUNTIME = "variable_of_the_container_runtime"

# By the number in the file's name; what is not here has nothing wrong.
ALARMS = {
    "015": {"npu_unhealthy"}, "017": {"memory_held_unseen"}, "032": {"npu_unhealthy"}, "034": {"npu_unhealthy"},
    "045": {"npu_node_unknown"},  # lspci does not say
    "062": {"chip_not_known"},  # the vendor's example, whose chip is called xxx
    "079": {"npu_fault_codes", "npu_unhealthy"},  # asys alone
    "collect-env-02": {"vllm_stack_differs"}, "collect-env-04": {RUNTIME, "vllm_stack_differs"},
    "collect-env-05": {RUNTIME, "torch_npu_does_not_fit_cann", "cuda_left_over"},
    "collect-env-12": {RUNTIME, "torch_npu_does_not_fit_cann"}, "collect-env-13": {RUNTIME},
    "collect-env-17": {"npu_unhealthy"}, "collect-env-19": {"memory_held_unseen"},
}  # fmt: skip
NAMES = sorted(path.stem for path in OUTPUTS.glob("*.txt"))


def number(name: str) -> str:
    return name[:14] if name.startswith("collect-env") else name[:3]


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_wrong_is_found_wrong(name):
    findings = examine(read_pasted_host((OUTPUTS / f"{name}.txt").read_text()), Need())
    wrong = {each.name for each in findings if each.outcome in ("failed", "warning")}

    assert ALARMS.get(number(name), set()) == wrong


def test_every_alarm_is_of_an_output_that_is_there():
    assert ALARMS.keys() <= {number(name) for name in NAMES}
