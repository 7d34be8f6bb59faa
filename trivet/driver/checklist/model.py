"""Checks of a model against the NPUs: do its weights fit, is it whole. They are made only where a model was named."""

from __future__ import annotations

from functools import partial

from trivet.base.units import format_bytes
from trivet.driver.check import Judgement, check, failed, not_asked, passed, unread
from trivet.driver.facts import HostFacts
from trivet.driver.installed import chips
from trivet.driver.need import Need

_here = partial(check, layer="model")
# The least that is worth having for the KV cache of all chips together.
_LEAST_KV = 1 << 30


@_here("MDL001", "block", source="the files' sizes; npu-smi info: HBM and memory", needs=("npu_smi_fails",))
def weights_exceed_npus(facts: HostFacts, need: Need) -> Judgement:
    if need.memory_bytes is None:
        return not_asked("no model was named")
    totals = [chip.hbm_total_bytes or chip.memory_total_bytes for chip in chips(facts)]
    sizes = [size for size in totals if size]
    if not sizes or len(sizes) < len(totals):
        return unread("the memory of every NPU")
    values = {"weights": format_bytes(need.memory_bytes), "total": format_bytes(sum(sizes)), "count": len(sizes)}
    if need.memory_bytes + _LEAST_KV <= sum(sizes):
        return passed("the weights take {weights} of the {total} of {count} chips", **values)
    return failed(
        "the weights take {weights}, and {count} chips have {total}: nothing is left for the KV cache",
        "more NPUs, or a quantised model",
        **values,
    )


@_here("MDL002", "error", source="model.safetensors.index.json: weight_map")
def shards_missing(facts: HostFacts, need: Need) -> Judgement:
    if need.memory_bytes is None:
        return not_asked("no model was named")
    if not need.missing_shards:
        return passed("every shard that the model's index names is there")
    return failed(
        "the model's index names {count} shards that are not there: {first}",
        "download the model again; huggingface-cli and modelscope continue where they stopped",
        count=len(need.missing_shards), first=need.missing_shards[0],
    )  # fmt: skip
