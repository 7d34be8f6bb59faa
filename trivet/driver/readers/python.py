"""Reads the serving interpreter's packages from the names of their `dist-info` folders: nothing is run or imported.

Which interpreter serves is the one asked for, else this very one; in a captured tree, the one that was kept.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath

from trivet.driver.readers.captured import Captured
from trivet.driver.readers.files import is_live, list_names, read_text, resolved
from trivet.driver.readers.requirements import dist_info, read_missing_files, read_unmet
from trivet.driver.readers.version_files import properties
from trivet.driver.stack_facts import Package, Python

# What serves, what it stands on, and what CANN's own Python needs. Source: the CANN installation guide for the latter.
_PACKAGES = frozenset((
    *("torch", "torch-npu", "torchvision", "torchaudio", "torchair", "torch-atb", "triton", "triton-ascend"),
    *("vllm", "vllm-ascend", "sglang", "sgl-kernel-npu", "xllm", "lmdeploy", "dlinfer-ascend", "mindspore", "mindie"),
    *("vllm-mindspore", "mindietorch", "mindie-llm", "mindie-turbo", "msmodelslim", "transformers", "tokenizers"),
    *("accelerate", "safetensors", "huggingface-hub", "modelscope", "ray", "mooncake-transfer-engine", "lmcache"),
    *("lmcache-ascend", "memfabric-hybrid", "ms-swift", "numpy", "scipy", "decorator", "sympy", "cffi", "attrs"),
    *("psutil", "protobuf", "pyyaml", "setuptools", "flash-attn", "xformers", "trivet", "ml-dtypes", "tornado"),
    *("te", "hccl", "llm-datadist", "auto-tune", "opc-tool"),
))  # fmt: skip
_FAMILIES = ("nvidia-", "op-compile-")  # what a CUDA build of torch brings along
_FOLDER = re.compile(r"([A-Za-z0-9][\w.-]*?)-(\d[\w.!+]*)(?:-py[\d.]+)?\.(?:dist-info|egg-info)", re.ASCII)
_PLUGINS = "vllm.platform_plugins"


def read_python(
    root: Path, captured: Captured, environment: dict[str, str] | None, executable: str | None
) -> Python | None:
    """The interpreter at `executable`, a path on the host; None where none is known."""
    if executable is None:
        executable = sys.executable if is_live(root) else captured.python
    if not executable:
        return None
    version, folders = _search_path(root, executable, environment)
    packages = tuple(package for folder in folders for package in _packages(root, folder))
    return Python(
        executable=executable,
        version=version,
        search_path=folders,
        packages=packages if folders else None,
        platform_plugins=_plugins(root, packages) if folders else None,
        torch_cxx11_abi=_torch_abi(root, packages),
        vllm_ascend_soc=_soc(root, packages, folders),
        missing_files=_missing_files(root, packages),
        unmet=read_unmet(root, packages) if folders else None,
    )


def package_of(name: str, version: str, location: str) -> Package | None:
    """With its name normalised; None for one that this stack has nothing to do with."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    return Package(normal, version, location) if normal in _PACKAGES or normal.startswith(_FAMILIES) else None


def _search_path(root: Path, executable: str, environment: dict[str, str] | None) -> tuple[str | None, tuple[str, ...]]:
    """Its version and the folders of its packages: PYTHONPATH, its own, and those of the one it is made from."""
    prefix = PurePosixPath(executable).parent.parent
    settings = properties(read_text(root, f"{prefix}/pyvenv.cfg"))
    prefixes = [prefix]
    if settings is None:
        real = resolved(root, executable)
        prefixes += [PurePosixPath(real).parent.parent] if real is not None else []
    elif settings.get("include-system-site-packages", "").lower() == "true" and settings.get("home", "").startswith(
        "/"
    ):
        prefixes.append(PurePosixPath(settings["home"]).parent)
    minor = _minor(root, executable, prefixes)
    named = [path for path in (environment or {}).get("PYTHONPATH", "").split(":") if path.startswith("/")]
    own = [f"{each}/{folder}" for each in prefixes for folder in _folders(minor)]
    version = (settings or {}).get("version") or (settings or {}).get("version_info") or minor
    places: dict[str, str] = {}  # each once: lib64 is often a link to lib
    for path in (*named, *own):
        real = resolved(root, path)
        if real is not None:
            places.setdefault(real, path)
    return _version(version), tuple(places.values())


