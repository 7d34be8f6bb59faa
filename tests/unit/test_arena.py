import numpy as np
import pytest

from trivet.base.errors import ResourceError
from trivet.framework.memory.arena import HUGE_PAGE_BYTES, Arena


@pytest.mark.parametrize("num_bytes", [1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1])
def test_an_arena_starts_on_a_huge_page_and_is_zero_to_its_last_byte(num_bytes):
    with Arena(num_bytes, "weights") as arena:
        view = arena.view(0, (num_bytes,), np.uint8)

        assert arena.address % HUGE_PAGE_BYTES == 0
        assert not view.any()
        view[-1] = 7
        assert arena.view(num_bytes - 1, (1,), np.uint8)[0] == 7
        del view


def test_a_view_shares_the_arenas_memory_at_its_offset():
    with Arena(1 << 16, "activations") as arena:
        values = arena.view(4096, (3, 5), np.float32)
        values[:] = 1.5

        assert arena.address + 4096 == values.ctypes.data
        assert (arena.view(4096, (15,), np.float32) == 1.5).all()
        assert arena.view(4096 + values.nbytes, (1,), np.float32)[0] == 0
        del values


def test_a_view_past_the_end_is_a_broken_invariant():
    with Arena(100, "activations") as arena, pytest.raises(AssertionError, match=r"bytes 96\.\.104 of 100"):
        arena.view(96, (2,), np.float32)


def test_closing_under_a_view_is_refused_and_works_once_it_is_gone():
    arena = Arena(4096, "kv")
    view = arena.view(0, (4096,), np.uint8)
    with pytest.raises(BufferError):
        arena.close()
    view[:] = 1  # still mapped
    del view

    arena.close()


def test_too_much_memory_says_what_was_needed_what_there_is_and_which_knob():
    with pytest.raises(ResourceError, match=r"KV pool: needs .* available") as caught:
        Arena(1 << 60, "KV pool", knob="--kv-memory")

    assert caught.value.hint == "lower --kv-memory"
