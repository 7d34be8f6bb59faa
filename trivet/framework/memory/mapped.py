"""Files that stand in for memory: whether what is computed with them is still what they were opened with."""

from __future__ import annotations

from trivet._native import any_damage
from trivet.base.errors import CheckpointError


def check_files() -> None:
    """Raise CheckpointError if a file that stands in an arena of this process was cut, or changed."""
    damage = any_damage()
    if damage is None:
        return
    path, offset, is_cut = damage
    raise CheckpointError(
        f"{path} was {'cut before' if is_cut else 'changed after'} byte {offset} while a model was loaded from it",
        "start again; a model is replaced by renaming new files over the old, not by writing into them",
    )
