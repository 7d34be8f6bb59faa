"""Captured graphs on the fake: capture, replay, and captured attention whose lengths change from step to step."""

from __future__ import annotations

import os

import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)

import torch
import torch_npu

from ascend.fakecann import counters
from tests.ascend.test_fakecann_runtime import in_a_process_of_its_own


def captured(x: torch.Tensor) -> tuple[torch.npu.NPUGraph, torch.Tensor]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x * 2 + 1
    return graph, y


def test_a_replay_computes_from_what_lies_in_the_input_now() -> None:
    x = torch.ones(3, device="npu")
    graph, y = captured(x)
    results = []
    for value in (5.0, -1.0):
        x.fill_(value)
        graph.replay()
        results.append(y.cpu().tolist())

    assert [[11.0] * 3, [-1.0] * 3] == results


def test_a_replay_launches_nothing_and_allocates_nothing() -> None:
    graph, y = captured(torch.ones(3, device="npu"))
    torch.npu.synchronize()
    counters.reset()
    graph.replay()
    torch.npu.synchronize()
    counted = counters.read().counters

    assert (1, 0, 0) == tuple(counted.get(name, 0) for name in ("replays", "launches", "allocations"))
    assert [3.0] * 3 == y.cpu().tolist()


def test_a_wait_inside_a_capture_is_an_error() -> None:
    x = torch.ones(3, device="npu")

    with pytest.raises(RuntimeError), torch.npu.graph(torch.npu.NPUGraph()):
        x.cpu()


def captured_on_two_streams(x: torch.Tensor, waits: bool, joins: bool) -> tuple[torch.npu.NPUGraph, torch.Tensor]:
    """Doubled on a second stream, one added on the first, which may forget to wait for the second in time or at all."""
    graph, side, doubled = torch.npu.NPUGraph(), torch.npu.Stream(), torch.zeros_like(x)
    torch.npu.synchronize()
    with torch.npu.graph(graph):
        main, begun, done = torch.npu.current_stream(), torch.npu.Event(), torch.npu.Event()
        begun.record(main)
        side.wait_event(begun)
        with torch.npu.stream(side):
            torch.mul(x, 2, out=doubled)
            done.record(side)
        if waits:
            main.wait_event(done)
        y = doubled + 1
        if joins:
            main.wait_event(done)
    return graph, y


def test_two_streams_of_a_capture_are_ordered_by_their_events() -> None:
    x = torch.ones(3, device="npu")
    graph, y = captured_on_two_streams(x, waits=True, joins=True)
    results = []
    for value in (5.0, -1.0):
        x.fill_(value)
        graph.replay()
        results.append(y.cpu().tolist())

    assert [[11.0] * 3, [-1.0] * 3] == results


def test_a_missing_wait_between_the_streams_of_a_capture_is_seen() -> None:
    graph, y = captured_on_two_streams(torch.ones(3, device="npu"), waits=False, joins=True)
    graph.replay()

    assert [1.0] * 3 == y.cpu().tolist()


def test_a_stream_that_a_capture_leaves_behind_is_an_error() -> None:
    program = (
        "from tests.ascend.test_fakecann_graphs import *\n"
        "captured_on_two_streams(torch.ones(3, device='npu'), waits=False, joins=False)"
    )
    ended = in_a_process_of_its_own(program)

    assert 0 != ended.returncode
    assert "nothing waits for the end of it" in ended.stderr


QUERY = torch.randn(1, 2, 16, generator=torch.Generator().manual_seed(0))  # [tokens, heads, head_dim]
KEY, VALUE = torch.randn(
    2, 4, 16, 32, generator=torch.Generator().manual_seed(1)
)  # [blocks, block_tokens, heads · dim]
TABLE = torch.tensor([[2, 0, 3]], dtype=torch.int32)


def attended(length: int) -> torch.Tensor:
    key, value = (cache[TABLE[0].long()].view(48, 2, 16)[:length].transpose(0, 1) for cache in (KEY, VALUE))
    scores = QUERY.transpose(0, 1) @ key.transpose(1, 2) * 0.25
    return (scores.softmax(-1) @ value).transpose(0, 1)


class CapturedAttention:
    """One decode over a paged cache, captured with the length that the sequence had then."""

    def __init__(self, length: int) -> None:
        self.graph = torch.npu.NPUGraph()
        query, key, value, table = QUERY.npu(), KEY.npu(), VALUE.npu(), TABLE.npu()
        self.kept = query, key, value, table
        with torch.npu.graph(self.graph, auto_dispatch_capture=True):
            self.y, _ = torch_npu.npu_fused_infer_attention_score(
                query, key, value, block_table=table, block_size=16, actual_seq_lengths=[1],
                actual_seq_lengths_kv=[length], num_heads=2, num_key_value_heads=2, scale=0.25, input_layout="TND",
            )  # fmt: skip

    def update(self, length: int) -> None:
        self.graph.update(cpu_update_input=[{"actual_seq_lengths_kv": [length]}])


def test_captured_attention_sees_the_lengths_of_its_update() -> None:
    attention = CapturedAttention(length=20)
    for length in (21, 40):
        attention.update(length)
        attention.graph.replay()

        torch.testing.assert_close(attention.y.cpu(), attended(length))


def test_a_replay_waits_for_the_update_that_comes_after_it() -> None:
    attention = CapturedAttention(length=20)
    attention.graph.replay()
    attention.update(33)

    torch.testing.assert_close(attention.y.cpu(), attended(33))


def test_a_replay_whose_update_never_comes_is_an_error() -> None:
    program = (
        "from tests.ascend.test_fakecann_graphs import *\nCapturedAttention(20).graph.replay()\ntorch.npu.synchronize()"
    )
    ended = in_a_process_of_its_own(program)

    assert 0 != ended.returncode
    assert "waits for a value that nobody is about to write" in ended.stderr
