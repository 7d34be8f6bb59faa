"""The plan of an NPU over the fake: buckets, captured decodes, streams, and what a step asks of the device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)

import numpy as np
import torch
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ascend.fakecann import counters
from tests.ascend.test_fakecann_runtime import in_a_process_of_its_own
from tests.ascend.tiny_npu import DECODES, LIMITS, TOKENS, Chunk, bind, call_by_call, step
from tests.system.tiny import FIXTURES
from trivet.cli.operators import operators
from trivet.framework.graph.npu_plan import NpuPlan
from trivet.framework.graph.plan import Batch

plan = cache(bind)


@st.composite
def decodes(draw: st.DrawFn) -> list[Chunk]:
    sequences = draw(st.lists(st.integers(0, LIMITS.max_sequences - 1), unique=True, min_size=1))
    return [(sequence, draw(st.integers(0, LIMITS.max_context - 1)), 1) for sequence in sequences]


@st.composite
def mixed(draw: st.DrawFn) -> list[Chunk]:
    """Chunks of a step that is not a decode."""
    chunks = []
    for sequence, past, _ in draw(decodes()):
        count = draw(st.integers(1, min(30, LIMITS.max_context - past)))
        if sum(taken for _, _, taken in chunks) + count <= LIMITS.max_tokens:
            chunks.append((sequence, past, count))
    assume(sum(count for _, _, count in chunks) > len(chunks))
    return chunks


# --- answers ---


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@settings(max_examples=15, deadline=None)
@given(chunks=decodes())
def test_a_replayed_decode_is_the_step_call_by_call_bit_for_bit(family: str, chunks: list[Chunk]) -> None:
    batch = step(chunks)
    replayed = plan(family).run(batch).copy()

    np.testing.assert_array_equal(call_by_call(plan(family), batch, DECODES), replayed)


@settings(max_examples=15, deadline=None)
@given(chunks=mixed())
def test_any_other_step_is_the_step_call_by_call_bit_for_bit(chunks: list[Chunk]) -> None:
    batch = step(chunks)
    logits = plan("llama").run(batch).copy()

    np.testing.assert_array_equal(call_by_call(plan("llama"), batch, TOKENS), logits)


@st.composite
def bucket_mates(draw: st.DrawFn) -> tuple[list[Chunk], list[Chunk]]:
    """A step and what others may bring in its place of padding, in either lane."""
    order = draw(st.permutations(range(LIMITS.max_sequences)))
    past = [draw(st.integers(0, 250)) for _ in order]
    if draw(st.booleans()):  # decodes: 3 or 4 sequences share a bucket, and so do 5 or 6
        num_own = draw(st.sampled_from([3, 5]))
        return [(order[i], past[i], 1) for i in range(num_own)], [(order[num_own], past[num_own], 1)]
    first, second = draw(st.integers(20, 30)), draw(st.integers(13, 14))  # more than 32 tokens
    others = draw(st.lists(st.integers(1, 2), min_size=1, max_size=2))
    own = [(order[0], past[0], first), (order[1], past[1], second)]
    return own, [(order[2 + i], past[2 + i], count) for i, count in enumerate(others)]


@settings(max_examples=25, deadline=None)
@given(mates=bucket_mates())
def test_an_answer_does_not_depend_on_whether_its_bucket_is_filled_by_others_or_by_padding(
    mates: tuple[list[Chunk], list[Chunk]],
) -> None:
    own, others = mates
    wanted = None if max(count for _, _, count in own) == 1 else range(len(own))
    alone = plan("llama").run(step(own, wanted)).copy()
    among_others = plan("llama").run(step([*own, *others], wanted)).copy()

    np.testing.assert_array_equal(alone, among_others[: len(alone)])


# --- what a step asks of the device ---

NOTHING_ELSE = (
    "allocations", "frees", "pinned_allocations", "device_syncs", "event_syncs", "blocking_copies", "memsets",
)  # fmt: skip


def steps() -> Iterator[Batch]:
    """Prefills of every length and decodes of every size, in any order."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        order = rng.permutation(LIMITS.max_sequences)[: rng.integers(1, LIMITS.max_sequences + 1)]
        longest = 1 if rng.random() < 0.5 else LIMITS.max_tokens // len(order)
        chunks = [(int(sequence), int(rng.integers(0, 250)), int(rng.integers(1, longest + 1))) for sequence in order]
        yield step(chunks)


def test_no_step_allocates_or_waits_but_for_its_result_from_the_first_one_on() -> None:
    llama = bind()
    for batch in steps():
        counters.reset()
        llama.run(batch)
        counted = counters.read().counters

        assert dict.fromkeys(NOTHING_ELSE, 0) == {name: counted.get(name, 0) for name in NOTHING_ELSE}
        assert (1, 1, 1) == tuple(
            counted[name] for name in ("stream_syncs", "host_to_device_copies", "device_to_host_copies")
        )


