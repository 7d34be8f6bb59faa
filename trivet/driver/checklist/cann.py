"""Checks of the operator layer: CANN and NNAL as they lie on the disk and as the environment leads to them."""

from __future__ import annotations

from functools import partial

from trivet.driver.check import Judgement, check, failed, not_asked, note, passed, unknown, unread, warning
from trivet.driver.facts import HostFacts
from trivet.driver.installed import (
    KERNELS,
    cann,
    canns,
    environment,
    family,
    is_sourced,
    package,
    packages_are_known,
)
from trivet.driver.matrix import Row, drivers_of, rows_of, takes
from trivet.driver.matrix import rows as matrix_rows
from trivet.driver.need import Need
from trivet.driver.pinning import hdk_version
from trivet.driver.versions import cann_fits, matches, version_key

_INSTALL_GUIDE = "CANN installation guide"
_RECORDS = "ascend_toolkit_install.info and version.info on the host; else data/versions.csv"
_HOMES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
# What CANN's own Python imports. Source: the CANN installation guide.
_NEEDED_PACKAGES = ("attrs", "cffi", "decorator", "numpy", "protobuf", "psutil", "pyyaml", "scipy", "sympy")
_here = partial(check, layer="operator")
# Branches of CANN that say they take NumPy 2 are not known; torch_npu and TBE before 9.0 fail with it.
_NUMPY_LIMIT = "2.0"


@_here("OPR001", "block", source=_INSTALL_GUIDE, needs=("npu_absent",))
def cann_missing(facts: HostFacts, need: Need) -> Judgement:
    if facts.stack is None:
        return unread("what is installed")
    there = canns(facts)
    if there:
        found = ", ".join(f"{each.version or '?'} ({each.root})" for each in there)
        return passed("CANN {found}", found=found)
    if not facts.stack.cann and all(each is None for each in facts.stack.present.values()):
        return unread("/usr/local/Ascend")  # of a host that was captured without it
    led = [each.root for each in facts.stack.cann]
    return failed(
        "no CANN is installed; variables lead to: {led}",
        "sudo ./Ascend-cann-toolkit_<version>_linux-<arch>.run --install, and the ops or kernels package of the chip",
        "or take an image that has it: quay.io/ascend/cann",
        led=", ".join(led) or "nothing",
    )


