"""A package may come from anywhere: whatever its manifest says, it is refused by name, or it answers."""

import json
from contextlib import closing, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import TINY

from trivet.base.errors import CheckpointError, TrivetError
from trivet.base.settings import Settings
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.model.convert import convert
from trivet.framework.model.loader import load

ANYTHING = st.sampled_from(
    [None, True, 0, -1, 1, 2, 16, 64, 1.5, 1e300, 10**20, "", "tokens", "int8", "panels", [], {}]
)
NUMBERS = st.sampled_from([lambda x: x + 1, lambda x: x - 1, lambda x: 2 * x, lambda x: -x, float, lambda x: x // 2])


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Where it is, and its manifest."""
    folder = tmp_path_factory.mktemp("hostile") / "package"
    convert(TINY / "llama", folder)
    return folder, json.loads((folder / "trivet.json").read_text())


def answer(folder):
    """Tokens of a short answer."""
    unused = Settings(cache_dir=folder, api_key=None, cpu_target=None)
    loaded = load(folder, settings=unused, threads=1, kv_memory=4 << 20, max_context=256, max_sequences=2)
    with closing(loaded.plan), closing(Engine(loaded.plan, loaded.tokenizer)) as engine:
        prompt = [loaded.plan.vocab_size - 1, 0] * 10
        engine.add(new_request("a", prompt, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)))
        deltas = []
        while engine.has_work:
            deltas += engine.step()
    return [token for delta in deltas for token in delta.token_ids]


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_changed_manifest_is_refused_or_answers(package, data):
    folder, whole = package
    document = json.loads(json.dumps(whole))
    place, key = document, data.draw(st.sampled_from(list(document)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans() | st.just(True)):
        place = place[key]
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
    is_number = type(place[key]) in (int, float)
    place[key] = data.draw(NUMBERS)(place[key]) if is_number and data.draw(st.booleans()) else data.draw(ANYTHING)
    (folder / "trivet.json").write_text(json.dumps(document))

    with suppress(TrivetError):
        assert len(answer(folder)) <= 3


def change(document, path, value):
    *parents, last = path
    for parent in parents:
        document = document[parent]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("graph", "streams", 0, 2), 64, "stream .* is of 64 heads"),
        (("graph", "nodes", 0, 1), ["positions", "nowhere"], "reads nowhere before it is made"),
        (("graph", "outputs"), [], "linear makes logits, which nothing reads"),
        (("graph", "values", "embed.weight", 0), [1024, 64], "weight embed.weight is"),
    ],
)
def test_a_graph_that_breaks_a_law_is_refused_before_anything_is_read(package, path, value, words):
    folder, whole = package
    document = json.loads(json.dumps(whole))
    change(document, path, value)
    (folder / "trivet.json").write_text(json.dumps(document))

    with pytest.raises(CheckpointError, match=words):
        answer(folder)
