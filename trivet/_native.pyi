"""The native core: programs of kernels bound to addresses, and the threads that run them.

Python owns all memory but a program's scratch; an address given to a program must stay valid, and its contents must be
what the kernel takes, whenever the program runs. A `Team` does not survive `fork`.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

class Team:
    """Worker threads. The thread that runs a program on them sleeps while they work."""

    def __init__(self, cpus: Sequence[int | None]) -> None:
        """One worker per entry, pinned to that cpu (None: not pinned).

        Raises ValueError when there is no entry, or a cpu this process may not run on.
        """
    @property
    def num_threads(self) -> int: ...

class Gate:
    """Pieces that one thread brings and a step waits for. It fails by itself when somebody waits past `until_s` of
    `time.monotonic`; who waits at a gate that has failed goes on at once.

    A piece is what one of `slots` has of one stream: the first stream's in the order of the slots, then the second's.
    They are slots of one sequence, from its `first` on, and nobody else's."""

    def __init__(self, until_s: float, first: int = 0, slots: Sequence[int] = ()) -> None: ...
    def advance(self) -> None:
        """One more piece has come."""
    def fail(self) -> None:
        """No more will come."""
    def wait(self, num_pieces: int) -> bool:
        """Return when so many have come; False when it has failed. Without the GIL."""
    @property
    def has_failed(self) -> bool: ...
    @property
    def num_pieces(self) -> int:
        """How many have come."""
    @property
    def num_slots(self) -> int: ...
    @property
    def num_waiting(self) -> int:
        """Threads that wait now."""
    @property
    def stalled_s(self) -> float:
        """Seconds in which at least one thread waited, until the last of them went on."""

class Program:
    """Instructions in order, each bound to addresses."""

    def __init__(self, target: str | None = None) -> None:
        """`target` is one of `targets()`; None is the best. Raises ValueError for any other."""
    @property
    def target(self) -> str: ...
    @property
    def num_instructions(self) -> int: ...
    def add(
        self,
        kernel: str,
        extent: Literal["tokens", "rows"],
        operands: Sequence[tuple[int, int, str]],
        integers: Sequence[int],
        numbers: Sequence[float],
        stream: int | None = None,
    ) -> None:
        """Append an instruction. `stream`: which of the streams that come to gates it reads; it waits for each block of
        it before it reads that.

        An operand is (address, bytes from row to row, "float32" | "bfloat16" | "int32"); address 0 is an absent
        optional. Vectors (tokens, positions, starts, rows, weights of norms, bias) are contiguous, panels too: their
        stride is not used. Raises ValueError that says what was given and what the kernel takes; so does a stream for a
        kernel that does not wait.
        """
    def run(
        self,
        team: Team,
        num_tokens: int,
        num_sequences: int,
        num_rows: int,
        seconds: npt.NDArray[np.float64] | None = None,
        gates: Sequence[Gate] = (),
    ) -> None:
        """Run every instruction in order, without the GIL. The wall time of each is added to `seconds`
        [num_instructions] where given. `gates`: what is still coming to sequences of this run, whose tokens are all
        behind it; of a gate that fails, what the run makes of its sequence is anything. Raises ValueError for a
        negative count, a `seconds` of another length, and gates without slots, or for a program that waits nowhere."""

class Draw:
    """How the tokens of one sequence are chosen. Whoever makes it has checked the ranges."""

    def __init__(
        self,
        *,
        temperature: float,  # 0: the likeliest
        top_k: int | None,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        logit_bias: Sequence[tuple[int, float]],
        stop_ids: Sequence[int],  # banned before `min_tokens` are generated
        min_tokens: int,
        num_prompt: int,
        num_logprobs: int | None,  # log probabilities of the token and of so many of the likeliest
        seed: int,  # 0 to 2⁶⁴ - 1, as `choice`
        choice: int,
    ) -> None: ...
    @property
    def reads_tokens(self) -> bool:
        """Does it ask which tokens came before, and not only how many?"""

class Sampler:
    """From rows of logits to tokens, the rows shared out to a team."""

    def __init__(
        self,
        team: Team,
        vocab_size: int,
        target: str | None = None,
        head: tuple[tuple[int, int, str], tuple[int, int, str], int] | None = None,
    ) -> None:
        """`target` as of a `Program`. `head`: the operands of a program's `linear` that are its logits [rows, vocab]
        and the `largest` of them [rows, panels], and how many rows they have. What it found of a row is used when the
        row is chosen from where it lies, and as it was left there; of any other the sampler finds it. Raises ValueError
        for a target that is not supported, or rows too short for the vocabulary."""
    @property
    def vocab_size(self) -> int: ...
    def choose(
        self,
        logits: npt.NDArray[np.float32],
        draws: Sequence[Draw],
        num_tokens: Sequence[int],
        histories: Sequence[tuple[int, int]],
    ) -> tuple[npt.NDArray[np.int32], list[tuple[int, float, list[tuple[int, float]]]], list[int]]:
        """A token for each row of `logits` [rows, vocab_size], chosen by its draw after so many tokens.

        `histories` are (row, address of the int32 tokens before it), of those whose draw `reads_tokens` at least.
        Also (row, log probability of the token, the likeliest with theirs) of each row whose draw asks, and the rows
        that have NaN or +inf, or nothing finite: what stands for their token means nothing. Logits are changed and
        changed back. Raises ValueError for rows that do not match, or a history that is wanted and missing.
        """

