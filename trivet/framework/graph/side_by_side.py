"""A bound plan made fit for two steps at once: one of decodes and one of prefill, each on cores of its own.

They share the weights and the KV pool; a step of decodes has activations of its own. It decides nothing of which run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivet._native import Team
from trivet.base.errors import ResourceError
from trivet.framework.graph.cpu_plan import CpuPlan
from trivet.framework.graph.plan import Plan, decode_limits


@dataclass(frozen=True)
class SideBySide:
    """`decodes` and `prefills` may run at once. Neither while the plan runs that they were made of: it has all cores,
    and the activations of `prefills`."""

    decodes: CpuPlan
    prefills: CpuPlan
    decode_cpus: tuple[int | None, ...]  # None: wherever the kernel puts the thread
    prefill_cpus: tuple[int | None, ...]

    @property
    def activation_bytes(self) -> int:
        """What is reserved beside the memory of the plan that they were made of."""
        return self.decodes.activation_bytes

    def close(self) -> None:
        """Give that memory back; neither can run after it, and the plan that they were made of can be closed."""
        self.prefills.forget()
        self.decodes.close()


def side_by_side(plan: Plan, cpus: Sequence[int | None], num_decode_cpus: int) -> SideBySide:
    """Decodes on the first `num_decode_cpus` of the cores that `plan` runs on, prefill on the others.

    Raises ResourceError where there are not two cores, or the device has no cores to share out.
    """
    if (reason := refusal(plan, len(cpus))) is not None:
        raise ResourceError(f"--lanes 2: {reason}", "--lanes 1")
    assert isinstance(plan, CpuPlan) and 0 < num_decode_cpus < len(cpus), "a lane without a core"
    decode_cpus, prefill_cpus = tuple(cpus[:num_decode_cpus]), tuple(cpus[num_decode_cpus:])
    return SideBySide(
        plan.beside(Team(list(decode_cpus)), decode_limits(plan.limits)),
        plan.on(Team(list(prefill_cpus))),
        decode_cpus,
        prefill_cpus,
    )


def refusal(plan: Plan, num_cpus: int) -> str | None:
    """Why no step of `plan` can run beside another; None where it can."""
    if not isinstance(plan, CpuPlan):
        return "only a CPU's cores are shared out between lanes, and this device is none"
    if num_cpus < 2:
        return "there is one thread, and each lane needs one of its own"
    if plan.limits.max_sequences < 2:
        return "one sequence runs at a time (--max-sequences), so no decode waits for prefill"
    return None
