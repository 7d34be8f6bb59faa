"""Weights into the memory of a device that PyTorch drives: what arrives, in which order, and what the host holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", minversion="2.10", reason="needs PyTorch 2.10: make test-ascend installs it")

import torch
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ascend.fake_device
from ascend.fake_device import Misuse
from tests.system.tiny import FIXTURES, recorded, step
from trivet.base.errors import ResourceError
from trivet.base.settings import Settings
from trivet.driver.devices import torch_memory
from trivet.driver.devices.torch_memory import TorchCopy, TorchMemory
from trivet.framework.model.loader import load, open_model
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.read import ReadOptions, ReadReport
from trivet.framework.model.loading.staging import read_to_device

BYTES = np.random.default_rng(2).bytes(200_000)
FAKE = torch.device("fake", 0)


@pytest.fixture(autouse=True)
def _pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake device reads any memory of the host; PyTorch pins none where no accelerator is."""
    monkeypatch.setattr(torch_memory, "_pinned", lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loading") / "weights"
    path.write_bytes(BYTES)
    return path


def wanted(file: Path, cuts: list[int]) -> list[Range]:
    bounds = list(zip(cuts[::2], cuts[1::2], strict=False))
    return [Range(f"t{i}", file, a, b - a, xxhash.xxh3_64_intdigest(BYTES[a:b])) for i, (a, b) in enumerate(bounds)]


def brought(
    ranges: list[Range], num_buffers: int = 2, buffer_bytes: int = 8192
) -> tuple[TorchMemory, dict[str, int], ReadReport]:
    return read_to_device(
        ranges,
        lambda num_bytes: TorchMemory(num_bytes, FAKE),
        ReadOptions(2),
        buffer_bytes=buffer_bytes,
        num_buffers=num_buffers,
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, len(BYTES)), min_size=2, max_size=10).map(sorted),
    num_buffers=st.integers(1, 3),
    buffer_bytes=st.sampled_from([4096, 32768]),
)
def test_any_ranges_arrive_whole_as_tensors_of_the_device(
    file: Path, cuts: list[int], num_buffers: int, buffer_bytes: int
) -> None:
    ranges = [each for each in wanted(file, cuts) if each.num_bytes]
    memory, places, report = brought(ranges, num_buffers, buffer_bytes)
    for each in ranges:
        tensor = memory.view(places[each.name], (each.num_bytes,), torch.uint8)

        assert "fake" == tensor.device.type
        assert BYTES[each.offset : each.offset + each.num_bytes] == tensor.cpu().numpy().tobytes()
    assert sum(each.num_bytes for each in ranges) == report.verified
    memory.close()


def test_views_share_the_memory_and_have_shape_and_format(file: Path) -> None:
    memory, places, _ = brought(wanted(file, [4096, 8192]))
    matrix = memory.view(places["t0"], (4, 512), torch.bfloat16)

    assert (4, 512) == matrix.shape
    np.testing.assert_array_equal(np.frombuffer(BYTES[4096:8192], np.uint16), matrix.cpu().view(torch.uint16).flatten())


def test_a_ring_that_does_not_wait_for_its_copies_is_seen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchCopy, "wait", lambda copy: None)
    with pytest.raises(Misuse, match="was changed while a copy from it was on its way"):
        brought(wanted(file, [0, len(BYTES)]))
        torch.get_device_module(FAKE).synchronize()


def test_a_copy_that_the_device_refuses_is_an_error_of_ours(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(event: object) -> None:
        raise RuntimeError("error code is 507018\nmore")

    monkeypatch.setattr(ascend.fake_device.Event, "synchronize", refuse)
    with pytest.raises(ResourceError, match=r"device fake:0: a copy of 8.0 KiB failed: error code is 507018"):
        brought(wanted(file, [0, len(BYTES)]))


def test_memory_that_the_device_has_not_is_an_error_of_ours() -> None:
    with pytest.raises(ResourceError, match=r"device fake:0: \S+ \wiB of memory: "):
        TorchMemory(1 << 62, FAKE)


# --- what the host holds meanwhile ---

_PEAK = """
import sys
from pathlib import Path
def status(key): return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(key))
def peak_of(work):
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident now
    before = status("VmRSS")
    made = work()
    print(status("VmHWM") - before)
    return made
"""


def peak_of(program: str, *arguments: str | Path) -> int:
    """The most bytes beyond what it began with that a process had resident while it did `work`."""
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _PEAK + program, *map(str, arguments)], capture_output=True, text=True, env=environ,
        check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    return int(done.stdout.splitlines()[-1])


def test_the_host_holds_the_ring_and_no_second_copy(tmp_path: Path) -> None:
    """The pretend device's memory is the host's too, and so is what it keeps of each copy that is on its way."""
    size, buffer = 96 << 20, 4 << 20
    (tmp_path / "weights").write_bytes(np.random.default_rng(0).bytes(size))
    program = f"""
import torch, ascend.fake_device
from trivet.driver.devices import torch_memory
from trivet.framework.model.loading.extents import Range
from trivet.framework.model.loading.read import ReadOptions
from trivet.framework.model.loading.staging import read_to_device
torch_memory._pinned = lambda size: torch.empty(size, dtype=torch.uint8)
def bring(size):
    ranges = [Range(str(i), Path(sys.argv[1]), i * {buffer}, {buffer}) for i in range(size // {buffer})]
    memory_for = lambda size: torch_memory.TorchMemory(size, torch.device("fake", 0))
    return read_to_device(ranges, memory_for, ReadOptions(2, "buffered"), buffer_bytes={buffer})
bring({buffer})  # what comes with the first load whatever its size
peak_of(lambda: bring({size}))
"""
    peak = peak_of(program, tmp_path / "weights")

    assert size <= peak < 1.5 * size


def test_a_model_for_pytorch_on_the_cpu_is_in_memory_once(tmp_path: Path) -> None:
    kept = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    large, small = (open_model(wide_model(tmp_path, width), device="torch", settings=kept) for width in (20_000, 64))
    program = """
from trivet.framework.model.loader import load
few = dict(device="torch", max_sequences=1, max_context=16)
small = load(sys.argv[2], **few)  # what comes with the first load whatever its size
large = peak_of(lambda: load(sys.argv[1], **few))
"""
    peak = peak_of(program, large.path, small.path)

    assert large.weight_bytes <= peak < 1.5 * large.weight_bytes


def wide_model(folder: Path, intermediate: int) -> Path:
    from tests.unit.small_model import LLAMA_CONFIG, llama_tensors, write_folder

    config = {**LLAMA_CONFIG, "intermediate_size": intermediate, "hidden_size": 512}
    write_folder(folder / f"wide{intermediate}", llama_tensors(config), config)
    return folder / f"wide{intermediate}"


# --- models ---


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_loaded_model_has_the_recorded_logits(family: str, tmp_path: Path) -> None:
    oracle = recorded(family)
    kept = Settings(cache_dir=tmp_path, api_key=None, cpu_target=None)
    loaded = load(FIXTURES / family, device="torch", dtype="float32", settings=kept)
    logits = loaded.plan.run(step([oracle["prompt"]], [0]))

    assert np.abs(logits - oracle["logits_fp32"]).max() < 1e-3
    assert sum(each.bytes for each in loaded.package.stored.values()) == loaded.weights.verified
