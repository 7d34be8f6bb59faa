"""Finds what the shared libraries of the stack need and would not find, as the loader would look, without loading any.

Only on the live host: a captured tree keeps what was found in its captured.json, since no bundle carries libraries.
The order in which folders are searched is that of ld.so(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trivet.driver.readers.elf import Elf, newest, read_elf
from trivet.driver.readers.files import list_names, read_text
from trivet.driver.stack_facts import Cann, Library, Nnal, Python

_FAMILIES = ("GLIBC", "GLIBCXX", "CXXABI")
_OF_DRIVER = ("/usr/local/Ascend/driver/lib64/driver/libascend_hal.so", "/usr/local/dcmi/libdcmi.so")
_OF_CANN = ("libascendcl.so", "libhccl.so", "libge_runner.so", "libruntime.so")
# Packages with compiled parts that need CANN, of the transfer of KV cache among them: in which folder, called how.
_SO = r"[\w.-]+\.so(?:\.\d+)*"
_OF_PACKAGES = {
    "torch-npu": (("torch_npu/lib", rf"(?!libop_plugin_atb){_SO}"),),  # that one is opened only where NNAL is
    "vllm-ascend": (("vllm_ascend", _SO),),
    "mooncake-transfer-engine": (("mooncake", _SO),),
    "memfabric-hybrid": (("memfabric_hybrid/lib", _SO), ("memfabric_hybrid", _SO)),
    "lmcache-ascend": (("lmcache_ascend", _SO),),
    "mindspore": (("mindspore/lib/plugin", r"libmindspore_ascend\.so(?:\.\d+)*"),),
}
_DEFAULT = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_MAX_FILES = 400
_MAX_OF_PACKAGE = 16


@dataclass
class _Loader:
    """Where the loader looks besides a library's own path; what it was asked for is kept."""

    root: Path
    folders: tuple[str, ...]
    known: dict[str, Elf | None] = field(default_factory=dict)

    def elf(self, path: str) -> Elf | None:
        if path not in self.known:
            self.known[path] = read_elf(self.root / path.lstrip("/")) if len(self.known) < _MAX_FILES else None
        return self.known[path]

    def find(self, name: str, own: Sequence[str]) -> str | None:
        """The path of the library called `name`; None where it is in none of the folders."""
        if "/" in name:
            return name
        paths = (f"{folder}/{name}" for folder in (*own, *self.folders))
        return next((path for path in paths if (self.root / path.lstrip("/")).exists()), None)


def find_libraries(
    root: Path,
    environment: dict[str, str] | None,
    canns: Sequence[Cann],
    nnals: Sequence[Nnal],
    python: Python | None,
) -> tuple[tuple[Library, ...] | None, str | None]:
    """The stack's libraries, those of `canns` that a variable leads to; and the newest GLIBCXX of the host's libstdc++.

    None where the environment, which says where to look, is not known.
    """
    if environment is None:
        return None, None
    loader = _Loader(root, tuple(_folders(root, environment, python)))
    keys = [("driver", path) for path in _OF_DRIVER]
    keys += [("cann", f"{cann.root}/lib64/{name}") for cann in canns[:1] if _is_sourced(cann) for name in _OF_CANN]
    atb = environment.get("ATB_HOME_PATH")
    keys += [("nnal", f"{atb}/lib/libatb.so")] if atb and any(nnal.exists for nnal in nnals) else []
    keys += list(_of_packages(root, python))
    found = tuple(library for owner, path in keys if (library := _library(loader, owner, path)) is not None)
    standard = loader.find("libstdc++.so.6", ())
    elf = loader.elf(standard) if standard is not None else None
    return found, newest(elf.offers, "GLIBCXX") if elf is not None else None


def _library(loader: _Loader, owner: str, path: str) -> Library | None:
    """What it and what it needs lack; None where it is not there or no library."""
    elf = loader.elf(path)
    if elf is None:
        return None
    missing, asks = dict[str, None](), set(elf.asks)
    waiting, seen = [(path, elf)], {path}
    while waiting:
        place, each = waiting.pop()
        for name in each.needed:
            found = loader.find(name, _own(place, each))
            if found is None:
                missing[name] = None
            elif found not in seen and not found.startswith(_DEFAULT):
                seen.add(found)
                below = loader.elf(found)
                waiting += [(found, below)] if below is not None else []
                asks |= below.asks if below is not None else set()
    needs = {family: version for family in _FAMILIES if (version := newest(frozenset(asks), family)) is not None}
    return Library(path, owner, tuple(missing), needs)


def _own(path: str, elf: Elf) -> tuple[str, ...]:
    origin = str(PurePosixPath(path).parent)
    return tuple(re.sub(r"\$\{?ORIGIN\}?", lambda _: origin, each) for each in elf.search_path)


def _folders(root: Path, environment: dict[str, str], python: Python | None) -> Iterator[str]:
    """Those of the variable, those of the interpreter, which has its libraries loaded by then, and the system's."""
    yield from (path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path.startswith("/"))
    for folder in python.search_path if python is not None else ():
        yield from (f"{folder}/{name}/lib" for name in ("torch", "torch_npu", "mindspore"))
        yield from (f"{folder}/{name}" for name in list_names(root, folder, r"[\w.-]+\.libs") or ())
    if python is not None and python.executable:
        yield f"{PurePosixPath(python.executable).parent.parent}/lib"
    yield from _configured(root, "/etc/ld.so.conf", 0)
    for base in ("/lib", "/usr/lib"):
        yield from (f"{base}/{name}" for name in list_names(root, base, r"(?:x86_64|aarch64)-linux-gnu") or ())
    yield from _DEFAULT


def _configured(root: Path, file: str, depth: int) -> Iterator[str]:
    """The folders that ldconfig(8) is told of; its files include others."""
    for line in (read_text(root, file) or "").splitlines() if depth < 3 else ():
        words = line.partition("#")[0].split()
        if len(words) == 2 and words[0] == "include":
            folder, _, pattern = words[1].rpartition("/")
            expression = re.escape(pattern).replace(r"\*", ".*")
            place = folder if folder.startswith("/") else f"{PurePosixPath(file).parent}/{folder}"
            for name in list_names(root, place, expression) or ():
                yield from _configured(root, f"{place}/{name}", depth + 1)
        elif len(words) == 1 and words[0].startswith("/"):
            yield words[0]


def _of_packages(root: Path, python: Python | None) -> Iterator[tuple[str, str]]:
    for package in (python.packages if python is not None else None) or ():
        for folder, pattern in _OF_PACKAGES.get(package.name, ()):
            names = list_names(root, f"{package.location}/{folder}", pattern) or ()
            yield from ((package.name, f"{package.location}/{folder}/{name}") for name in names[:_MAX_OF_PACKAGE])


def _is_sourced(cann: Cann) -> bool:
    return cann.exists and any("/" not in each for each in cann.found_by)