def _minor(root: Path, executable: str, prefixes: list[PurePosixPath]) -> str | None:
    """As "3.11": of its own name, of what its name leads to, or of the only library beside it."""
    for name in (executable, resolved(root, executable) or ""):
        match = re.search(r"/python(3\.\d{1,2})$", name, re.ASCII)
        if match:
            return match[1]
    libraries = list_names(root, f"{prefixes[0]}/lib", r"python3\.\d{1,2}") or ()
    return libraries[0].removeprefix("python") if len(libraries) == 1 else None


def _folders(minor: str | None) -> tuple[str, ...]:
    """Of one prefix. "dist-packages" is what Debian calls those of its own interpreter."""
    if minor is None:
        return ()
    names = (f"lib/python{minor}/site-packages", f"lib64/python{minor}/site-packages")
    return (
        *names,
        f"local/lib/python{minor}/dist-packages",
        f"lib/python{minor}/dist-packages",
        "lib/python3/dist-packages",
    )


def _version(text: str | None) -> str | None:
    match = re.match(r"3\.\d{1,2}(?:\.\d{1,2})?", text or "", re.ASCII)
    return match[0] if match else None


def _packages(root: Path, folder: str) -> tuple[Package, ...]:
    matches = [_FOLDER.fullmatch(name) for name in list_names(root, folder, r".*\.(?:dist-info|egg-info)") or ()]
    found = (package_of(match[1], match[2], folder) for match in matches if match is not None)
    return tuple(package for package in found if package is not None)


def _plugins(root: Path, packages: tuple[Package, ...]) -> tuple[str, ...]:
    """The names that the packages give in `[vllm.platform_plugins]` of their entry_points.txt."""
    found: dict[str, None] = {}
    for package in packages:
        if not package.name.startswith("vllm"):
            continue
        text = read_text(root, f"{dist_info(package)}/entry_points.txt") or ""
        section = re.search(rf"^\[{re.escape(_PLUGINS)}\]$(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
        found |= dict.fromkeys(re.findall(r"^([\w-]+)\s*=", section[1], re.MULTILINE) if section else ())
    return tuple(found)


def _missing_files(root: Path, packages: tuple[Package, ...]) -> tuple[str, ...] | None:
    own = next((package for package in packages if package.name == "vllm-ascend"), None)
    return read_missing_files(root, own) if own is not None else None


def _torch_abi(root: Path, packages: tuple[Package, ...]) -> bool | None:
    """Torch's own CMake file tells how its C++ was compiled, which only an import would else."""
    place = next((package.location for package in packages if package.name == "torch"), None)
    text = read_text(root, f"{place}/torch/share/cmake/Torch/TorchConfig.cmake") if place is not None else None
    flags = set(re.findall(r"-D_GLIBCXX_USE_CXX11_ABI=([01])", text or ""))
    return flags == {"1"} if len(flags) == 1 else None


def _soc(root: Path, packages: tuple[Package, ...], folders: tuple[str, ...]) -> str | None:
    """Its build writes down the chip: `__soc_version__`, from 0.13 on `__device_type__`."""
    places = [package.location for package in packages if package.name == "vllm-ascend"] or list(folders)
    for place in places:
        text = read_text(root, f"{place}/vllm_ascend/_build_info.py")
        match = re.search(r"""^__(?:soc_version|device_type)__\s*=\s*['"]([\w-]+)['"]""", text or "", re.MULTILINE)
        if match:
            return match[1]
    return None
