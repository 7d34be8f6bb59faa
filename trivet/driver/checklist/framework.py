"""Checks of what runs on CANN in the serving interpreter: torch, triton, vLLM, MindSpore. They import nothing."""

from __future__ import annotations

from collections import Counter
from functools import partial

from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, unknown, unread, warning
from trivet.driver.facts import HostFacts
from trivet.driver.installed import cann, environment, family, package, packages_are_known
from trivet.driver.matrix import rows_of, takes, takes_python
from trivet.driver.need import Need
from trivet.driver.versions import matches, same_release, version_key
from trivet.driver.want import changes

_POLICY = "versioning policy of vllm-ascend"
# What no other check looks at: CANN, the driver and Python have their own.
_PARTS = ("torch", "torch-npu", "triton-ascend", "vllm")
_NO_TORCH_NPU = "torch_npu is not installed in this interpreter"
_NO_VLLM_ASCEND = "vllm-ascend is not installed in this interpreter"
# What vllm-ascend's build writes down as its chip, by family: SOC_VERSION, from 0.13 on a device type.
_BUILT_FOR = {
    "a2": ("ascend910b", "_910b", "a2"), "a3": ("ascend910_93", "_910_93", "a3"),
    "310p": ("310p",), "a5": ("950", "a5"),
}  # fmt: skip
_here = partial(check, layer="framework")


@_here("FRM001", "error", source=_POLICY, needs=("npu_absent",))
def python_not_supported(facts: HostFacts, need: Need) -> Judgement:
    python = facts.stack.python if facts.stack else None
    version = package(facts, "vllm-ascend")
    if python is None or python.version is None:
        return unread("the version of the serving interpreter")
    if version is None:
        return not_asked(_NO_VLLM_ASCEND)
    rows = [row for row in rows_of("vllm-ascend", version) if row.python]
    if not rows:
        return unknown("the table does not know vllm-ascend {version}", version=version)
    if takes_python(rows[0].python, python.version):
        return passed("vllm-ascend {version} takes Python {python}", version=version, python=python.version)
    return failed(
        "vllm-ascend {version} takes Python {wanted}, and this is {python}",
        "take an image or an environment with that Python",
        version=version, wanted=rows[0].python, python=python.version,
    )  # fmt: skip


@_here("FRM002", "block", source="COMPATIBILITY of Ascend/pytorch", needs=("npu_absent",))
def torch_npu_does_not_fit_torch(facts: HostFacts, need: Need) -> Judgement:
    torch, adapter = package(facts, "torch"), package(facts, "torch-npu")
    if not packages_are_known(facts):
        return unread("the packages of the serving interpreter")
    if adapter is None:
        return not_asked(_NO_TORCH_NPU)
    if torch is not None and same_release(torch, adapter):
        return passed("torch {torch} and torch_npu {torch_npu}", torch=torch, torch_npu=adapter)
    return failed(
        "torch is {torch}, and torch_npu {torch_npu} was built for the torch of its own number",
        "pip install torch=={release}  # from the CPU index on x86: https://download.pytorch.org/whl/cpu",
        torch=torch or "not installed", torch_npu=adapter, release=".".join(adapter.split(".")[:3]),
    )  # fmt: skip


@_here("FRM003", "error", source="vllm-ascend quick start; triton-ascend installation guide", needs=("npu_absent",))
def two_tritons(facts: HostFacts, need: Need) -> Judgement:
    triton, own = package(facts, "triton"), package(facts, "triton-ascend")
    if not packages_are_known(facts):
        return unread("the packages of the serving interpreter")
    if triton and own:
        return failed(
            "triton {triton} and triton-ascend {own} are both installed, and share one folder",
            "pip uninstall -y triton triton-ascend; pip install triton-ascend=={own}",
            triton=triton, own=own,
        )  # fmt: skip
    if (triton or own) and family(facts) == "310p":
        return failed("triton is installed, and a 310P has none", "pip uninstall -y triton triton-ascend")
    if triton and package(facts, "torch-npu"):
        return warning(
            "triton {triton} is installed, which knows no NPU; triton-ascend is not",
            "pip uninstall -y triton; pip install triton-ascend",
            triton=triton,
        )
    return passed("triton-ascend is {own}, and there is no other triton", own=own or "not installed")


@_here("FRM004", "error", source=_POLICY, needs=("npu_absent",))
def vllm_stack_differs(facts: HostFacts, need: Need) -> Judgement:
    version = package(facts, "vllm-ascend")
    if version is None:
        return not_asked(_NO_VLLM_ASCEND)
    if not rows_of("vllm-ascend", version):
        return unknown("the table does not know vllm-ascend {version}", version=version)
    other = [each for each in changes(facts, "vllm-ascend", version) if each.is_other and each.what in _PARTS]
    if not other:
        return passed("what is installed is what vllm-ascend {version} was released with", version=version)
    is_wrong = any(each.what in ("vllm", "torch") for each in other)
    return (failed if is_wrong else warning)(
        "vllm-ascend {version} was released with {other}",
        "trivet doctor --want vllm-ascend=={version}",
        version=version, other=", ".join(f"{each.what} {each.wanted} (here: {each.is_now or '–'})" for each in other),
    )  # fmt: skip


@_here("FRM005", "block", source="vLLM: entry points of the group vllm.platform_plugins", needs=("npu_absent",))
def vllm_plugin_missing(facts: HostFacts, need: Need) -> Judgement:
    python = facts.stack.python if facts.stack else None
    if package(facts, "vllm") is None:
        return not_asked("vLLM is not installed in this interpreter")
    if python is None or python.platform_plugins is None:
        return unread("the entry points of vllm.platform_plugins")
    if "ascend" in python.platform_plugins:
        return passed("vLLM finds the plugin ascend")
    return failed(
        "vLLM finds the platform plugins {plugins}, and not ascend: it will not infer a device type",
        "{python} -m pip install vllm-ascend  # into the interpreter that serves",
        plugins=", ".join(python.platform_plugins) or "none", python=python.executable,
    )  # fmt: skip


