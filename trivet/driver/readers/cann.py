"""Reads every CANN and NNAL that a variable leads to or that lies where the installers put it, from its files."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trivet.driver.readers.captured import Captured
from trivet.driver.readers.files import exists, is_live, list_names, locate, read_head, read_text, resolved
from trivet.driver.readers.version_files import DEFAULT_PATH, inner_version, inner_versions, properties, version
from trivet.driver.stack_facts import Cann, Nnal

# Each holds one path, or several with colons between. The first that leads to a CANN is the one that is sourced.
_VARIABLES = (
    *("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH", "TOOLCHAIN_HOME"),
    *("LD_LIBRARY_PATH", "PYTHONPATH", "PATH"),
)
# The layouts up to CANN 8.3 and from 8.5 on. A folder that is only called "cann" may hold anything.
_CANN = re.compile(r"(/(?:[^/]+/)*?(?:(?:ascend-toolkit|nnae|nnrt)/[^/]+|cann-\d[^/]*|Ascend/cann))(?:/.*)?")
_NNAL = re.compile(r"(/(?:[^/]+/)*?nnal/atb/[^/]+)(?:/.*)?")
_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
_RECORDS = ("ascend_toolkit_install.info", "ascend_all_cann_install.info", "ascend_nnae_install.info",
            "ascend_nnrt_install.info")  # fmt: skip
_ARCHITECTURES = ("aarch64", "x86_64")
# e_machine in the header of an ELF file (ELF specification).
_MACHINES = {62: "x86_64", 183: "aarch64"}


def read_cann(root: Path, captured: Captured, environment: dict[str, str] | None) -> tuple[Cann, ...]:
    """Each CANN once, the one that the environment leads to first; what it leads to may not exist."""
    return tuple(
        _cann(root, captured, real, written, found_by)
        for real, (written, found_by) in _places(root, _CANN, _VARIABLES, environment, _installed(root)).items()
    )


def cann_of(record: dict[str, str]) -> Cann:
    """What the record of an installer says by itself."""
    return Cann(
        root=re.sub(r"/\w+-linux/?$", "", record.get("path", "")),
        exists=bool(record),
        found_by=(),
        package=record.get("package_name") or None,
        version=version(record.get("version")),
        inner_version=inner_version(record.get("innerversion")),
        compatible_versions=inner_versions(record.get("compatible_version")),
        architecture=record.get("arch") or None,
        components=None,
        kernels=None,
        library_architecture=None,
        python_tags=None,
        mode=None,
        uid=None,
    )


def components_of(text: str | None) -> dict[str, str] | None:
    """What runs of each part, from `toolkit_running_version=[7.5.0.1.129:8.0.RC3]` in a version.cfg."""
    rows = re.findall(r"^(\w+)_running_version=\[[^:\]\n]*:([\w.]+)\]", text or "", re.MULTILINE | re.ASCII)
    return dict(rows) or None


def read_nnal(root: Path, environment: dict[str, str] | None) -> tuple[Nnal, ...]:
    variables = ("ATB_HOME_PATH", "LD_LIBRARY_PATH")
    installed = [place for place in (f"{DEFAULT_PATH}/nnal/atb/latest",) if exists(root, place)]
    places = _places(root, _NNAL, variables, environment, installed)
    chosen = re.search(r"/cxx_abi_([01])/?$", (environment or {}).get("ATB_HOME_PATH", ""))
    return tuple(
        Nnal(
            root=real,
            exists=exists(root, real),
            found_by=found_by,
            version=_nnal_version(root, real),
            cxx_abis=_abis(root, real),
            chosen_cxx_abi=int(chosen[1]) if chosen and "ATB_HOME_PATH" in found_by else None,
        )
        for real, (_, found_by) in places.items()
    )


def _installed(root: Path) -> list[str]:
    """Where the installers put it, for root and, in a user's own folder, for others. Newest layout first."""
    places = []
    for base in (DEFAULT_PATH, *(f"/home/{user}/Ascend" for user in list_names(root, "/home", r"[\w.-]+") or ())):
        versions = list_names(root, base, r"cann-\d[\w.]*") or ()
        older = list_names(root, f"{base}/ascend-toolkit", r"(?:\d[\w.]*|latest)") or ()
        places += [f"{base}/{name}" for name in ("cann", *versions)]
        places += [f"{base}/ascend-toolkit/{name}" for name in older]
        places += [f"{base}/{name}/latest" for name in ("nnae", "nnrt")]
    return [place for place in places if exists(root, place)]