@_here("OPR002", "block", source=f"{_INSTALL_GUIDE}: set_env.sh", needs=("cann_missing",))
def cann_not_sourced(facts: HostFacts, need: Need) -> Judgement:
    variables, there = environment(facts), canns(facts)
    if variables is None:
        return unread("the environment")
    sourced = [each for each in there if is_sourced(each)]
    if not sourced and any(variables.get(name) for name in _HOMES):
        return unknown("variables name a CANN, and whether it is the one that is installed could not be read")
    if not sourced:
        return failed(
            "CANN {version} is installed, and no variable leads to it",
            "source {root}/set_env.sh  # in the shell, the unit or the entry point that starts the server",
            version=there[0].version or "?", root=there[0].root,
        )  # fmt: skip
    unset = [name for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH") if not variables.get(name)]
    if unset:
        return failed(
            "CANN {version} is sourced in part: {unset} are not set",
            "source {root}/set_env.sh  # in a clean shell",
            version=sourced[0].version or "?", unset=", ".join(unset), root=sourced[0].root,
        )  # fmt: skip
    return passed("the variables lead to CANN {version}", version=sourced[0].version or "?")


@_here("OPR003", "error", source="CANN runtime FAQ: Runtime and CANN versions differ", needs=("cann_not_sourced",))
def two_canns(facts: HostFacts, need: Need) -> Judgement:
    led = [each for each in (facts.stack.cann if facts.stack else ()) if is_sourced(each)]
    if len(led) == 1:
        return passed("every variable leads to the same CANN, {root}", root=led[0].root)
    places = "; ".join(
        f"{each.version or '?'} {each.root} ({', '.join(name for name in each.found_by if '/' not in name)})"
        for each in led
    )
    return failed(
        "the variables lead to {count} CANNs: {places}",
        "env -i HOME=$HOME TERM=$TERM bash --noprofile --norc; source {root}/set_env.sh  # once, then start the server",
        "grep -n set_env.sh ~/.bashrc /etc/profile /etc/profile.d/*  # who sources the other",
        count=len(led), places=places, root=led[0].root,
    )  # fmt: skip


@_here("OPR004", "warning", source="version.cfg of CANN 6.0 to 8.0", needs=("cann_missing",))
def cann_parts_differ(facts: HostFacts, need: Need) -> Judgement:
    own = cann(facts)
    if own is None or own.version is None:
        return unread("the version of CANN")
    if not own.components:
        if version_key(own.version) >= version_key("8.5"):
            return not_asked("from 8.5 on no file lists the versions of CANN's parts")
        return unread("the versions of CANN's parts in version.cfg")
    other = {name: version for name, version in own.components.items() if not matches(version, own.version)}
    if not other:
        return passed("all {count} parts of CANN are {version}", count=len(own.components), version=own.version)
    return warning(
        "CANN is {version}, and of its parts: {other}",
        "install toolkit, kernels and NNAL of one release again; an upgrade stopped half way",
        version=own.version, other=", ".join(f"{name} {version}" for name, version in other.items()),
    )  # fmt: skip


@_here("OPR005", "block", source="ELF header of libascendcl.so; uname -m", needs=("cann_missing",))
def cann_of_another_architecture(facts: HostFacts, need: Need) -> Judgement:
    own = cann(facts)
    built = (own.library_architecture or own.architecture) if own else None
    if built is None or facts.architecture is None:
        return unread("the architecture of CANN or of the host")
    if built == facts.architecture:
        return passed("CANN is for {architecture}", architecture=built)
    return failed(
        "CANN is for {built}, and the host is {architecture}",
        "sudo ./Ascend-cann-toolkit_<version>_linux-{architecture}.run --install",
        built=built, architecture=facts.architecture,
    )  # fmt: skip


@_here("OPR006", "error", source=_RECORDS, needs=("cann_missing", "driver_version_unreadable"))
def cann_does_not_fit_driver(facts: HostFacts, need: Need) -> Judgement:
    own, driver = cann(facts), facts.stack.driver if facts.stack else None
    if own is None:
        return unknown("which of several CANNs is in use is not known")
    told = hdk_version(facts)
    values: dict[str, object] = {"cann": own.version or "?", "driver": told or "?"}
    fits = cann_fits(driver, own)
    if fits is True:
        return passed("CANN {cann} and driver {driver} go together, by their own files", **values)
    wanted = drivers_of(own.version) if own.version else ()
    values["wanted"] = ", ".join(wanted)
    remedy = ("upgrade driver and firmware to one of: {wanted}" if wanted else "upgrade driver and firmware",
              "or install a CANN that this driver names in its version.info")  # fmt: skip
    if fits is False:
        return failed("neither file of CANN {cann} and driver {driver} names the other", *remedy, **values)
    if not wanted or told is None:
        return unknown("no file and no table says whether CANN {cann} and driver {driver} go together", **values)
    if takes("|".join(wanted), told):
        return passed("CANN {cann} and driver {driver} are released together, by the table", **values)
    is_whole = any(row.relation == "compatible-set" for row in rows_of("cann", own.version or ""))
    judge = warning if is_whole else note  # one row names what was tested together, not all that works
    return judge("the table names other drivers than {driver} for CANN {cann}: {wanted}", *remedy, **values)


@_here("OPR007", "block", source="opp/built-in/op_impl/ai_core/tbe/kernel of CANN", needs=("cann_missing",))
def kernels_missing(facts: HostFacts, need: Need) -> Judgement:
    own, kind = cann(facts), family(facts)
    if own is None or own.kernels is None:
        return unread("for which chips CANN has kernels")
    folder = KERNELS.get(kind or "")
    if folder is None:
        return unknown(
            "CANN has kernels for {kernels}, and the chip is not known", kernels=", ".join(own.kernels) or "none"
        )
    if folder in own.kernels:
        return passed("CANN has the kernels of {folder}", folder=folder)
    return failed(
        "CANN {version} has no kernels for {folder}; it has: {kernels}",
        "sudo ./Ascend-cann-kernels-<chip>_<version>_linux-<arch>.run --install  # from 8.5 on: Ascend-cann-<chip>-ops",
        "or take the image of this chip: its tag names 910b, a3 or 310p",
        version=own.version or "?", folder=folder, kernels=", ".join(own.kernels) or "none",
    )  # fmt: skip


@_here("OPR008", "error", source="vllm-ascend docs, installation: NNAL", needs=("cann_not_sourced",))
def nnal_missing(facts: HostFacts, need: Need) -> Judgement:
    there = [each for each in (facts.stack.nnal if facts.stack else ()) if each.exists]
    if package(facts, "vllm-ascend") is None and not there:
        return not_asked("neither NNAL nor vllm-ascend, which needs it, is installed")
    if not there:
        return failed(
            "vllm-ascend is installed, and NNAL (ATB) is not",
            "sudo ./Ascend-cann-nnal_<version>_linux-<arch>.run --install",
            "source /usr/local/Ascend/nnal/atb/set_env.sh",
        )
    own, nnal = cann(facts), there[0]
    if nnal.version and own and own.version and not matches(nnal.version, own.version):
        return failed(
            "NNAL is {nnal}, and CANN is {cann}",
            "sudo ./Ascend-cann-nnal_{cann}_linux-<arch>.run --install",
            nnal=nnal.version, cann=own.version,
        )  # fmt: skip
    if "ATB_HOME_PATH" not in (environment(facts) or {}):
        return failed("NNAL is installed and not sourced", "source /usr/local/Ascend/nnal/atb/set_env.sh")
    return passed("NNAL {version} is sourced", version=nnal.version or "?")


@_here("OPR009", "error", source="nnal/atb/set_env.sh: cxx_abi", needs=("nnal_missing",))
def nnal_of_another_abi(facts: HostFacts, need: Need) -> Judgement:
    nnal = next((each for each in (facts.stack.nnal if facts.stack else ()) if each.exists), None)
    abi = facts.stack.python.torch_cxx11_abi if facts.stack and facts.stack.python else None
    if nnal is None or nnal.chosen_cxx_abi is None or abi is None:
        return unread("the C++ ABI of NNAL or of torch")
    if nnal.chosen_cxx_abi == int(abi):
        return passed("NNAL and torch have the C++ ABI {abi}", abi=int(abi))
    return failed(
        "NNAL is sourced with the C++ ABI {nnal}, and torch has {abi}",
        "source /usr/local/Ascend/nnal/atb/set_env.sh --cxx_abi={abi}",
        nnal=nnal.chosen_cxx_abi, abi=int(abi),
    )  # fmt: skip


@_here("OPR010", "error", source=f"{_INSTALL_GUIDE}: Python packages", needs=("cann_missing",))
def python_packages_missing(facts: HostFacts, need: Need) -> Judgement:
    if not packages_are_known(facts):
        return unread("the packages of the serving interpreter")
    if package(facts, "torch-npu") is None and package(facts, "mindspore") is None:
        return not_asked("neither torch_npu nor MindSpore is installed in this interpreter")
    missing = [name for name in _NEEDED_PACKAGES if package(facts, name) is None]
    if not missing:
        return passed("the interpreter has the {count} packages that CANN imports", count=len(_NEEDED_PACKAGES))
    return failed(
        "CANN imports {missing}, which this interpreter does not have",
        "pip install {missing_words}",
        missing=", ".join(missing), missing_words=" ".join(missing),
    )  # fmt: skip


@_here("OPR011", "error", source="vllm-ascend and torch_npu issues with NumPy 2: TBE does not initialise",
       needs=("cann_missing",))  # fmt: skip
def numpy_too_new(facts: HostFacts, need: Need) -> Judgement:
    version, own = package(facts, "numpy"), cann(facts)
    if package(facts, "torch-npu") is None:
        return not_asked("torch_npu is not installed in this interpreter")
    if version is None:
        return unread("the version of NumPy")
    if version_key(version) < version_key(_NUMPY_LIMIT):
        return passed("NumPy {version}", version=version)
    if own is None or own.version is None or version_key(own.version) >= version_key("9.0"):
        return unknown("NumPy {version}; whether this CANN takes it is not known here", version=version)
    return failed("NumPy is {version}, and CANN {cann} takes 1.x", "pip install 'numpy<2'",
                  version=version, cann=own.version)  # fmt: skip


@_here("OPR012", "warning", source="CANN runtime docs: environment variables", needs=("npu_absent",))
def debugging_on(facts: HostFacts, need: Need) -> Judgement:
    variables = environment(facts)
    if variables is None:
        return unread("the environment")
    slow = {
        name: variables[name]
        for name, is_slow in (
            ("ASCEND_LAUNCH_BLOCKING", lambda text: text == "1"),
            ("ASCEND_GLOBAL_LOG_LEVEL", lambda text: text in ("0", "1", "2")),
            ("ASCEND_SLOG_PRINT_TO_STDOUT", lambda text: text == "1"),
            ("PROFILING_MODE", lambda text: text.lower() == "true"),
        )
        if name in variables and is_slow(variables[name])
    }
    if not slow:
        return passed("no variable slows CANN down for debugging")
    return warning(
        "set for debugging, and slow: {settings}",
        "unset {names}",
        settings=", ".join(f"{name}={value}" for name, value in slow.items()), names=" ".join(slow),
    )  # fmt: skip


@_here("OPR013", "warning", source=f"{_INSTALL_GUIDE}: owners and modes", needs=("cann_missing",))
def cann_writable_by_others(facts: HostFacts, need: Need) -> Judgement:
    own, uid = cann(facts), facts.process.uid if facts.process else None
    if own is None or own.mode is None or own.uid is None:
        return unread("owner and mode of CANN")
    if own.mode & 0o022:
        return warning(
            "{root} has mode {mode:04o}: others may write what this process loads",
            "sudo chmod -R go-w {root}", root=own.root, mode=own.mode,
        )  # fmt: skip
    if uid is not None and own.uid not in (0, uid):
        return note(
            "{root} belongs to user {owner}, who is neither root nor this process", root=own.root, owner=own.uid
        )
    return passed("{root} belongs to user {owner}, mode {mode:04o}", root=own.root, owner=own.uid, mode=own.mode)


@_here("OPR014", "error", source="COMPATIBILITY of Ascend/pytorch; versioning policy of vllm-ascend",
       needs=("cann_missing",))  # fmt: skip
def torch_npu_does_not_fit_cann(facts: HostFacts, need: Need) -> Judgement:
    torch_npu, own = package(facts, "torch-npu"), cann(facts)
    if torch_npu is None:
        return not_asked("torch_npu is not installed in this interpreter")
    if own is None or own.version is None:
        return unread("the version of CANN")
    own_rows = rows_of("torch-npu", torch_npu)
    rows = [*own_rows, *(row for row in _rows_of_vllm(torch_npu) if row.cann)]
    values = {"torch_npu": torch_npu, "cann": own.version, "wanted": ", ".join(dict.fromkeys(row.cann for row in rows))}
    if not rows:
        return unknown("the table does not know torch_npu {torch_npu}", **values)
    if any(takes(row.cann, own.version) for row in rows):
        return passed("torch_npu {torch_npu} and CANN {cann} are released together, by the table", **values)
    fault = failed if own_rows and version_key(own.version) < min(version_key(row.cann) for row in rows) else warning
    return fault(
        "torch_npu {torch_npu} goes with CANN {wanted}, and CANN is {cann}",
        "install CANN {wanted}, or the torch_npu of this CANN: trivet doctor --want cann=={cann}",
        **values,
    )


def _rows_of_vllm(torch_npu: str) -> list[Row]:
    """Rows of vllm-ascend that name this torch_npu: the two documents differ in places, and either is enough."""
    return [row for row in matrix_rows() if row.component == "vllm-ascend" and matches(torch_npu, row.torch_npu)]


@_here("OPR015", "error", source="names of the compiled Python modules of CANN", needs=("cann_missing",))
def cann_of_another_python(facts: HostFacts, need: Need) -> Judgement:
    own = cann(facts)
    python = facts.stack.python.version if facts.stack and facts.stack.python else None
    tags = own.python_tags if own else None
    if not tags or python is None:
        return unknown("for which Python CANN's modules were compiled could not be read")
    tag = "cpython-" + "".join(python.split(".")[:2])
    if "abi3" in tags or tag in tags:
        return passed("CANN has modules for Python {python}", python=python)
    return failed(
        "CANN's modules are for {tags}, and Python is {python}",
        "serve with that Python, or install CANN with this one first on PATH",
        tags=", ".join(tags), python=python,
    )  # fmt: skip
