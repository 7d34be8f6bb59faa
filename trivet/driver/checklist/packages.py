"""Checks of installed packages by their own files: are they whole, do they find what they ask for, what MindIE has."""

from __future__ import annotations

from functools import partial

from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, unread, warning
from trivet.driver.checklist.libraries import LOADER, OF_CANN, lacking_of, of_stack
from trivet.driver.facts import HostFacts
from trivet.driver.installed import package
from trivet.driver.need import Need
from trivet.driver.stack_facts import Mindie
from trivet.driver.versions import version_key

_here = partial(check, layer="framework", needs=("npu_absent",))
_NO_MINDIE = "MindIE is not installed"


@_here("FRM017", "error", source="Python packaging: RECORD of an installed project")
def vllm_ascend_incomplete(facts: HostFacts, need: Need) -> Judgement:
    python = facts.stack.python if facts.stack else None
    version = package(facts, "vllm-ascend")
    if version is None:
        return not_asked("vllm-ascend is not installed in this interpreter")
    if python is None or python.missing_files is None:
        return unread("the RECORD of vllm-ascend")
    if not python.missing_files:
        return passed("every file of vllm-ascend {version} is there", version=version)
    return failed(
        "files of vllm-ascend {version} are not there: {first} and {count} more, at the least",
        "{python} -m pip install --force-reinstall --no-deps vllm-ascend=={version}",
        version=version, first=python.missing_files[0], count=len(python.missing_files) - 1, python=python.executable,
    )  # fmt: skip


@_here("FRM018", "note", source="Python packaging: Requires-Dist in METADATA")
def requirements_unmet(facts: HostFacts, need: Need) -> Judgement:
    python = facts.stack.python if facts.stack else None
    if python is None or python.unmet is None:
        return unread("what the packages ask for")
    if not python.unmet:
        return passed("packages of the stack get the versions that they ask for")
    return note(
        "{count} requirements are not met: {first}",
        "{python} -m pip check  # all of them; images pin some of them on purpose",
        count=len(python.unmet), first=python.unmet[0], python=python.executable,
    )  # fmt: skip


@_here("FRM019", "warning", source="documents of MindIE: config.json of its service")
def mindie_config_unreadable(facts: HostFacts, need: Need) -> Judgement:
    mindie = _mindie(facts)
    if mindie is None:
        return not_asked(_NO_MINDIE)
    if mindie.config_fault is None:
        return passed("{file} is a configuration, or is not there", file=mindie.config_file)
    return warning(
        "{file}: {fault}",
        "python3 -m json.tool {file}  # where it breaks off",
        file=mindie.config_file, fault=mindie.config_fault,
    )  # fmt: skip


@_here("FRM020", "error", source="ATB Models: atb_llm/models")
def mindie_without_model(facts: HostFacts, need: Need) -> Judgement:
    mindie, kind = _mindie(facts), need.shape.model_type if need.shape else None
    if mindie is None:
        return not_asked(_NO_MINDIE)
    if kind is None:
        return not_asked("no model was named")
    if mindie.models is None:
        return unread("which models ATB Models has")
    if kind in mindie.models:
        return passed("MindIE {version} has the model type {kind}", version=mindie.version or "?", kind=kind)
    return failed(
        "MindIE {version} has no model type {kind}, of {count} that it has",
        "a newer MindIE, or vllm-ascend",
        version=mindie.version or "?", kind=kind, count=len(mindie.models),
    )  # fmt: skip


@_here("FRM021", "warning", source="config.json: transformers_version")
def transformers_older_than_model(facts: HostFacts, need: Need) -> Judgement:
    own, wrote = package(facts, "transformers"), need.shape.transformers if need.shape else None
    if wrote is None or own is None:
        return not_asked("no model was named, or it does not say, or transformers is not installed")
    if version_key(own)[:2] >= version_key(wrote)[:2]:
        return passed("transformers {own}; the model was written with {wrote}", own=own, wrote=wrote)
    return warning(
        "transformers {own} is older than {wrote}, which wrote the model: it may not know its architecture",
        "pip install 'transformers>={wrote}'  # as far as vLLM takes it: pip show vllm",
        own=own, wrote=wrote,
    )  # fmt: skip


@check("FRM012", "error", layer="framework", source=LOADER, needs=("cann_not_sourced",))
def package_libraries_missing(facts: HostFacts, need: Need) -> Judgement:
    if facts.stack is None or facts.stack.libraries is None:
        return unread("the libraries of the packages")
    found = [each for each in of_stack(facts) if each.owner not in OF_CANN]
    if not found:
        return not_asked("no package that needs CANN's libraries is installed in this interpreter")
    lacking = lacking_of(found)
    if not lacking:
        return passed("{count} libraries of packages find all that they need", count=len(found))
    owner = next(each.owner for each in found if each.missing)
    return failed(
        "libraries of packages that would not load: {lacking}",
        "source the set_env.sh of CANN and of NNAL, then start the server in that shell",
        "pip install --force-reinstall {owner}  # the release that fits: trivet doctor --want",
        lacking=lacking, owner=owner,
    )  # fmt: skip


def _mindie(facts: HostFacts) -> Mindie | None:
    return facts.stack.mindie if facts.stack else None