def uniform(seed: int, choice: int, position: int, attempt: int = 0) -> float:
    """The number in [0, 1) that belongs to a place: Philox 4x64-10 keyed by (seed, choice), counter at `position`."""

def targets() -> list[str]:
    """The targets of this build that this CPU can run, best first; "scalar" is always the last."""

def trim_heap() -> None:
    """Give the host what malloc holds and nobody uses, as far as the C library can."""

def read_bandwidth(team: Team, num_bytes: int, repeats: int) -> list[float]:
    """Bytes per second of the team reading a buffer of `num_bytes` of its own, for each repeat."""

def multiply_add_peak(team: Team, target: str | None, weights: str, repeats: int) -> list[float]:
    """Operations per second of the team, two for each multiply-add, for each repeat: as of products with weights in
    "float32", "bfloat16" or "int8". Sums are float32; what the last two are multiplied with is bfloat16."""

class Mapping:
    """Files that stand in for memory, where they would be read to; the memory must stay as long as this does."""

    def __init__(self, extents: Sequence[tuple[int, int, int, int]], paths: Sequence[str]) -> None:
        """An extent is (file descriptor, offset in the file, bytes, address), in order; it is mapped from its page to
        its last. The memory around is the caller's, in whole huge pages. Raises OSError."""
    def take_in(self, checked: Sequence[tuple[int, int, int]], node: int | None) -> None:
        """Begin to move what is mapped into memory of its own, from the NUMA node; `checked` are (address, bytes,
        XXH3-64), in order."""
    def wait(self, seconds: float) -> bool:
        """Whether nothing is being moved, after at most so many seconds without the GIL."""
    def stop(self) -> None:
        """What is mapped stays mapped."""

def any_damage() -> tuple[str, int, bool] | None:
    """(path, offset, whether it was cut, else changed) of a file that a mapping of this process found damaged."""

class Reading:
    """Ranges of open files on their way into memory, by workers of its own; it begins when it is made.

    The files must stay open and the memory stay until it is over or cancelled.
    """

    def __init__(
        self,
        extents: Sequence[tuple[int, int, int, int]],
        spans: Sequence[tuple[int, int, int]],
        *,
        block: int,
        piece_bytes: int,
        num_workers: int,
        depth: int,
        is_mapped: bool = False,
    ) -> None:
        """An extent is (file descriptor, offset in the file, bytes, address); a span, whose XXH3-64 is wanted, is
        (extent, bytes from its start, bytes), in order.

        With `block` above 1 the descriptors are opened with O_DIRECT: both ends of an extent are rounded outwards to
        whole blocks, so up to a block of memory before and after it is written too, and its address must be its offset
        modulo `block`. Each of `num_workers` keeps `depth` reads of `piece_bytes` in an io_uring, or blocks in one
        where `depth` is 0. With `is_mapped` the files stand at these addresses (`Mapping`), and their pages are asked
        for. Raises ValueError for what cannot be, OSError when there is no io_uring or thread to have.
        """
    def wait(self, seconds: float) -> bool:
        """Whether it is over, after at most so many seconds without the GIL."""
    def cancel(self) -> None:
        """Begin no further read; returns when none is in flight."""
    @property
    def failure(self) -> tuple[int, int, int] | None:
        """When it is over: (extent, offset in the file, errno) of the first failure; errno 0 is the file's end."""
    @property
    def digests(self) -> list[int]:
        """When it is over without a failure: of each span."""
    @property
    def times(self) -> list[tuple[float, float, int]]:
        """When it is over: (begin, end, worker) of each extent, in seconds from the start."""
    @property
    def bytes_read(self) -> int: ...
    @property
    def hash_seconds(self) -> float:
        """Of all workers together."""

class Hash:
    """XXH3-64 of bytes that come in pieces."""

    def __init__(self) -> None: ...
    def update(self, address: int, num_bytes: int) -> None: ...
    def digest(self) -> int: ...

def ring_refusal() -> str:
    """Why this process cannot have an io_uring that reads; empty if it can."""

def residency(file: int, offset: int, num_bytes: int) -> tuple[float, str] | None:
    """The share of a range of an open file that is in the page cache, and how that was found; None if unknown."""

def prefer_node(address: int, num_bytes: int, node: int) -> int:
    """Take pages of the range that are not there yet from a NUMA node; 0, or the errno that says why not."""
