"""Races among pipes and cores are found where nothing orders them, and only there; flags are counted."""

from __future__ import annotations

from ascend.hivm.cores import ALL, Pipe
from ascend.hivm.memory import Footprint
from ascend.hivm.mutants import mutants, outcomes
from ascend.hivm.order import (
    LIBRARY,
    Access,
    Barrier,
    Event,
    SetBlock,
    SetFlag,
    WaitBlock,
    WaitFlag,
    faults,
    faults_between,
)

_SIZES = {"AIV UB": 128, "y": 64}
_LOW, _HIGH = Footprint("AIV UB", slice(0, 64), 64), Footprint("AIV UB", slice(64, 128), 64)
_S, _V, _MTE2, _MTE3 = (Pipe("AIV", f"PIPE_{name}") for name in ("S", "V", "MTE2", "MTE3"))
_Y = Footprint("y", slice(0, 64), 64)
_LOAD = Access(1, "load", _MTE2, (), (_LOW,))
_SET, _WAIT = SetFlag(2, _MTE2, _V, 0), WaitFlag(3, _MTE2, _V, 0)
_EXP = Access(4, "vexp", _V, (_LOW,), (_HIGH,))


def _kinds(*trace: Event) -> list[str]:
    return [fault.kind for fault in faults(trace, _SIZES)]


def test_a_read_after_a_write_on_another_pipe_is_a_race_without_a_flag() -> None:
    assert ["race"] == _kinds(_LOAD, _EXP)
    assert [] == _kinds(_LOAD, _SET, _WAIT, _EXP)


def test_a_flag_raised_too_early_orders_nothing() -> None:
    assert ["race"] == _kinds(_SET, _LOAD, _WAIT, _EXP)


def test_a_write_after_a_read_is_a_race_and_a_read_after_a_read_is_none() -> None:
    again = Access(5, "load", _MTE2, (), (_LOW,))
    store = Access(6, "store", _MTE3, (_LOW,), (_Y,))

    assert ["race", "race"] == _kinds(_LOAD, _SET, _WAIT, _EXP, again)  # with the read, and with the load before it
    assert [] == _kinds(_EXP, store)


def test_one_vector_operation_waits_for_another_at_a_barrier_only() -> None:
    add = Access(6, "vadd", _V, (_HIGH,), (_HIGH,))

    assert ["race"] == _kinds(_EXP, add)
    assert [] == _kinds(_EXP, Barrier(5, _V), add)
    assert ["race"] == _kinds(_EXP, Barrier(5, _MTE3), add)
    assert [] == _kinds(_EXP, Barrier(5, Pipe("AIV", ALL)), add)


def test_order_carries_over_from_flag_to_flag() -> None:
    handed = (SetFlag(5, _V, _MTE3, 0), WaitFlag(6, _V, _MTE3, 0))
    store = Access(7, "store", _MTE3, (_LOW,), (_Y,))

    assert [] == _kinds(_LOAD, _SET, _WAIT, *handed, store)


def test_what_the_scalar_pipe_waited_for_is_finished_for_all_that_it_hands_out_later() -> None:
    waited = (SetFlag(5, _V, _S, 0), WaitFlag(6, _V, _S, 0))
    again = Access(7, "load", _MTE2, (), (_HIGH,))

    assert [] == _kinds(_LOAD, _SET, _WAIT, _EXP, *waited, again)


def test_what_the_scalar_pipe_wrote_itself_needs_a_flag() -> None:
    written = Access(1, "memref.store", _S, (), (_LOW,))

    assert ["race"] == _kinds(written, _EXP)
    assert [] == _kinds(written, SetFlag(2, _S, _V, 0), WaitFlag(3, _S, _V, 0), _EXP)


def test_a_wait_for_nothing_hangs_and_a_flag_left_up_is_told() -> None:
    assert ["hang"] == _kinds(_WAIT)
    assert ["flag"] == _kinds(_SET)
    assert ["flag"] == _kinds(_SET, _SET, _WAIT)


def test_bytes_apart_are_told_apart_within_the_same_range() -> None:
    even, odd = (Footprint("AIV UB", index, 4) for index in ([0, 2, 4, 6], [1, 3, 5, 7]))
    first = Access(1, "load", _MTE2, (), (even,))

    assert [] == _kinds(first, Access(2, "load", _MTE2, (), (odd,)))
    assert ["race"] == _kinds(first, Access(2, "load", _MTE2, (), (even,)))