@_here("FRM006", "block", source="vllm_ascend/_build_info.py; setup.py: SOC_VERSION", needs=("chip_not_known",))
def vllm_ascend_of_another_chip(facts: HostFacts, need: Need) -> Judgement:
    python = facts.stack.python if facts.stack else None
    built, kind = python.vllm_ascend_soc if python else None, family(facts)
    if package(facts, "vllm-ascend") is None and built is None:
        return not_asked(_NO_VLLM_ASCEND)
    if built is None or kind not in _BUILT_FOR:
        return unread("for which chip vllm-ascend was built")
    if any(mark in built.lower() for mark in _BUILT_FOR[kind]):
        return passed("vllm-ascend was built for {built}", built=built)
    return failed(
        "vllm-ascend was built for {built}, and the NPUs are {family}",
        "take the image of this chip: no suffix is A2, then -a3, -310p, -a5; or build with SOC_VERSION",
        built=built, family=kind.upper(),
    )  # fmt: skip


@_here("FRM007", "warning", source="vllm-ascend issues with CUDA left-overs", needs=("npu_absent",))
def cuda_left_over(facts: HostFacts, need: Need) -> Judgement:
    python, variables = facts.stack.python if facts.stack else None, environment(facts)
    if python is None or python.packages is None or variables is None:
        return unread("the packages of the serving interpreter")
    names = [each.name for each in python.packages if each.name.startswith("nvidia-") or each.name == "flash-attn"]
    torch = package(facts, "torch") or ""
    left = [*(["torch " + torch] if "+cu" in torch else []), *names[:3]]
    left += ["LD_LIBRARY_PATH"] if "cuda" in variables.get("LD_LIBRARY_PATH", "").lower() else []
    if not left:
        return passed("nothing of CUDA is installed")
    return warning(
        "CUDA is in the way: {left}",
        "pip uninstall -y torch; pip install torch --index-url https://download.pytorch.org/whl/cpu",
        left=", ".join(left),
    )


@_here("FRM008", "warning", source="transformers 4.50 asks torch 2.5.1 of some models", needs=("npu_absent",))
def transformers_too_new(facts: HostFacts, need: Need) -> Judgement:
    torch, transformers = package(facts, "torch"), package(facts, "transformers")
    if torch is None or transformers is None:
        return not_asked("torch and transformers are not both installed")
    if version_key(torch) >= version_key("2.5.1") or version_key(transformers) < version_key("4.50"):
        return passed("transformers {transformers} and torch {torch}", transformers=transformers, torch=torch)
    return warning(
        "transformers {transformers} with torch {torch}: from 4.50 on it wants 2.5.1",
        "pip install 'transformers<4.50', or a newer pair of torch and torch_npu",
        transformers=transformers, torch=torch,
    )  # fmt: skip


@_here("FRM009", "error", source="release list of mindspore-ai/docs", needs=("npu_absent",))
def mindspore_does_not_fit_cann(facts: HostFacts, need: Need) -> Judgement:
    mindspore, own = package(facts, "mindspore"), cann(facts)
    if mindspore is None:
        return not_asked("MindSpore is not installed in this interpreter")
    rows = rows_of("mindspore", mindspore)
    if not rows or own is None or own.version is None:
        return unknown("the table does not know MindSpore {version}, or CANN is not known", version=mindspore)
    wanted = ", ".join(row.cann for row in rows)
    values = {"mindspore": mindspore, "cann": own.version, "wanted": wanted}
    if any(takes(row.cann, own.version) for row in rows):
        return passed("MindSpore {mindspore} and CANN {cann} are released together, by the table", **values)
    return warning(
        "MindSpore {mindspore} was released with CANN {wanted}, and CANN is {cann}",
        "trivet doctor --want mindspore=={mindspore}",
        **values,
    )


@_here("FRM010", "note", source="vllm-ascend FAQ: VLLM_VERSION", needs=("npu_absent",))
def vllm_version_overridden(facts: HostFacts, need: Need) -> Judgement:
    variables, vllm = environment(facts), package(facts, "vllm")
    if variables is None:
        return unread("the environment")
    told = variables.get("VLLM_VERSION")
    if told is None or (vllm is not None and matches(vllm, told)):
        return passed("VLLM_VERSION does not differ from what is installed")
    return note(
        "VLLM_VERSION={told}, and vLLM is {vllm}: right only for a build from its sources",
        "unset VLLM_VERSION",
        told=told, vllm=vllm or "not installed",
    )  # fmt: skip


@_here("FRM011", "warning", source="Python documentation: sys.path; the first is imported", needs=("npu_absent",))
def package_installed_twice(facts: HostFacts, need: Need) -> Judgement:
    python = facts.stack.python if facts.stack else None
    if python is None or python.packages is None:
        return unread("the packages of the serving interpreter")
    kinds = {(each.name, each.version) for each in python.packages}
    twice = [name for name, count in Counter(name for name, _ in kinds).items() if count > 1]
    if not twice:
        return passed("no package of the stack is there in two versions")
    name = sorted(twice)[0]
    first, other = [each for each in python.packages if each.name == name][:2]
    return warning(
        "{name} is there twice: {first} in {place}, which is imported, and {other} in {hidden}",
        "{python} -m pip uninstall {name}  # until it says that there is none, then install the one that is wanted",
        name=name, first=first.version, place=first.location, other=other.version, hidden=other.location,
        python=python.executable,
    )  # fmt: skip
