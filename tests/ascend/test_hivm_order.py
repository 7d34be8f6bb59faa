"""Races among pipes are found where nothing orders them, and only there; flags are counted."""

from __future__ import annotations

from ascend.hivm.memory import Footprint
from ascend.hivm.mutants import mutants, outcomes
from ascend.hivm.order import Access, Barrier, Event, SetFlag, WaitFlag, faults, faults_between

_SIZES = {"UB": 128, "y": 64}
_LOW, _HIGH = Footprint("UB", slice(0, 64), 64), Footprint("UB", slice(64, 128), 64)
_Y = Footprint("y", slice(0, 64), 64)
_LOAD = Access(1, "load", "PIPE_MTE2", (), (_LOW,))
_SET, _WAIT = SetFlag(2, "PIPE_MTE2", "PIPE_V", 0), WaitFlag(3, "PIPE_MTE2", "PIPE_V", 0)
_EXP = Access(4, "vexp", "PIPE_V", (_LOW,), (_HIGH,))


def _kinds(*trace: Event) -> list[str]:
    return [fault.kind for fault in faults(trace, _SIZES)]


def test_a_read_after_a_write_on_another_pipe_is_a_race_without_a_flag() -> None:
    assert ["race"] == _kinds(_LOAD, _EXP)
    assert [] == _kinds(_LOAD, _SET, _WAIT, _EXP)


def test_a_flag_raised_too_early_orders_nothing() -> None:
    assert ["race"] == _kinds(_SET, _LOAD, _WAIT, _EXP)


def test_a_write_after_a_read_is_a_race_and_a_read_after_a_read_is_none() -> None:
    again = Access(5, "load", "PIPE_MTE2", (), (_LOW,))
    store = Access(6, "store", "PIPE_MTE3", (_LOW,), (_Y,))

    assert ["race", "race"] == _kinds(_LOAD, _SET, _WAIT, _EXP, again)  # with the read, and with the load before it
    assert [] == _kinds(_EXP, store)


def test_one_vector_operation_waits_for_another_at_a_barrier_only() -> None:
    add = Access(6, "vadd", "PIPE_V", (_HIGH,), (_HIGH,))

    assert ["race"] == _kinds(_EXP, add)
    assert [] == _kinds(_EXP, Barrier(5, "PIPE_V"), add)
    assert ["race"] == _kinds(_EXP, Barrier(5, "PIPE_MTE3"), add)
    assert [] == _kinds(_EXP, Barrier(5, "PIPE_ALL"), add)


def test_order_carries_over_from_flag_to_flag() -> None:
    handed = (SetFlag(5, "PIPE_V", "PIPE_MTE3", 0), WaitFlag(6, "PIPE_V", "PIPE_MTE3", 0))
    store = Access(7, "store", "PIPE_MTE3", (_LOW,), (_Y,))

    assert [] == _kinds(_LOAD, _SET, _WAIT, *handed, store)


def test_what_the_scalar_pipe_waited_for_is_finished_for_all_that_it_hands_out_later() -> None:
    waited = (SetFlag(5, "PIPE_V", "PIPE_S", 0), WaitFlag(6, "PIPE_V", "PIPE_S", 0))
    again = Access(7, "load", "PIPE_MTE2", (), (_HIGH,))

    assert [] == _kinds(_LOAD, _SET, _WAIT, _EXP, *waited, again)


def test_what_the_scalar_pipe_wrote_itself_needs_a_flag() -> None:
    written = Access(1, "memref.store", "PIPE_S", (), (_LOW,))

    assert ["race"] == _kinds(written, _EXP)
    assert [] == _kinds(written, SetFlag(2, "PIPE_S", "PIPE_V", 0), WaitFlag(3, "PIPE_S", "PIPE_V", 0), _EXP)


def test_a_wait_for_nothing_hangs_and_a_flag_left_up_is_told() -> None:
    assert ["hang"] == _kinds(_WAIT)
    assert ["flag"] == _kinds(_SET)
    assert ["flag"] == _kinds(_SET, _SET, _WAIT)


def test_bytes_apart_are_told_apart_within_the_same_range() -> None:
    even, odd = (Footprint("UB", index, 4) for index in ([0, 2, 4, 6], [1, 3, 5, 7]))
    first = Access(1, "load", "PIPE_MTE2", (), (even,))

    assert [] == _kinds(first, Access(2, "load", "PIPE_MTE2", (), (odd,)))
    assert ["race"] == _kinds(first, Access(2, "load", "PIPE_MTE2", (), (even,)))


def test_programs_may_read_the_same_bytes_and_never_write_them() -> None:
    reads, writes = Access(1, "load", "PIPE_MTE2", (_Y,), (_LOW,)), Access(2, "store", "PIPE_MTE3", (_LOW,), (_Y,))

    assert [] == faults_between([[reads], [reads]], _SIZES)
    assert ["program 1 writes bytes of y that program 0 touches"] == [
        fault.sentence for fault in faults_between([[reads], [writes]], _SIZES)
    ]


def test_every_piece_of_synchronisation_has_its_mutant_and_a_needed_one_is_seen() -> None:
    trace = (_LOAD, _SET, _WAIT, _EXP, Barrier(5, "PIPE_ALL"))
    wanted = {
        "set": {"race", "hang"},
        "wait": {"race", "flag"},
        "barrier": set(),
        "flag": {"race"},
    }

    assert list(wanted) == [mutant.kind for mutant in mutants(trace)]
    for outcome in outcomes(trace, _SIZES):
        assert wanted[outcome.mutant.kind] == outcome.seen


def test_a_mutant_that_does_no_harm_says_why() -> None:
    store = Access(5, "store", "PIPE_MTE3", (_HIGH,), (_Y,))
    idle = (SetFlag(6, "PIPE_MTE2", "PIPE_MTE3", 0), WaitFlag(7, "PIPE_MTE2", "PIPE_MTE3", 0))
    handed = (SetFlag(8, "PIPE_V", "PIPE_MTE3", 0), WaitFlag(9, "PIPE_V", "PIPE_MTE3", 0))
    twice = (_LOAD, _SET, _WAIT, _EXP, *idle, *handed, Barrier(10, "PIPE_V"), store, Barrier(11, "PIPE_ALL"))
    reasons = {tuple(outcome.mutant.lines): outcome.reason for outcome in outcomes(twice, _SIZES) if outcome.reason}

    assert "neither of its pipes writes a byte that the other touches" == reasons[6, 7]
    assert "it has nothing before it or nothing after it to order" == reasons[(10,)]
    assert "it has nothing before it or nothing after it to order" == reasons[(11,)]
