"""A PyTorch device for unit tests that is nothing but Python: tensors out of the host's reach, streams, and a ledger.

It refuses what a device would do wrong without a word: host and device operands in one operation, bytes touched on one
stream while another may still be at them, a host buffer changed while a copy from it is on its way. What a copy has not
brought yet reads as NaN. It computes on the CPU, one operation at a time, and says nothing of speed; its device is
called `fake`, so it does not stand beside torch_npu in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME = "fake"
_aten = torch.ops.aten
_COPIES = (_aten.copy_.default, _aten._to_copy.default, _aten._copy_from.default)
# Operations whose result has a size or value that the host has to know before it goes on.
_WAITING = (
    _aten._local_scalar_dense.default, _aten.equal.default, _aten.masked_select.default, _aten.nonzero.default
)  # fmt: skip
_FACTORIES = ("arange", "arange.start", "arange.start_step", "linspace", "randperm")


class Misuse(RuntimeError):
    """The device was used in a way that a real one would take and get wrong."""


@dataclass
class Ledger:
    """What the host asked for, in order, and the number of operations between."""

    moves: list[Literal["h2d", "d2h", "sync"]] = field(default_factory=list)
    operations: int = 0


@dataclass(eq=False)
class _Memory:
    """What one allocation was last used for: stream → number of the operation."""

    written: dict[Stream, int] = field(default_factory=dict)
    read: dict[Stream, int] = field(default_factory=dict)


_streams: WeakSet[Stream] = WeakSet()


class Stream:
    """Operations in order. Another stream, or the host, knows them to be finished when it has waited."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        _streams.add(self)
        self.issued = 0
        self.finished: dict[Stream, int] = {}  # of other streams, for sure, before what is issued next

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def wait_event(self, event: Event) -> None:
        self.finished = _later(self.finished, event.finished)

    def record_event(self, event: Event | None = None) -> Event:
        made = event or Event()
        made.record(self)
        return made

    def synchronize(self) -> None:
        self.record_event().synchronize()


class Event:
    """Everything that its stream was given when it was recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.finished: dict[Stream, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or _host.current
        self.finished = _later(stream.finished, {stream: stream.issued})

    def wait(self, stream: Stream | None = None) -> None:
        (stream or _host.current).wait_event(self)

    def query(self) -> bool:
        """Is it known to be over? A real device may be further than what the host has waited for; this one never is."""
        return all(number <= _host.finished.get(stream, 0) for stream, number in self.finished.items())

    def synchronize(self) -> None:
        _host.ledger.moves.append("sync")
        _host.learn(self.finished)


class _Host:
    """The side that issues: its ledger, the stream it issues to, and the copies it has not waited for."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.current = self.default = Stream()
        self.finished: dict[Stream, int] = {}
        self.arriving: list[tuple[Stream, int, Callable[[], None]]] = []  # what happens when the copy is waited for

    def issue(self, reads: Sequence[_Memory], writes: Sequence[_Memory], what: str) -> None:
        """Give the current stream an operation. Raises Misuse when nothing orders it after what it must come after."""
        stream = self.current
        known = _later(self.finished, stream.finished)
        before = [memory.written for memory in reads] + [memory.written | memory.read for memory in writes]
        for earlier in before:
            for other, number in earlier.items():
                if other is not stream and number > known.get(other, 0):
                    raise Misuse(f"{what} touches bytes that another stream may still be at: wait for its event first")
        stream.issued += 1
        for memory in reads:
            memory.read[stream] = stream.issued
        for memory in writes:
            memory.written, memory.read = {stream: stream.issued}, {}

    def learn(self, finished: Mapping[Stream, int]) -> None:
        """The host has waited: copies arrive."""
        self.finished = _later(self.finished, finished)
        waited = [each for each in self.arriving if each[1] <= self.finished.get(each[0], 0)]
        self.arriving = [each for each in self.arriving if each not in waited]
        for _, _, arrive in waited:
            arrive()


_host = _Host()


