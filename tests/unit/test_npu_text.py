"""What npu-smi prints is told right or not at all, however the text was cut, wrapped, joined or moved."""

import re
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivet.driver.facts import HostFacts
from trivet.driver.npu_facts import NpuChip, NpuProcess
from trivet.driver.readers.npu_fields import Block, parse_blocks
from trivet.driver.readers.npu_matrix import parse_links, parse_map
from trivet.driver.readers.npu_table import NpuTable, parse_table
from trivet.driver.readers.pasted_host import read_pasted_host

OUTPUTS = Path(__file__).parents[1] / "fixtures" / "outputs"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted(OUTPUTS.glob("*.txt"))}
TABLES = {name: text for name, text in TEXTS.items() if "Process id" in text or "Bus-Id" in text}
WHOLE = {name: text for name, text in TABLES.items() if text.startswith("+") and not parse_table(text).is_partial}
BLOCKS = {name: text for name, text in TEXTS.items() if "NPU ID  " in text and " : " in text and name not in TABLES}

# What is done to a text: a place in it from 0 to 1, and how.
HARMS = st.sampled_from(
    ["cut", "drop a line", "drop two lines", "twice", "swap lines", "join lines", "space in", "space out", "bar out"]
)
# What makes another word of a word, and must make no other number of a number.
SPOILS = st.sampled_from(["digit to ?", "digit to O", "digit to fullwidth", "dash in", "letter in", "comma in"])


def harmed(text: str, harm: str, place: float) -> str:
    lines = text.splitlines(keepends=True)
    line, at = min(int(place * len(lines)), len(lines) - 1), min(int(place * len(text)), len(text) - 1)
    if harm == "cut":
        return text[:at]
    if harm in ("drop a line", "drop two lines"):
        return "".join(lines[:line] + lines[line + (1 if harm == "drop a line" else 2) :])
    if harm == "twice":
        return "".join(lines[: line + 1] + lines[line:])
    if harm == "join lines":
        return "".join(lines[:line]) + lines[line].rstrip("\n") + "".join(lines[line + 1 :])
    if harm == "swap lines":
        return "".join((*lines[:line], *lines[line : line + 2][::-1], *lines[line + 2 :]))
    if harm.endswith(" in"):
        return (
            text[:at] + {"space": " ", "dash": "-", "letter": "b", "comma": ","}[harm.removesuffix(" in")] + text[at:]
        )
    if harm.startswith("digit to "):
        place_of = next((index for index in range(at, len(text)) if text[index] in "0123456789"), None)
        if place_of is None:
            return text
        other = {"digit to ?": "?", "digit to O": "O"}.get(harm) or chr(0xFF10 + int(text[place_of]))
        return text[:place_of] + other + text[place_of + 1 :]
    start = text.find("|" if harm == "bar out" else "  ", at)
    if start < 0:
        return text
    end = start + 1
    while harm == "space out" and text[end : end + 1] == " ":  # all of it, so that two words become one
        end += 1
    return text[:start] + text[end:]


def wrapped(text: str, width: int) -> str:
    """As a terminal of this width shows it."""
    pieces = [line[start : start + width] for line in text.splitlines() for start in range(0, max(len(line), 1), width)]
    return "\n".join(pieces) + "\n"


def contradictions(before: NpuTable, after: NpuTable) -> list[str]:
    """Everything that the harmed text says and the whole one does not."""
    found = [
        name for name in ("tool_version", "driver_version") if getattr(after, name) not in (None, getattr(before, name))
    ]
    for kind, key in (("chips", ("npu_id", "chip_id")), ("processes", ("npu_id", "chip_id", "pid"))):
        good = [told(row) for row in getattr(before, kind) or ()]
        for row in getattr(after, kind) or ():
            said = {name: value for name, value in told(row).items() if value is not None}
            whole = set(key) <= said.keys()
            if not any(said.items() <= each.items() for each in good):
                found.append(f"{kind}: {said}")
            if not whole and not after.is_partial and all(each["chip_id"] is not None for each in good):
                found.append(f"{kind}: {said} is not called partial")
    return found


def numbers(row: NpuChip | NpuProcess) -> dict[str, object]:
    return {name: value for name, value in asdict(row).items() if isinstance(value, int | float)}


def told(row: NpuChip | NpuProcess) -> dict[str, object]:
    """What it says. A program's name may hold spaces, so one more or less is not seen."""
    return asdict(row) | ({"name": (row.name or "").replace(" ", "") or None} if isinstance(row, NpuProcess) else {})


