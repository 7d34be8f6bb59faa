"""The record of an answer that stays with a package."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivet.framework.engine.probe import RECORD, Answer, record_answer, recorded_answer

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


def test_a_folder_that_is_not_there_is_said_by_false(tmp_path: Path) -> None:
    assert not record_answer(tmp_path / "absent", "cpu", ANSWER)
