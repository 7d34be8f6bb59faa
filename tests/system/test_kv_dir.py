"""A model whose KV cache outlives its process: loaded, asked, closed, and asked again."""

from pathlib import Path

import pytest

from tests.system.tiny import FIXTURES
from trivet.base.dtypes import DType
from trivet.base.errors import ResourceError
from trivet.base.formats import KvFormat
from trivet.base.settings import Settings
from trivet.base.units import KIB, MIB
from trivet.driver.devices.device import DeviceName
from trivet.framework.engine.kv_metrics import KvMetrics
from trivet.framework.engine.llm import LLM
from trivet.framework.engine.params import SamplingParams
from trivet.framework.graph.cost import stream_bytes
from trivet.framework.memory.slots import lay_out
from trivet.framework.model import loader
from trivet.framework.model.kv_tiers import kv_identity
from trivet.framework.model.loader import LoadedModel, load, open_model

DEVICES: tuple[DeviceName, ...] = ("cpu", "torch")
PROMPT = [3 + i % 200 for i in range(300)]
PARAMS = SamplingParams(temperature=0, max_tokens=4, logprobs=1, ignore_eos=True)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(cache_dir=tmp_path_factory.mktemp("cache"), api_key=None, cpu_target=None)


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of one block each: those of 2 MiB hold 4096 tokens of a model as tiny as this."""
    monkeypatch.setattr(loader, "lay_out", lambda streams, slot_tokens: lay_out(streams, slot_tokens=16))


def loaded(settings: Settings, family: str = "llama", **options: object) -> LoadedModel:
    return load(FIXTURES / family, settings=settings, threads=1, max_sequences=2, max_context=512, **options)  # type: ignore[arg-type]


def found(llm: LLM) -> tuple[int, int, int]:
    counts = llm._engine.kv_counts().prefixes
    return counts.pool, counts.host, counts.files


def test_what_was_computed_before_a_restart_is_found_after_it_and_the_answer_is_the_same(
    settings: Settings, tmp_path: Path
) -> None:
    plain = LLM(loaded(settings)).generate(PROMPT, PARAMS)
    answers = []
    for _ in range(2):
        llm = LLM(loaded(settings, kv_dir=tmp_path, kv_dir_bytes=64 * MIB))
        answers.append(llm.generate(PROMPT, PARAMS))
        restored = found(llm)
        llm.close()

    assert [plain, plain] == answers
    assert restored[0] == restored[1] == 0
    assert 18 * 16 == restored[2]  # of 300 tokens


def test_another_model_in_the_same_folder_finds_nothing_of_it(settings: Settings, tmp_path: Path) -> None:
    for family in ("llama", "qwen3"):
        llm = LLM(loaded(settings, family, kv_dir=tmp_path))
        llm.generate(PROMPT, PARAMS)

        assert (0, 0, 0) == found(llm)
        llm.close()


def test_another_dtype_cache_device_or_layout_is_another_identity(settings: Settings) -> None:
    dtypes: tuple[tuple[DType, KvFormat | None], ...] = (("bfloat16", None), ("float32", None), ("bfloat16", "int8"))
    packages = [
        open_model(FIXTURES / "llama", dtype=dtype, kv_dtype=kv_dtype, settings=settings) for dtype, kv_dtype in dtypes
    ]
    identities = {
        kv_identity(package, lay_out(stream_bytes(package.graph), slot_tokens=slot_tokens), device)
        for package in packages
        for slot_tokens in (16, 32)
        for device in DEVICES
    }

    assert 3 * 2 * 2 == len(identities)


def test_a_block_of_one_cache_format_is_never_found_by_another(settings: Settings, tmp_path: Path) -> None:
    answers = []
    for kv_dtype in ("bfloat16", "int8", "int8", "bfloat16"):
        llm = LLM(loaded(settings, kv_dir=tmp_path, kv_dtype=kv_dtype))
        answers.append((llm.generate(PROMPT, PARAMS), found(llm)[2]))
        llm.close()
    whole, small, small_again, whole_again = answers

    assert (0, 0) == (whole[1], small[1])
    assert (18 * 16, 18 * 16) == (small_again[1], whole_again[1])
    assert (whole[0], small[0]) == (whole_again[0], small_again[0])
    assert whole[0] != small[0]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kv_host_bytes": 4 * KIB}, "--kv-host-bytes is 4.0 KiB, one block of this model is"),
        ({"kv_host_bytes": 1 << 60}, "--kv-host-bytes is .* of memory is available"),
        ({"kv_dir": Path("/proc/kv")}, "--kv-dir /proc/kv cannot be used"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_option_to_turn(
    settings: Settings, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ResourceError, match=message):
        loaded(settings, **options)


def test_the_metrics_say_where_tokens_were_found(settings: Settings) -> None:
    llm = LLM(loaded(settings))
    llm.generate(PROMPT, PARAMS)
    llm.generate(PROMPT, PARAMS)
    metrics = {metric.name: metric for metric in KvMetrics("tiny", llm._engine.kv_counts).collect()}
    (asked,) = metrics["vllm:prefix_cache_queries"].samples
    by_tier = {sample.labels["tier"]: sample.value for sample in metrics["trivet:kv_found_tokens"].samples}

    assert 2 * len(PROMPT) == asked.value
    assert [2, 0] == [metrics[f"trivet:kv_{name}"].samples[0].value for name in ("allocations", "delayed_allocations")]
    assert by_tier["pool"] > 0 == by_tier["host"] == by_tier["files"]
