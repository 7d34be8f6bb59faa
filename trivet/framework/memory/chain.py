"""The name of a block of KV cache: a chain of hashes over its tokens and all before them, from a root that is all else
that its bytes depend on. Blocks of one name have the same bytes, whoever computed them; nothing else shares a name.

SHA-256, because names cross the line between clients: with a weak hash one could be made to hit another's block.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from typing import NamedTuple

DIGEST_BYTES = 32


@dataclass(frozen=True)
class Identity:
    """Whose blocks they are, beside the tokens in them."""

    model: bytes  # digest of the graph, every weight, and what computes them
    layout: bytes  # fingerprint of how the bytes of a slot lie

    def __post_init__(self) -> None:
        assert len(self.model) == len(self.layout) == DIGEST_BYTES, "an identity is two digests"


class Link(NamedTuple):
    """A full block in its chain. All are digests; equal `name` means that all are equal."""

    name: bytes
    parent: bytes  # the name of the block before; of the first one, the root
    tokens: bytes
    salt: bytes


class Chain:
    """The names of the full blocks of one sequence of tokens, as far as they were asked for.

    `salt` keeps apart what may not be shared: chains of two salts have no name in common.
    """

    def __init__(self, identity: Identity, salt: str) -> None:
        self._salt = digest(salt.encode("utf-8", "surrogatepass"))  # any text, and no two alike
        self._tip = digest(b"trivet kv", identity.model, identity.layout, self._salt)
        self.links: list[Link] = []

    def extend(self, tokens: array[int], block_tokens: int, num_blocks: int) -> list[Link]:
        """The links of the first `num_blocks` blocks of `tokens`, which begin with those named before."""
        assert num_blocks * block_tokens <= len(tokens), f"{num_blocks} blocks of {block_tokens} in {len(tokens)}"
        for block in range(len(self.links), num_blocks):
            content = digest(tokens[block * block_tokens : (block + 1) * block_tokens].tobytes())
            name = digest(self._tip, content)
            self.links.append(Link(name, self._tip, content, self._salt))
            self._tip = name
        return self.links[:num_blocks]


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the parts, each with its length before it, so that no two lists of parts read the same."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()
