"""A host in one file, for somebody else to look at: what its readers asked for, redacted, as a `.tar.zst`.

A bundle that is read is taken for hostile: nothing in it is written outside of a folder of its own, it holds plain
files, folders and links within it and nothing else, and it may not unpack to more than a host's files come to.
"""

from __future__ import annotations

import io
import os
import posixpath
import pwd
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec
import zstandard

from trivet.base.errors import BundleError
from trivet.base.units import format_bytes
from trivet.driver.capture import Tree, capture
from trivet.driver.need import Need
from trivet.driver.readers.commands import TIMEOUT_S
from trivet.driver.readers.files import is_live, list_names, read_text, read_word
from trivet.driver.redact import Redactor

_MANIFEST = "bundle.json"
_FORMAT = 1
# A host with 256 CPUs and 100 PCI devices makes some 10,000 members, 10 MB unpacked and 300 KB packed.
_MAX_PACKED_BYTES = 64 << 20
_MAX_BYTES = 256 << 20
_MAX_MEMBERS = 200_000
_MAX_RATIO = 1000  # headers of a tar are 512 bytes each, nearly all zeros
_RATIO_FROM_BYTES = 16 << 20  # below it no ratio hurts
_MAX_PATH, _MAX_DEPTH = 1024, 64
_WINDOW_BYTES = 128 << 20  # the most a decoder may be asked to hold


@dataclass(frozen=True)
class Manifest:
    format: int
    need: Need  # what the host was held against
    paths: tuple[str, ...] = ()  # whose filesystems were asked for


@dataclass(frozen=True)
class Written:
    num_files: int
    num_bytes: int  # of the bundle
    hidden: dict[str, int]  # how many words of each kind have a stand-in


