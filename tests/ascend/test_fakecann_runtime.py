"""Memory, streams, events and refusals of the fake, seen through the unmodified torch_npu wheel."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

if "FAKECANN" not in os.environ:
    pytest.skip("runs over the fake CANN: python -m ascend.fakecann.run pytest …", allow_module_level=True)

import torch
import torch_npu

from ascend.fakecann import counters

MIB = 1 << 20


def pinned(*values: float) -> torch.Tensor:
    return torch.tensor(values).pin_memory()


def in_a_process_of_its_own(program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """For what ends a process or spoils its device."""
    program = f"import torch, torch_npu, ctypes\n{program}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600)


def test_the_wheel_finds_every_symbol_it_links_against() -> None:
    assert 0 == in_a_process_of_its_own("", LD_BIND_NOW="1").returncode


def test_the_device_is_an_ascend_910b3() -> None:
    device = torch.npu.get_device_properties(0)

    assert ("Ascend910B3", 64 << 30, 20, 40) == (
        device.name,
        device.total_memory,
        device.cube_core_num,
        device.vector_core_num,
    )


def test_what_goes_to_the_device_comes_back() -> None:
    x = torch.randn(3, 5).to(torch.bfloat16)

    assert torch.equal(x, x.npu().cpu())


def test_each_device_has_its_own_memory() -> None:
    x = torch.ones(3, device="npu:1")

    assert "npu:1" == str(x.device)
    assert x.cpu().tolist() == [1, 1, 1]


def test_more_memory_than_the_device_has_is_torchs_own_error() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 80.00 GiB \(NPU 0; 64.00 GiB total capacity"):
        torch.empty(80 << 30, dtype=torch.uint8, device="npu")


def test_freed_memory_can_be_had_again() -> None:
    program = (
        "for _ in range(5): x = torch.empty(40 << 20, dtype=torch.uint8, device='npu'); del x; torch.npu.empty_cache()"
    )

    assert 0 == in_a_process_of_its_own(program, FAKECANN_DEVICE_BYTES=str(48 * MIB)).returncode


def test_a_host_that_touches_device_memory_dies() -> None:
    ended = in_a_process_of_its_own("ctypes.string_at(torch.ones(4, device='npu').data_ptr(), 1)")

    assert -signal.SIGSEGV == ended.returncode


def test_one_stream_runs_in_order() -> None:
    x = torch.ones(4, device="npu")
    for _ in range(10):
        x.mul_(2).add_(1)

    assert [2047.0] * 4 == x.cpu().tolist()


def test_a_pinned_copy_to_the_device_is_not_made_before_someone_waits() -> None:
    source, target = pinned(1.0, 2.0), torch.zeros(2, device="npu")
    torch.npu.synchronize()
    target.copy_(source, non_blocking=True)
    source.fill_(9.0)  # too early: the copy has not been made

    assert [9.0, 9.0] == target.cpu().tolist()


def test_a_pageable_copy_is_made_at_once() -> None:
    source, target = torch.tensor([1.0, 2.0]), torch.zeros(2, device="npu")
    target.copy_(source, non_blocking=True)
    source.fill_(9.0)

    assert [1.0, 2.0] == target.cpu().tolist()


def test_a_result_that_is_read_without_a_wait_is_stale() -> None:
    source, target = torch.tensor([5.0]).npu(), pinned(0.0)
    target.copy_(source, non_blocking=True)
    before = target.tolist()
    torch.npu.current_stream().synchronize()

    assert ([0.0], [5.0]) == (before, target.tolist())


def produced_and_consumed(waits: bool) -> list[float]:
    """One stream makes values, another reads them; the second may wait for the first or forget to."""
    values = torch.zeros(3, device="npu")
    torch.npu.synchronize()
    producer, consumer = torch.npu.Stream(), torch.npu.Stream()
    with torch.npu.stream(producer):
        values.add_(7)
        made = producer.record_event()
    with torch.npu.stream(consumer):
        if waits:
            consumer.wait_event(made)
        return (values * 2).cpu().tolist()


def test_an_event_orders_two_streams() -> None:
    assert [14.0] * 3 == produced_and_consumed(waits=True)


def test_a_missing_wait_is_seen() -> None:
    assert [0.0] * 3 == produced_and_consumed(waits=False)


def test_a_buffer_that_is_refilled_too_early_is_seen() -> None:
    """The copy stream does not wait for the reader of what it overwrites."""
    buffer, filling = torch.ones(2, device="npu"), pinned(3.0, 3.0)
    torch.npu.synchronize()
    copier = torch.npu.Stream()
    doubled = buffer * 2
    with torch.npu.stream(copier):
        buffer.copy_(filling, non_blocking=True)
    copier.synchronize()

    assert [6.0, 6.0] == doubled.cpu().tolist()


def test_asking_for_an_event_often_enough_reaches_it() -> None:
    torch.npu.synchronize()
    event = torch.npu.Event()
    torch.ones(2, device="npu").add_(1)
    event.record()

    assert not event.query()
    deadline = time.monotonic() + 10
    while not event.query():
        assert time.monotonic() < deadline


def test_the_time_between_two_events_is_measured() -> None:
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(2, device="npu").add_(1)
    end.record()
    end.synchronize()

    assert start.elapsed_time(end) > 0


def test_copies_and_waits_are_counted() -> None:
    x = torch.ones(256, device="npu")
    torch.npu.synchronize()
    counters.reset()
    x.cpu()
    counted = counters.read().counters

    assert (1, 1024) == (counted["device_to_host_copies"], counted["device_to_host_bytes"])
    assert counted["stream_syncs"] >= 1
    assert 0 == counted.get("launches", 0)


def test_a_prefetch_changes_nothing_and_is_counted() -> None:
    x = torch.ones(1024, device="npu")
    counters.reset()
    torch_npu.npu_prefetch(x, None, 4096)

    assert 1024 == x.sum().item()
    assert (1, 4096) == tuple(counters.read().counters[name] for name in ("prefetches", "prefetched_bytes"))


def test_an_operator_that_is_not_emulated_is_named() -> None:
    with pytest.raises(RuntimeError, match="aclnnErf is not emulated"):
        torch.erf(torch.ones(2, device="npu"))


def test_a_slice_of_a_fractal_matrix_is_refused_by_the_name_of_the_legacy_operator_it_needs() -> None:
    program = (
        "torch.npu.config.allow_internal_format = True\n"
        "torch_npu.npu_format_cast(torch.ones(40, 24).half().npu(), 29)[3:7].cpu()"
    )
    ended = in_a_process_of_its_own(program)

    assert 0 != ended.returncode
    assert "the legacy operator Identity is not emulated" in ended.stderr


@pytest.mark.parametrize("task_queue", ["0", "2"])  # 1 is the default
def test_an_operator_that_is_not_emulated_is_named_whatever_the_task_queue(task_queue: str) -> None:
    ended = in_a_process_of_its_own("torch.erf(torch.ones(2, device='npu')).cpu()", TASK_QUEUE_ENABLE=task_queue)

    assert 0 != ended.returncode
    assert "aclnnErf is not emulated" in ended.stderr


def test_a_kernel_that_fails_is_named_when_someone_waits() -> None:
    wrong = "x = torch.ones(2, device='npu').index_select(0, torch.tensor([5]).npu())"
    ended = in_a_process_of_its_own(f"{wrong}\nprint('launched', flush=True)\nx.cpu()")

    assert "launched\n" in ended.stdout
    assert "aclnnIndexSelect: " in ended.stderr
    assert 0 != ended.returncode


def test_memory_that_is_freed_under_a_copy_is_an_error() -> None:
    cann = ctypes.CDLL(str(Path(os.environ["FAKECANN"]) / "libfakecann.so"))
    address, stream, host = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    size = ctypes.c_size_t(512)
    assert 0 == cann.aclrtMalloc(ctypes.byref(address), size, 0)
    assert 0 == cann.aclrtMallocHost(ctypes.byref(host), size)
    assert 0 == cann.aclrtCreateStream(ctypes.byref(stream))
    assert 0 == cann.aclrtMemcpyAsync(address, size, host, size, 1, stream)
    assert 0 == cann.aclrtFree(address)

    assert 507015 == cann.aclrtSynchronizeStream(stream)
    assert 507015 == cann.aclrtDestroyStream(stream)
    assert 0 == cann.aclrtFreeHost(host)


def test_random_numbers_on_the_device_are_refused_not_invented() -> None:
    with pytest.raises(RuntimeError, match="is not emulated"):
        torch.rand(3, device="npu")


def test_wheel_and_torch_are_the_pinned_ones() -> None:
    pins = Path(__file__).parents[2].joinpath("ascend/requirements.txt").read_text()

    assert f"torch_npu=={torch_npu.__version__}" in pins
    assert f"torch=={torch.__version__.split('+')[0]}" in pins
