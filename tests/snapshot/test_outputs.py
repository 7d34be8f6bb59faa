"""Every output of a tool that we have is read as the file beside it says."""

import pytest

from tests.snapshot.outputs import OUTPUTS, commands, read_back

COMMANDS = commands()


def test_every_output_names_its_source():
    assert sorted(COMMANDS) == sorted(path.stem for path in OUTPUTS.glob("*.txt"))


@pytest.mark.parametrize("name", COMMANDS)
def test_an_output_is_read_as_it_was(name):
    expected = (OUTPUTS / f"{name}.json").read_text(encoding="utf-8")

    assert expected == read_back(COMMANDS[name], (OUTPUTS / f"{name}.txt").read_text(encoding="utf-8"))