class DeviceTensor(torch.Tensor):
    """A tensor on the device. `raw` is where its numbers are, which the host has no business to know."""

    raw: torch.Tensor
    memory: _Memory

    @staticmethod
    def __new__(cls, raw: torch.Tensor, memory: _Memory) -> DeviceTensor:
        # A view made in inference mode of a tensor made outside must be able to count its versions, as its source does.
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls, raw.size(), strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
                layout=raw.layout, device=torch.device(NAME, 0), requires_grad=False,
            )  # fmt: skip
        made.raw, made.memory = raw, memory
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{NAME}({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


@contextmanager
def counted() -> Iterator[Ledger]:
    """A ledger of what happens inside, begun when all that was given to the device before is finished."""
    _host.learn({stream: stream.issued for stream in _streams})
    _host.ledger = Ledger()
    yield _host.ledger


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    parts = func.decompose(
        *args, **kwargs
    )  # in inference mode an operation arrives whole that a device sees the parts of
    if parts is not NotImplemented:
        return parts
    if func in _COPIES:
        return _copy(func, args, kwargs)
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    for tensor in given:
        if not isinstance(tensor, DeviceTensor) and tensor.dim() > 0:
            raise Misuse(
                f"{func}: one operand is on the host, {tuple(tensor.shape)} {tensor.dtype}; the others are not"
            )
    there = [tensor for tensor in given if isinstance(tensor, DeviceTensor)]
    if not _is_view(func):
        changed = _changed(func, args, kwargs)
        _host.issue([tensor.memory for tensor in there if tensor.memory not in changed], changed, str(func))
        _host.ledger.operations += 1
    made = func(*tree_map(_raw, args), **_here(kwargs))
    if func in _WAITING:
        _host.current.synchronize()
    return tree_map(lambda each: _wrapped(each, there), made)


def _copy(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Between the sides, or within one. `_to_copy` makes its target, the others are given it."""
    if func is _aten._to_copy.default:
        source: torch.Tensor = args[0]
        target_type = torch.device(kwargs.get("device") or source.device).type
        raw = _aten._to_copy.default(_raw(source), **_here(kwargs))
        target = DeviceTensor(torch.empty_like(raw), _Memory()) if target_type == NAME else torch.empty_like(raw)
        value = raw
        is_blocking = not kwargs.get("non_blocking", False)
    else:
        target, source = args[:2] if func is _aten.copy_.default else (args[1], args[0])
        is_blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        value = _raw(source).expand(target.shape)
    if isinstance(target, DeviceTensor):
        reads = [source.memory] if isinstance(source, DeviceTensor) else []
        _host.issue(reads, [target.memory], str(func))
        if reads:
            _host.ledger.operations += 1
        else:
            _host.ledger.moves.append("h2d")
            _keep_watch(source, is_blocking)
        target.raw.copy_(value)
        return target
    assert isinstance(source, DeviceTensor), func
    _host.issue([source.memory], [], str(func))
    _host.ledger.moves.append("d2h")
    _bring(target, value, is_blocking)
    return target


def _keep_watch(source: torch.Tensor, is_blocking: bool) -> None:
    """A host buffer is read when the device gets to it: until then it must stay as it is."""
    stream = _host.current
    if is_blocking:
        _host.learn({stream: stream.issued})
        return
    sent = source.clone()

    def arrive() -> None:
        if not torch.equal(sent.view(torch.uint8), source.contiguous().view(torch.uint8)):
            raise Misuse(f"a host buffer {tuple(source.shape)} was changed while a copy from it was on its way")

    _host.arriving.append((stream, stream.issued, arrive))


def _bring(target: torch.Tensor, value: torch.Tensor, is_blocking: bool) -> None:
    """To the host: now, or when it is waited for, and until then it reads as NaN."""
    stream = _host.current
    if is_blocking:
        _host.learn(_later(stream.finished, {stream: stream.issued}))
        target.copy_(value)
        return
    brought = value.clone()

    def arrive() -> None:
        target.copy_(brought)

    target.view(torch.uint8).fill_(0xFF) if target.is_contiguous() and target.dim() else target.fill_(-1)
    _host.arriving.append((stream, stream.issued, arrive))


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, DeviceTensor) else value


def _here(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same arguments for the CPU."""
    kept = {key: tree_map(_raw, value) for key, value in kwargs.items() if key not in ("pin_memory", "non_blocking")}
    return kept | ({"device": torch.device("cpu")} if "device" in kept else {})


def _wrapped(made: Any, there: Sequence[DeviceTensor]) -> Any:
    """A result as the tensor it is, as a view of the memory it is in, or in memory of its own."""
    if not isinstance(made, torch.Tensor):
        return made
    for tensor in there:
        if tensor.raw is made:
            return tensor
    for tensor in there:
        if tensor.raw.untyped_storage().data_ptr() == made.untyped_storage().data_ptr():
            return DeviceTensor(made, tensor.memory)
    return DeviceTensor(made, _Memory({_host.current: _host.current.issued}))


def _is_view(func: Any) -> bool:
    returned = [value.alias_info for value in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returned)


def _changed(func: Any, args: Any, kwargs: dict[str, Any]) -> list[_Memory]:
    """The memories that the operation writes into, by its schema."""
    changed = list[_Memory]()
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            changed += [leaf.memory for leaf in tree_leaves(value) if isinstance(leaf, DeviceTensor)]
    return changed


def _later(a: Mapping[Stream, int], b: Mapping[Stream, int]) -> dict[Stream, int]:
    return {stream: max(a.get(stream, 0), b.get(stream, 0)) for stream in {**a, **b}}


class _Module:
    """What PyTorch and its users ask of `torch.fake`."""

    Stream, Event = Stream, Event

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: object = None) -> Stream:
        return _host.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        """Issue to that stream inside."""
        before, _host.current = _host.current, stream
        try:
            yield
        finally:
            _host.current = before

    def synchronize(self, device: object = None) -> None:
        """Wait for every stream."""
        _host.ledger.moves.append("sync")
        _host.learn({stream: stream.issued for stream in _streams})

    def manual_seed_all(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def _is_in_bad_fork(self) -> bool:
        return False


def _empty(size: Sequence[int], **options: Any) -> DeviceTensor:
    return DeviceTensor(torch.empty(size, dtype=options.get("dtype")), _Memory())


def _empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> DeviceTensor:
    return DeviceTensor(torch.empty_strided(size, stride, dtype=options.get("dtype")), _Memory())


def _factory(name: str) -> Callable[..., DeviceTensor]:
    packet, _, overload = name.partition(".")
    func = getattr(getattr(_aten, packet), overload or "default")
    return lambda *args, **options: _dispatch(func, args, options)


def _register() -> list[torch.library.Library]:
    """Make the device known to PyTorch, for as long as the libraries are held."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(lambda func, *args, **kwargs: _dispatch(func, args, kwargs), "PrivateUse1")
    aten.impl("empty.memory_format", _empty, "PrivateUse1")
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")
    for name in _FACTORIES:
        aten.impl(name, _factory(name), "PrivateUse1")
    return [everything, aten]


_libraries = _register()