def test_a_decode_is_one_replay_and_one_update_for_each_attention() -> None:
    llama, batch = plan("llama"), step([(0, 5, 1), (3, 200, 1), (2, 0, 1)])
    counters.reset()
    llama.run(batch)
    read = counters.read()

    assert (1, 4) == (read.counters["replays"], read.counters["graph_updates"])
    assert {"aclnnFusedInferAttentionScoreV3": 4} == read.launches


@pytest.mark.parametrize(("family", "in_rows"), [("llama", 0), ("qwen2", 1)])  # the head of qwen2 is tied to the table
def test_weights_lie_in_the_fractal_layout_but_for_a_table_that_is_also_the_head(family: str, in_rows: int) -> None:
    bound, batch = plan(family), step([(0, 0, 9)])
    counters.reset()
    bound.run(batch)
    launched = counters.read().launches
    products = sum(node.operator == "linear" for node in bound.nodes)

    assert in_rows == launched.get("aclnnMatmul", 0)
    assert products - in_rows == launched["aclnnMatmulWeightNz"] + launched.get("aclnnAddmmWeightNz", 0)


def test_every_captured_decode_asks_for_each_matrix_but_the_first_ahead_of_its_product() -> None:
    counters.reset()
    llama = bind()
    products = sum(node.operator == "linear" for node in llama.nodes)

    assert (products - 1) * len(DECODES) == counters.read().counters["prefetches"]


# --- mistakes that are planted ---

LONG, SHORT = step([(0, 250, 1), (1, 130, 1)]), step([(0, 3, 1), (1, 7, 1)])


def differs(bound: NpuPlan) -> bool:
    """Whether any of some decodes of one size is not the step call by call."""
    pairs = [(bound.run(batch).copy(), call_by_call(bound, batch, DECODES)) for batch in (LONG, SHORT, LONG)]
    return not all(np.array_equal(replayed, plain) for replayed, plain in pairs)


def test_without_a_planted_mistake_nothing_differs() -> None:
    assert not differs(bind())


def test_attention_that_does_not_wait_for_its_update_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.npu.ExternalEvent, "wait", lambda event, stream: None)

    assert differs(bind())


def test_a_step_that_does_not_wait_for_its_integers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bind()
    monkeypatch.setattr(torch.npu.Stream, "wait_event", lambda stream, event: None)

    assert differs(bound)


def an_update_that_is_not_recorded() -> None:
    torch.npu.ExternalEvent.record = lambda event, stream: None
    bind().run(SHORT)


def test_an_update_that_is_not_recorded_is_an_error() -> None:
    program = "from tests.ascend.test_fakecann_plan import *\nan_update_that_is_not_recorded()"
    ended = in_a_process_of_its_own(program)

    assert 0 != ended.returncode
    assert "waits for a value that nobody is about to write" in ended.stderr


# --- what is not captured ---


def test_a_plan_without_the_devices_attention_says_why_nothing_is_captured_and_answers() -> None:
    qwen = bind("qwen2", "float32")

    assert "attention got the variant torch, whose shapes follow the lengths of the step" == qwen.not_captured
    np.testing.assert_array_equal(call_by_call(qwen, SHORT, DECODES), qwen.run(SHORT))


def test_a_capture_that_the_device_refuses_leaves_the_steps_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("error code is 107030\nmore")

    monkeypatch.setattr(torch.npu, "graph_task_group_begin", refuse)
    llama = bind()

    assert "a decode of 6 sequences: error code is 107030" == llama.not_captured
    assert llama.target.endswith(f"not captured: {llama.not_captured}")
    np.testing.assert_array_equal(call_by_call(llama, SHORT, DECODES), llama.run(SHORT))


# --- what is said of it ---


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (
            "bfloat16",
            [
                "decodes: captured for 1, 2, 4, 8, 16, 32, 48, 64 and on, up to the most sequences of a step; replayed,"
                " padded to the next",
                "other steps: call by call, padded likewise: their products outweigh the launches, and their attention"
                " has other shapes each time",
                "ahead: 16 of 17 matrices, behind the product before each, of each up to 96.0 MiB, half of the L2 of"
                " Ascend910B3",
            ],
        ),
        (
            "float32",
            [
                "decodes: call by call, padded to 1, 2, 4, 8, 16, 32, 48, 64 and on: attention got the variant torch,"
                " whose shapes follow the lengths of the step",
                "other steps: call by call, padded likewise: their products outweigh the launches, and their attention"
                " has other shapes each time",
                "ahead: nothing, decodes are not captured",
            ],
        ),
    ],
)
def test_explain_says_what_is_captured_and_why_the_rest_is_not(dtype: str, wanted: list[str]) -> None:
    model = str(FIXTURES / "llama")
    said = CliRunner().invoke(operators, ["explain", model, "--device", "npu", "--dtype", dtype]).output

    assert wanted == said.splitlines()[-3:]
