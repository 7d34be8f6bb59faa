"""Files of KV cache as the tiers above them see them, whatever keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trivet.base.dtypes import Array
from trivet.framework.memory.chain import Link
from trivet.framework.memory.file_tier import FileCounts


class Files(Protocol):
    """Blocks that outlive their slots; `FileTier` says what each of these is for."""

    counts: FileCounts

    @property
    def used_bytes(self) -> int: ...

    def holds(self, link: Link) -> bool: ...

    def look(self) -> None: ...

    def read(self, link: Link, into: Array) -> tuple[int, ...] | None: ...

    def begin(self, link: Link) -> tuple[int, ...] | None: ...

    def read_piece(self, link: Link, number: int, recorded: int, into: Array) -> bool: ...

    def publish(self, blocks: Sequence[tuple[Link, Array, tuple[int, ...]]]) -> None: ...

    def pin(self, links: Sequence[Link]) -> None: ...

    def forget(self, links: Sequence[Link]) -> None: ...

    def scrub_next(self) -> bool: ...

    def close(self) -> None: ...
