"""Blocks of KV cache in files of one folder: they survive a restart, within a budget of physical bytes.

A block is there when its name is in `blocks/`, and it gets that name last: its bytes are on disk before (fsync, then
rename, then fsync of the folder). Any number of processes may read a folder; one at a time writes it, the one that
holds the lock. What does not prove itself is a miss, and moved out of the way.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trivet.base.dtypes import Array
from trivet.base.errors import ResourceError
from trivet.base.units import format_bytes
from trivet.framework.memory.block import (
    FORMAT,
    HEADER_BYTES,
    BlockError,
    Header,
    prove,
    read_block,
    read_header,
    read_piece,
)
from trivet.framework.memory.chain import Identity, Link

_log = logging.getLogger(__name__)

_Found = TypeVar("_Found")

_SECTOR_BYTES = 512  # of st_blocks, whatever the file system's own
_SUFFIX = f".kv{FORMAT}"  # blocks of another format lie in the same budget, and are left alone until evicted
_PLACES = ("quarantine", "blocks")  # where a block may lie


@dataclass(frozen=True)
class _Kept:
    """A block on disk, as its writer last saw it."""

    physical_bytes: int
    used_ns: int  # its modification time, which every process that reads it sets


@dataclass
class FileCounts:
    """What happened since the start."""

    corrupt: int = 0  # blocks that did not prove themselves
    written: int = 0
    evicted: int = 0
    failures: int = 0  # to read or write, of the file system
    scrubbed: int = 0


class FileTier:
    """The blocks in `folder` that belong to `identity`, each in these `pieces`; all blocks there take at most
    `budget_bytes`, those of other models included.

    Raises ResourceError when the folder cannot be made or read, or the budget is less than one block. Not for two
    threads at once, but for `holds` and what reads a block, which any may call.
    """

    def __init__(self, folder: Path, budget_bytes: int, identity: Identity, pieces: Sequence[slice]) -> None:
        block_bytes = pieces[-1].stop
        self._pieces = pieces
        self._piece_bytes = tuple(piece.stop - piece.start for piece in pieces)
        self.counts = FileCounts()
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._identity = identity
        self._names: set[bytes] = set()  # of the blocks that are there, as of the last look
        self._bad: set[bytes] = set()  # did not prove themselves, and may still lie there
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # the writer's: by file name, the next to go first
        self._pinned: set[str] = set()  # file names that are not evicted by this process
        self._unproved: list[bytes] = []  # the writer's: what this round of scrubbing has not come to
        self._used_bytes = 0
        blocks_in(budget_bytes, block_bytes)
        try:
            for place in ("partial", *_PLACES):
                (folder / place).mkdir(mode=0o700, parents=True, exist_ok=True)  # what people wrote can be read there
            self._lock = os.open(folder / "writer", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(folder, error) from error
        try:
            self._is_writer = self._take_over()
        except OSError as error:
            os.close(self._lock)
            raise _unusable(folder, error) from error
        self.look()

    @property
    def is_writer(self) -> bool:
        """Does this process write the folder? Others read it."""
        return self._is_writer

    @property
    def used_bytes(self) -> int:
        """Physical bytes of everything kept, as the writer knows; 0 in other processes."""
        return self._used_bytes

    def holds(self, link: Link) -> bool:
        """Is there such a block? Asked of memory, so it never waits; what others did since `look` is not known."""
        return link.name in self._names

    def look(self) -> None:
        """See what other processes have published and evicted."""
        try:
            with os.scandir(self._folder / "blocks") as entries:
                names = {name for entry in entries if (name := _name_in(entry.name)) is not None}
        except OSError as error:
            self._failed("read", error)
            return
        self._names = names - self._bad

    def read(self, link: Link, into: Array) -> tuple[int, ...] | None:
        """Fill `into` [block_bytes] and return its pieces' checksums; None when there is no such block that proves
        itself."""

        def read(file: int) -> tuple[int, ...]:
            found = read_block(file, link, self._identity, self._pieces, into)
            _mark_used(file)
            return found

        return self._from(link, read)

    def begin(self, link: Link) -> tuple[int, ...] | None:
        """The checksums that such a block must have, for `read_piece`; None when there is none that says so."""

        def read(file: int) -> tuple[int, ...]:
            found = read_header(file, link, self._identity, self._pieces)
            _mark_used(file)
            return found

        return self._from(link, read)

    def read_piece(self, link: Link, number: int, recorded: int, into: Array) -> bool:
        """Fill that piece of `into` [block_bytes]; false when the block is gone, or it is not the one `recorded`."""

        def read(file: int) -> bool:
            read_piece(file, self._pieces[number], recorded, into)
            return True

        return self._from(link, read) is not None

    def publish(self, blocks: Sequence[tuple[Link, Array, tuple[int, ...]]]) -> None:
        """Keep these (link, payload, its pieces' checksums), all on disk when the call returns; what fails is left
        out."""
        if not self._is_writer:
            try:
                self._is_writer = self._take_over()
            except OSError as error:
                self._failed("read", error)
            if not self._is_writer:
                return
            self.look()
        written = {}
        for link, payload, payload_checksums in blocks:
            is_here = link.name in written or self.holds(link)
            if is_here or not self._make_room(HEADER_BYTES + payload.nbytes):
                continue
            header = Header(link, self._identity, self._piece_bytes, payload_checksums)
            size = self._write(self._partial(link.name), header.encode(), payload)
            if size is not None:
                written[link.name] = size
        for name, size in written.items():
            self._give_name(name, size)
        if written:
            self._sync_names()

    def pin(self, links: Sequence[Link]) -> None:
        """These blocks are not evicted while this process writes the folder, the first that take half of it."""
        most = self._budget_bytes // 2 // (HEADER_BYTES + self._pieces[-1].stop)
        for link in links[: max(0, most - len(self._pinned))]:
            self._pinned.add(self._path(link.name).name)

    def forget(self, links: Sequence[Link]) -> None:
        """These blocks are in doubt, whole as they may be: they go, or are not read again where others write."""
        for link in links:
            self._names.discard(link.name)
            self._bad.add(link.name)
            kept = self._kept.pop(self._path(link.name).name, None)
            if kept is not None and self._is_writer and self._remove(self._path(link.name).name, kept):
                self._bad.discard(link.name)

    def scrub_next(self) -> bool:
        """Read one block to its end and take it away unless it proves itself. False when a round is complete."""
        if not self._is_writer:
            return False
        if not self._unproved:
            self._unproved = self._proved_next()
            return False
        name = self._unproved.pop()
        path = self._path(name)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # evicted or in quarantine meanwhile
            return True
        try:
            prove(file, name)
            self.counts.scrubbed += 1
        except BlockError as error:
            self._quarantine(name, str(error))
        except OSError as error:
            self._failed("read", error)
        finally:
            os.close(file)
        return True

    def close(self) -> None:
        """Let another process write. Nothing is written after it."""
        self._is_writer = False
        os.close(self._lock)

    def _from(self, link: Link, read: Callable[[int], _Found]) -> _Found | None:
        """What `read` makes of the block's open file; None when there is none, or it is not what it is taken for."""
        try:
            file = os.open(self._path(link.name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # evicted, by whichever process
            self._names.discard(link.name)
            return None
        except OSError as error:
            self._failed("read", error)
            return None
        try:
            return read(file)
        except BlockError as error:
            self._quarantine(link.name, str(error))
        except OSError as error:
            self._failed("read", error)
        finally:
            os.close(file)
        return None

    def _path(self, name: bytes) -> Path:
        return self._folder / "blocks" / f"{name.hex()}{_SUFFIX}"

    def _partial(self, name: bytes) -> Path:
        return self._folder / "partial" / self._path(name).name

    def _write(self, path: Path, header: bytes, payload: Array) -> int | None:
        """Both into a file, on disk when the call returns; its physical bytes, None when it failed."""
        try:
            size = _write(path, header, payload)
        except OSError as error:
            self._failed("write", error)
            with suppress(OSError):
                path.unlink()
            return None
        self._used_bytes += size
        return size

    def _give_name(self, name: bytes, size: int) -> None:
        path = self._path(name)
        try:
            self._partial(name).rename(path)
        except OSError as error:  # somebody removed it, or the folder
            self._used_bytes -= size
            self._failed("publish", error)
            return
        before = self._kept.pop(path.name, _Kept(0, 0))  # what lies in quarantine under the same name
        self._kept[path.name] = _Kept(before.physical_bytes + size, time.time_ns())
        self._bad.discard(name)
        self._names.add(name)
        self.counts.written += 1

    def _sync_names(self) -> None:
        try:
            _sync_folder(self._folder / "blocks")
        except OSError as error:
            self._failed("publish", error)

    def _proved_next(self) -> list[bytes]:
        return [name for file_name in self._kept if (name := _name_in(file_name)) is not None]

    def _take_over(self) -> bool:
        """Become the writer unless another process is: what it left half written goes, what is there is counted."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        for path in (self._folder / "partial").iterdir():
            path.unlink()
        found: dict[str, _Kept] = {}
        for place in _PLACES:
            with os.scandir(self._folder / place) as entries:
                for entry in entries:
                    before = found.get(entry.name, _Kept(0, 0))
                    status = entry.stat()
                    size = before.physical_bytes + status.st_blocks * _SECTOR_BYTES
                    found[entry.name] = _Kept(size, max(before.used_ns, status.st_mtime_ns))
        self._kept = OrderedDict(sorted(found.items(), key=lambda item: item[1].used_ns))
        self._used_bytes = sum(kept.physical_bytes for kept in found.values())
        self._unproved = self._proved_next()
        return True

    def _make_room(self, num_bytes: int) -> bool:
        """Evict, least recently used first, until so many bytes fit; false when they cannot."""
        spared: dict[str, _Kept] = {}
        while self._used_bytes + num_bytes > self._budget_bytes and self._kept:
            name, kept = self._kept.popitem(last=False)
            used_ns = self._used_ns(name)
            if name in self._pinned:
                spared[name] = kept
            elif used_ns is not None and used_ns > kept.used_ns:  # by whatever process, since it was put in line
                self._kept[name] = _Kept(kept.physical_bytes, used_ns)
            elif self._remove(name, kept):
                self.counts.evicted += 1
            else:
                break
        self._kept.update(spared)
        return self._used_bytes + num_bytes <= self._budget_bytes

    def _remove(self, file_name: str, kept: _Kept) -> bool:
        """Wherever it lies. When it cannot be, it goes on counting as kept."""
        self._names.discard(_name_in(file_name) or b"")
        try:
            for place in _PLACES:
                (self._folder / place / file_name).unlink(missing_ok=True)
        except OSError as error:
            self._kept[file_name] = kept
            self._failed("evict", error)
            return False
        self._used_bytes -= kept.physical_bytes
        return True

    def _used_ns(self, file_name: str) -> int | None:
        try:
            return (self._folder / "blocks" / file_name).stat().st_mtime_ns
        except OSError:
            return None

    def _quarantine(self, name: bytes, reason: str) -> None:
        """Never to be served: known as bad here at once, and moved out of the way by the writer."""
        self._bad.add(name)
        self._names.discard(name)
        self.counts.corrupt += 1
        _log.error('event=kv_block_corrupt tier=files block=%s reason="%s"', name.hex(), reason)
        if not self._is_writer:
            return
        try:
            path = self._path(name)
            path.rename(self._folder / "quarantine" / path.name)
        except OSError as error:
            self._failed("quarantine", error)

    def _failed(self, act: str, error: OSError) -> None:
        self.counts.failures += 1
        _log.warning('event=kv_file_failed act=%s folder=%s reason="%s"', act, self._folder, error.strerror)


def blocks_in(budget_bytes: int, block_bytes: int) -> int:
    """How many blocks a budget of physical bytes holds. Raises ResourceError when it is none."""
    stored_bytes = HEADER_BYTES + block_bytes
    if budget_bytes < stored_bytes:
        raise ResourceError(
            f"--kv-dir-bytes is {format_bytes(budget_bytes)}, one block of this model is {format_bytes(stored_bytes)}",
            "ask for more, or leave --kv-dir out",
        )
    return budget_bytes // stored_bytes


def _mark_used(file: int) -> None:
    """What is evicted is what was not."""
    with suppress(OSError):
        os.utime(file)


def _unusable(folder: Path, error: OSError) -> ResourceError:
    return ResourceError(f"--kv-dir {folder} cannot be used: {error.strerror}", "name a folder that can be written to")


def _name_in(file_name: str) -> bytes | None:
    """The name of the block in a file; None where it is another format's, or nobody knows whose."""
    is_ours = re.fullmatch(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}", file_name)
    return bytes.fromhex(file_name.removesuffix(_SUFFIX)) if is_ours else None


def _write(path: Path, header: bytes, payload: Array) -> int:
    """Both into a new file, on disk when the call returns; its physical bytes."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for view in (memoryview(header), payload.data):
            while view:
                view = view[os.write(file, view) :]
        os.fsync(file)
        return os.fstat(file).st_blocks * _SECTOR_BYTES
    finally:
        os.close(file)


def _sync_folder(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
