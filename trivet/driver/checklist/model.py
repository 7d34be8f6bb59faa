"""Checks of a model against the NPUs: does it fit, is it whole, can the chip run it. Made where one was named."""

from __future__ import annotations

from functools import partial

from trivet.base.units import format_bytes
from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, unread, warning
from trivet.driver.facts import HostFacts
from trivet.driver.installed import chips, family
from trivet.driver.need import Need
from trivet.driver.pinning import hdk_version
from trivet.driver.versions import version_key

_here = partial(check, layer="model")
# The least that is worth having for the KV cache of all chips together.
_LEAST_KV = 1 << 30
_WITHOUT_BFLOAT16 = ("310", "310p", "910a")
_LATENT_HEADS = (32, 64, 128)
_STREAMS = {"310p": 992, "910a": 2016, "a5": 2048}
_USUAL_SIZES = 67  # that vLLM captures by itself, up to 512 tokens: 1, 2, 4, then every eighth


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


@_here("MDL003", "error", source="safetensors: the header says where each tensor ends")
def shards_cut(facts: HostFacts, need: Need) -> Judgement:
    if need.shape is None:
        return not_asked("no model was named")
    if not need.shape.cut_shards:
        return passed("every safetensors file is as long as its header says")
    return failed(
        "{count} files end before their last tensor: {first}",
        "download the model again; huggingface-cli and modelscope continue where they stopped",
        count=len(need.shape.cut_shards), first=need.shape.cut_shards[0],
    )  # fmt: skip


@_here("MDL004", "error", source="platform files of the CANN runtime: bfloat16 by SoC", needs=("chip_not_known",))
def dtype_not_supported(facts: HostFacts, need: Need) -> Judgement:
    kind, dtype = family(facts), need.shape.dtype if need.shape else None
    if dtype is None:
        return not_asked("no model was named, or its files do not say its dtype")
    if dtype != "bfloat16" or kind not in _WITHOUT_BFLOAT16:
        return passed("{family} computes in {dtype}", family=(kind or "?").upper(), dtype=dtype)
    return failed(
        "the model is in bfloat16, which a {family} does not compute in",
        "vllm serve MODEL --dtype float16 --enforce-eager",
        family=kind.upper(),
    )


@_here("MDL005", "error", source="vLLM: heads are split evenly; vllm-ascend FAQ: MLA in graph mode takes 32, 64 or 128")
def heads_indivisible(facts: HostFacts, need: Need) -> Judgement:
    ways, heads = need.tensor_parallel, need.shape.num_heads if need.shape else None
    if ways is None or heads is None:
        return not_asked("heads over NPUs: --model MODEL --tensor-parallel N asks")
    if heads % ways:
        return failed(
            "{heads} heads do not divide over {ways} NPUs",
            "--tensor-parallel-size {fewer}",
            heads=heads, ways=ways, fewer=max(n for n in range(1, ways) if heads % n == 0),
        )  # fmt: skip
    if need.shape is not None and need.shape.is_latent and heads // ways not in _LATENT_HEADS:
        return warning(
            "{own} heads of latent attention on each NPU: in graph mode 32, 64 or 128 work",
            "another --tensor-parallel-size, or --enforce-eager",
            own=heads // ways,
        )
    return passed("{heads} heads over {ways} NPUs", heads=heads, ways=ways)


@_here("MDL006", "note", source="vllm-ascend docs, quantisation: quant_model_description.json", needs=("npu_absent",))
def quantisation_by_option(facts: HostFacts, need: Need) -> Judgement:
    if need.shape is None or need.shape.quantisation != "ascend":
        return not_asked("no model was named, or msmodelslim did not quantise it")
    return note(
        "the model is quantised by msmodelslim: vLLM must be told, or it loads nonsense",
        "vllm serve MODEL --quantization ascend",
    )


@_here("MDL007", "warning", source="platform files of the CANN runtime: FP8 by SoC; vllm-ascend issues on AWQ and GPTQ",
       needs=("chip_not_known",))  # fmt: skip
def quantisation_not_supported(facts: HostFacts, need: Need) -> Judgement:
    kind, method = family(facts), need.shape.quantisation if need.shape else None
    if method is None or method == "ascend":
        return not_asked("no model was named, or its config.json names no quantisation")
    values = {"method": method, "family": (kind or "?").upper()}
    if "fp8" in method and kind != "a5":
        return warning(
            "the model is quantised with {method}, and a {family} has no FP8 units",
            "take the unquantised weights, or have msmodelslim quantise them (W8A8)",
            **values,
        )
    if method in ("awq", "gptq", "bitsandbytes", "compressed-tensors"):
        return note("the model is quantised with {method}: whether this release runs it on a {family}, its documents "
                    "say", "take the unquantised weights where it answers nonsense", **values)  # fmt: skip
    return passed("the model is quantised with {method}", **values)


@_here("MDL008", "warning", source="vllm-ascend issues: MoeGatingTopKSoftmax on 310P", needs=("chip_not_known",))
def experts_not_supported(facts: HostFacts, need: Need) -> Judgement:
    kind, experts = family(facts), need.shape.num_experts if need.shape else None
    if experts is None:
        return not_asked("no model was named, or it has no experts")
    if kind not in ("310p", "310", "310b"):
        return passed("{count} experts, and operators for them are known on {family}", count=experts,
                      family=(kind or "?").upper())  # fmt: skip
    return warning(
        "the model has {count} experts, and the operator that chooses among them had no kernel for a {family}",
        "a dense model, or a release whose documents name this model for the chip",
        count=experts, family=kind.upper(),
    )  # fmt: skip


@_here("MDL009", "note", source="vllm-ascend FAQ: streams of graphs; platform files of the CANN runtime",
       needs=("chip_not_known",))  # fmt: skip
def graph_streams_few(facts: HostFacts, need: Need) -> Judgement:
    layers, streams = need.shape.num_layers if need.shape else None, _streams(facts)
    if layers is None:
        return not_asked("no model was named, or its files do not say how many layers it has")
    if streams is None:
        return unread("how many streams the chip has")
    values = {"layers": layers, "streams": streams, "sizes": streams // (layers + 1)}
    if values["sizes"] >= _USUAL_SIZES:
        return passed("{streams} streams take graphs of {sizes} sizes with {layers} layers", **values)
    return note(
        "{streams} streams take graphs of about {sizes} sizes with {layers} layers, less what else runs on the card",
        '--compilation-config \'{{"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}}\'  # at 207008 or "alloc sq cq fail"',
        **values,
    )


def _streams(facts: HostFacts) -> int | None:
    """Of one chip. Before HDK 25.5.1 an A2 or A3 had some 2,000, from there on 32,768."""
    kind, hdk = family(facts), hdk_version(facts)
    if kind in _STREAMS:
        return _STREAMS[kind]
    if kind not in ("a2", "a3") or hdk is None:
        return None
    return 32768 if version_key(hdk) >= version_key("25.5.1") else 2048
