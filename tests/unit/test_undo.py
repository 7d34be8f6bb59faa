"""What conversion packed comes apart again, exactly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trivet.base.dtypes import cast
from trivet.framework.graph.recipe import Concatenate, Constant, Recipe, Source, evaluate, undo

SIZES = st.sampled_from([1, 7, 31, 32, 33, 64, 65])


@given(
    parts=st.lists(SIZES, min_size=1, max_size=3), width=SIZES, dtype=st.sampled_from(["float32", "bfloat16", "int8"]),
    layout=st.sampled_from(["rows", "panels"]), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_weight_gives_back_the_rows_that_it_was_made_from(parts, width, dtype, layout, seed):
    rng = np.random.default_rng(seed)
    tensors = {f"t{i}": rng.standard_normal((rows, width)).astype(np.float32) for i, rows in enumerate(parts)}
    sources = tuple(Source(name, array.shape) for name, array in tensors.items())
    recipe = Recipe(Concatenate(sources) if len(sources) > 1 else sources[0], dtype, layout)
    blocks = evaluate(recipe, lambda name, start, stop: (tensors[name][start:stop], "float32"))
    stored = np.concatenate(list(blocks)).reshape(recipe.stored_shape)
    found = {source.tensor: rows for source, rows in undo(recipe, stored)}

    assert tensors.keys() == found.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(cast(array, "float32", dtype), found[name])


def test_a_vector_comes_back_and_a_constant_was_made_of_nothing():
    vector = np.arange(3, dtype=np.float32)

    assert [("v", [0, 1, 2])] == [(s.tensor, r.tolist()) for s, r in undo(Recipe(Source("v", (3,)), "float32"), vector)]
    assert [] == list(undo(Recipe(Constant((1.0, 2.0)), "float32"), vector))