@pytest.mark.parametrize("name", WHOLE)
def test_every_chip_of_a_whole_table_has_its_number_health_and_memory(name):
    table = parse_table(WHOLE[name])

    assert table.chips
    for chip in table.chips:
        assert chip.health is not None
        assert chip.name is not None
        assert chip.memory_total_bytes or chip.hbm_total_bytes


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(WHOLE)), harm=HARMS, place=st.floats(0, 1))
def test_a_harmed_table_says_nothing_that_the_whole_one_does_not(name, harm, place):
    text = WHOLE[name]

    assert [] == contradictions(parse_table(text), parse_table(harmed(text, harm, place)))


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(WHOLE)), spoil=SPOILS, place=st.floats(0, 1))
def test_a_digit_that_is_spoilt_gives_no_other_number(name, spoil, place):
    before, after = parse_table(WHOLE[name]), parse_table(harmed(WHOLE[name], spoil, place))
    known = [numbers(row) for row in (*(before.chips or ()), *(before.processes or ()))]

    for row in (*(after.chips or ()), *(after.processes or ())):
        assert any(numbers(row).items() <= each.items() for each in known)


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(WHOLE)), place=st.floats(0, 1))
def test_a_table_that_was_cut_is_called_partial_unless_it_ends_where_another_would(name, place):
    text = harmed(WHOLE[name], "cut", place)
    table = parse_table(text)

    is_at_border = not text.strip() or text.rstrip().splitlines()[-1].strip() in WHOLE[name].splitlines()
    assert table.chips is None or table.is_partial or is_at_border


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(WHOLE)), width=st.integers(12, 130))
def test_a_table_means_the_same_in_a_narrow_terminal(name, width):
    assert parse_table(WHOLE[name]) == parse_table(wrapped(WHOLE[name], width))


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(sorted(WHOLE)), before=st.text(max_size=50), after=st.text(max_size=50))
def test_a_table_means_the_same_within_a_longer_text(name, before, after):
    around = [line for line in f"{before}\n{after}".splitlines() if line.strip().startswith(("|", "+"))]
    text = f"{before}\n{WHOLE[name]}\n{after}\n"

    assert around or parse_table(WHOLE[name]) == parse_table(text)


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(BLOCKS)), harm=HARMS, place=st.floats(0, 1))
def test_harmed_names_and_values_say_nothing_that_the_whole_ones_do_not(name, harm, place):
    # A space more or less within a word makes another word, which no reader can know.
    if harm not in ("space in", "space out"):
        whole, found = parse_blocks(BLOCKS[name]), parse_blocks(harmed(BLOCKS[name], harm, place))
        written = set(re.findall(r"^\s*(\w.*?) +: +(.+?)\s*$", BLOCKS[name], re.MULTILINE))

        for block in found:
            assert block.values.items() <= written
            if block.npu_id is not None and block.chip_id is not None:
                own = block.values.items() - {("Chip Count", "1"), ("Chip Count", "2")}  # of the card, not the chip
                assert any(own <= each.values.items() for each in whole if owner(each) == owner(block))


def owner(block: Block) -> tuple[int | None, int | None]:
    return block.npu_id, block.chip_id


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(["026-910B3-topo-HCCS", "074-950-topo-SYS", "075-950-topo-UB"]),
    harm=HARMS,
    place=st.floats(0, 1),
)
def test_a_harmed_matrix_is_the_same_or_none(name, harm, place):
    text = TEXTS[name]
    found = parse_links(harmed(text, harm, place))

    whole = parse_links(text)
    assert whole is not None
    assert found is None or [row.paths for row in whole] == [row.paths for row in found]


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(["041-910A-info-m", "061-910B4-info-m-mcu", "071-950-m"]), harm=HARMS, place=st.floats(0, 1)
)
def test_a_harmed_map_says_nothing_that_the_whole_one_does_not(name, harm, place):
    found = parse_map(harmed(TEXTS[name], harm, place))

    whole = {(row.npu_id, row.chip_id, row.logic_id, row.device_id) for row in parse_map(TEXTS[name]) or ()}
    assert {(row.npu_id, row.chip_id, row.logic_id, row.device_id) for row in found or ()} <= whole


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet=st.sampled_from("|+-= \n0123/NPUChipHealthOK.:()%,MBusId"), max_size=400)
    | st.text(max_size=200)
)
def test_no_text_raises_and_every_answer_survives_json(text):
    facts = read_pasted_host(text)

    assert facts == msgspec.json.decode(msgspec.json.encode(facts), type=HostFacts)


def test_more_used_than_there_is_says_neither():
    text = TEXTS["001-910B4-1-25.2.2"].replace("61825/ 65536", "61825/ 6553 ", 1)

    chips = parse_table(text).chips
    assert chips is not None
    assert (None, None) == (chips[0].hbm_used_bytes, chips[0].hbm_total_bytes)
    assert (61825 << 20, 65536 << 20) == (chips[1].hbm_used_bytes, chips[1].hbm_total_bytes)


def test_the_column_of_container_processes_is_read():
    text = TEXTS["001-910B4-1-25.2.2"]
    wide = text.replace("Process memory(MB)      |", "Process memory(MB) | Process id in container |")
    wide = wide.replace("| 58472                   |", "| 58472 | 77 |", 1).replace(
        "| 58472                   |", "| 58472 | NA |", 1
    )

    processes = parse_table(wide).processes
    assert processes is not None
    assert [77, None] == [process.container_pid for process in processes]


def test_a_long_line_of_blanks_costs_no_more_than_its_length():
    parse_table(TEXTS["001-910B4-1-25.2.2"] + "| 0       0   |" + " " * 200_000 + "x | 1 |\n")
