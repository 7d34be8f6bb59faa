"""Who waits, and whose turn it is: the tenant that was served least, and of its own by priority, then arrival.

Served is counted in tokens: a prompt's when its turn comes, an answer's when it has ended. One that comes back after
having nothing to ask counts from where the least served of those who wait stands, or stood when somebody last waited,
so nobody saves up by staying away.
These are the virtual token counters of Sheng et al. (OSDI 2024, arXiv:2401.00588). Deficit round robin was tried: with
short prompts a round is hundreds of requests, and that is how long a flood kept another tenant waiting.

A flood of one tenant so delays another by one request at most. It knows no slots.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from itertools import chain

from trivet.framework.engine.sequence import Sequence


class _Tenant:
    """Those of one tenant that wait, and how much it was served."""

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []  # by priority, then arrival
        self.num_here = 0  # waiting or running: with none the tenant is forgotten
        self.served_tokens = 0


class FairQueue:
    """Sequences that wait. Those that stepped back from running go first: they have had their turn already."""

    def __init__(self) -> None:
        self._returned: deque[Sequence] = deque()
        self._tenants: dict[str, _Tenant] = {}  # in the order in which they came
        self._level_tokens = 0  # what the tenant was served whose turn came last, before it

    def __len__(self) -> int:
        return len(self._returned) + sum(len(tenant.sequences) for tenant in self._tenants.values())

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._returned, *(tenant.sequences for tenant in self._tenants.values()))

    def push(self, sequence: Sequence) -> None:
        """One that has just arrived."""
        tenant = self._tenants.setdefault(sequence.request.terms.tenant, _Tenant())
        if not tenant.sequences:
            least = self._least_served()
            level = self._level_tokens if least is None else least.served_tokens
            tenant.served_tokens = max(tenant.served_tokens, level)
        insort(tenant.sequences, sequence, key=_rank)
        tenant.num_here += 1

    def push_back(self, sequence: Sequence) -> None:
        """One that ran and gave its slots up: ahead of everyone, those who stepped back before it included."""
        self._returned.appendleft(sequence)

    def first(self) -> Sequence | None:
        """Whose turn it is; None when nobody waits."""
        if self._returned:
            return self._returned[0]
        tenant = self._least_served()
        return None if tenant is None else tenant.sequences[0]

    def pop(self) -> Sequence:
        """Take `first` out; its tenant was served its tokens."""
        if self._returned:
            return self._returned.popleft()
        tenant = self._least_served()
        assert tenant is not None, "nobody waits"
        sequence = tenant.sequences.pop(0)
        self._level_tokens = tenant.served_tokens
        tenant.served_tokens += len(sequence.tokens)
        return sequence

    def leave(self, sequence: Sequence) -> None:
        """One that has ended, wherever it was: its tenant was served the answer."""
        name = sequence.request.terms.tenant
        tenant = self._tenants[name]
        tenant.served_tokens += sequence.num_generated
        tenant.num_here -= 1
        if sequence in self._returned:
            self._returned.remove(sequence)
        elif sequence.place is None:
            tenant.sequences.remove(sequence)
        if tenant.num_here == 0:
            del self._tenants[name]

    def check(self) -> None:
        """Nobody waits twice, and each tenant's are in order and counted."""
        everyone = list(self)
        assert len(set(map(id, everyone))) == len(everyone), "a sequence waits twice"
        for name, tenant in self._tenants.items():
            assert tenant.num_here >= len(tenant.sequences) and tenant.num_here > 0, f"tenant {name} is miscounted"
            assert tenant.sequences == sorted(tenant.sequences, key=_rank), f"tenant {name} is out of order"

    def _least_served(self) -> _Tenant | None:
        """Of those who wait; of equals the one that came first."""
        waiting = (tenant for tenant in self._tenants.values() if tenant.sequences)
        return min(waiting, key=lambda tenant: tenant.served_tokens, default=None)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.terms.priority, sequence.order
