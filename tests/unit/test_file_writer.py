"""What a thread of its own does to files: tried in this one, on files that only take notes."""

import threading

import numpy as np
import pytest

from trivet.framework.memory import file_writer
from trivet.framework.memory.chain import Link
from trivet.framework.memory.file_writer import FileWriter
from trivet.framework.memory.host_tier import HostBlock


class Notes:
    """Files of which three blocks are to be proved in a round; a look at what others wrote takes a minute."""

    def __init__(self) -> None:
        self.events = []
        self.now_s = 0.0
        self.num_unproved = 3

    def publish(self, blocks):
        self.events.append([link.name for link, _, _ in blocks])

    def scrub_next(self):
        if self.num_unproved == 0:
            self.num_unproved = 3
            return False
        self.num_unproved -= 1
        self.events.append("prove")
        return True

    def look(self):
        self.now_s += 60
        self.events.append("look")


def block(number: int) -> HostBlock:
    return HostBlock(Link(bytes([number]), b"", b"", b""), np.zeros(1, np.uint8), (0,), num_pins=1)


def writer_of(notes: Notes) -> tuple[FileWriter, list]:
    """And the blocks that it has unpinned."""
    unpinned = []
    return FileWriter(notes, unpinned.extend, lambda: notes.now_s), unpinned


def test_blocks_are_published_in_their_order_many_at_once_and_then_unpinned():
    notes = Notes()
    writer, unpinned = writer_of(notes)
    blocks = [block(number) for number in range(20)]
    for each in blocks:
        writer.write(each)
    writer.close()
    writer.run()

    assert [[bytes([i]) for i in range(16)], [bytes([i]) for i in range(16, 20)]] == notes.events
    assert [id(each) for each in blocks] == [id(each) for each in unpinned]


def test_what_else_is_asked_for_is_done_when_all_before_it_is_and_before_all_behind():
    notes = Notes()
    writer, _ = writer_of(notes)
    writer.write(block(1))
    writer.act(lambda files: files.events.append("pin"))
    writer.write(block(2))
    writer.write(block(3))
    writer.close()
    writer.run()

    assert [[b"\1"], "pin", [b"\2", b"\3"]] == notes.events


def test_while_there_is_nothing_to_write_all_is_proved_once_an_hour_and_others_are_looked_for(monkeypatch):
    for pause in ("_SCRUB_PAUSE_S", "_LOOK_PAUSE_S"):
        monkeypatch.setattr(file_writer, pause, 0)
    notes = Notes()
    writer, _ = writer_of(notes)
    look = notes.look

    def look_for_two_hours():
        look()
        if notes.now_s == 2 * 3600:
            writer.close()

    monkeypatch.setattr(notes, "look", look_for_two_hours)
    writer.run()

    assert 2 * (["prove"] * 3 + ["look"] * 60) == notes.events


def test_settling_waits_until_everything_is_written():
    notes = Notes()
    writer, unpinned = writer_of(notes)
    thread = threading.Thread(target=writer.run)
    thread.start()
    for number in range(40):
        writer.write(block(number))
    writer.settle()
    num_unpinned = len(unpinned)
    writer.close()
    thread.join()

    assert 40 == num_unpinned


@pytest.mark.parametrize("pause_s", [0, 0.01])
def test_nothing_is_next_where_nothing_was_asked_for(pause_s):
    writer, _ = writer_of(Notes())

    assert writer.next(pause_s) is None