def write_bundle(
    destination: Path,
    root: Path,
    need: Need,
    paths: Sequence[str] = (),
    python: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Written:
    """Captures the host under `root`, redacts it and writes it to `destination`, which appears whole or not at all.

    `paths`, `python` and `timeout_s` are those of `read_facts`.

    Raises BundleError if `destination` exists or cannot be written.
    """
    if destination.exists():
        raise BundleError(f"{destination}: exists, and a bundle is not written over anything", "name another file")
    if is_live(root):  # elsewhere no link of this host is followed
        paths = tuple(os.path.realpath(path) for path in paths)
        need = replace(need, disk_path=_real(need.disk_path), model_path=_real(need.model_path))
    tree = capture(root, paths, python, timeout_s)
    tree.files[_MANIFEST] = msgspec.json.format(msgspec.json.encode(Manifest(_FORMAT, need, tuple(paths))))
    redactor = _identity(root)
    tree = _redacted(tree, redactor)
    partial = destination.with_name(f"{destination.name}.partial")
    try:
        with partial.open("wb") as file:
            _pack(tree, file)
        partial.replace(destination)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BundleError(
            f"{destination}: cannot be written: {error.strerror}", "name a file in another folder"
        ) from error
    return Written(len(tree.files), destination.stat().st_size, redactor.summary())


@contextmanager
def opened_bundle(path: Path) -> Iterator[tuple[Path, Manifest]]:
    """The root of the captured host in the bundle at `path`, gone afterwards, and what was asked of the host.

    Raises BundleError if it is damaged, hostile or no bundle.
    """
    with tempfile.TemporaryDirectory(prefix="trivet-bundle-") as folder:
        root = Path(folder).resolve()
        _unpack(path, root)
        yield root, _manifest(path, root)


def _real(path: str | None) -> str | None:
    return os.path.realpath(path) if path is not None else None


def _identity(root: Path) -> Redactor:
    """The names that the host itself tells of: its own, and those of the people who have an account."""
    redactor = Redactor()
    hosts = [read_word(root, "/proc/sys/kernel/hostname"), read_word(root, "/etc/hostname")]
    rows = [line.split(":") for line in (read_text(root, "/etc/passwd") or "").splitlines()]
    # login.defs(5): people's accounts begin at 1000; 65534 is nobody.
    users = [row[0] for row in rows if len(row) == 7 and row[2].isdecimal() and 1000 <= int(row[2]) < 65534]
    users += [row[4].partition(",")[0] for row in rows if row[0] in users and row[4]]
    if is_live(root):
        hosts.append(os.uname().nodename)
        with suppress(KeyError):  # a container may run as a number without a name
            users.append(pwd.getpwuid(os.getuid()).pw_name)
    users += list_names(root, "/home", r"[\w.@+-]+") or ()
    named = [host for host in hosts if host is not None]
    redactor.know("host", (*named, *(host.partition(".")[0] for host in named)))
    redactor.know("user", users)
    return redactor


def _redacted(tree: Tree, redactor: Redactor) -> Tree:
    # Bytes that are no text survive the round trip.
    texts = {path: content.decode(errors="surrogateescape") for path, content in sorted(tree.files.items())}
    names = {path: f"/{path}" for path in (*texts, *sorted(tree.links), *sorted(tree.folders))}
    for path, name in names.items():
        redactor.learn(path, name, is_name=True)
    for path, target in sorted(tree.links.items()):
        redactor.learn(path, target, is_name=True)
    for path, text in texts.items():
        redactor.learn(path, text)
    hidden = {path: redactor.hide(path, name, is_name=True).removeprefix("/") for path, name in names.items()}
    return Tree(
        files={
            hidden[path]: redactor.hide(path, text).encode(errors="surrogateescape") for path, text in texts.items()
        },
        links={hidden[path]: redactor.hide(path, target, is_name=True) for path, target in tree.links.items()},
        folders={hidden[path] for path in tree.folders},
    )


def _pack(tree: Tree, file: IO[bytes]) -> None:
    """In order of the paths and without times and owners, so that the same tree makes the same bytes."""
    with (
        zstandard.ZstdCompressor(level=9).stream_writer(file, closefd=False) as stream,
        tarfile.open(mode="w|", fileobj=stream, format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted((tree.folders | tree.files.keys() | tree.links.keys()) - {""}):
            member = tarfile.TarInfo(path)
            member.mode = 0o644
            if path in tree.links:
                member.type, member.linkname = tarfile.SYMTYPE, tree.links[path]
            elif path in tree.files:
                member.size = len(tree.files[path])
            else:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member, io.BytesIO(tree.files[path]) if member.isreg() else None)


def _unpack(path: Path, root: Path) -> None:
    try:
        packed_bytes = path.stat().st_size
        if packed_bytes > _MAX_PACKED_BYTES:
            raise BundleError(
                f"{path}: {format_bytes(packed_bytes)}, a bundle has at most {format_bytes(_MAX_PACKED_BYTES)}"
            )
        with path.open("rb") as file:
            decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
            stream = _Bounded(path, decoder.stream_reader(file, closefd=False), packed_bytes)
            # Unbuffered reads, one member after the other: nothing is believed of an index.
            with tarfile.open(mode="r|", fileobj=stream) as archive:
                _write(path, root, archive)
    except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise BundleError(f"{path}: is damaged, or no bundle: {error}", f"zstd --test {path}") from error
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Bounded(io.RawIOBase):
    """The unpacked stream, as long as it is not too long."""

    def __init__(self, path: Path, stream: IO[bytes], packed_bytes: int) -> None:
        self._path, self._stream, self._done = path, stream, 0
        self._most = min(_MAX_BYTES, max(_RATIO_FROM_BYTES, packed_bytes * _MAX_RATIO))

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(min(size, 1 << 20) if size >= 0 else 1 << 20)
        self._done += len(piece)
        if self._done > self._most:
            raise BundleError(f"{self._path}: unpacks to more than {format_bytes(self._most)}, as no host's files do")
        return piece


def _write(path: Path, root: Path, archive: tarfile.TarFile) -> None:
    """Folders and files as they come; the links last, so that nothing is ever written through one."""
    links: dict[str, str] = {}
    places: set[str] = set()
    for number, member in enumerate(archive):
        refusal = _refusal(number, member, places)
        if refusal is not None:
            raise BundleError(f"{path}: {refusal}", "have it made again by trivet doctor --bundle")
        place = posixpath.normpath(member.name)
        if member.issym():
            links[place] = member.linkname
        elif member.isdir():
            (root / place).mkdir(parents=True, exist_ok=True)
        else:
            _write_file(root / place, archive.extractfile(member), member.size)
        places.add(place)
    for place, target in links.items():
        above = next((str(each) for each in PurePosixPath(place).parents if str(each) in links), None)
        if above is not None:
            raise BundleError(f"{path}: {place!r} lies below {above!r}, which is a link")
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).symlink_to(target)


def _write_file(place: Path, content: IO[bytes] | None, size: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as file:
        while content is not None and size > 0 and (piece := content.read(min(size, 1 << 20))):
            file.write(piece)
            size -= len(piece)


def _refusal(number: int, member: tarfile.TarInfo, places: set[str]) -> str | None:
    """Why a member is not taken; None if it is."""
    name = member.name
    parts = PurePosixPath(name).parts
    if number >= _MAX_MEMBERS:
        return f"holds more than {_MAX_MEMBERS} members"
    if name.startswith("/") or ".." in parts or not parts or any(ord(letter) < 32 for letter in name):
        return f"{name!r} is no path within it"
    if len(name) > _MAX_PATH or len(parts) > _MAX_DEPTH:
        return f"{name[:40]!r}… is too long a path"
    if posixpath.normpath(name) in places:
        return f"{name!r} is there twice"
    if member.sparse is not None or not (member.isreg() or member.isdir() or member.issym()):
        return f"{name!r} is neither a file, a folder nor a link"
    if member.size > _MAX_BYTES:
        return f"{name!r} claims {format_bytes(member.size)}"
    if member.issym() and not _is_within(name, member.linkname):
        return f"the link {name!r} leads out of it, to {member.linkname!r}"
    return None


def _is_within(name: str, target: str) -> bool:
    if not target or target.startswith("/") or "\0" in target:
        return False
    end = posixpath.normpath(posixpath.join(posixpath.dirname(posixpath.normpath(name)), target))
    return end != ".." and not end.startswith("../")


def _manifest(path: Path, root: Path) -> Manifest:
    text = read_text(root, _MANIFEST)
    try:
        manifest = msgspec.json.decode(text or "", type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(
            f"{path}: its {_MANIFEST} says nothing: {error}", "have it made by trivet doctor --bundle"
        ) from error
    if manifest.format != _FORMAT:
        raise BundleError(f"{path}: is of format {manifest.format}, this Trivet reads {_FORMAT}", "use its own version")
    return manifest
