"""The record of an answer that stays with a package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.system.tiny import FIXTURES
from tests.unit.pretend_plan import PretendPlan
from trivet._native import Gate
from trivet.base.dtypes import Array
from trivet.base.errors import TrivetError
from trivet.base.formats import KvFormat
from trivet.base.settings import Settings
from trivet.framework.engine.probe import (
    RECORD,
    Answer,
    answer_alone,
    answer_in_a_crowd,
    record_answer,
    recorded_answer,
    who_answers,
)
from trivet.framework.graph.plan import Batch
from trivet.framework.model.loader import open_model

ANSWER = Answer(prompt=(1, 2), tokens=(3, 4), logprobs=(-0.5, -0.25))
OTHER = Answer(prompt=(1, 2), tokens=(3, 5), logprobs=(-0.5, -0.125))


def test_each_device_has_its_own_record(tmp_path: Path) -> None:
    assert record_answer(tmp_path, "cpu", ANSWER)
    assert record_answer(tmp_path, "npu", OTHER)

    assert ANSWER == recorded_answer(tmp_path, "cpu")
    assert OTHER == recorded_answer(tmp_path, "npu")
    assert recorded_answer(tmp_path, "torch") is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"cpu": 1}', '{"cpu": {"prompt": [1]}}'])
def test_what_is_no_record_is_no_answer_and_is_replaced(text: str, tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text(text)

    assert recorded_answer(tmp_path, "cpu") is None
    assert record_answer(tmp_path, "cpu", ANSWER)
    assert ANSWER == recorded_answer(tmp_path, "cpu")


def test_a_format_of_the_cache_that_is_not_the_package_s_has_its_own_record(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    formats: tuple[KvFormat | None, ...] = (None, "bfloat16", "int8")
    packages = [open_model(FIXTURES / "llama", kv_dtype=kv_dtype, settings=settings) for kv_dtype in formats]

    assert ["cpu", "cpu", "cpu int8"] == [who_answers(package, "cpu") for package in packages]
    assert record_answer(tmp_path, "cpu", ANSWER)
    assert record_answer(tmp_path, "cpu int8", OTHER)
    assert (ANSWER, OTHER) == (recorded_answer(tmp_path, "cpu"), recorded_answer(tmp_path, "cpu int8"))


@pytest.mark.parametrize("ask", [answer_alone, answer_in_a_crowd])
def test_no_answer_is_not_taken_for_the_same_as_none(ask: Callable[[PretendPlan, range], object]) -> None:
    class Broken(PretendPlan):
        def run(self, batch: Batch, arriving: Sequence[Gate] = ()) -> Array:
            return np.full_like(super().run(batch, arriving), np.nan)

    with pytest.raises(TrivetError, match="the known prompt of 9 tokens could not be answered"):
        ask(Broken(), range(3, 12))


def test_a_folder_that_is_not_there_is_said_by_false(tmp_path: Path) -> None:
    assert not record_answer(tmp_path / "absent", "cpu", ANSWER)