def test_programs_may_read_the_same_bytes_and_never_write_them() -> None:
    reads, writes = Access(1, "load", _MTE2, (_Y,), (_LOW,)), Access(2, "store", _MTE3, (_LOW,), (_Y,))

    assert [] == faults_between([[reads], [reads]], {"y": 64})
    assert ["program 1 writes bytes of y that program 0 touches"] == [
        fault.sentence for fault in faults_between([[reads], [writes]], {"y": 64})
    ]


def test_every_piece_of_synchronisation_has_its_mutant_and_a_needed_one_is_seen() -> None:
    trace = (_LOAD, _SET, _WAIT, _EXP, Barrier(5, Pipe("AIV", ALL)))
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
    store = Access(5, "store", _MTE3, (_HIGH,), (_Y,))
    idle = (SetFlag(6, _MTE2, _MTE3, 0), WaitFlag(7, _MTE2, _MTE3, 0))
    handed = (SetFlag(8, _V, _MTE3, 0), WaitFlag(9, _V, _MTE3, 0))
    twice = (_LOAD, _SET, _WAIT, _EXP, *idle, *handed, Barrier(10, _V), store, Barrier(11, Pipe("AIV", ALL)))
    reasons = {
        tuple(sorted(line for line, _ in outcome.mutant.sites)): outcome.reason
        for outcome in outcomes(twice, _SIZES)
        if outcome.reason
    }

    assert "neither of its pipes writes a byte that the other touches" == reasons[6, 7]
    assert "it has nothing before it or nothing after it to order" == reasons[(10,)]
    assert "it has nothing before it or nothing after it to order" == reasons[(11,)]


_FIX, _CUBE_S = Pipe("AIC", "PIPE_FIX"), Pipe("AIC", "PIPE_S")
_HANDED = {"y": 64}  # what the cores of a mixed kernel hand to each other


def _reads(core: str, line: int) -> Access:
    return Access(line, "load", Pipe(core, "PIPE_MTE2"), (_Y,), ())


def _mixed(*trace: Event) -> list[str]:
    return [fault.kind for fault in faults(trace, _HANDED)]


_MADE, _AGAIN = (Access(line, "fixpipe", _FIX, (), (_Y,)) for line in (1, 9))
_TELL = SetBlock(2, _FIX, 2)
_HEAR = tuple(WaitBlock(3, core, 2) for core in ("AIV0", "AIV1"))
_READ = tuple(_reads(core, 4) for core in ("AIV0", "AIV1"))
_DONE = tuple(SetBlock(5, Pipe(core, "PIPE_MTE2"), 4) for core in ("AIV0", "AIV1"))
_FREE = WaitBlock(6, "AIC", 4)


def test_what_one_core_made_another_may_read_once_it_was_told() -> None:
    assert ["race"] == _mixed(_MADE, _READ[0])
    assert [] == _mixed(_MADE, _TELL, *_HEAR, *_READ)
    assert ["race"] == _mixed(_TELL, _MADE, *_HEAR, _READ[0])


def test_a_cube_core_goes_on_when_both_of_its_vector_cores_have_told_it() -> None:
    before = (_MADE, _TELL, *_HEAR, *_READ)

    assert [] == _mixed(*before, *_DONE, _FREE, _AGAIN)
    assert {"hang", "race", "flag"} == set(_mixed(*before, _DONE[0], _FREE, _AGAIN))


def test_flags_between_cores_count() -> None:
    twice = (_MADE, _TELL, Barrier(8, _FIX), _AGAIN, _TELL)

    assert [] == _mixed(*twice, *_HEAR, *_HEAR, *_READ)
    assert ["race", "flag", "flag"] == _mixed(*twice, *_HEAR, *_READ)  # told of the first, they read the second


def test_telling_orders_the_pipe_that_tells_and_no_other() -> None:
    other = SetBlock(2, _CUBE_S, 2)

    assert {"race"} == set(_mixed(_MADE, other, *_HEAR, *_READ))


def test_a_flag_between_cores_dropped_whole_is_seen_as_a_race() -> None:
    trace = (_MADE, _TELL, *_HEAR, *_READ, *_DONE, _FREE, _AGAIN)
    seen = {outcome.mutant.kind: outcome.seen for outcome in outcomes(trace, _HANDED)}

    assert {"block set", "block wait", "block flag"} == set(seen)
    assert {"race"} == seen["block flag"]


def test_what_the_device_library_orders_is_not_left_out() -> None:
    held = SetFlag(2, _MTE2, _V, 7, part=LIBRARY), WaitFlag(2, _MTE2, _V, 7, part=LIBRARY)

    assert [] == _kinds(_LOAD, *held, _EXP)
    assert [] == list(mutants((_LOAD, *held, _EXP)))
