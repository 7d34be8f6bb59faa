"""A server on a free port with the tiny llama's tokenizer, and a plan whose answers are known beforehand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

from trivet._native import Gate, Sampler, Team
from trivet.base.dtypes import Array
from trivet.framework.engine.targets import Targets
from trivet.framework.graph.plan import Batch, Limits
from trivet.framework.model.chat_template import ChatTemplate
from trivet.framework.model.tokenizer import Tokenizer
from trivet.framework.model.tokenizer_files import read_tokenizer_files
from trivet.serve.listening import listen
from trivet.serve.server import Server
from trivet.serve.service import Service, ServiceLimits, start_model

FILES = read_tokenizer_files(Path(__file__).parents[1] / "fixtures/tiny/llama", config={})
TOKENIZER = Tokenizer(FILES)
TEMPLATE = ChatTemplate(FILES)
MODEL = "tiny"


class CountingPlan:
    """After token t comes t + 1, with near certainty. A step takes `step_s`; one with `poison` in it fails."""

    vocab_size = 512
    num_slots = 64
    slot_tokens = 16
    limits = Limits(max_tokens=256, max_sequences=64, max_rows=64, max_context=512)

    def __init__(self, step_s: float = 0.0, poison: int | None = None) -> None:
        self.step_s = step_s
        self.poison = poison
        self.num_steps = 0
        self.sampler = Sampler(Team([None]), self.vocab_size)

    def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
        time.sleep(self.step_s)
        self.num_steps += 1
        assert self.poison is None or self.poison not in batch.tokens, "the device is gone"
        logits = np.zeros((len(batch.rows), self.vocab_size), np.float32)
        logits[np.arange(len(batch.rows)), (batch.tokens[batch.rows] + 1) % self.vocab_size] = 20
        return logits


def counted(first: int, count: int) -> str:
    """The text of `count` tokens that begin with `first`."""
    return TOKENIZER.decode(range(first, first + count))


def value(client: httpx.Client, metric: str) -> float:
    """The sum of a metric's samples."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(metric))


def until(is_true: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()


@contextmanager
def serving(
    plan: CountingPlan | None = None,
    *,
    api_key: str | None = None,
    limits: ServiceLimits | None = None,
    targets: Targets = Targets(),  # noqa: B008, it is frozen
    pinned: Sequence[str] = (),
    drain_s: float = 5.0,
    is_loaded: bool = True,
) -> Iterator[Server]:
    service = Service(MODEL, api_key=api_key, limits=limits)
    if is_loaded:
        service.open(start_model(plan or CountingPlan(), TOKENIZER, TEMPLATE, MODEL, targets=targets, pinned=pinned))
    with Server(service, listen("127.0.0.1", 0), drain_s) as server:
        yield server
