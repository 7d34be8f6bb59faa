"""What the server serves: nothing while the model loads, then one model, then nothing new while it drains."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trivet.base.errors import UnavailableError
from trivet.base.units import KIB, MIB
from trivet.framework.engine.cost_model import CostModel, calibrated, guessed
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.kv_counts import KvCounts
from trivet.framework.engine.metrics import EngineMetrics
from trivet.framework.engine.targets import Targets
from trivet.framework.engine.worker import AsyncEngine
from trivet.framework.graph.plan import Plan
from trivet.framework.memory.reclaim import DEFAULT_RECLAIM, ReclaimName
from trivet.framework.memory.tiers import Tiers
from trivet.framework.model.chat_template import ChatTemplate
from trivet.framework.model.loader import LoadedModel
from trivet.framework.model.system_prompt import system_prompt_tokens
from trivet.framework.model.tokenizer import Tokenizer
from trivet.serve.errors import HttpError
from trivet.serve.log import event

if TYPE_CHECKING:  # imported by who asks for two lanes
    from trivet.framework.engine.lane_choice import AskedLanes
    from trivet.framework.graph.side_by_side import SideBySide

_log = logging.getLogger("trivet.serve")

Phase = Literal["loading", "ready", "draining"]


@dataclass(frozen=True)
class ServedModel:
    """A loaded model with its engine started."""

    engine: AsyncEngine
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    vocab_size: int
    max_context: int  # tokens of prompt and answer together
    metrics: EngineMetrics
    kv_counts: Callable[[], KvCounts]


def start_model(
    plan: Plan,
    tokenizer: Tokenizer,
    chat_template: ChatTemplate,
    name: str,
    *,
    max_step_tokens: int | None = None,
    lanes: SideBySide | None = None,
    tiers: Tiers | None = None,
    costs: CostModel | None = None,
    targets: Targets = Targets(),  # noqa: B008, it is frozen
    reclaim: ReclaimName = DEFAULT_RECLAIM,
    pinned: Sequence[str] = (),
) -> ServedModel:
    """The model with an engine running for it, which whoever opens it in a service leaves to that service to close.

    `pinned` are system prompts to compute first and keep. Raises ResourceError when one fills no slot, or all too many.
    """
    metrics = EngineMetrics(name)
    engine = Engine(
        plan, tokenizer, max_step_tokens=max_step_tokens, lanes=lanes, tiers=tiers, costs=costs, targets=targets,
        reclaim=reclaim, observer=metrics,
    )  # fmt: skip
    for text in pinned:
        num_slots = engine.pin(system_prompt_tokens(text, tokenizer, chat_template))
        _log.info(event("pinned", model=name, slots=num_slots))
    worker = AsyncEngine(engine)
    worker.start()
    return ServedModel(worker, tokenizer, chat_template, plan.vocab_size, engine.max_length, metrics, engine.kv_counts)


def start_loaded(
    loaded: LoadedModel,
    name: str,
    targets: Targets,
    lanes: AskedLanes = "1",
    reclaim: ReclaimName = DEFAULT_RECLAIM,
    pinned: Sequence[str] = (),
) -> ServedModel:
    """`start_model` with all that was loaded.

    Who promises times measures a few steps first; who promises none learns from the steps that are asked for. With
    `lanes` "auto" steps are measured too, to choose; what was chosen, and why, goes to the log.
    """
    memory = loaded.memory
    _log.info(event("loaded", model=name, duration_ms=loaded.times.total * 1e3, weight_bytes=memory.weight_bytes,
                    kv_pool_bytes=memory.kv_bytes, activation_bytes=memory.activation_bytes))  # fmt: skip
    bound: SideBySide | None = None
    if lanes != "1" or targets.are_times:
        loaded.settle()
    if lanes != "1":
        from trivet.framework.engine.lane_choice import choose_lanes

        bound, choice = choose_lanes(loaded.plan, loaded.device.cpus, lanes)
        added = 0 if bound is None else bound.activation_bytes
        for line in choice.lines:
            _log.info(
                event("lanes", lanes=choice.num_lanes, activation_bytes=memory.activation_bytes + added, why=line)
            )
    costs = calibrated(loaded.plan) if targets.are_times else guessed(loaded.plan.graph)
    return start_model(
        loaded.plan, loaded.tokenizer, loaded.chat_template, name, lanes=bound, tiers=loaded.tiers, costs=costs,
        targets=targets, reclaim=reclaim, pinned=pinned,
    )  # fmt: skip


@dataclass(frozen=True)
class ServiceLimits:
    """What one client may cost the others."""

    max_head_bytes: int = 64 * KIB  # of a request before its body; servers and proxies take 8 to 32 KiB
    max_body_bytes: int = 8 * MIB  # a prompt of 128k tokens is under 1 MiB, as ids or as text
    max_choices: int = 1024  # in flight, over all requests; above it 429
    read_s: float = 30.0  # for a request's head to arrive, and then for its body
    write_s: float = 60.0  # for a client to take something of what is sent


class Service:
    """The state that all requests share. Phases go one way: loading, ready, draining."""

    def __init__(self, model_name: str, *, api_key: str | None = None, limits: ServiceLimits | None = None) -> None:
        self.model_name = model_name
        self.limits = limits or ServiceLimits()
        self.created = int(time.time())
        self.requests = Counter[tuple[str, str, int]]()  # answered, by method, handler and status
        self._key_digest = None if api_key is None else _digest(api_key.encode("utf-8", "surrogateescape"))
        self._model: ServedModel | None = None
        self._is_draining = False
        self._num_choices = 0

    @property
    def phase(self) -> Phase:
        if self._is_draining:
            return "draining"
        return "loading" if self._model is None else "ready"

    @property
    def opened(self) -> ServedModel | None:
        """The model, while draining too; None while it loads."""
        return self._model

    @property
    def is_alive(self) -> bool:
        """False when the engine has died: then only a restart helps. While loading there is none to die."""
        return self._model is None or self._model.engine.is_alive

    def open(self, model: ServedModel) -> None:
        """Begin to serve `model`, and close it in the end. Any thread may call it, once."""
        assert self._model is None, "a service opens once"
        # What there is by now stays to the end: walking it took each full collection 16 ms, of some answer's gap. To
        # look once for what does not takes as long, and of what a start leaves finds nothing worth a page.
        gc.freeze()
        self._model = model

    async def drain(self, timeout_s: float) -> None:
        """Refuse what comes from now on; return when what is running has finished or `timeout_s` has passed."""
        self._is_draining = True
        if self._model is not None and self._model.engine.is_alive:
            await self._model.engine.drain(timeout_s)

    def close(self) -> None:
        """End the engine. What is still running gets an error."""
        self._is_draining = True
        if self._model is not None:
            self._model.engine.close()

    def model(self) -> ServedModel:
        """The model to answer with.

        Raises:
            UnavailableError: still loading, or draining.
        """
        if self._is_draining:
            raise UnavailableError("the server is shutting down", "send the request again, to another replica or later")
        if self._model is None:
            raise UnavailableError(f"{self.model_name} is still loading", "wait until /ready answers 200")
        return self._model

    def check_model_name(self, name: str | None) -> None:
        """Raise a 404 unless `name` is the model served; None means whichever it is."""
        if name not in (None, self.model_name):
            raise HttpError(404, "model_not_found", f"model {name} is not served here",
                            f"this server serves {self.model_name}", "model")  # fmt: skip

    def check_key(self, authorization: str | None) -> None:
        """Raise a 401 unless the header carries the key, or none is set. The time it takes tells nothing of the key."""
        if self._key_digest is None:
            return
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(_digest(key.strip().encode("latin-1")), self._key_digest):
            return
        found = "no API key was sent" if authorization is None else "the API key is not the one set on this server"
        raise HttpError(401, "invalid_api_key", found, "send it as Authorization: Bearer KEY",
                        headers={"www-authenticate": "Bearer"})  # fmt: skip

    @contextlib.contextmanager
    def admitted(self, num_choices: int) -> Iterator[None]:
        """Count these choices as in flight; a 429 if that is more than the server takes on."""
        if self._num_choices + num_choices > self.limits.max_choices:
            raise HttpError(429, "too_many_requests", f"{self._num_choices} answers are in progress, "
                            f"{num_choices} more would pass the limit of {self.limits.max_choices}",
                            "retry later", headers={"retry-after": "1"})  # fmt: skip
        self._num_choices += num_choices
        try:
            yield
        finally:
            self._num_choices -= num_choices


def _digest(key: bytes) -> bytes:
    # Digests are of one length, so comparing them tells nothing of the key's.
    return hashlib.sha256(key).digest()
