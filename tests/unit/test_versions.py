"""How versions compare, and what files and table say of each other."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trivet.driver.matrix import COMPONENTS, drivers_of, releases_of, rows, rows_of, takes, takes_python
from trivet.driver.stack_facts import Cann, DriverVersion, FirmwareVersion
from trivet.driver.versions import cann_fits, firmware_fits, in_range, matches, same_release, version_key

NUMBERS = st.lists(st.integers(0, 40), min_size=1, max_size=4).map(lambda each: ".".join(map(str, each)))
DRIVER = DriverVersion(
    "", "25.5.2", "25.5.2", "V100R001C23SPC007B221", ("V100R001C19", "V100R001C23"), ("7.0.0", "8.9.9")
)


def cann(inner: str | None, *takes: str) -> Cann:
    return Cann("/cann", True, (), None, "9.1.0", inner, takes or None, None, None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("8.3.RC2", "8.3.0"), ("8.3.RC1", "8.3.RC2"), ("8.5.0.alpha001", "8.5.0"), ("2.10.0", "2.10.0.post4"),
        ("25.0.rc1", "25.0.rc1.1"), ("25.5.2", "26.0.RC1"), ("9.1.0-beta.3", "9.1.0"), ("2.9.0", "2.10.0"),
        ("7.8.0.7.220", "7.8.0.7.221"), ("8.0.T6", "8.0.RC1"), ("0.23.0rc1", "0.23.0"),
    ],
)  # fmt: skip
def test_versions_come_in_the_order_in_which_they_were_released(less, more):
    assert version_key(less) < version_key(more)


@given(NUMBERS)
def test_zeros_at_the_end_letters_and_a_build_change_nothing(text):
    assert version_key(text) == version_key(f"{text}.0") == version_key(f"v{text}") == version_key(f"{text}+cpu")
    assert version_key(f"{text}.rc1") < version_key(text) < version_key(f"{text}.post1")
    assert matches(text, text) and matches(f"{text}.7", f"{text}.X")


@given(st.text(max_size=30))
@example("Aß")
@example("aı")
def test_any_text_has_a_key(text):
    assert version_key(text) == version_key(text.upper())


@pytest.mark.parametrize(
    ("within", "version", "first", "last"),
    [
        (True, "7.8.0.7.220", "7.0.0", "8.9.9"), (False, "6.4.12.1.241", "7.0.0", "8.9.9"),
        (True, "7.5.99.3", "7.0.0", "7.5.99"), (True, "25.5.2", "25.0", "25.5."), (False, "26.0.rc1", "25.0", "25.5."),
        (True, "23.0.0", "23.0.0", "23.0.0."), (False, "23.0.1", "23.0.0", "23.0.0."),
    ],
)  # fmt: skip
def test_a_range_holds_its_ends_and_what_begins_as_they_do(within, version, first, last):
    assert within == in_range(version, first, last)


@pytest.mark.parametrize(
    ("fits", "firmware", "takes"),
    [
        (True, "7.8.0.7.220", (("25.0", "25.5."),)), (False, "6.4.12.1.241", (("25.0", "25.5."),)),
        (False, "7.8.0.7.220", (("23.0.0", "23.0.0."),)), (True, "7.8.0.7.220", None),
    ],
)  # fmt: skip
def test_driver_and_firmware_both_have_a_say(fits, firmware, takes):
    assert fits is firmware_fits(DRIVER, None, FirmwareVersion("", firmware, None, takes))


def test_nothing_is_said_of_a_firmware_where_no_file_speaks():
    assert firmware_fits(None, "7.8.0", None) is None
    assert firmware_fits(DriverVersion("", "25.5.2", None, None, None, None), "7.8.0", None) is None


@pytest.mark.parametrize(
    ("fits", "toolkit"),
    [
        (True, cann("V100R001C11B1", "V100R001C21", "V100R001C23")),  # CANN 9.1 names the driver
        (True, cann("V100R001C19B1", "V100R001C17")),  # the driver names CANN
        (False, cann("V100R001C11B1", "V100R001C21")),
        (None, cann(None)),
        (None, cann("V100R001C11B1")),
    ],
)
def test_one_direction_is_enough_and_silence_is_no_verdict(fits, toolkit):
    assert fits is cann_fits(DRIVER, toolkit)


def test_torch_and_torch_npu_share_three_numbers():
    assert same_release("2.10.0+cpu", "2.10.0.post4")
    assert not same_release("2.9.0", "2.10.0")
    assert not same_release("main", "main")


def test_the_table_is_whole():
    assert set(COMPONENTS) == {row.component for row in rows()}
    assert [] == [row for row in rows() if not row.source or not version_key(row.version)]
    assert "0.23.0" == releases_of("vllm-ascend")[0]


def test_the_table_says_what_its_sources_say():
    row = rows_of("vllm-ascend", "0.23.0")[0]

    assert ("9.1.0", "2.10.0", "2.10.0.post4", "3.2.2") == (row.cann, row.torch, row.torch_npu, row.triton_ascend)
    assert takes("|".join(drivers_of("9.1.0")), "25.5.2")
    assert not takes("|".join(drivers_of("9.1.0")), "25.0.1")  # the release notes of 9.1.0 say so
    assert () == drivers_of("7.0.0")


@pytest.mark.parametrize(
    ("taken", "column", "python"),
    [
        (True, ">= 3.10, < 3.13", "3.12.4"), (False, ">= 3.10, < 3.13", "3.13.0"), (True, "3.10 3.11", "3.11.9"),
        (False, "3.10 3.11", "3.1"), (True, "3.7(>=3.7.5) 3.8", "3.8.10"),
    ],
)  # fmt: skip
def test_a_python_is_within_its_bounds_or_in_its_list(taken, column, python):
    assert taken == takes_python(column, python)
