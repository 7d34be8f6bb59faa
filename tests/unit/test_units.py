"""Sizes and times as people read and write them."""

import pytest

from trivet.base.errors import TrivetError
from trivet.base.units import align_up, format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"), [("4096", 4096), ("2GiB", 2 << 30), ("1.5 m", 3 << 19), ("512MB", 512 << 20), ("1k", 1024)]
)
def test_a_size_is_read_with_or_without_a_unit(text: str, count: int) -> None:
    assert count == parse_bytes(text)


@pytest.mark.parametrize("text", ["", "many", "-1GiB", "1XB", "1 G G"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(TrivetError, match="is not a size"):
        parse_bytes(text)


def test_sizes_and_times_are_written_in_the_unit_that_reads_best() -> None:
    assert [format_bytes(n) for n in (999, 2048, 3 << 29)] == ["999 B", "2.0 KiB", "1.5 GiB"]
    assert [format_seconds(s) for s in (5e-6, 0.0123, 1.5, 180)] == ["5 µs", "12.3 ms", "1.50 s", "3.0 min"]


def test_align_up_gives_the_least_multiple_that_is_not_below() -> None:
    assert [align_up(n, 64) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
