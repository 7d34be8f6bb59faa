"""What an engine's KV cache found and moved since the start, in one value that anything may read."""

from __future__ import annotations

from dataclasses import dataclass, field

from trivet.framework.engine.prefixes import PrefixCounts
from trivet.framework.memory.file_tier import FileCounts
from trivet.framework.memory.tiers import TierCounts


@dataclass(frozen=True)
class KvCounts:
    """An engine's counts since its start. What it has no tier for stays 0."""

    prefixes: PrefixCounts = field(default_factory=PrefixCounts)
    tiers: TierCounts = field(default_factory=TierCounts)
    files: FileCounts = field(default_factory=FileCounts)
    slot_bytes: int = 0
    files_bytes: int = 0  # physical bytes of the folder, where this process writes it
    turns: int = 0  # sequences that were given slots, those after a preemption included
    held_up: int = 0  # of these, how many had to wait for them
    fragmentation: float = 0.0  # the share of held slots that no token is in
    pinned: int = 0  # slots that are never given up
