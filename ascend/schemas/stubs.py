"""Stand-ins for the CANN libraries that torch_npu is linked to: enough to import it and ask for shapes, never to run.

Every function of theirs that the wheel needs fails with "feature not supported", but those listed here, without which
the import or a device guard would stop. A stand-in that answered "done" would lie to whoever executes an operator.
"""

from __future__ import annotations

import ctypes
import subprocess
import sysconfig
from importlib.metadata import version
from pathlib import Path

_UNSUPPORTED = 207000  # ACL_ERROR_RT_FEATURE_NOT_SUPPORT

# What each must answer, and why.
_ANSWERS = {
    "aclrtGetDeviceCount": "*(unsigned *)first = 1; return 0;",  # a device guard refuses where there are no devices
}

_SYSTEM = ("libc.", "libm.", "libdl.", "librt.", "libpthread.", "libstdc++.", "libgcc_s.", "ld-linux")


FOLDER = Path("build/ascend/stubs")  # of the repository; a folder in it for each version


def load() -> None:
    """Make `import torch_npu` work in this process: by CANN if there is one, real or fake, by the stand-ins if not.

    Builds the stand-ins the first time. Call before torch_npu is imported.
    """
    folder = FOLDER / version("torch_npu")
    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        if not (folder / "stubs.c").exists():
            build(Path(sysconfig.get_path("purelib")), folder)
        for library in sorted(folder.glob("*.so")):  # the loader then finds them by their names
            ctypes.CDLL(str(library.resolve()), mode=ctypes.RTLD_GLOBAL)


def build(site_packages: Path, folder: Path) -> list[str]:
    """Write the stand-ins for the torch_npu in `site_packages` to `folder`; returns the functions they define.

    Needs binutils and a C compiler. `load` puts them in the way of the wheel.
    """
    folder.mkdir(parents=True, exist_ok=True)
    package = site_packages / "torch_npu"
    ours = [*package.glob("lib/*.so"), *package.glob("_C*.so")]
    present = {path.name for path in (*ours, *(site_packages / "torch" / "lib").iterdir())}
    wanted = {name for path in ours for name in _needed(path)}
    missing = sorted(name for name in wanted if name not in present and not name.startswith(_SYSTEM))
    libraries = [*ours, *(site_packages / "torch" / "lib").glob("*.so*"), *_system_libraries(ours)]
    defined = {name for path in libraries for name in _symbols(path, "--defined-only")}
    undefined = {name for path in ours for name in _symbols(path, "--undefined-only")}
    functions = sorted(name for name in undefined - defined if not name.startswith(("Py", "_Py", "__")))
    source = folder / "stubs.c"
    source.write_text("".join(map(_function, functions)))
    first, *others = missing
    _compile(source, folder / first)
    empty = folder / "empty.c"
    empty.write_text("")
    for name in others:
        _compile(empty, folder / name)
    return functions


def _function(name: str) -> str:
    return f"long {name}(void *first) {{ {_ANSWERS.get(name, f'return {_UNSUPPORTED};')} }}\n"


def _compile(source: Path, library: Path) -> None:
    subprocess.run(
        ["cc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library), str(source)], check=True
    )


def _needed(library: Path) -> list[str]:
    lines = _output("readelf", "-d", str(library))
    return [line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line]


def _symbols(library: Path, which: str) -> set[str]:
    """Names of dynamic symbols, without versions; weak undefined ones are left out, as the loader does."""
    fields = [line.split() for line in _output("nm", "-D", which, str(library))]
    return {parts[-1].split("@")[0] for parts in fields if parts and parts[-2] != "w"}


def _system_libraries(libraries: list[Path]) -> list[Path]:
    lines = [line.split() for path in libraries for line in _output("ldd", str(path))]
    return [Path(parts[2]) for parts in lines if len(parts) > 2 and Path(parts[0]).name.startswith(_SYSTEM)]


def _output(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