def _places(
    root: Path,
    pattern: re.Pattern[str],
    variables: tuple[str, ...],
    environment: dict[str, str] | None,
    installed: list[str],
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each root without links: how it was written first, and what led to it."""
    places: dict[str, tuple[str, tuple[str, ...]]] = {}
    named = [(variable, path) for variable in variables for path in (environment or {}).get(variable, "").split(":")]
    for source, path in (*named, *((place, place) for place in installed)):
        match = pattern.fullmatch(path)
        if match is None:
            continue
        written = match[1]
        real = _real(root, written)
        first, found_by = places.get(real, (written, ()))
        places[real] = first, tuple(dict.fromkeys((*found_by, source)))
    return places


def _real(root: Path, written: str) -> str:
    """Without links. The folder "latest" of CANN 8 is real, and only its parts are links, so the record is followed."""
    record = next((path for path in _records(written) if exists(root, path)), None)
    real = resolved(root, record) if record is not None else None
    if real is not None:
        folder = PurePosixPath(real).parent
        return str(folder.parent if folder.name.endswith("-linux") else folder)
    return resolved(root, written) or str(PurePosixPath(written))


def _records(folder: str) -> Iterator[str]:
    for name in _RECORDS:
        yield from (f"{folder}/{architecture}-linux/{name}" for architecture in _ARCHITECTURES)
        yield f"{folder}/{name}"


def _cann(root: Path, captured: Captured, real: str, written: str, found_by: tuple[str, ...]) -> Cann:
    texts = (read_text(root, path) for path in _records(real))
    record = next((values for text in texts if (values := properties(text)) is not None), {})
    mode, uid = _owner(root, captured, real)
    return replace(
        cann_of(record),
        root=real,
        exists=exists(root, real),
        found_by=found_by,
        components=components_of(read_text(root, f"{written}/version.cfg") or read_text(root, f"{real}/version.cfg")),
        kernels=_kernels(root, real),
        library_architecture=_machine(read_head(root, f"{real}/lib64/libascendcl.so", 20)),
        python_tags=_python_tags(root, real),
        mode=mode,
        uid=uid,
    )


def _kernels(root: Path, real: str) -> tuple[str, ...] | None:
    names = list_names(root, f"{real}/{_KERNELS}", r"ascend\w+")
    if names is None and exists(root, f"{real}/opp"):
        return ()
    return names


def _machine(head: bytes | None) -> str | None:
    if head is None or len(head) < 20 or head[:4] != b"\x7fELF" or head[5] != 1:  # 1 is little-endian
        return None
    return _MACHINES.get(struct.unpack_from("<H", head, 18)[0])


def _python_tags(root: Path, real: str) -> tuple[str, ...] | None:
    """For which Pythons its compiled modules are, as far as their names say."""
    base = f"{real}/python/site-packages"
    folders = list_names(root, base, r"\w+")
    if folders is None:
        return None
    modules = r".+\.(?:cpython|abi)[\w-]*\.so"
    names = [name for folder in ("", *folders) for name in list_names(root, f"{base}/{folder}", modules) or ()]
    return tuple(sorted({match[1] for name in names if (match := re.search(r"\.((?:cpython-\d+|abi3))", name))}))


def _owner(root: Path, captured: Captured, real: str) -> tuple[int | None, int | None]:
    if not is_live(root):
        kept = captured.modes.get(real)
        return (kept.mode, kept.uid) if kept else (None, None)
    place = locate(root, real)
    try:
        status = place.stat() if place is not None else None
    except OSError:
        status = None
    return (status.st_mode & 0o7777, status.st_uid) if status else (None, None)


def _nnal_version(root: Path, real: str) -> str | None:
    match = re.search(
        r"^\s*Ascend-cann-atb\s*:\s*(\S+)\s*$", read_text(root, f"{real}/version.info") or "", re.MULTILINE
    )
    return version(match[1]) if match else None


def _abis(root: Path, real: str) -> tuple[int, ...] | None:
    names = list_names(root, f"{real}/atb", r"cxx_abi_[01]")
    return None if names is None else tuple(int(name[-1]) for name in names)
