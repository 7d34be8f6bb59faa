"""The reads of outer tiers as a graph knows them: a stream's blocks that are on their way to slots, and their arrival.

No device computes them. Whoever moves the blocks begins a fetch; who takes what was awaited waits for each block before
it reads that. What they make of a cache is the cache: only between the two nobody may read it, and write but behind
what comes.
"""

from __future__ import annotations

from trivet.operators.attention import CACHE, STORED
from trivet.operators.contract import OUTSIDE, Operator, Tolerance, register


def _outside(name: str, summary: str) -> Operator:
    return Operator(
        name=name,
        summary=summary,
        inputs=(CACHE,),
        outputs=(STORED,),
        reference=lambda call, inputs: [array for array in inputs if array is not None],
        samples=lambda rng: iter(()),
        tolerance=Tolerance(0.0, 0.0, "nothing is computed"),
        flops=lambda call, sizes: 0,
        fewest_bytes=lambda call, sizes: 0,
        updates={"cache'": "cache"},
    )


KV_FETCH = register(_outside("kv_fetch", "blocks of the stream begin to come to their slots"), OUTSIDE)
KV_AWAIT = register(_outside("kv_await", "each is there, and proved, before it is read"), OUTSIDE)
