"""This engine and a peer in turn (A, B, A, B): one ratio for each pair, the median and the spread of all.

A peer is timed only while its greedy answer is ours; where it parts, our own margin must have been too small to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from trivet.base.errors import TrivetError
from trivet.serve.bench.peers.child import Answer
from trivet.serve.bench.peers.engines import Engine, Peer, Place, ours
from trivet.serve.bench.peers.questions import CHECK_TOKENS, CLEAR_MARGIN, QUESTIONS, Question

_GREEDY_PROMPT = 32  # tokens
_GREEDY_PROMPTS = 8  # to find an answer of whole characters among; a real model hardly needs a second


@dataclass(frozen=True)
class Ratio:
    """`ours` and `theirs` in tokens per second; a ratio above 1 is this engine the faster."""

    question: str
    peer: str
    version: str
    bits: int
    pairs: int
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    read_bytes_per_s: float  # what the machine could read in the same minutes
    share_of_bandwidth: float  # of it, by this engine
    flops_per_s: float  # by this engine
    agreed: str  # how far the two gave the same greedy answer


def compare(
    peers: Sequence[Peer],
    place: Place,
    *,
    vocab_size: int,
    pairs: int,
    questions: Sequence[Question] = QUESTIONS,
    tell: Callable[[str], None],
) -> Iterator[Ratio]:
    """Each peer beside this engine. One that cannot be started or asked is told and left out, never guessed."""
    for peer in peers:
        try:
            theirs = peer.start(peer.name, place)
            if theirs is None:
                tell(f"{peer.name}: left out, its programs were not named")
                continue
            with closing(theirs), closing(ours(peer.bits, place)) as own:
                agreed = _agreement(own, theirs, vocab_size)
                tell(f"{peer.name} ({theirs.about['version']}): {agreed}")
                for question in questions:
                    ratio = _in_turn(own, theirs, peer, question, vocab_size, pairs, agreed)
                    tell(line(ratio))
                    yield ratio
        except TrivetError as error:
            tell(f"{peer.name}: left out: {error}")


def line(ratio: Ratio) -> str:
    return (f"  {ratio.question:<20} {ratio.ours:8.1f} tokens/s, {ratio.peer} {ratio.theirs:8.1f}: {ratio.ratio:.2f}×"
            f" ({ratio.low:.2f} … {ratio.high:.2f})")  # fmt: skip


def _in_turn(
    own: Engine, theirs: Engine, peer: Peer, question: Question, vocab_size: int, pairs: int, agreed: str
) -> Ratio:
    asked = {"kind": question.kind, "new": question.new, "prompts": _prompts(question, vocab_size)}
    _seconds(theirs, asked), _seconds(own, asked)  # both warm
    rows = [_pair(own, theirs, asked) for _ in range(pairs)]
    speeds = [question.num_tokens / row["ours_s"] for row in rows]
    their_speeds = [question.num_tokens / row["theirs_s"] for row in rows]
    each = [a / b for a, b in zip(speeds, their_speeds, strict=True)]
    bandwidth = median(row["read_bytes_per_s"] for row in rows)
    return Ratio(
        question=question.name, peer=peer.name, version=str(theirs.about["version"]), bits=peer.bits, pairs=pairs,
        ours=median(speeds), theirs=median(their_speeds), ratio=median(each), low=min(each), high=max(each),
        read_bytes_per_s=bandwidth,
        share_of_bandwidth=median(speeds) * rows[0]["bytes_per_token"] / bandwidth,
        flops_per_s=median(speeds) * rows[0]["flops_per_token"],
        agreed=agreed,
    )  # fmt: skip


def _pair(own: Engine, theirs: Engine, asked: Mapping[str, Any]) -> dict[str, float]:
    answer = own.ask(asked)
    limits = own.ask({"kind": "limits"})
    return {
        "ours_s": answer["seconds"],
        "theirs_s": _seconds(theirs, asked),
        "bytes_per_token": answer["bytes_per_token"],
        "flops_per_token": answer["flops_per_token"],
        "read_bytes_per_s": limits["read_bytes_per_s"],
    }


def _seconds(engine: Engine, asked: Mapping[str, Any]) -> float:
    seconds = float(engine.ask(asked)["seconds"])
    if seconds <= 0:
        raise TrivetError(f"{engine.name} took {seconds} s for {asked['kind']}, which is no time that can be compared")
    return seconds


def _prompts(question: Question, vocab_size: int) -> list[list[int]]:
    """Tokens without sense, of every sequence others, always the same. The first hundred ids are often special."""
    rng = np.random.default_rng(0)
    return [rng.integers(100, vocab_size, question.prompt).tolist() for _ in range(question.batch)]


def _agreement(own: Engine, theirs: Engine, vocab_size: int) -> str:
    """Raises TrivetError where the peer parts from our answer although it was clear."""
    wanted, found = _answers(own, theirs, vocab_size)
    for i, (token, margin) in enumerate(zip(wanted["tokens"], wanted["margins"], strict=True)):
        if i >= len(found["tokens"]) or found["tokens"][i] != token:
            if margin > CLEAR_MARGIN:
                raise TrivetError(f"{theirs.name} answers otherwise at token {i}, which was clear by {margin:.2f}")
            return f"same {i} greedy tokens, then one that {margin:.2f} decides"
    return f"same {CHECK_TOKENS} greedy tokens"


def _answers(own: Engine, theirs: Engine, vocab_size: int) -> tuple[Answer, Answer]:
    """Of both to the first prompt that they can tell the answer to: some servers put a token's text beside its id, and
    fail where it is part of a character. Raises the last failure where there is no such prompt."""
    failure = TrivetError(f"none of {_GREEDY_PROMPTS} prompts has an answer of whole characters")
    for prompt in _prompts(Question("decode", _GREEDY_PROMPT, _GREEDY_PROMPTS), vocab_size):
        asked = {"kind": "greedy", "new": CHECK_TOKENS, "prompts": [prompt]}
        wanted = own.ask(asked)
        if not wanted["is_text"]:
            continue
        try:
            return wanted, theirs.ask(asked)
        except TrivetError as error:
            failure = error
    raise failure
