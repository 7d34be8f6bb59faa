"""The doctor's explanations of real cases: the layer, the cause where one was established, and none where none was."""

import pytest

from tests.snapshot.doctor_score import PAGE, Judged, judged, page
from trivet.driver.explain.tables import rules

CASES = judged()


@pytest.mark.parametrize("case", [each for each in CASES if each.has_evidence], ids=lambda each: each.case["id"])
def test_a_case_with_evidence_gets_its_layer_and_its_cause(case: Judged) -> None:
    assert case.case["layer"] == case.layer
    assert case.is_cause_right, f"named {case.cause} with confidence {case.confidence}, wanted {case.case['cause']}"


@pytest.mark.parametrize("case", [each for each in CASES if not each.has_evidence], ids=lambda each: each.case["id"])
def test_a_case_without_evidence_gets_no_confident_cause(case: Judged) -> None:
    assert case.confidence in ("low", "none")


def test_every_cause_that_a_case_names_is_in_the_tables() -> None:
    causes = {rule.id for rule in rules() if rule.confidence != "none"}

    assert set() == {case.case["cause"] for case in CASES} - causes - {None}


def test_the_page_says_what_the_code_does() -> None:
    assert page(CASES) == PAGE.read_text(encoding="utf-8"), (
        "if the change is meant: python -m tests.snapshot.doctor_score"
    )
